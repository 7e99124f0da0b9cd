"""What share of the paid device time goes into useful denoising, and what losses should leave of it.

Measured in the windows in which samples are generated, as these are what losses disturb. With t the mean
seconds that a denoising step takes per sample, U the steps that the run needed, and P the device-seconds paid
in the windows, goodput is U t / P. t comes from the same run, from leases that came to their end: where
worker processes share cores, the loss of one makes the others faster, and a replacement that loads makes all
slower, the driver too; neither is the run's own. The prediction (docs/spot.md) is

    goodput / goodput undisturbed = 1 - (R r + N i + L (w + d) + S s + g) / P

R replacements that each cost r device-seconds before they pull; N notices that each leave i of idle grace; L
losses, each with w of work done again and d until it is known; S stalls of s. All of it is measured in the
disturbed run, none of it from U, and no constant is fitted. Where devices share samples, g is the time
spent in forming groups beyond the undisturbed run's share of it, and a stall is that of all who wait for one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from gpu_runtime.chaos.fault_injector import Done
from gpu_runtime.scheduling.history_check import DRIVER, MEMBERS_JOINED_BY, HistoryLine, HistoryReport
from storage.records import StateInterval

Span = tuple[float, float]
"""From and until, in unix seconds."""


@dataclass(frozen=True)
class Course:
    """What is known of a run.

    Attributes:
        lines: its history.
        report: what the history says of the promises.
        intervals: what every device did.
        done: the faults that were done.
    """

    lines: Sequence[HistoryLine]
    report: HistoryReport
    intervals: Sequence[StateInterval]
    done: Sequence[Done]

    def windows(self) -> list[Span]:
        """When samples were generated; a phase that was cut off is left out."""
        begun = [line.at for line in self.lines if line.by == DRIVER and line.event == "generate"]
        ended = [line.at for line in self.lines if line.by == DRIVER and line.event == "generated"]
        return list(zip(begun, ended, strict=False))

    def seconds(self, worker: str | None, state: str | None, span: Span = (0.0, float("inf"))) -> float:
        """Device-seconds inside the windows and `span`; of one worker and one state, or of all."""
        windows = self.windows()
        return sum(
            overlap((part.started_at, part.ended_at), span, window)
            for part in self.intervals
            if worker in (None, part.worker) and state in (None, part.state)
            for window in windows
        )

    def at(self, event: str) -> dict[str, float]:
        """When the driver noted an event of each worker."""
        return {
            line.facts["worker"]: line.at for line in self.lines if line.by == DRIVER and line.event == event
        }


@dataclass(frozen=True)
class Goodput:
    """What came of the paid time.

    Attributes:
        step_s: device-seconds that a denoising step takes, per sample of a batch, its share of commits in it.
        batch_step_s: the same of a batch.
        paid_s: device-seconds in the windows.
        useful_s: those that the needed steps take.
    """

    step_s: float
    batch_step_s: float
    paid_s: float
    useful_s: float

    @property
    def share(self) -> float:
        """Useful device-seconds per paid one."""
        return self.useful_s / self.paid_s


@dataclass(frozen=True)
class Waste:
    """What the prediction is made of: counts, and means in device-seconds; see the module.

    Attributes:
        paid_s: P.
        replacements, replacement_s: R and r.
        notices, grace_idle_s: N and i.
        losses, redone_s, detection_s: L, w and d.
        stalls, stall_s: S and s: hung and slow workers, and those that share samples with them.
        regroup_s: g; 0 where each device works alone.
    """

    paid_s: float
    replacements: int
    replacement_s: float
    notices: int
    grace_idle_s: float
    losses: int
    redone_s: float
    detection_s: float
    stalls: int
    stall_s: float
    regroup_s: float = 0.0

    @property
    def predicted(self) -> float:
        """Goodput, relative to that of the undisturbed run."""
        wasted_s = (
            self.replacements * self.replacement_s
            + self.notices * self.grace_idle_s
            + self.losses * (self.redone_s + self.detection_s)
            + self.stalls * self.stall_s
            + self.regroup_s
        )
        return 1 - wasted_s / self.paid_s

    def rounded(self) -> dict[str, float]:
        """For a result's file."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def overlap(*spans: Span) -> float:
    """Seconds that all spans have in common."""
    return max(0.0, min(end for _, end in spans) - max(start for start, _ in spans))


