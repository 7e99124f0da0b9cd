"""How many iterations, and how much modelled time, exploration saves: learning curves of eight arms.

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
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.curve_store import CurveStore
from benchmarks.exploration_summary import summarise
from benchmarks.learning_curve import Curve, LearningCurve
from benchmarks.report import add_keep_option, finish
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.environment import environment

FULL_SEEDS, FULL_EVERY = 3, 4
"""Run seeds of each arm, and iterations between evaluations, of a full run."""


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
"""Flow-GRPO in the group shape and at the learning rate that were the best of those tried on shapes."""

ARMS = {
    "plain": Arm(PLAIN, 48),
    "plain_nft": Arm(("exploration.strategy=plain", "optimizer.learning_rate=2e-4"), 16),
    "stale_grpo": Arm((*PLAIN, "exploration.strategy=stale"), 20, measure=8),
    "stale": Arm((), 16, measure=4),
    "fresh": Arm(("exploration.strategy=fresh",), 12),
    "stale_uniform": Arm(("exploration.allocation=uniform",), 12, measure=8),
    "oracle": Arm(
        ("exploration.strategy=fresh", "exploration.drafts=0", "exploration.allocation=uniform"), 12
    ),
    "larger_batch": Arm(("exploration.strategy=plain",), 12),
}


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


def stored(store: CurveStore, wanted: list[CurveWanted]) -> dict[tuple[str, int], Curve]:
    """The wanted curves that there are."""
    found = {
        (want.arm, want.run_seed): store.load(want.arm, want.config, want.iterations, want.every)
        for want in wanted
    }
    return {name: curve for name, curve in found.items() if curve is not None}


def wanted_curves(task: str, arms: Iterable[str], seeds: int, share: int, every: int) -> list[CurveWanted]:
    """The curves of a run of the benchmark, of every run seed.

    Args:
        task: its name.
        arms: which; `plain` and `stale` are always among them.
        seeds: how many run seeds.
        share: how much shorter than a full run's.
        every: iterations between evaluations.
    """
    wanted = []
    for run_seed in range(seeds):
        for arm in dict.fromkeys(["plain", "stale", *arms]):
            length = ARMS[arm].iterations // share // every * every
            config = arm_config(task, arm, run_seed)
            wanted.append(CurveWanted(arm, run_seed, config, length, every, ARMS[arm].measure))
    return wanted


def kept_curves(store: CurveStore, wanted: list[CurveWanted]) -> dict[tuple[str, int], Curve]:
    """Curves that were made before: of an arm's several lengths the wanted one, else the longest."""
    return store.kept() | stored(store, wanted)


def run_arms(store: CurveStore, wanted: list[CurveWanted], processes: int) -> dict[tuple[str, int], Curve]:
    """All curves, some at a time; those that were kept by an interrupted run are not made again."""
    curves = stored(store, wanted)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {}
        for want in wanted:
            if (want.arm, want.run_seed) in curves:
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


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=sorted(PRESETS), required=True)
    parser.add_argument("--seeds", type=int, default=FULL_SEEDS, help="run seeds of each arm")
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=list(ARMS))
    parser.add_argument("--processes", type=int, default=2, help="curves at a time, one core each")
    parser.add_argument("--quick", action="store_true", help="one run seed, a third of the iterations")
    parser.add_argument("--curves-of", metavar="COMMIT", help="summarise the kept curves of that commit")
    parser.add_argument(
        "--after",
        metavar="COMMIT",
        help="that commit's curves count: nothing that makes them has changed since",
    )
    add_keep_option(parser)
    arguments = parser.parse_args()
    seeds, share, every = (1, 3, 2) if arguments.quick else (arguments.seeds, 1, FULL_EVERY)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    commit = environment()["commit"]
    store = CurveStore(f"exploration-{arguments.task}", arguments.curves_of or commit, arguments.after)
    wanted = wanted_curves(arguments.task, arguments.arms, seeds, share, every)
    if arguments.curves_of:
        curves = kept_curves(store, wanted)
        if not any(arm == "plain" for arm, _ in curves):
            parser.error(f"--curves-of {arguments.curves_of}: no kept curve of `plain` by that commit")
    else:
        curves = run_arms(store, wanted, arguments.processes)
    configs = {arm: arm_config(arguments.task, arm, 0) for arm, _ in curves}
    if arguments.keep:
        store.keep()
    figures = {
        "curves_commit": store.commit,
        "curves_after": store.earlier,
        **summarise(arguments.task, curves, configs),
    }
    name = f"exploration-{arguments.task}"
    finish(name, figures, arguments.keep, module="exploration", began_at=commit)


if __name__ == "__main__":
    main()
