"""`spotlight prompts`: writes a file of prompts to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from storage.new_folder import writable_file

_MOST = 1_000_000


def prompts(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="geneval, or signs: a text to be written.")],
    count: Annotated[int, typer.Argument(max=_MOST, help="How many.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help=".jsonl for geneval, .txt for signs.")],
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the prompts.")] = 0,
) -> None:
    """Draw a longer file of prompts to train on; none of them is in the file to evaluate by."""
    from tasks.prompt_files import draw_prompts

    content = draw_prompts(kind, count, seed, path)
    writable_file(path, "FILE").write_text(content, encoding="utf-8")
    typer.echo(f"wrote {count} prompts to {path}; train with --set prompts.train={path}")
