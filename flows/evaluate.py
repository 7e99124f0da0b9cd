"""Score a model on held-out prompts, outside a training run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from prefect import flow

from flows.process.ended_flow_runs import note_process
from flows.progress import reporter
from flows.run_identity import new_run_id
from storage.config.run_config import RunConfig
from storage.evaluations.separate import compare_evaluations
from storage.home import Home
from storage.prompts.files import draw_subset, load_run_prompts, part_in_words
from tasks.evaluation import evaluate_weights, record_separately


@flow(name="evaluate", persist_result=False, on_running=[note_process])
def evaluate_model(
    config: RunConfig,
    run_id: str | None = None,
    images: Path | None = None,
    compare: str | None = None,
    evaluation_id: str | None = None,
    preset: str = "",
) -> dict[str, Any]:
    """Score a run's newest checkpoint, or the untouched model of the configuration, and keep the scores.

    Args:
        config: what to evaluate with; its prompts and sampling may differ from the run's.
        run_id: the run whose newest checkpoint is scored; None scores the untouched model.
        images: an empty folder for the images, in GenEval's layout; None keeps none.
        compare: identifier of an earlier evaluation to compare with, as `comparable` returns it.
        evaluation_id: an unused identifier; generated if None.
        preset: the configuration's or the run's preset; empty for none.

    Returns:
        `evaluation_id`, the run and the iteration, `score`, `exact`, their intervals, overall and by tag,
        `wall_s`, and, if asked for, `difference`.
    """
    started = time.monotonic()
    home = Home.from_environment().ensure()
    _, held_out = load_run_prompts(config)
    part = part_in_words(draw_subset(held_out, config.evaluation.prompts), held_out)
    reporter().note(f"evaluating {run_id or config.model.path} on {part}")
    evaluated = evaluate_weights(home, config, run_id)
    evaluation_id = evaluation_id or new_run_id(f"evaluate-{config.name}")
    result = record_separately(home, config, evaluation_id, evaluated, images, preset)
    if compare is not None:
        result |= {"difference": compare_evaluations(home, compare, evaluation_id)}
    return result | {"wall_s": time.monotonic() - started}
