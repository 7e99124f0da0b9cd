"""Seeded faults on live workers that share samples: samples lost, duplicated or changed, and the cost.

The preset `glyphs` trains with one reserved and three spot workers, of which `--degree` share each sample.
The first run is disturbed until all faults are done, the second one does as many iterations undisturbed. Bits
depend on how many devices shared a denoising step, and a loss changes that. So each iteration begins with the
same weights, its samples are compared with those of the undisturbed run, and so are the weights after it: see
`benchmarks/shared_samples.py`. The driver and the services beside it are not killed here; goodput and its
prediction are those of `benchmarks/goodput.py`.

    python -m benchmarks.preemption_shared --degree 2 [--keep]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.goodput import measure, predicted
from benchmarks.preempted_run import Outcome, run
from benchmarks.report import add_keep_option, finish
from benchmarks.shared_samples import broken, compare, degrees_of
from gpu_runtime.chaos.fault_schedule import Fault, FaultKind, draw_faults
from storage.config.loading import load_config
from storage.environment import environment

_SETTINGS = (
    "runtime.history=true", "runtime.reserved_workers=1", "runtime.spot_workers=3",
    "runtime.scorer_workers=1", "runtime.commit_steps=2",
    "runtime.lease_s=20", "runtime.start_timeout_s=600", "sampling.rollout_steps=20",
    "sampling.window_size=1", "algorithm.prompts_per_iteration=16", "algorithm.group_size=12",
)  # fmt: skip
_KINDS: tuple[FaultKind, ...] = (
    "kill", "notice_then_kill", "half_at_once", "kill_while_joining", "kill_while_committing", "hung_worker",
    "slow_worker", "scorer_death",
)  # fmt: skip
_GRACES_S = (3.0, 4.0, 6.0)
"""A worker asks for notices once a second; without grace a notice would be none."""
_DURATIONS_S = (1.0, 26.0)
"""Some hung workers recover before their lease expires, some do not."""


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=24, help="so many faults")
    parser.add_argument("--every", type=float, default=0.4, help="quiet iterations between faults (mean)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--degree", type=int, required=True, choices=(2, 4), help="devices that share a sample"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    add_keep_option(parser)
    arguments = parser.parse_args()
    count, degree = arguments.faults, arguments.degree

    def draw(iteration_s: float) -> Sequence[Fault]:
        """Faults as dense as the machine is fast."""
        return draw_faults(
            arguments.seed, count, count * arguments.every * iteration_s, 1,
            kinds=_KINDS, timed_share=1.0, graces_s=_GRACES_S, durations_s=_DURATIONS_S,
        )  # fmt: skip

    config = load_config("glyphs", [*_SETTINGS, f"sequence_parallel.rollout={degree}", *arguments.set], {})
    commit = environment()["commit"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kept = folder / "samples-1", folder / "samples-2"
        disturbed = run(config, folder / "disturbed", 3, draw, kept=kept[0])
        undisturbed = run(config, folder / "undisturbed", disturbed.iterations, kept=kept[1])
        apart = compare(*kept, *(degrees_of(outcome.course.lines) for outcome in (disturbed, undisturbed)))
    figures = summarise(disturbed, undisturbed, config.runtime.commit_steps) | {
        "seed": arguments.seed,
        "settings": arguments.set,
        "degree": degree,
        **apart,
    }
    figures["broken_promises"] = [*figures["broken_promises"], *broken(apart)]
    finish(f"preemption_sp{degree}", figures, arguments.keep, "cpu", "preemption_shared", commit)


def summarise(disturbed: Outcome, undisturbed: Outcome, commit_steps: int) -> dict[str, Any]:
    """The figures of a disturbed run beside an undisturbed one."""
    report = disturbed.report
    sums, base = measure(disturbed.course), measure(undisturbed.course)
    return {
        "faults": len(disturbed.course.done),
        "faults_left": disturbed.left,
        "lost": len(report.lost),
        "duplicated_deliveries": len(report.duplicated),
        "hangs": int(disturbed.hung) + int(undisturbed.hung),
        "redone_steps_with_notice_max": report.most_redone(with_notice=True),
        "redone_steps_without_notice_max": report.most_redone(with_notice=False),
        "commit_interval": commit_steps,
        "goodput": sums.share / base.share,
        "goodput_predicted": predicted(sums, base),
        "broken_promises": [*report.broken(), *undisturbed.report.broken()],
        "faults_by_kind": dict(Counter(done.fault.kind for done in disturbed.course.done)),
        "samples": report.requested,
        "late_deliveries_dropped": report.dropped,
        "losses_with_notice": report.losses(with_notice=True),
        "losses_without_notice": report.losses(with_notice=False),
        "steps_needed": report.steps_needed,
        "steps_redone": report.steps_redone,
        "steps_redone_live_bound": disturbed.steps_redone,
        "prediction": {name: round(value, 3) for name, value in vars(sums).items()},
        "useful_share": sums.share,
        "useful_share_undisturbed": base.share,
        "step_s": sums.step_s,
        "step_s_undisturbed": base.step_s,
        "iterations": disturbed.iterations,
        "wall_s": disturbed.wall_s,
        "wall_s_undisturbed": undisturbed.wall_s,
    }


if __name__ == "__main__":
    main()
