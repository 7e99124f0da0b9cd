"""What share of the paid device time goes into useful denoising, and what faults should leave of it.

Measured in the windows in which samples are generated, as these are what losses disturb, and in the breaks
between a driver's death and its resumption. With t the mean seconds that a denoising step takes per sample,
U the steps that the run needed, and P the device-seconds paid, goodput is U t / P. t comes from the same run,
from leases that came to their end: where worker processes share cores, the loss of one makes the others
faster, and a replacement that loads makes all slower, the driver too; neither is the run's own. The
prediction (docs/spot.md) is

    goodput / goodput undisturbed = 1 - (R r + N i + L (w + d) + S s + W + K) / P

R replacements that each cost r device-seconds before they pull; N notices that each leave i of idle grace;
L losses, each with w of work done again and d until it is known; S stalls of s; W device-seconds in which
devices wait for others, beyond those of the undisturbed run; K device-seconds that the deaths of the driver
cost: the phases that are done again, and the breaks. All of it is measured in the disturbed run, none of it
from U, and no constant is fitted. What is measured are sums, so that several runs make one figure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.device_time import DeviceTime, LifeTimes, Span, lives_of, overlap
from gpu_runtime.chaos.fault_injector import Done
from gpu_runtime.scheduling.history_check import DRIVER, HistoryLine

KILLS = ("kill", "half_at_once", "kill_while_committing")
"""Faults that take workers which may hold samples, without a notice."""


@dataclass(frozen=True)
class Sums:
    """What one run or several were paid for; device-seconds, unless said otherwise. Those of several add up.

    Attributes:
        windows: number of phases of generating that count.
        paid_s: P: in these windows, and K.
        useful_s: U t, with the t of its run.
        leased_s, sample_steps: of leases that came to their end: t is their quotient.
        replacements, replacement_s: R and R r.
        notices, grace_idle_s: N and N i.
        losses, redone_s, detection_s: L, L w and L d.
        stalls, stall_s: S and S s: hung and slow workers and stopped drivers, and all that waits for them.
        waiting_s: devices without work that none of the above explains; W and the undisturbed run's share.
        restarts, again_s, break_s: deaths of the driver, and K: phases done again, and breaks.
    """

    windows: int = 0
    paid_s: float = 0.0
    useful_s: float = 0.0
    leased_s: float = 0.0
    sample_steps: int = 0
    replacements: int = 0
    replacement_s: float = 0.0
    notices: int = 0
    grace_idle_s: float = 0.0
    losses: int = 0
    redone_s: float = 0.0
    detection_s: float = 0.0
    stalls: int = 0
    stall_s: float = 0.0
    waiting_s: float = 0.0
    restarts: int = 0
    again_s: float = 0.0
    break_s: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            **{
                one.name: getattr(self, one.name) + getattr(other, one.name)
                for one in dataclasses.fields(self)
            }
        )

    @property
    def step_s(self) -> float:
        """t: device-seconds of a denoising step of one sample."""
        return self.leased_s / self.sample_steps if self.sample_steps else 0.0

    @property
    def share(self) -> float:
        """Useful device-seconds per paid one."""
        return self.useful_s / self.paid_s

    @property
    def in_windows(self) -> Sums:
        """The same without what driver's deaths cost."""
        return dataclasses.replace(
            self, paid_s=self.paid_s - self.again_s - self.break_s, restarts=0, again_s=0.0, break_s=0.0
        )


@dataclass(frozen=True)
class Stop:
    """A process that a fault stopped: that of a worker, or the driver (None), for which all wait.

    Attributes:
        worker: its name; None is the driver.
        span: from when until when.
        share: of that time in which it stood still.
    """

    worker: str | None
    span: Span
    share: float


@dataclass(frozen=True)
class Course:
    """What is known of a run that is over.

    Attributes:
        lines: its history.
        done: the faults that were done.
        places: devices that are paid for while the driver is dead.
    """

    lines: Sequence[HistoryLine]
    places: int
    done: Sequence[Done] = ()


def predicted(sums: Sums, undisturbed: Sums) -> float:
    """Goodput relative to that of the undisturbed run, from what was wasted.

    Args:
        sums: of the disturbed run, or of several.
        undisturbed: of the undisturbed one.
    """
    wasted_s = (
        sums.replacement_s
        + sums.grace_idle_s
        + sums.redone_s
        + sums.detection_s
        + sums.stall_s
        + sums.waiting_s
        - usual_waiting_s(sums, undisturbed)
        + sums.again_s
        + sums.break_s
    )
    return 1 - wasted_s / sums.paid_s


def usual_waiting_s(sums: Sums, undisturbed: Sums) -> float:
    """What the undisturbed run would have waited in as many windows, at the disturbed one's pace."""
    a_window_s = undisturbed.waiting_s / undisturbed.windows
    return a_window_s * sums.windows * sums.step_s / undisturbed.step_s


