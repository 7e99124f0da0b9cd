"""Scoring a model on held-out prompts, outside a training run."""

from __future__ import annotations

import time
from typing import Any

from prefect import flow

from flows.progress import reporter
from storage.config import RunConfig
from storage.home import Home
from tasks.evaluation import evaluate_weights


@flow(name="evaluate", persist_result=False)
def evaluate_model(config: RunConfig, run_id: str | None = None) -> dict[str, Any]:
    """Score a run's newest checkpoint, or the untouched model of the configuration.

    Args:
        config: what to evaluate with; its prompts and sampling may differ from the run's.
        run_id: the run whose newest checkpoint is scored; None scores the untouched model.

    Returns:
        `score`, `exact`, `images`, `wall_s`, the run and the iteration.
    """
    started = time.monotonic()
    home = Home.from_environment().ensure()
    reporter().note(f"evaluating {run_id or config.model.path}")
    return evaluate_weights(home, config, run_id) | {"wall_s": time.monotonic() - started}
