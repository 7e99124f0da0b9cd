"""How many iterations, and how much modelled time, exploration saves: learning curves of six arms.

    python -m benchmarks.exploration --task shapes [--quick] [--keep]

Arms: `plain` (G seeds of each prompt, at its own best settings), `plain_same` (stale's settings, without
exploration), `fresh` (drafts with current weights, on the critical path), `stale`
(drafts with the previous iteration's weights, beside training: Spotlight), `stale_uniform` (without the
bandit), `stale_variance` (the paper's selection: the group of maximum variance, advantages within it, no
larger pool of prompts), `oracle` (every candidate judged with current weights) and `larger_batch` (plain,
with the device-seconds of exploration spent on a larger group instead).

The target is what `plain` reaches at its end: the mean of its last evaluations over all run seeds. A
curve reaches it where its running mean of three evaluations does, interpolated; one that never does is
null. `speedup` is plain's median over stale's, both by that rule; arms run as long as ARMS says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from benchmarks.curve_store import CurveStore
from benchmarks.learning_curve import Curve, LearningCurve, ModelledFleet
from benchmarks.report import add_keep_option, finish
from storage.config import RunConfig
from storage.config_loading import load_config
from storage.environment import environment

LAST = 3
"""Evaluations that a curve's end is the mean of."""

SMOOTH = 3
"""Evaluations in a running mean."""

FLEET = ModelledFleet()


@dataclass(frozen=True)
class Arm:
    """One way to spend an iteration.

    Attributes:
        settings: on top of the task's.
        length: iterations, as a share of plain's.
    """

    settings: tuple[str, ...]
    length: float


PRESETS = {"ocr": "glyphs-stale", "shapes": "shapes-stale"}
"""The preset that Spotlight is run with; `stale` is that preset as it is."""

DRAFTS = 448
"""Drafts an iteration of every arm that explores but the oracle: 3.5 for each sample that is trained on.
An assumption; what exceeds the training window is charged to the critical path."""

EVALUATE = ("evaluation.images_per_prompt=5",)
"""Held-out images of a prompt: 480, or 640 of glyphs."""

PLAIN = (
    "exploration.strategy=plain",
    "algorithm.prompts_per_iteration=32",
    "algorithm.group_size=4",
    "algorithm.advantage_std=group",
    "algorithm.updates_per_iteration=2",
    "optimizer.learning_rate=2e-4",
)
"""Flow-GRPO at the best of the group shapes and learning rates that were tried; see docs/measurements.md."""

PAPER = (
    *PLAIN,
    "exploration.strategy=stale",
    "exploration.criterion=variance",
    "exploration.baseline=group",
    "exploration.prompt_pool=1",
    "exploration.candidates=28",
)
"""Plain, with groups of maximum variance; half of all candidates are drafted."""

ARMS = {
    "plain": Arm(PLAIN, 1.0),
    "plain_same": Arm(("exploration.strategy=plain",), 0.4),
    "stale": Arm((), 0.4),
    "fresh": Arm(("exploration.strategy=fresh",), 0.4),
    "stale_uniform": Arm(("exploration.allocation=uniform",), 0.4),
    "stale_variance": Arm(PAPER, 0.6),
    "variance_uniform": Arm((*PAPER, "exploration.allocation=uniform"), 0.6),
    "oracle": Arm(
        ("exploration.strategy=fresh", "exploration.drafts=0", "exploration.allocation=uniform"), 0.4
    ),
    "larger_batch": Arm((), 0.5),
}


