"""What exploration brings: learning curves with and without it, of both objectives.

    python -m benchmarks.exploration --task shapes [--seeds 6] [--arms ...] [--quick] [--keep | --tuning]

Each arm is a setting of the presets `glyphs-stale` or `shapes-stale` without their guards of the images
(`benchmarks/unguarded.py`), run by the runtime of `spotlight train` in one process
(`benchmarks/learning_curve.py`), with the same training batch: 32 prompts of 4 samples.
Arms of an objective have the same learning rate.
`plain` and `plain_nft` do not explore. `stale_grpo` and `stale` draft with the previous iteration's weights
beside training and roll the chosen seeds out, as in the paper. `off_policy_grpo` and `off_policy` train on
the chosen drafts. The others are ablations: `few_step` (DiffusionNFT along the ODE) drafts in fewer denoising
steps, `fresh` drafts with current weights on the critical path, and `larger_batch`
trains on as many images as `stale` makes in all.

Curves are measured; seconds and dollars are modelled from them (`benchmarks/modelled_fleet.py`). What the
figures are is said in `benchmarks/exploration_summary.py`. Finished curves are kept, so that an interrupted
call goes on, on another machine too (`--after COMMIT`).

With `--tuning` every arm trains on some of the training prompts and is judged by the others
(`benchmarks/tuning_prompts.py`): settings are chosen by these figures, and they are reported nowhere.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from benchmarks.curve_store import CurveStore, curve_name
from benchmarks.exploration_summary import summarise
from benchmarks.learning_curve import Curve, make_curve
from benchmarks.report import add_keep_option, finish
from benchmarks.tuning_prompts import tuning_settings
from benchmarks.unguarded import unguarded
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.environment import environment
from storage.home import Home

FULL_SEEDS = 6
"""Run seeds of each arm of a full run."""


@dataclass(frozen=True)
class Arm:
    """One way to spend an iteration.

    Attributes:
        settings: on top of the task's.
        iterations: of a full run.
        every: iterations between its evaluations.
    """

    settings: tuple[str, ...]
    iterations: int
    every: int = 2


@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        preset: `stale` is that preset with counted drafts (by itself it drafts as many as the training window
            holds).
        scorer: of the reward.
        signal: what every arm learns from and is judged by.
    """

    preset: str
    scorer: str
    signal: str = "exact"


TASKS = {
    "ocr": Task("glyphs-stale", "ocr"),
    "ocr-graded": Task("glyphs-stale", "ocr", "graded"),
    "shapes": Task("shapes-stale", "shapes"),
}
"""By name. Flow-GRPO's reward for texts is graded, by edit distance; GenEval counts exact matches."""

DRAFTS = 448
"""Drafts an iteration with DiffusionNFT, in whole ones: about half of all candidates."""

GRPO_DRAFTS = 352
"""With Flow-GRPO, whose training is shorter."""

ALL = (
    "evaluation.images_per_prompt=3", "exploration.stop_with_training=false", "runtime.cluster=local",
    "runtime.reserved_workers=1", "runtime.spot_workers=1", "runtime.scorer_workers=1",
)  # fmt: skip
"""Settings of every arm: 288 held-out images, and one device of each kind, which take turns."""

GRPO = (
    "algorithm.objective=grpo", "optimizer.learning_rate=2e-4", "algorithm.updates_per_iteration=2",
    "optimizer.beta2=0.999", "optimizer.warmup_steps=0", f"exploration.drafts={GRPO_DRAFTS}",
)  # fmt: skip
"""Flow-GRPO in the group shape and at the learning rate that were the best of those tried on shapes."""

OFF_POLICY_GRPO = ("exploration.strategy=off_policy", "algorithm.options.clip_range=1e-2")

ARMS = {
    "plain": Arm((*GRPO, "exploration.strategy=plain"), 48, every=4),
    "plain_nft": Arm(("exploration.strategy=plain",), 24),
    "stale_grpo": Arm((*GRPO, "exploration.strategy=stale"), 24),
    "stale": Arm((), 16),
    "off_policy_grpo": Arm((*GRPO, *OFF_POLICY_GRPO), 24),
    "off_policy": Arm(("exploration.strategy=off_policy",), 16),
    "few_step": Arm(("sampling.sde=none", 'exploration.fidelities=["full", "steps-5"]'), 16),
    "fresh": Arm(("exploration.strategy=fresh",), 12),
    "larger_batch": Arm(("exploration.strategy=plain",), 12),
}

MAIN_ARMS = ("plain", "plain_nft", "stale_grpo", "stale", "off_policy_grpo", "off_policy")
"""Those that a call without `--arms` runs; the others are ablations."""


def arm_config(task: str, arm: str, run_seed: int, prompts: Iterable[str] = ()) -> RunConfig:
    """The configuration of a curve.

    Args:
        task: of `TASKS`.
        arm: of `ARMS`.
        run_seed: of the curve.
        prompts: settings of other prompts than the preset's.
    """
    preset, scorer, signal = TASKS[task].preset, TASKS[task].scorer, TASKS[task].signal
    settings = [
        f"seed={run_seed}", f"exploration.drafts={DRAFTS}", *unguarded(scorer), f"reward.signal={signal}",
        *ALL, *ARMS[arm].settings, *prompts,
    ]  # fmt: skip
    if arm == "larger_batch":
        # As many images an iteration as stale makes, all trained on.
        algorithm = load_config(preset, [], {}).algorithm
        images = algorithm.prompts_per_iteration * algorithm.group_size + DRAFTS
        settings.append(f"algorithm.group_size={images // algorithm.prompts_per_iteration}")
    return load_config(preset, settings, {})


