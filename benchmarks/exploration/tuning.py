"""Choose each arm's recipe, then an arm, on tuning prompts and by run seeds that no figure uses.

Every arm is tried with every recipe of its objective (`arms.recipes_of`) by one short curve. Its two best
recipes are compared by two more run seeds, by curves as long as the reported ones: a rate that is ahead after
ten iterations may unlearn in the next ten. The best recipe has the largest mean gain over the evaluations
after the first, which rewards learning early and learning long. The exploring arm of an objective is the one
that takes the smallest part of the time in which its arm without exploration gets to 75 % of its gain. Arms
with smaller iterations do more of them, in as much time.

Tuning prompts are cut from the training prompts: held-out ones are for figures alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exploration.arms import ARMS, Recipe, arm_config, arms_of, recipes_of
from benchmarks.exploration.curve_store import CurveStore, CurveWanted, curve_name
from benchmarks.exploration.learning_curve import Curve, measure_of
from benchmarks.exploration.modelled_fleet import MIXED
from benchmarks.exploration.summary import arm_curves, time_ratio
from benchmarks.models.builtin_prompts import bound_objects
from storage.config.loading import load_config
from storage.config.run_config import PromptsConfig
from storage.prompts.files import resolve_prompt_path

TUNING_SEED, FINAL_SEEDS = 100, (101, 102)
"""Run seeds of the short curves and of the long ones; those of figures count from 0."""

FINALISTS = 2
"""Recipes of an arm that have long curves."""

TUNING_ITERATIONS, TUNING_EVERY = {"nft": 10, "grpo": 24, "awm": 24, "grpo-guard": 24, "dpo": 10}, 2
"""Iterations of a short curve, by objective, and iterations between evaluations. In its first ten Flow-GRPO
gains hardly more than an evaluation errs by."""

TUNED_TASK = "ocr-graded"
"""Whose tuning serves a task that has none."""

HELD_OUT = 96
"""Prompts that settings are judged by, at least; as many as an evaluation takes."""

SUBJECTS: Mapping[str, Callable[[str], Hashable]] = {
    "ocr": lambda line: line.split('"')[1],  # what a prompt of `glyphs` wants written
    "shapes": bound_objects,
}
"""The property of a prompt, by scorer, that no two prompts on different sides of a split share."""


def tuning_split(
    lines: Sequence[str], subject: Callable[[str], Hashable], count: int
) -> tuple[list[str], list[str]]:
    """Divide prompts in two, so that no subject is on both sides; always in the same way.

    Returns:
        Lines to train on and lines to judge by, each in their order.
    """
    subjects = list(dict.fromkeys(map(subject, lines)))
    of_line = [subject(line) for line in lines]
    held: set[Hashable] = set()
    for place in np.random.default_rng(0).permutation(len(subjects)):
        if sum(one in held for one in of_line) >= count:
            break
        held.add(subjects[place])
    pairs = list(zip(lines, of_line, strict=True))
    return [line for line, one in pairs if one not in held], [line for line, one in pairs if one in held]


def tuning_settings(scorer: str, preset: str, folder: Path) -> tuple[str, ...]:
    """Settings by which a preset trains and is judged on its training prompts alone."""
    whole = resolve_prompt_path(load_config(preset, [], {}).prompts.train)
    lines = whole.read_text(encoding="utf-8").splitlines()
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = tuning_split(lines, SUBJECTS[scorer], HELD_OUT)
    settings = []
    for name, part in (("train", train), ("evaluate", held_out)):
        path = folder / f"{scorer}-{name}{whole.suffix}"
        path.write_text("\n".join(part) + "\n", encoding="utf-8")
        settings.append(f"prompts.{name}={path}")
    return tuple(settings)


Tried = tuple[str, Recipe, int]
"""An arm, the recipe that it is tried with, and the run seed."""


@dataclass(frozen=True)
class Tuned:
    """What is chosen.

    Attributes:
        recipes: of each arm that was tried with all of its objective's.
        chosen: the exploring arm of each objective that has one tuned.
        figures: what it was chosen by, for the result.
    """

    recipes: Mapping[str, Recipe]
    chosen: Mapping[str, str]
    figures: Mapping[str, Any]


def tuning_curves(task: str, prompts: Sequence[str] = ()) -> dict[Tried, CurveWanted]:
    """The curves that settings of a task may be chosen by: of every arm, recipe and run seed."""
    wanted = {}
    for arm, run_seed in product(arms_of(task), (TUNING_SEED, *FINAL_SEEDS)):
        spent, every = ARMS[arm], ARMS[arm].every * TUNING_EVERY
        short = spent.every * TUNING_ITERATIONS[spent.objective]
        length = short if run_seed == TUNING_SEED else spent.iterations
        for recipe in recipes_of(task, arm):
            config = arm_config(task, arm, run_seed, recipe, prompts)
            # Their prompts are files in the home, and follow from the training ones.
            identity = config.model_copy(update={"prompts": PromptsConfig()})
            name = curve_name(arm, identity, "tuning", length, every)
            wanted[arm, recipe, run_seed] = CurveWanted(name, config, length, every)
    return wanted


def finalists(task: str, arm: str, curves: Mapping[Tried, Curve]) -> list[Recipe]:
    """Return an arm's best recipes by short curves, the best one first; none before all are tried."""
    recipes = recipes_of(task, arm)
    if any((arm, recipe, TUNING_SEED) not in curves for recipe in recipes):
        return []
    short = {one: _mean_gain(task, arm, [curves[arm, one, TUNING_SEED]]) for one in recipes}
    return sorted(recipes, key=lambda one: -short[one])[:FINALISTS]