def arm_config(task: str, arm: str, run_seed: int) -> RunConfig:
    """The configuration of a curve."""
    settings = [f"seed={run_seed}", *EVALUATE, f"exploration.drafts={DRAFTS}", *ARMS[arm].settings]
    if arm == "larger_batch":
        # As many images an iteration as stale makes, all trained on, at stale's learning rate.
        stale = load_config(PRESETS[task], [], {})
        images = stale.algorithm.prompts_per_iteration * stale.algorithm.group_size + DRAFTS
        rates = (stale.optimizer.learning_rate, stale.algorithm.updates_per_iteration)
        settings += [
            *PLAIN,
            f"algorithm.group_size={images // 32}",
            f"optimizer.learning_rate={rates[0]}",
            f"algorithm.updates_per_iteration={rates[1]}",
        ]
    return load_config(PRESETS[task], settings, {})


def make_curve(config_json: str, iterations: int, every: int, measure: int) -> dict[str, Any]:
    """Run one curve in a process of its own."""
    torch.set_num_threads(1)
    curve = LearningCurve(RunConfig.model_validate_json(config_json)).run(iterations, every, measure)
    return curve.to_json()


def run_arms(
    store: CurveStore, wanted: list[tuple[str, int, RunConfig, int]], every: int, measure: int, processes: int
) -> dict[tuple[str, int], Curve]:
    """All curves, some at a time; those that were kept by an interrupted run are not made again."""
    curves: dict[tuple[str, int], Curve] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {}
        for arm, run_seed, config, iterations in wanted:
            kept = store.load(arm, config, iterations, every)
            if kept is not None:
                curves[arm, run_seed] = kept
                continue
            call = pool.submit(make_curve, config.model_dump_json(), iterations, every, measure)
            running[call] = (arm, run_seed, config, iterations)
        for call in as_completed(running):
            arm, run_seed, config, iterations = running[call]
            curves[arm, run_seed] = curve = Curve(**call.result())
            store.save(arm, config, iterations, every, curve)
            print(f"{arm} {run_seed}: exact {curve.exact[0]:.3f} -> {curve.exact[-1]:.3f}", file=sys.stderr)
    return curves


def measure_of(curve: Curve, signal: str) -> list[float]:
    """The evaluations that the target is of: what the run learns from."""
    return curve.score if signal == "graded" else curve.exact


def end_of(values: list[float]) -> float:
    """Mean of the last evaluations."""
    return statistics.fmean(values[-LAST:])


def reached_at(iterations: list[int], values: list[float], target: float) -> float | None:
    """The iteration at which the running mean reaches the target, interpolated; None if it never does."""
    width = min(SMOOTH, len(values))
    smooth = np.convolve(values, np.ones(width) / width, mode="valid")
    # A running mean stands for the middle of its evaluations.
    places = np.convolve(iterations, np.ones(width) / width, mode="valid")
    above = np.flatnonzero(smooth >= target)
    if not len(above):
        return None
    first = int(above[0])
    if first == 0:
        return float(places[0])
    share = (target - smooth[first - 1]) / (smooth[first] - smooth[first - 1])
    return float(places[first - 1] + share * (places[first] - places[first - 1]))


