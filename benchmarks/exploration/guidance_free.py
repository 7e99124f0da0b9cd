"""Post-training with guidance and without: the same model, trained and judged in either way.

    python -m benchmarks.guidance_free [--seeds 3] [--after COMMIT] [--as-is] [--keep]

The model is made first, in the home, as `spotlight pretrain glyphs-guided` does: it takes guidance.
`guided` rolls out, trains and is judged with guidance, `guidance_free` does all of it without, in half the
passes. Both learn texts from the graded score by DiffusionNFT, without exploration; the curves are the
exploration benchmark's (`benchmarks/exploration/learning_curve.py`).

The strength of guidance is the one with which the untouched model scores best. It and each arm's learning
rate, of three, are chosen on tuning prompts, with a run seed that no figure is of.

The arms are compared after as many trained samples, and after as many passes of the transformer, where the
shorter arm ends: medians over run seeds, ratios of `guided` over `guidance_free` with a bootstrap interval.
A pass is a forward one, of a step of a rollout or of a row of training, whose backward pass is not counted.
Evaluations are not counted either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.exploration.arms import TASKS, Recipe, arm_config
from benchmarks.exploration.curve_store import add_curve_options, commits_since, curve_name
from benchmarks.exploration.curves import CurveWanted, curve_store, make_curves
from benchmarks.exploration.in_process_cluster import TRAIN
from benchmarks.exploration.learning_curve import Curve
from benchmarks.exploration.summary import ArmCurves, arm_curves, ratio_of_medians
from benchmarks.exploration.tuning import TUNING_ITERATIONS, TUNING_SEED
from benchmarks.exploration.tuning_prompts import tuning_settings
from benchmarks.report import finish, options
from gpu_runtime.learning.registry import rows_of_sample
from gpu_runtime.models.embedded.folder import TRANSFORMER_WEIGHTS
from gpu_runtime.pretraining import flow_matching
from gpu_runtime.scheduling.requests import RequestKind
from storage.config.run_config import PromptsConfig
from storage.home import Home

NAME, MODEL = "guidance_free", "glyphs-guided"
TASK, LIKE = "ocr-graded", "plain_nft_shared"
STRENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
RECIPES = (Recipe(1e-4, 8), Recipe(3e-4, 8), Recipe(6e-4, 8))
ITERATIONS = {"guided": 12, "guidance_free": 24}
"""Iterations of a curve, by arm, so that both arms make about as many passes."""

EVERY = 2
"""Iterations between evaluations."""

_ROLLOUT = RequestKind.ROLLOUT.value


@dataclasses.dataclass(frozen=True)
class Setting:
    """The model and the prompts of a curve.

    Attributes:
        model: folder of the model.
        prompts: settings of tuning prompts; empty for the task's own.
    """

    model: Path
    prompts: tuple[str, ...] = ()

    def wanted(
        self, arm: str, strength: float, recipe: Recipe, run_seed: int, iterations: int
    ) -> CurveWanted:
        """A curve, whose name depends on no path."""
        more = f"model.path={self.model}", f"model.guidance={strength:g}"
        config = arm_config(TASK, LIKE, run_seed, recipe, (*more, *self.prompts))
        nowhere = {"model": config.model.model_copy(update={"path": MODEL}), "prompts": PromptsConfig()}
        made_by = self.model.parent.name, "tuning" if self.prompts else "", iterations, EVERY
        name = curve_name(arm, config.model_copy(update=nowhere), *made_by)
        return CurveWanted(name, config, iterations, EVERY)


def model_folder() -> Path:
    """The folder of the model; one for each recipe of pre-training."""
    recipe = flow_matching.RECIPES[MODEL]
    digest = hashlib.blake2b(json.dumps(asdict(recipe)).encode(), digest_size=8).hexdigest()
    folder = Home.from_environment().ensure().path / "benchmarks" / "guided-model" / digest
    return folder / MODEL


def make(model: Path) -> None:
    """Make the model if it is not there."""
    if not (model / TRANSFORMER_WEIGHTS).is_file():
        torch.set_num_threads(1)
        flow_matching.pretrain(MODEL, model.parent)


def scanned(setting: Setting) -> dict[float, CurveWanted]:
    """The untouched model on the tuning prompts, by strength: curves without an iteration."""
    return {
        strength: setting.wanted("untouched", strength, RECIPES[0], TUNING_SEED, 0) for strength in STRENGTHS
    }


def tried(setting: Setting, strengths: Mapping[str, float]) -> dict[tuple[str, Recipe], CurveWanted]:
    """Each arm with each recipe, on the tuning prompts."""
    length = TUNING_ITERATIONS["nft"]
    return {
        (arm, recipe): setting.wanted(arm, strength, recipe, TUNING_SEED, length)
        for recipe in RECIPES
        for arm, strength in strengths.items()
    }


def chosen_recipes(curves: Mapping[tuple[str, Recipe], Curve]) -> dict[str, Recipe]:
    """Each arm's recipe with the best mean score over the evaluations after the first."""
    return {
        arm: max(RECIPES, key=lambda recipe: statistics.fmean(curves[arm, recipe].score[1:]))
        for arm in ITERATIONS
    }


def passes_of(curve: Curve, strength: float, steps: int, rows: float) -> float:
    """Forward passes of the transformer in a mean iteration of a curve.

    Args:
        curve: its counts.
        strength: of guidance, which above 1 doubles each pass.
        steps: denoising steps of a rollout.
        rows: rows that training makes of a sample.
    """
    samples = curve.samples[_ROLLOUT] * steps + curve.samples[TRAIN] * rows
    return (2 if strength > 1 else 1) * samples / len(curve.rollouts)


