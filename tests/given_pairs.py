"""Pairs of pictures for tests: signs of the embedded task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gpu_runtime.embedded_tasks.registry import find_task
from storage.prompts.sources import as_data_uri


def pairs_file(folder: Path, count: int, without: int = 0) -> Path:
    """Signs as their prompts ask, preferred to those of the next prompt; some prompts without a pair."""
    task, rng = find_task("glyphs"), np.random.default_rng(0)
    prompts = [task.draw_prompt(rng) for _ in range(count + 1)]
    pictures = [as_data_uri(task.render(prompt, rng)) for prompt in prompts]
    rows = [
        {"prompt": prompt.text} | ({} if index < without else {"preferred": better, "rejected": worse})
        for index, (prompt, better, worse) in enumerate(zip(prompts, pictures, pictures[1:], strict=False))
    ]
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