def _mean_gain(task: str, arm: str, curves: Sequence[Curve]) -> float:
    measure = measure_of(arm_config(task, arm, 0))
    return statistics.fmean(statistics.fmean(curve.gains(measure)[1:]) for curve in curves)


def _rows(gains: Mapping[Recipe, float]) -> list[dict[str, Any]]:
    return [{**vars(one), "mean_gain": round(gain, 4)} for one, gain in gains.items()]


def choose(task: str, curves: Mapping[Tried, Curve]) -> Tuned:
    """Choose recipes and arms by the curves of `tuning_curves`.

    An arm without a short curve of every recipe is not tuned. One without the long curves of its finalists
    has the better of them by short curves, and is compared with arms of as many curves only.
    """
    recipes: dict[str, Recipe] = {}
    tried: dict[str, list[dict[str, Any]]] = {}
    finals: dict[str, list[dict[str, Any]]] = {}
    best: dict[tuple[str, int], Curve] = {}
    for name in ARMS:
        last = finalists(task, name, curves)
        if not last:
            continue
        is_final = all((name, one, seed) in curves for one, seed in product(last, FINAL_SEEDS))
        seeds = FINAL_SEEDS if is_final else (TUNING_SEED,)
        gains = {one: _mean_gain(task, name, [curves[name, one, seed] for seed in seeds]) for one in last}
        recipes[name] = recipe = max(last, key=lambda one: gains[one])
        best |= {(name, seed): curves[name, recipe, seed] for seed in seeds}
        recipes_tried = recipes_of(task, name)
        short = {one: _mean_gain(task, name, [curves[name, one, TUNING_SEED]]) for one in recipes_tried}
        tried[name], finals[name] = _rows(short), _rows(gains) if is_final else []
    configs = {name: arm_config(task, name, 0) for name in recipes}
    arms = arm_curves(best, configs)
    # Of each exploring arm whose arm without exploration has the same curves; 0 where it gains too little.
    ratios = {
        name: time_ratio(arms[plain], arm, MIXED)["median"] or 0.0
        for name, arm in arms.items()
        if (plain := ARMS[name].plain) in arms and arms[plain].curves.keys() == arm.curves.keys()
    }
    objectives = {ARMS[name].objective for name in ratios}
    chosen = {
        objective: max(
            (name for name in ratios if ARMS[name].objective == objective), key=lambda n: ratios[n]
        )
        for objective in sorted(objectives)
    }
    figures = {
        name: {
            **vars(recipe),
            "time_ratio_75": ratios.get(name),
            "tried": tried[name],
            "finals": finals[name],
        }
        for name, recipe in recipes.items()
    }
    return Tuned(
        recipes,
        chosen,
        {"task": task, "run_seeds": [TUNING_SEED, *FINAL_SEEDS], "chosen": chosen, "arms": figures},
    )


def tuned_of(task: str, arguments: argparse.Namespace) -> Tuned | None:
    """What was chosen for a task, or else for `TUNED_TASK`; None where neither has been tuned."""
    for name in dict.fromkeys([task, TUNED_TASK]):
        kept = CurveStore.of_call(f"tuning-{name}", arguments).kept(tuning_curves(name))
        if (tuned := choose(name, kept)).chosen:
            return tuned
    return None