def compare(curves: Mapping[tuple[str, int], Curve], strengths: Mapping[str, float]) -> dict[str, Any]:
    """The figures of both arms.

    Args:
        curves: by arm and run seed; a run seed that one arm lacks is left out.
        strengths: of guidance, by arm.
    """
    config = arm_config(TASK, LIKE, 0)
    paired = {
        key: curve for key, curve in curves.items() if all((arm, key[1]) in curves for arm in ITERATIONS)
    }
    arms = arm_curves(paired, dict.fromkeys(ITERATIONS, config))
    rows = rows_of_sample(config.sampling, config.algorithm)
    passes = {
        name: statistics.median(
            passes_of(curve, strengths[name], config.sampling.rollout_steps, rows)
            for curve in arm.curves.values()
        )
        for name, arm in arms.items()
    }
    return {
        "task": TASK,
        "run_seeds": len(arms["guided"].curves),
        "guidance": strengths["guided"],
        "start": {
            name: {"score": round(arm.base(), 4), "exact": round(_exact(arm).base(), 4)}
            for name, arm in arms.items()
        },
        "passes_an_iteration": {name: round(value, 1) for name, value in passes.items()},
        "seconds_an_iteration": {
            name: round(
                statistics.median(
                    (curve.seconds[_ROLLOUT] + curve.seconds[TRAIN]) / len(curve.rollouts)
                    for curve in arm.curves.values()
                ),
                3,
            )
            for name, arm in arms.items()
        },
        "after": {
            "trained samples": _after(arms, {name: arm.trained for name, arm in arms.items()}),
            "passes": _after(arms, passes),
        },
    }


def _exact(arm: ArmCurves) -> ArmCurves:
    return replace(arm, measure="exact")


def _after(arms: Mapping[str, ArmCurves], unit: Mapping[str, float]) -> dict[str, Any]:
    """The arms after an equal amount, where the shorter one ends.

    Args:
        arms: by name.
        unit: amount of an iteration, by arm.
    """
    ends = {name: min(curve.iterations[-1] for curve in arm.curves.values()) for name, arm in arms.items()}
    amount = min(unit[name] * ends[name] for name in arms)
    at = {name: amount / unit[name] for name in arms}
    gains = {name: arm.gains_at(at[name]) for name, arm in arms.items()}
    scores = {
        name: [curve.score[0] + gain for curve, gain in zip(arm.curves.values(), gains[name], strict=True)]
        for name, arm in arms.items()
    }
    exact = {
        name: [
            curve.exact[0] + gain
            for curve, gain in zip(arm.curves.values(), _exact(arm).gains_at(at[name]), strict=True)
        ]
        for name, arm in arms.items()
    }
    return {
        "amount": round(amount),
        **{
            name: {
                "iterations": round(at[name], 2),
                "gain": round(statistics.median(gains[name]), 4),
                "score": round(statistics.median(scores[name]), 4),
                "exact": round(statistics.median(exact[name]), 4),
                "scores": [round(value, 4) for value in scores[name]],
            }
            for name in arms
        },
        "gain_ratio": ratio_of_medians(gains["guided"], gains["guidance_free"]),
        "score_ratio": ratio_of_medians(scores["guided"], scores["guidance_free"]),
        "exact_ratio": ratio_of_medians(exact["guided"], exact["guidance_free"]),
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    add_curve_options(parser, 3)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    store = curve_store(NAME, arguments.commit, commits_since(arguments.after))
    jobs, model = 0 if arguments.as_is else arguments.jobs, model_folder()
    if not arguments.as_is:
        make(model)
    prompts = tuning_settings(TASKS[TASK].scorer, TASKS[TASK].preset, model.parents[2] / "tuning-prompts")
    tuning = Setting(model, prompts)
    untouched = make_curves(store, scanned(tuning), jobs)
    strengths = {arm: 1.0 for arm in ITERATIONS}
    strengths["guided"] = max(STRENGTHS, key=lambda one: untouched[one].score[0] if one in untouched else 0.0)
    trials = make_curves(store, tried(tuning, strengths), jobs)
    if len(trials) < len(RECIPES) * len(ITERATIONS):
        parser.error("not all trials have curves; leave out --as-is to make them")
    recipes = chosen_recipes(trials)
    wanted = {
        (arm, run_seed): Setting(model).wanted(arm, strengths[arm], recipes[arm], run_seed, length)
        for run_seed in range(arguments.seeds)
        for arm, length in ITERATIONS.items()
    }
    curves = make_curves(store, wanted, jobs)
    if arguments.keep:
        store.keep()
    figures = {
        **compare(curves, strengths),
        "tuning": {
            "untouched_by_guidance": {
                f"{one:g}": {"score": round(curve.score[0], 4), "exact": round(curve.exact[0], 4)}
                for one, curve in untouched.items()
            },
            "recipes": {arm: vars(recipe) for arm, recipe in recipes.items()},
            "tried": [
                {"arm": arm, **vars(recipe), "mean_score": round(statistics.fmean(curve.score[1:]), 4)}
                for (arm, recipe), curve in trials.items()
            ],
        },
    }
    finish(NAME, figures, arguments)


if __name__ == "__main__":
    main()
