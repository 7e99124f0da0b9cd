"""Seeded faults on live workers: is anything lost, twice or different, and what do they cost.

The preset `glyphs` trains with one reserved and three spot workers, real processes on Ray with the real
model. The first run is disturbed until all faults are done: workers are killed, killed after a notice of a
played metadata service, half of them at once, while they join, while they commit; they hang or are slow;
scorers are killed. The second run does as many iterations in peace. The promises are checked from the
history that every process writes (`gpu_runtime/scheduling/history_check.py`), goodput and its prediction are
those of `benchmarks/goodput.py`. Killing the driver is not among the faults: `benchmarks.resume` and
`spotlight chaos` do that.

With `--degree` 2 or 4 so many devices share each sample. Bits then depend on how many shared a denoising
step, and a loss changes that. So each iteration begins with the same weights, its samples are compared with
those of the run in peace, and so are the weights after it: see `benchmarks/shared_samples.py`.

    python -m benchmarks.preemption [--degree 2] [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.goodput import measure, waste
from benchmarks.preempted_run import Outcome, run
from benchmarks.report import add_keep_option, finish
from benchmarks.shared_samples import broken, compare, degrees_of
from gpu_runtime.spot.fault_schedule import FAULT_KINDS, Fault, FaultKind, draw_faults
from storage.config_loading import load_config
from storage.environment import environment
from storage.home import Home

_SETTINGS = (
    "runtime.history=true", "runtime.reserved_workers=1", "runtime.spot_workers=3",
    "runtime.scorer_workers=1", "runtime.commit_steps=2", "runtime.commit_s=0",
    "runtime.lease_s=20", "runtime.start_timeout_s=600", "sampling.rollout_steps=20",
    "sampling.window_size=1", "algorithm.prompts_per_iteration=16", "algorithm.group_size=12",
)  # fmt: skip
_KINDS: list[FaultKind] = [kind for kind in FAULT_KINDS if kind != "coordinator_restart"]
_GRACES_S = (3.0, 4.0, 6.0)
"""A worker asks for notices once a second; without grace a notice would be none."""
_DURATIONS_S = (1.0, 26.0)
"""Some hung workers recover before their lease expires, some do not."""


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="16 faults instead of 208")
    parser.add_argument("--faults", type=int, help="so many faults")
    parser.add_argument("--every", type=float, default=1.0, help="quiet iterations between faults (mean)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--degree", type=int, default=1, choices=(1, 2, 4), help="devices that share each sample"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--again", action="store_true", help="figures of the last runs, without new ones")
    add_keep_option(parser)
    arguments = parser.parse_args()
    count = arguments.faults or (16 if arguments.quick else 208)

    def draw(iteration_s: float) -> Sequence[Fault]:
        """Faults as dense as the machine is fast."""
        return draw_faults(
            arguments.seed, count, count * arguments.every * iteration_s, 1,
            kinds=_KINDS, timed_share=1.0, graces_s=_GRACES_S, durations_s=_DURATIONS_S,
        )  # fmt: skip

    degree = arguments.degree
    shared = [f"sequence_parallel.rollout={degree}"] if degree > 1 else []
    config = load_config("glyphs", [*_SETTINGS, *shared, *arguments.set], {})
    commit = environment()["commit"]
    name = f"preemption_sp{degree}" if degree > 1 else "preemption"
    outcomes = Home.from_environment().ensure().path / "benchmarks" / f"{name}.pickle"
    if not arguments.again:
        with tempfile.TemporaryDirectory() as folder:
            kept = (Path(folder) / "samples-1", Path(folder) / "samples-2") if degree > 1 else (None, None)
            disturbed = run(config, Path(folder) / "disturbed", 3, draw, kept=kept[0])
            undisturbed = run(config, Path(folder) / "undisturbed", disturbed.iterations, kept=kept[1])
            apart = _apart(disturbed, undisturbed, *kept)
        outcomes.parent.mkdir(parents=True, exist_ok=True)
        outcomes.write_bytes(pickle.dumps((commit, disturbed, undisturbed, apart)))
    # Our own file, in our own home.
    run_by, disturbed, undisturbed, apart = pickle.loads(outcomes.read_bytes())
    figures = summarise(disturbed, undisturbed, config.runtime.commit_steps) | {
        "seed": arguments.seed,
        "settings": arguments.set,
        "runs_commit": run_by,
    }
    if apart is not None:
        del figures["identical_weights"]  # not promised, and each iteration began anew
        figures |= {"degree": degree, **apart, "regroup_s": disturbed.course.seconds(None, "regroup")}
        figures["broken_promises"] = [*figures["broken_promises"], *broken(apart)]
    finish(name, figures, arguments.keep, module="preemption", began_at=commit)


def _apart(
    disturbed: Outcome, undisturbed: Outcome, one: Path | None, other: Path | None
) -> dict[str, Any] | None:
    """How far runs that share samples are apart; None where they do not."""
    if one is None or other is None:
        return None
    degrees = [degrees_of(outcome.course.lines) for outcome in (disturbed, undisturbed)]
    return compare(one, other, *degrees)


def summarise(disturbed: Outcome, undisturbed: Outcome, commit_steps: int) -> dict[str, Any]:
    """The figures of a disturbed run beside an undisturbed one."""
    report, base = disturbed.course.report, measure(undisturbed.course)
    goodput = measure(disturbed.course)
    inputs = waste(disturbed.course, goodput, undisturbed.course.seconds(None, "regroup") / base.paid_s)
    raw = _steps_a_paid_second(disturbed) / _steps_a_paid_second(undisturbed)
    return {
        "faults": len(disturbed.course.done),
        "faults_left": disturbed.left,
        "lost": len(report.lost),
        "duplicated_deliveries": len(report.duplicated),
        "identical_weights": bool(disturbed.blobs) and disturbed.blobs == undisturbed.blobs,
        "hangs": int(disturbed.hung) + int(undisturbed.hung),
        "redone_steps_with_notice_max": report.most_redone(with_notice=True),
        "redone_steps_without_notice_max": report.most_redone(with_notice=False),
        "commit_interval": commit_steps,
        "goodput": goodput.share / base.share,
        "goodput_predicted": inputs.predicted,
        "broken_promises": [*report.broken(), *undisturbed.course.report.broken()],
        "faults_by_kind": dict(Counter(done.fault.kind for done in disturbed.course.done)),
        "samples": report.requested,
        "late_deliveries_dropped": report.dropped,
        "losses_with_notice": report.losses(with_notice=True),
        "losses_without_notice": report.losses(with_notice=False),
        "steps_needed": report.steps_needed,
        "steps_redone": report.steps_redone,
        "steps_redone_live_bound": disturbed.steps_redone,
        "prediction": inputs.rounded(),
        "useful_share": goodput.share,
        "useful_share_undisturbed": base.share,
        "step_s": goodput.step_s,
        "step_s_undisturbed": base.step_s,
        "goodput_of_the_whole_bill": raw,
        "iterations": disturbed.iterations,
        "wall_s": disturbed.wall_s,
        "wall_s_undisturbed": undisturbed.wall_s,
    }


def _steps_a_paid_second(outcome: Outcome) -> float:
    """Needed denoising steps per paid device-second, every phase and the pace of this machine included."""
    paid_s = sum(part.ended_at - part.started_at for part in outcome.course.intervals)
    return outcome.course.report.steps_needed / paid_s


if __name__ == "__main__":
    main()
