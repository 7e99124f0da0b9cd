"""What exploration brings: learning curves with and without it, of both objectives.

    python -m benchmarks.exploration --task ocr-graded --tuning [--after COMMIT] [--keep]
    python -m benchmarks.exploration --task ocr-graded [--seeds 8] [--arms ...] [--after COMMIT] [--keep]

Each arm (`benchmarks/exploration/arms.py`) is run by the runtime of `spotlight train` in one process
(`benchmarks/exploration/learning_curve.py`) and evaluated after every iteration. Curves are measured; seconds
and dollars are modelled from them (`benchmarks/exploration/modelled_fleet.py`).
The figures are defined in `benchmarks/exploration/summary.py`.

With `--tuning` every arm trains on some of the training prompts and is judged by the others, with each of
several learning rates and warm-ups: the best one of each arm, and the exploring arm of each objective, are
chosen by these curves (`benchmarks/exploration/tuning.py`), and no figure is of them. The benchmark itself
comes after it. A task without tuning of its own takes that of `ocr-graded`.

A finished curve is kept in the home, one file each, so an interrupted call goes on where it was; `--keep`
copies them into the repository and writes the result. A curve counts for the settings that it was made with,
and for the commit that made it; with `--after COMMIT` those of that commit and of later ones count too.
`--as-is` makes no new curve.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from benchmarks.exploration.arms import ALL_GROUPS, ARMS, BASELINE, LARGE, TASKS, arm_config, plain_arms
from benchmarks.exploration.curve_store import CurveStore, CurveWanted, add_curve_options, curve_name
from benchmarks.exploration.summary import summarise
from benchmarks.exploration.tuning import (
    TUNING_SEED,
    Tuned,
    choose,
    finalists,
    tuned_of,
    tuning_curves,
    tuning_settings,
)
from benchmarks.report import finish, options
from storage.home import Home

FULL_SEEDS = 8
"""Run seeds of each arm of a full run."""


def reported_curves(
    task: str, arms: Iterable[str], seeds: int, tuned: Tuned | None = None, share: int = 1
) -> dict[tuple[str, int], CurveWanted]:
    """The curves of a run of the benchmark, run seed by run seed, so that what is interrupted has every arm.

    Args:
        task: its name.
        arms: which; `BASELINE` is always among them.
        seeds: how many run seeds.
        tuned: each arm's recipe; None for the first of its objective's.
        share: how much shorter than a full run's.
    """
    wanted = {}
    for run_seed in range(seeds):
        for arm in dict.fromkeys([*arms, BASELINE]):
            tuned_as = ARMS[arm].unguarded or arm
            config = arm_config(task, arm, run_seed, tuned.recipes.get(tuned_as) if tuned else None)
            length, every = ARMS[arm].iterations // share, ARMS[arm].every
            wanted[arm, run_seed] = CurveWanted(curve_name(arm, config, length, every), config, length, every)
    return wanted


def main_arms(tuned: Tuned) -> list[str]:
    """The chosen arm of each objective, DiffusionNFT's first, those compared with it, and its guarded one."""
    names = []
    for objective in ("nft", "grpo"):
        if arm := tuned.chosen.get(objective):
            names += [arm, *plain_arms(objective), ALL_GROUPS[objective]]
            names += [name for name, other in ARMS.items() if other.unguarded == arm]
    return names


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__, "one run seed, a quarter of the iterations")
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--tuning", action="store_true", help="choose recipes and arms, on other prompts")
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=sorted(ARMS),
        help="instead of the chosen ones; the first exploring one of an objective is compared",
    )
    add_curve_options(parser, FULL_SEEDS)
    arguments = parser.parse_args()
    task = arguments.task
    if arguments.tuning:
        folder = Home.from_environment().ensure().path / "benchmarks" / "tuning-prompts"
        prompts = tuning_settings(TASKS[task].scorer, TASKS[task].preset, folder)
        store, wanted = CurveStore.of_call(f"tuning-{task}", arguments), tuning_curves(task, prompts)
        tried = store.curves({key: want for key, want in wanted.items() if key[2] == TUNING_SEED})
        last = {arm: finalists(task, arm, tried) for arm in ARMS}
        tried |= store.curves({key: want for key, want in wanted.items() if key[1] in last[key[0]]})
        print(json.dumps(choose(task, tried).figures))
        return
    tuned = None if arguments.quick else tuned_of(task, arguments)
    if tuned is None and not arguments.quick:
        parser.error(
            f"no arm of {task} or ocr-graded has been tuned by this commit: call with --tuning first, or "
            "give --after the commit whose tuning still holds"
        )
    arms = arguments.arms or (main_arms(tuned) if tuned else ["off_policy_32", "plain_nft_shared"])
    seeds, share = (1, 4) if arguments.quick else (arguments.seeds, 1)
    wanted = reported_curves(task, arms, seeds, tuned, share)
    curves = CurveStore.of_call(f"exploration-{task}", arguments).curves(wanted)
    made = {arm for arm, _ in curves}
    best = dict(tuned.chosen) if tuned and not arguments.arms else {}
    chosen = {objective: arm for objective, arm in best.items() if arm in made}
    for arm in arms:
        if arm in made and ARMS[arm].plain in made:
            chosen.setdefault(ARMS[arm].objective, arm)
    if not any(name in made and ARMS[name].plain in made for name in chosen.values()):
        parser.error("--as-is: no chosen arm has curves yet, with those of its arm without exploration")
    figures = {
        "curves_after": arguments.after,
        "tuning": tuned.figures if tuned else {},
        **summarise(task, curves, {arm: arm_config(task, arm, 0) for arm in made}, chosen),
    }
    large = "-large" if made & {*LARGE} else ""  # beside the result of the other arms
    finish(f"exploration-{task}{large}", figures, arguments, module="exploration")


if __name__ == "__main__":
    main()
