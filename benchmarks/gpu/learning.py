"""The learning stage: the recipe of `glyphs-stale` for as long as time allows, with its score curve.

The images before and after have the same held-out prompts and seeds.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from benchmarks.gpu.live_run import LiveRun, live_run
from benchmarks.gpu.stages import Figures, Reporter, Setting
from gpu_runtime.fleet.evaluation import Evaluation
from storage.config.loading import load_config

GAIN = 0.1
"""Gain in score over the untouched model whose time is reported."""

_SETTINGS = (
    "runtime.reserved_workers=1", "runtime.spot_workers=2", "runtime.scorer_workers=8",
    "runtime.start_timeout_s=120", "iterations=1000",
)  # fmt: skip
_TINY = (
    "runtime.spot_workers=1", "runtime.scorer_workers=1", "iterations=2", "evaluation.every=1",
    "evaluation.prompts=8", "algorithm.prompts_per_iteration=4", "exploration.candidates=6",
    "algorithm.updates_per_iteration=1", "exploration.monitor_prompts=0",
)  # fmt: skip
_SHOWN, _COLUMNS, _SCALE = 24, 8, 2


def learn(setting: Setting, report: Reporter) -> None:
    """Run the stage."""
    settings = [*_SETTINGS, *(_TINY if setting.tiny else ()), f"model.device={setting.device}"]
    config = load_config("glyphs-stale", settings, {})

    def evaluated(run: LiveRun) -> None:
        report(**curve(run))
        if setting.folder is not None:
            _, _, evaluation = run.evaluations[-1]
            name = "before" if len(run.evaluations) == 1 else "after"
            picture(evaluation).save(setting.folder / f"glyphs-{name}.png")

    live_run(config, seconds=0.9 * setting.limit_s, on_evaluation=evaluated)


def curve(run: LiveRun) -> Figures:
    """Return the scores so far."""
    scores = [evaluation.score for _, _, evaluation in run.evaluations]
    reached = [at_s for _, at_s, evaluation in run.evaluations if evaluation.score >= scores[0] + GAIN]
    return {
        "score_before": scores[0],
        "score_after": scores[-1],
        "exact_before": run.evaluations[0][2].exact,
        "exact_after": run.evaluations[-1][2].exact,
        "iterations": len(run.iteration_s),
        "iteration_s": float(np.median(run.iteration_s)) if run.iteration_s else None,
        "time_to_gain_s": reached[0] if reached else None,
        "curve": [
            [iteration, round(at_s, 2), evaluation.score] for iteration, at_s, evaluation in run.evaluations
        ],
    }


def picture(evaluation: Evaluation) -> Image.Image:
    """Return the first held-out images in rows.

    Their file has no tags and is in random order, so its head is representative.
    """
    images = [sample.image_HWC for sample in evaluation.samples[:_SHOWN]]
    blanks = [np.full_like(images[0], 255)] * (-len(images) % _COLUMNS)
    rows_RNHWC = np.stack([*images, *blanks]).reshape(-1, _COLUMNS, *images[0].shape)
    grid = Image.fromarray(np.concatenate([np.concatenate(row_NHWC, axis=1) for row_NHWC in rows_RNHWC]))
    return grid.resize((grid.width * _SCALE, grid.height * _SCALE), Image.Resampling.NEAREST)
