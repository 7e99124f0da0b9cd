"""How many iterations, and how much modelled time, exploration saves: learning curves of six arms.

    python -m benchmarks.exploration --task shapes [--quick] [--keep]

Arms, all of the same training batch but the last: `plain` (Flow-GRPO, G seeds of each prompt), `plain_nft`
(stale's objective, without exploration, at its own best learning rate), `stale_grpo` (plain with stale
exploration, as in the paper), `stale` (Spotlight: drafts with the previous iteration's weights, beside
training), `fresh` (drafts with current weights, on the critical path), `stale_uniform` (without the
bandit), `oracle` (every candidate judged with current weights) and `larger_batch` (stale's settings without
exploration: as many images as it makes in all, every one trained on).

The target is what `plain` reaches at its end: the last running mean of three evaluations, the median of its
run seeds. A curve reaches it where its running mean does, interpolated; null says that it does not by
`seen_until`, the middle of its last three evaluations. `speedup` is plain's median over stale's;
`speedup_by` says what each part brings.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import scipy.stats
import torch

from benchmarks.curve_store import CurveStore
from benchmarks.learning_curve import Curve, LearningCurve, ModelledFleet
from benchmarks.report import add_keep_option, finish
from storage.config import RunConfig
from storage.config_loading import load_config
from storage.environment import environment

SMOOTH = 3
"""Evaluations in a running mean."""

FLEET = ModelledFleet()


@dataclass(frozen=True)
class Arm:
    """One way to spend an iteration.

    Attributes:
        settings: on top of the task's.
        iterations: of a full run.
        measure: iterations between judging every candidate with fresh weights; 0 never.
    """

    settings: tuple[str, ...]
    iterations: int
    measure: int = 0


PRESETS = {"ocr": "glyphs-stale", "shapes": "shapes-stale"}
"""The preset that Spotlight is run with; `stale` is that preset with counted drafts (by itself it drafts as
many as the training window holds)."""

DRAFTS = 448
"""Drafts an iteration of every arm that explores but the oracle: about half of all candidates. What exceeds
the training window is charged to the critical path."""

EVALUATE = ("evaluation.images_per_prompt=5",)
"""Held-out images of a prompt: 480."""

PLAIN = (
    "exploration.strategy=plain",
    "algorithm.objective=grpo",
    "optimizer.learning_rate=2e-4",
    "algorithm.updates_per_iteration=2",
    "optimizer.beta2=0.999",
    "optimizer.warmup_steps=0",
)
"""Flow-GRPO in the group shape and at the learning rate that were the best of those tried on shapes; see
docs/measurements.md."""

ARMS = {
    "plain": Arm(PLAIN, 48),
    "plain_nft": Arm(("exploration.strategy=plain", "optimizer.learning_rate=2e-4"), 24),
    "stale_grpo": Arm((*PLAIN, "exploration.strategy=stale"), 24, measure=8),
    "stale": Arm((), 20, measure=4),
    "fresh": Arm(("exploration.strategy=fresh",), 16),
    "stale_uniform": Arm(("exploration.allocation=uniform",), 16, measure=8),
    "oracle": Arm(
        ("exploration.strategy=fresh", "exploration.drafts=0", "exploration.allocation=uniform"), 12
    ),
    "larger_batch": Arm(("exploration.strategy=plain",), 16),
}


PARTS = (
    ("objective", "plain", "plain_nft"),
    ("exploration_on_nft", "plain_nft", "stale"),
    ("exploration_on_grpo", "plain", "stale_grpo"),
    ("bandit", "stale_uniform", "stale"),
    ("freshness", "stale", "fresh"),
    ("over_larger_batch", "larger_batch", "stale"),
)
"""What is compared, the slower arm (one hopes) first."""


def arm_config(task: str, arm: str, run_seed: int) -> RunConfig:
    """The configuration of a curve."""
    settings = [f"seed={run_seed}", *EVALUATE, f"exploration.drafts={DRAFTS}", *ARMS[arm].settings]
    if arm == "larger_batch":
        # As many images an iteration as stale makes, all trained on.
        algorithm = load_config(PRESETS[task], [], {}).algorithm
        images = algorithm.prompts_per_iteration * algorithm.group_size + DRAFTS
        settings.append(f"algorithm.group_size={images // algorithm.prompts_per_iteration}")
    return load_config(PRESETS[task], settings, {})


def make_curve(config_json: str, iterations: int, every: int, measure: int) -> dict[str, Any]:
    """Run one curve in a process of its own."""
    torch.set_num_threads(1)
    curve = LearningCurve(RunConfig.model_validate_json(config_json)).run(iterations, every, measure)
    return curve.to_json()


@dataclass(frozen=True)
class CurveWanted:
    """A curve to make.

    Attributes:
        arm, run_seed: what it is called.
        config: what is run.
        iterations: how long.
        every: iterations between evaluations.
        measure: iterations between judging every candidate; 0 never.
    """

    arm: str
    run_seed: int
    config: RunConfig
    iterations: int
    every: int
    measure: int


def run_arms(store: CurveStore, wanted: list[CurveWanted], processes: int) -> dict[tuple[str, int], Curve]:
    """All curves, some at a time; those that were kept by an interrupted run are not made again."""
    curves: dict[tuple[str, int], Curve] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {}
        for want in wanted:
            kept = store.load(want.arm, want.config, want.iterations, want.every)
            if kept is not None:
                curves[want.arm, want.run_seed] = kept
                continue
            config_json = want.config.model_dump_json()
            running[pool.submit(make_curve, config_json, want.iterations, want.every, want.measure)] = want
        for call in as_completed(running):
            want = running[call]
            curves[want.arm, want.run_seed] = curve = Curve(**call.result())
            store.save(want.arm, want.config, want.iterations, want.every, curve)
            ends = f"exact {curve.exact[0]:.3f} -> {curve.exact[-1]:.3f}"
            print(f"{want.arm} {want.run_seed}: {ends}", file=sys.stderr, flush=True)
    return curves


def measure_of(curve: Curve, signal: str) -> list[float]:
    """The evaluations that the target is of: what the run learns from."""
    return curve.score if signal == "graded" else curve.exact


def smooth_of(values: Sequence[float]) -> list[float]:
    """Running means of three evaluations (of all, where there are fewer)."""
    width = min(SMOOTH, len(values))
    return [statistics.fmean(values[end - width : end]) for end in range(width, len(values) + 1)]


def end_of(values: list[float]) -> float:
    """The last running mean, so that a curve that rises reaches its own end."""
    return smooth_of(values)[-1]


def reached_at(iterations: list[int], values: list[float], target: float) -> float | None:
    """The iteration at which the running mean reaches the target, interpolated; None if it never does."""
    smooth = smooth_of(values)
    # A running mean stands for the middle of its evaluations.
    places = smooth_of(iterations)
    above = [index for index, value in enumerate(smooth) if value >= target]
    if not above:
        return None
    first = above[0]
    if first == 0:
        return places[0]
    share = (target - smooth[first - 1]) / (smooth[first] - smooth[first - 1])
    return places[first - 1] + share * (places[first] - places[first - 1])


def summarise(task: str, curves: dict[tuple[str, int], Curve]) -> dict[str, Any]:
    """The figures of all arms."""
    stale = load_config(PRESETS[task], [], {})
    signal = stale.reward.signal
    by_arm: dict[str, list[Curve]] = {}
    for (arm, _), curve in sorted(curves.items()):
        by_arm.setdefault(arm, []).append(curve)
    target = statistics.median(end_of(measure_of(curve, signal)) for curve in by_arm["plain"])
    arms = {}
    for arm, members in by_arm.items():
        reached = [reached_at(c.iterations, measure_of(c, signal), target) for c in members]
        # One that never reaches it counts as slower than any that does.
        median = statistics.median(float("inf") if r is None else r for r in reached)
        strategy = arm_config(task, arm, 0).exploration.strategy
        iteration_s = statistics.median(FLEET.critical_path_s(c, strategy) for c in members)
        arms[arm] = {
            "run_seeds": len(members),
            "iterations_to_target": {
                "median": None if median == float("inf") else round(median, 2),
                "all": [None if r is None else round(r, 2) for r in reached],
            },
            "seen_until": min(smooth_of(c.iterations)[-1] for c in members),
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
        "plain_iterations": by_arm["plain"][0].iterations[-1],
        "run_seeds": len(by_arm["plain"]),
        "speedup": _ratio(arms, "iterations_to_target", "plain", "stale"),
        "modelled_speedup": _ratio(arms, "modelled_time_to_target", "plain", "stale"),
        "speedup_by": {
            part: {
                "iterations": _ratio(arms, "iterations_to_target", slow, fast),
                "modelled": _ratio(arms, "modelled_time_to_target", slow, fast),
            }
            for part, slow, fast in PARTS
        },
        "allocation": bandit_gain(curves),
        "fleet": {"reserved": FLEET.reserved, "spot": FLEET.spot, "rule": FLEET.critical_path_s.__doc__},
        "arms": arms,
    }


def bandit_gain(curves: dict[tuple[str, int], Curve]) -> dict[str, Any] | None:
    """What the bandit finds beyond an even division, as a share of the oracle's spread.

    Both on the same tables of scores. The tables of a run seed have their prompts and noise in common, so a
    run seed counts as one observation: the mean over its tables. The interval is Student's, 95 %.
    """
    tables: dict[int, list[tuple[float, float]]] = {}
    for (_, run_seed), curve in sorted(curves.items()):
        pairs = zip(curve.found_by_bandit, curve.found_by_uniform, strict=True)
        tables.setdefault(run_seed, []).extend(pairs)
    means = [
        [statistics.fmean(column) for column in zip(*pairs, strict=True)]
        for pairs in tables.values()
        if pairs
    ]
    if not means:
        return None
    gains = [bandit - uniform for bandit, uniform in means]
    figures: dict[str, Any] = {
        "bandit": _mean([bandit for bandit, _ in means]),
        "uniform": _mean([uniform for _, uniform in means]),
        "gain": _mean(gains),
        "run_seeds": len(gains),
        "tables": sum(len(pairs) for pairs in tables.values()),
    }
    if len(gains) > 1:
        half = float(scipy.stats.t.ppf(0.975, len(gains) - 1)) * statistics.stdev(gains) / len(gains) ** 0.5
        figures["low"] = round(figures["gain"] - half, 4)
        figures["high"] = round(figures["gain"] + half, 4)
    return figures


def _ratio(arms: dict[str, Any], key: str, slow: str, fast: str) -> float | None:
    """One arm's value over another's; None where an arm was not run or never reached the target."""
    values = [arms[arm][key] if arm in arms else None for arm in (slow, fast)]
    one, other = (value["median"] if isinstance(value, dict) else value for value in values)
    return round(one / other, 2) if one and other else None


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
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=list(ARMS))
    parser.add_argument("--processes", type=int, default=2, help="curves at a time, one core each")
    parser.add_argument("--quick", action="store_true", help="one run seed, a third of the iterations")
    parser.add_argument("--curves-of", metavar="COMMIT", help="summarise the kept curves of that commit")
    add_keep_option(parser)
    arguments = parser.parse_args()
    seeds, share, every = (1, 3, 2) if arguments.quick else (arguments.seeds, 1, 4)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    commit = environment()["commit"]
    store = CurveStore(f"exploration-{arguments.task}", arguments.curves_of or commit)
    wanted = []
    for run_seed in range(seeds):
        for arm in dict.fromkeys(["plain", "stale", *arguments.arms]):
            length = ARMS[arm].iterations // share // every * every
            config = arm_config(arguments.task, arm, run_seed)
            wanted.append(CurveWanted(arm, run_seed, config, length, every, ARMS[arm].measure))
    if arguments.curves_of:
        curves = store.kept()
        if not any(arm == "plain" for arm, _ in curves):
            parser.error(f"--curves-of {arguments.curves_of}: no kept curve of `plain` by that commit")
    else:
        curves = run_arms(store, wanted, arguments.processes)
    figures = {"curves_commit": store.commit, **summarise(arguments.task, curves)}
    name = f"exploration-{arguments.task}"
    finish(name, figures, arguments.keep, module="exploration", began_at=commit)


if __name__ == "__main__":
    main()