def measure(course: Course) -> Goodput:
    """The goodput of a run.

    The pace is that of the leases that their device brought to their end, from grant to delivery: commits and
    the driver's answers are in it, the time that a fault stopped the device is not.
    """
    granted = {line.facts["lease"]: line for line in course.lines if line.event == "lease"}
    stopped = stops(course)
    total_s, steps, sample_steps, length = 0.0, 0, 0, 0
    for line in course.lines:
        if line.event == "generate":
            length = line.facts["steps"]
        if line.event != "deliver" or not line.facts["accepted"]:
            continue
        lease = granted[line.facts["lease"]]
        members = lease.facts["worker"].split(MEMBERS_JOINED_BY)
        total_s += (line.at - lease.at) * len(members)
        # Where one of several that share a lease is stopped, all of them wait.
        total_s -= sum(
            share * overlap(span, (lease.at, line.at)) * len(members)
            for worker, span, share in stopped
            if worker in members
        )
        steps += length - lease.facts["step"]
        sample_steps += (length - lease.facts["step"]) * len(lease.facts["requests"])
    step_s = total_s / sample_steps
    paid_s = course.seconds(None, None)
    return Goodput(step_s, total_s / steps, paid_s, course.report.steps_needed * step_s)


def stops(course: Course) -> list[tuple[str, Span, float]]:
    """Workers that a fault stopped: from when until when, and for which share of that time."""
    lost_at = course.at("lost")
    found: list[tuple[str, Span, float]] = []
    for done in course.done:
        if done.fault.duration_s is not None:
            worker = done.victims[0]
            until = min(done.at + done.fault.duration_s, lost_at.get(worker, float("inf")))
            share = 1 - 1 / done.fault.slowdown if done.fault.slowdown else 1.0
            found.append((worker, (done.at, until), share))
    return found


def waste(course: Course, goodput: Goodput, base_regroup_share: float = 0.0) -> Waste:
    """The inputs of the prediction, as measured.

    Args:
        course: the disturbed run.
        goodput: its own.
        base_regroup_share: share of its paid time that the undisturbed run spends in forming groups.
    """
    lost_at, noticed_at = course.at("lost"), course.at("notice")
    first_pull: dict[str, float] = {}
    for part in sorted(course.intervals, key=lambda part: part.started_at):
        if part.state == "rollout":
            first_pull.setdefault(part.worker, part.started_at)
    replacements = {part.worker for part in course.intervals if "." in part.worker}
    killed_at = {
        worker: done.at
        for done in course.done
        if done.fault.kind in ("kill", "half_at_once", "kill_while_committing")
        for worker in done.victims
    }
    detection_s = sum(
        course.seconds(worker, "rollout", (at, lost_at[worker]))
        for worker, at in killed_at.items()
        if worker in lost_at
    )
    # A kill comes in the middle of a step, on the average; that half is done again and is no whole step.
    cut = sum(loss.most > 0 and not loss.with_notice for loss in course.report.redone)
    redone_s = course.report.steps_redone * goodput.step_s + cut * goodput.batch_step_s / 2
    stopped = stops(course)
    return Waste(
        paid_s=goodput.paid_s,
        replacements=len(replacements),
        replacement_s=_mean(
            course.seconds(worker, None, (0.0, first_pull.get(worker, float("inf"))))
            for worker in replacements
        ),
        notices=len(noticed_at),
        grace_idle_s=_mean(
            course.seconds(worker, "idle", (at, lost_at.get(worker, float("inf"))))
            for worker, at in noticed_at.items()
        ),
        losses=len(lost_at),
        redone_s=redone_s / max(1, len(lost_at)),
        detection_s=detection_s / max(1, len(lost_at)),
        stalls=len(stopped),
        stall_s=_mean(
            sum(course.seconds(member, "rollout", span) for member in _company(course, worker, span[0]))
            * share
            for worker, span, share in stopped
        ),
        regroup_s=max(0.0, course.seconds(None, "regroup") - base_regroup_share * goodput.paid_s),
    )


def _company(course: Course, worker: str, at: float) -> list[str]:
    """Who shared samples with a worker at a moment, itself among them."""
    shared = [worker]
    for line in course.lines:
        if line.event == "lease" and line.at <= at:
            members = line.facts["worker"].split(MEMBERS_JOINED_BY)
            shared = members if worker in members else shared
    return shared


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return statistics.fmean(listed) if listed else 0.0