def measure(course: Course) -> Sums:
    """What a run was paid for, and what of it was useful."""
    lives = lives_of(course.lines)
    begins = [life.began_at for life in lives]
    ends = [*begins[1:], math.inf]
    total = Sums()
    for number, (life, begun_at, next_at) in enumerate(zip(lives, begins, ends, strict=True)):
        total += _measure(life, [done for done in course.done if begun_at <= done.at < next_at])
        if number:
            break_s = course.places * max(0.0, life.under_way_at - lives[number - 1].ended_at)
            total += Sums(paid_s=break_s, restarts=1, break_s=break_s)
    return dataclasses.replace(total, useful_s=sum(life.steps_needed for life in lives) * total.step_s)


def _measure(life: LifeTimes, done: Sequence[Done]) -> Sums:
    """The sums of one life; its useful seconds are left out."""
    stops = _stops(life, done)
    killed_at = {name: one.at for one in done if one.fault.kind in KILLS for name in one.victims}
    again_s = sum(
        overlap(device.paid, window.span)
        for device in life.devices.values()
        for window in life.windows
        if not (window.counts or window.drafts)
    )
    windows = [window.span for window in life.windows if window.counts]
    sums = Sums(
        windows=len(windows),
        paid_s=again_s,
        again_s=again_s,
        stalls=len(stops),
    )
    for lease in life.leases:
        if lease.window.counts and lease.how == "delivered":
            stopped_s = _stopped_s(stops, lease.members, lease.span)
            sums += Sums(
                leased_s=(lease.span[1] - lease.span[0] - stopped_s) * len(lease.members),
                sample_steps=lease.samples * (lease.window.steps - lease.from_step),
            )
    for device in life.devices.values():
        sums += _of_device(device, windows, stops, killed_at.get(device.name))
    return sums


def _of_device(
    device: DeviceTime, windows: Sequence[Span], stops: Sequence[Stop], killed_at: float | None
) -> Sums:
    """What one device was paid for in some windows."""

    def inside(span: Span) -> float:
        return sum(overlap(span, device.paid, window) for window in windows)

    paid_s = inside(device.paid)
    begun_at = device.first_lease_at if device.is_replacement else device.paid[0]
    replacement_s = inside((device.paid[0], begun_at))
    noticed_at = math.inf if device.noticed_at is None else device.noticed_at
    held_s = held_under_notice_s = stall_s = redone_s = detection_s = 0.0
    for lease in device.leases:
        if not lease.window.counts:
            continue
        begin, end = lease.span
        held_s += inside(lease.span)
        held_under_notice_s += inside((max(begin, noticed_at), end))
        stall_s += _stopped_s(stops, lease.members, lease.span)
        if lease.how in ("lost", "expired"):
            known_after = end if killed_at is None else min(end, max(killed_at, lease.kept_until))
            for since, until, detected in ((lease.kept_until, known_after, False), (known_after, end, True)):
                wasted_s = max(0.0, until - since) - _stopped_s(stops, lease.members, (since, until))
                redone_s += 0.0 if detected else wasted_s
                detection_s += wasted_s if detected else 0.0
    grace_idle_s = inside((max(noticed_at, begun_at), math.inf)) - held_under_notice_s
    return Sums(
        paid_s=paid_s,
        replacements=int(device.is_replacement),
        replacement_s=replacement_s,
        notices=int(device.noticed_at is not None),
        grace_idle_s=grace_idle_s,
        losses=int(device.lost),
        redone_s=redone_s,
        detection_s=detection_s,
        stall_s=stall_s,
        waiting_s=paid_s - replacement_s - held_s - grace_idle_s,
    )


def _stops(life: LifeTimes, done: Iterable[Done]) -> list[Stop]:
    """The processes of a life that a fault stopped."""
    found: list[Stop] = []
    for one in done:
        if one.fault.duration_s is None:
            continue
        victim = one.victims[0]
        gone_at = life.devices[victim].paid[1] if victim in life.devices else life.ended_at
        until = min(one.at + one.fault.duration_s, gone_at)
        share = 1 - 1 / one.fault.slowdown if one.fault.slowdown else 1.0
        found.append(Stop(None if victim == DRIVER else victim, (one.at, until), share))
    return found


def _stopped_s(stops: Sequence[Stop], members: Sequence[str], span: Span) -> float:
    """Seconds of a span in which a lease of these devices stood still: where one stops, all of them wait."""
    met = [stop for stop in stops if stop.worker is None or stop.worker in members]
    cuts = sorted({*span, *(at for stop in met for at in stop.span if span[0] < at < span[1])})
    return sum(
        (end - begin) * max((stop.share for stop in met if overlap(stop.span, (begin, end))), default=0.0)
        for begin, end in itertools.pairwise(cuts)
        if end > begin
    )