def summarise(task: str, curves: dict[tuple[str, int], Curve], iterations: int) -> dict[str, Any]:
    """The figures of all arms."""
    stale = load_config(PRESETS[task], [], {})
    signal = stale.reward.signal
    by_arm: dict[str, list[Curve]] = {}
    for (arm, _), curve in sorted(curves.items()):
        by_arm.setdefault(arm, []).append(curve)
    target = statistics.fmean(end_of(measure_of(curve, signal)) for curve in by_arm["plain"])
    arms = {}
    for arm, members in by_arm.items():
        reached = [reached_at(c.iterations, measure_of(c, signal), target) for c in members]
        # One that never reaches it counts as slower than any that does.
        median = statistics.median(float("inf") if r is None else r for r in reached)
        strategy = arm_config(task, arm, 0).exploration.strategy
        iteration_s = statistics.median(FLEET.critical_path_s(c, strategy) for c in members)
        arms[arm] = {
            "iterations_to_target": {
                "median": None if median == float("inf") else round(median, 2),
                "all": [None if r is None else round(r, 2) for r in reached],
            },
            "final_score": [round(end_of(measure_of(c, signal)), 4) for c in members],
            "final_exact": [round(end_of(c.exact), 4) for c in members],
            "iterations": [c.iterations[-1] for c in members],
            "modelled_iteration_s": round(iteration_s, 4),
            "modelled_time_to_target": None if median == float("inf") else round(median * iteration_s, 2),
            "spearman_median": _median([value for c in members for value in c.spearman]),
            "captured_variance": _mean([value for c in members for value in c.captured]),
            "variance_rollout": _mean([value for c in members for value in c.variance_rollout]),
            "curves": [
                {"iterations": c.iterations, "score": _rounded(c.score), "exact": _rounded(c.exact)}
                for c in members
            ],
        }
    return {
        "task": task,
        "signal": signal,
        "base_exact": round(by_arm["plain"][0].exact[0], 4),
        "target": round(target, 4),
        "plain_iterations": iterations,
        "run_seeds": len(by_arm["plain"]),
        "speedup": _ratio(arms, "iterations_to_target"),
        "modelled_speedup": _ratio(arms, "modelled_time_to_target"),
        "captured_gain": captured_gain(by_arm, "stale", "stale_uniform"),
        "captured_gain_variance": captured_gain(by_arm, "stale_variance", "variance_uniform"),
        "fleet": {"reserved": FLEET.reserved, "spot": FLEET.spot, "rule": FLEET.critical_path_s.__doc__},
        "arms": arms,
    }


def captured_gain(by_arm: dict[str, list[Curve]], one: str, other: str) -> dict[str, float] | None:
    """Share of the oracle's spread: one arm minus another, with a 95 % interval over measurements."""
    bandit = [value for curve in by_arm.get(one, []) for value in curve.captured]
    uniform = [value for curve in by_arm.get(other, []) for value in curve.captured]
    if len(bandit) < 2 or len(uniform) < 2:
        return None
    error = (statistics.variance(bandit) / len(bandit) + statistics.variance(uniform) / len(uniform)) ** 0.5
    gain = statistics.fmean(bandit) - statistics.fmean(uniform)
    low, high = gain - 1.96 * error, gain + 1.96 * error
    return {"mean": round(gain, 4), "low": round(low, 4), "high": round(high, 4)}


def _ratio(arms: dict[str, Any], key: str) -> float | None:
    """Plain over stale."""
    values = [arms[arm][key] for arm in ("plain", "stale")]
    plain, stale = (value["median"] if isinstance(value, dict) else value for value in values)
    return round(plain / stale, 2) if plain and stale else None


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None


def _mean(values: list[float]) -> float | None:
    return round(statistics.fmean(values), 4) if values else None


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=sorted(PRESETS), required=True)
    parser.add_argument("--seeds", type=int, default=3, help="run seeds of each arm")
    parser.add_argument("--iterations", type=int, default=80, help="of plain; the other arms need fewer")
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=list(ARMS))
    parser.add_argument("--processes", type=int, default=2, help="curves at a time, one core each")
    parser.add_argument("--quick", action="store_true", help="one run seed and a fifth of the iterations")
    add_keep_option(parser)
    arguments = parser.parse_args()
    seeds, iterations, every = arguments.seeds, arguments.iterations, 4
    if arguments.quick:
        seeds, iterations = 1, 20
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    store = CurveStore(f"exploration-{arguments.task}", environment()["commit"])
    wanted = []
    for run_seed in range(seeds):
        for arm in dict.fromkeys(["plain", "stale", *arguments.arms]):
            length = -(-round(iterations * ARMS[arm].length) // every) * every
            wanted.append((arm, run_seed, arm_config(arguments.task, arm, run_seed), length))
    curves = run_arms(store, wanted, every, measure=8, processes=arguments.processes)
    figures = summarise(arguments.task, curves, iterations)
    finish(f"exploration-{arguments.task}", figures, arguments.keep, module="exploration")


if __name__ == "__main__":
    main()
