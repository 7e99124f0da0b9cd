"""Gains by exploration at base success rates of 1, 5, 15, 30 and 60 %, with exact and graded rewards.

    python -m benchmarks.exploration_map [--keep] [--quick]

The bases are stages of one pre-training of the glyphs task, each the stage whose success under the
evaluation is nearest the wanted one. From each, two arms run with the same training batch, 32 prompts of 4
samples: `plain_nft` and `stale`. A cell gives both ends, and how soon stale reaches plain's end. One run seed
a cell: a difference of two ends has a standard error of about three points.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.exploration.arms import ALL, TASKS
from benchmarks.exploration.curve_store import curve_name
from benchmarks.exploration.curves import CurveWanted, curve_store, make_curves
from benchmarks.exploration.learning_curve import Curve
from benchmarks.report import finish, options
from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.embedded_tasks.registry import find_task
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.pretraining.flow_matching import RECIPES, Pretraining
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.simulator.comparison.learning_curves import end_of, reached_at
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.prompts.of_a_run import draw_subset, load_run_prompts

SUCCESS = (0.01, 0.05, 0.15, 0.30, 0.60)
"""Wanted exact matches before reinforcement learning."""

SIGNALS = ("exact", "graded")
MAP_ARMS = {"plain_nft": "plain", "stale": "stale"}
"""Strategies by the arm's name."""

DRAFTS = 448
"""Drafts an iteration, in whole ones: about half of all candidates."""

FIRST_STAGE, LAST_STAGE, STAGE = 240, 620, 10
"""Training steps of the pre-training between which stages are looked at, and every how many."""


def success_of(model: EmbeddedModel, config: RunConfig) -> float:
    """Held-out exact matches of a model, two images a prompt, as the run's evaluation makes them."""
    held_out = draw_subset(load_run_prompts(config)[1], config.evaluation.prompts)
    sampler, scorer = Sampler(model, config.sampling), build_scorer(config.reward)
    requests = [
        SampleRequest(
            RequestKind.EVALUATE, 0, 0, prompt.prompt_id, seed, 0, prompt.text, source=prompt.source
        )
        for prompt in held_out
        for seed in range(2)
    ]
    images = [sample.image_HWC for sample in sampler.generate(requests)]
    scores = score_each(scorer, images, [prompt for prompt in held_out for _ in range(2)])
    return statistics.fmean(score.exact for score in scores)


def make_bases(folder: Path, wanted: Sequence[float]) -> dict[float, Path]:
    """The stages of a pre-training whose success is nearest the wanted ones; kept for the next call."""
    places = {success: folder / f"{round(success * 100):02d}" for success in wanted}
    # Written last: an interrupted call leaves first guesses behind.
    complete = folder / "complete"
    if complete.is_file():
        return places
    config = load_config(TASKS["ocr"].preset, [], {})
    run = Pretraining(find_task("glyphs"), RECIPES["glyphs"], seed=0)
    distance = dict.fromkeys(wanted, 1.0)
    for done in range(1, LAST_STAGE + 1):
        run.advance()
        if done < FIRST_STAGE or done % STAGE:
            continue
        model = run.averaged_model({"training_steps_done": done})
        success = success_of(model, config)
        print(f"stage {done}: {success:.3f}", file=sys.stderr)
        for want in wanted:
            if abs(success - want) < distance[want]:
                distance[want] = abs(success - want)
                model.save(places[want])
        if success > max(wanted) + 0.05:
            break
    complete.touch()
    return places


def cell_config(base: Path, signal: str, arm: str) -> RunConfig:
    """The configuration of one curve of a cell."""
    settings = [
        "seed=0",
        f"model.path={base}",
        f"reward.signal={signal}",
        f"exploration.drafts={DRAFTS}",
        *ALL,
        f"exploration.strategy={MAP_ARMS[arm]}",
        # One learning rate for both arms: the best without exploration, so that exploration alone differs.
        "optimizer.learning_rate=2e-4",
    ]
    return load_config(TASKS["ocr"].preset, settings, {})


def _curve(base: Path, signal: str, arm: str, iterations: int, every: int) -> CurveWanted:
    config = cell_config(base, signal, arm)
    name = curve_name(f"{base.name}-{signal}-{arm}", config, iterations, every)
    return CurveWanted(name, config, iterations, every)


def cell_of(wanted: float, signal: str, plain: Curve, stale: Curve) -> dict[str, Any]:
    """The figures of one cell."""
    curves = {"plain": plain, "stale": stale}
    values = {name: curve.score if signal == "graded" else curve.exact for name, curve in curves.items()}
    ends = {name: end_of(found) for name, found in values.items()}
    reached = {
        name: reached_at(curve.iterations, values[name], ends["plain"]) for name, curve in curves.items()
    }
    slow, fast = reached["plain"], reached["stale"]
    return {
        "wanted": wanted,
        "signal": signal,
        "base_exact": round(plain.exact[0], 4),
        "base_score": round(plain.score[0], 4),
        "plain_end": round(ends["plain"], 4),
        "stale_end": round(ends["stale"], 4),
        "plain_end_exact": round(end_of(plain.exact), 4),
        "stale_end_exact": round(end_of(stale.exact), 4),
        "gain": round(ends["stale"] - ends["plain"], 4),
        "speedup": round(slow / fast, 2) if slow and fast else None,
        "plain_dropped": round(statistics.fmean(plain.dropped), 2),
        "stale_dropped": round(statistics.fmean(stale.dropped), 2),
        "iterations": plain.iterations[-1],
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2, help="curves at a time, one core each")
    parser.add_argument("--quick", action="store_true", help="two bases, exact reward, 6 iterations")
    arguments = parser.parse_args()
    wanted, signals, iterations, every = SUCCESS, SIGNALS, arguments.iterations, 2
    if arguments.quick:
        wanted, signals, iterations = (0.05, 0.30), ("exact",), 6
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    bases = make_bases(
        Home.from_environment().ensure().path / "benchmarks" / f"bases-{arguments.commit}", wanted
    )
    store = curve_store("exploration-map", arguments.commit)
    wanted = {
        (success, signal, arm): _curve(base, signal, arm, iterations, every)
        for success, base in bases.items()
        for signal in signals
        for arm in MAP_ARMS
    }
    made = make_curves(store, wanted, arguments.processes)
    cells = [
        cell_of(
            success,
            signal,
            *(made[success, signal, arm] for arm in MAP_ARMS),
        )
        for success in bases
        for signal in signals
    ]
    figures = {"task": "ocr", "cells": cells}
    finish("exploration-map", figures, arguments, module="exploration_map")


if __name__ == "__main__":
    main()