def curve_in_process(config_json: str, iterations: int, every: int) -> Curve:
    """Make one curve in a process of its own."""
    torch.set_num_threads(1)
    return make_curve(RunConfig.model_validate_json(config_json), iterations, every)


@dataclass(frozen=True)
class CurveWanted:
    """A curve to make.

    Attributes:
        arm, run_seed: what it is called.
        config: what is run.
        iterations: how long.
        every: iterations between evaluations.
    """

    arm: str
    run_seed: int
    config: RunConfig
    iterations: int
    every: int

    @property
    def name(self) -> str:
        """What it is kept as."""
        return curve_name(self.arm, self.config, self.iterations, self.every)


def curve_store(name: str, commit: str, earlier: tuple[str, ...] = ()) -> CurveStore[Curve]:
    """The kept curves of a benchmark; arguments are `CurveStore`'s."""
    return CurveStore(name, commit, lambda values: Curve(**values), earlier)


def _names(wanted: Iterable[CurveWanted]) -> dict[tuple[str, int], str]:
    """What the wanted curves are kept as, by arm and run seed."""
    return {(want.arm, want.run_seed): want.name for want in wanted}


def wanted_curves(
    task: str, arms: Iterable[str], seeds: int, share: int = 1, prompts: Sequence[str] = ()
) -> list[CurveWanted]:
    """The curves of a run of the benchmark, run seed by run seed, so that what is interrupted has every arm.

    Args:
        task: its name.
        arms: which; `plain` is always among them.
        seeds: how many run seeds.
        share: how much shorter than a full run's.
        prompts: settings of other prompts than the preset's.
    """
    wanted = []
    for run_seed in range(seeds):
        for name in dict.fromkeys(["plain", *arms]):
            arm = ARMS[name]
            length = arm.iterations // share // arm.every * arm.every
            config = arm_config(task, name, run_seed, prompts)
            wanted.append(CurveWanted(name, run_seed, config, length, arm.every))
    return wanted


def run_arms(
    store: CurveStore[Curve], wanted: list[CurveWanted], processes: int
) -> dict[tuple[str, int], Curve]:
    """All curves, some at a time; those that were kept by an interrupted run are not made again."""
    curves = store.load_all(_names(wanted))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {}
        for want in wanted:
            if (want.arm, want.run_seed) in curves:
                continue
            config_json = want.config.model_dump_json()
            running[pool.submit(curve_in_process, config_json, want.iterations, want.every)] = want
        for call in as_completed(running):
            want = running[call]
            curves[want.arm, want.run_seed] = curve = call.result()
            store.save(want.name, curve)
            ends = f"exact {curve.exact[0]:.3f} -> {curve.exact[-1]:.3f}"
            print(f"{want.arm} {want.run_seed}: {ends}", file=sys.stderr, flush=True)
    return curves


def main() -> None:
    """Print one JSON line."""
    parser = _command_line()
    arguments = parser.parse_args()
    if arguments.tuning and arguments.keep:
        parser.error("--tuning is to choose settings by; its figures are not kept")
    seeds, share = (1, 3) if arguments.quick else (arguments.seeds, 1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    commit = environment()["commit"]
    name, prompts = f"exploration-{arguments.task}", ()
    if arguments.tuning:
        name = f"tuning-{arguments.task}"
        folder = Home.from_environment().ensure().path / "benchmarks" / "tuning-prompts"
        task = TASKS[arguments.task]
        prompts = tuning_settings(task.scorer, task.preset, folder)
    store = curve_store(name, arguments.curves_of or commit, tuple(arguments.after))
    wanted = wanted_curves(arguments.task, arguments.arms, seeds, share, prompts)
    if arguments.curves_of:
        curves = store.load_all(_names(wanted))
        if not any(arm == "plain" for arm, _ in curves):
            parser.error(f"--curves-of {arguments.curves_of}: no kept curve of `plain` by that commit")
    else:
        curves = run_arms(store, wanted, arguments.processes)
    configs = {want.arm: want.config for want in wanted if (want.arm, want.run_seed) in curves}
    if arguments.keep:
        store.keep()
    figures = {
        "curves_commit": store.commit,
        "curves_after": store.earlier,
        **summarise(arguments.task, curves, configs, ARMS.keys() - {*MAIN_ARMS}),
    }
    finish(name, figures, arguments.keep, module="exploration", began_at=commit)


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--seeds", type=int, default=FULL_SEEDS, help="run seeds of each arm")
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=list(MAIN_ARMS))
    parser.add_argument("--processes", type=int, default=2, help="curves at a time, one core each")
    parser.add_argument("--quick", action="store_true", help="one run seed, a third of the iterations")
    parser.add_argument("--curves-of", metavar="COMMIT", help="summarise the kept curves of that commit")
    parser.add_argument(
        "--after",
        metavar="COMMIT",
        nargs="+",
        default=[],
        help="these commits' curves count: nothing that makes them has changed since",
    )
    parser.add_argument("--tuning", action="store_true", help="on prompts that no reported figure is of")
    add_keep_option(parser)
    return parser


if __name__ == "__main__":
    main()
