"""A task that makes an embedded model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from prefect import task

from gpu_runtime.pretraining.flow_matching import pretrain


@task(name="pretrain-model", task_run_name="pretrain-model", persist_result=False)
def pretrain_model(
    model: str, out: Path, seed: int, progress: Callable[[int, int, float], None]
) -> dict[str, Any]:
    """Make an embedded model.

    Args: those of `flows.pretrain.pretrain`; `progress` gets training steps done, steps in all, and the loss.
    """
    # More threads change the rounding of sums and therefore the weights.
    torch.set_num_threads(1)
    report = asdict(pretrain(model, out, seed=seed, callback=progress))
    return {name: str(value) if isinstance(value, Path) else value for name, value in report.items()}
