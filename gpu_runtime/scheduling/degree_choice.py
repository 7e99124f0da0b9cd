"""Chooses how many devices share a phase's samples, from measured times; pure.

A table keeps measured times of a denoising step by degree; with them, the rest of a phase is simulated for
each promising division.

Unmeasured degrees are tried first, on real samples: their steps count, so a trial costs only two changes of
groups and the extra time of a few chunks. With fewer batches than groups, only the largest groups form. The
smallest degree is tried first, and a larger one only if the last made a denoising step faster: if two devices
take as long as one, four are never tried.

Groups change only if the phase then ends clearly sooner, including the change: times are noisy, but the cost
of a change is certain.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from gpu_runtime.scheduling.group_layout import Group, Layout, large_first, plan_layout
from gpu_runtime.scheduling.history import MEMBERS_JOINED_BY
from gpu_runtime.scheduling.requests import WorkLeft

LEAST_GAIN = 0.1
"""Share that a change of groups must save of the time left, and a larger degree of a step's time."""

TRIAL_SHARE = 0.1
"""Share of the time left that the two changes of groups of a trial may take."""

_SIMULATED_EACH = 8
"""Batches per group that are simulated singly; others count only by their steps."""

KEPT = 9
"""Number of newest times per degree in the median."""

_ENOUGH = 2
"""Number of times that make a degree known."""

_ENOUGH_FIRST = 3
"""The same if all are the first times of their groups."""

REGROUP_GUESS_S = 0.25
"""Assumed seconds to form a group, before the first one was formed."""


def request_class(height: int, width: int, batch: int) -> str:
    """Return the name of the requests whose denoising steps cost the same; size 0 is the model's own.

    Args:
        height, width: size of an image in pixels; 0 for the model's own size.
        batch: number of samples in a forward pass.
    """
    size = f"{height}x{width}" if height and width else "own size"
    return f"{size}, {batch} at a time"


class StepTimeTable:
    """The measured times of one class of requests: resolution and batches decide the cost of a step.

    A group's first chunk also warms it up by opening connections and allocating buffers. Its time counts
    only while a degree has no others, as in phases where every group does one chunk.
    """

    def __init__(self) -> None:
        self._steady: dict[int, deque[float]] = {}
        self._first: dict[int, deque[float]] = {}
        self._regroups: deque[float] = deque(maxlen=KEPT)
        self._have_shared: set[str] = set()
        self._changed: Counter[int] = Counter()

    def note(self, degree: int, step_s: float, first: bool) -> None:
        """Record a step's seconds in a chunk, if above 0; a group's `first` ones count until others do."""
        if not step_s > 0:
            return
        times = self._first if first else self._steady
        times.setdefault(degree, deque(maxlen=KEPT)).append(step_s)
        self._changed[degree] += 1

    def note_regroup(self, seconds: float, members: Collection[str] = ()) -> None:
        """Record the seconds to form a group, unless a member has just started up for its first one."""
        if self._have_shared.issuperset(members):
            self._regroups.append(max(0.0, seconds))
        self._have_shared.update(members)

    def step_s(self, degree: int) -> float | None:
        """Return the seconds of a denoising step; None while too few times are measured."""
        for times, enough in ((self._steady, _ENOUGH), (self._first, _ENOUGH_FIRST)):
            measured = times.get(degree, ())
            if len(measured) >= enough:
                return median(measured)
        return None

    @property
    def known(self) -> Mapping[int, float]:
        """Seconds of a denoising step by known degree."""
        degrees = sorted(self._steady.keys() | self._first.keys())
        return {degree: step_s for degree in degrees if (step_s := self.step_s(degree)) is not None}

    @property
    def regroup_s(self) -> float:
        """Seconds that forming a group takes."""
        return median(self._regroups) if self._regroups else REGROUP_GUESS_S

    def state(self) -> tuple[object, ...]:
        """Return everything that its results depend on, now and after further times."""
        kept = ((degree, tuple(times)) for degree, times in sorted(self._steady.items()))
        first = ((degree, tuple(times)) for degree, times in sorted(self._first.items()))
        return tuple(kept), tuple(first), tuple(self._regroups), frozenset(self._have_shared)

    def take_changed(self) -> dict[int, int]:
        """Return the number of chunks timed since the last call, by known degree."""
        taken = {degree: count for degree, count in self._changed.items() if degree in self.known}
        for degree in taken:
            del self._changed[degree]
        return dict(sorted(taken.items()))


def choose_layout(
    devices: Mapping[str, str],
    before: Sequence[Group],
    left: WorkLeft,
    step_times: StepTimeTable,
    degrees: Sequence[int],
) -> Layout:
    """Choose the groups of `devices` from the work left.

    Args:
        devices: live device → its instance.
        before: groups so far; members that are gone are not in `devices`.
        left: work left in the phase.
        step_times: measured times of its requests.
        degrees: numbers of devices that may share a sequence, ascending, including 1.
    """
    standing = [group for group in before if group.intact(devices)]
    trial = degree_to_try(devices, step_times, degrees)
    if trial == 1:
        return plan_layout(devices, {1: 1.0}, before)
    usable = {degree: step_s for degree, step_s in step_times.known.items() if degree in degrees}
    # The groups so far, if their degree is known; a device in none works alone.
    kept = [group for group in standing if len(group.members) in usable]
    taken = {member for group in kept for member in group.members}
    stay = (*kept, *(Group(devices[name], (name,)) for name in sorted(devices) if name not in taken))
    if not (devices and left.batches):
        return stay
    stay_s = batch_ends_s(stay, standing, left, usable, step_times.regroup_s)
    if trial is not None:
        under_way = any(len(group.members) == trial for group in standing)
        if under_way or 2 * step_times.regroup_s <= TRIAL_SHARE * max(stay_s):
            layout = plan_layout(devices, large_first(degrees, trial), before, left.batches)
            # A lone device is ready before a group has formed, and would take the trial's batch.
            used = sorted(layout, key=lambda group: -len(group.members))[: left.batches]
            return tuple(group for group in layout if group in used)
    best, best_s = stay, stay_s
    enough = 1 - LEAST_GAIN
    at_once = largest = min(left.batches, len(devices))  # then half as many batches at a time, a quarter, ...
    while at_once:
        layout = plan_layout(devices, usable, before, at_once, largest)
        ends_s = batch_ends_s(layout, standing, left, usable, step_times.regroup_s)
        sooner = (max(ends_s), sum(ends_s)) < (max(best_s), sum(best_s))
        # If devices are idle, it is enough that batches end sooner on average and the last no later: a group
        # that finishes first then helps the others.
        idle = left.batches < len(stay)
        clearly = max(ends_s) < enough * max(stay_s) or (idle and sum(ends_s) < enough * sum(stay_s))
        if sooner and clearly:
            best, best_s = layout, ends_s
        at_once //= 2
    return best


def degree_to_try(
    devices: Mapping[str, str], step_times: StepTimeTable, degrees: Sequence[int]
) -> int | None:
    """Return the smallest degree worth a trial: unmeasured, if all smaller ones made steps faster.

    Args:
        devices: live device → its instance; no degree exceeds the largest instance.
        step_times: measured times.
        degrees: allowed degrees.
    """
    room = max(Counter(devices.values()).values(), default=0)
    fastest: float | None = None
    for degree in degrees:
        if degree > room:
            return None
        step_s = step_times.step_s(degree)
        if step_s is None:
            return degree
        if fastest is not None and step_s > (1 - LEAST_GAIN) * fastest:
            return None
        fastest = step_s
    return None


def name_of(group: Group) -> str:
    """Return the name of a group, as in leases."""
    return MEMBERS_JOINED_BY.join(group.members)


def batch_ends_s(
    groups: Sequence[Group],
    standing: Sequence[Group],
    left: WorkLeft,
    step_s: Mapping[int, float],
    regroup_s: float,
) -> list[float]:
    """Return the seconds until each remaining batch is done if these groups pull from now on.

    An existing group continues its work. A new one waits until its members have done their begun steps,
    plus `regroup_s` if it has several members; the next free group first takes the rest of their batches.
    Times are unordered; if very many batches wait, only those of the last ones are returned.

    Args:
        groups: planned groups, at least one.
        standing: groups so far.
        left: work left.
        step_s: degree → seconds of a denoising step; a missing degree counts as the slowest.
        regroup_s: seconds that a group of several devices takes to form.
    """
    slowest = max(step_s.values())

    def seconds(degree: int) -> float:
        return step_s.get(degree, slowest)

    stay = {name_of(group) for group in standing} & {name_of(group) for group in groups}
    bound_s: dict[str, float] = {}
    back: list[tuple[float, int]] = []
    ends_s: list[float] = []
    for name, work in left.under_way.items():
        members = name.split(MEMBERS_JOINED_BY)
        if name not in stay:
            until_s = work.bound * seconds(len(members))
            bound_s |= dict.fromkeys(members, until_s)
            if work.steps > work.bound:
                back.append((until_s, work.steps - work.bound))
            else:
                ends_s.append(until_s)
    simulated = min(len(left.waiting), _SIMULATED_EACH * len(groups))
    # The first batches are done while all groups are busy, so their order does not matter.
    later = left.waiting[: len(left.waiting) - simulated]
    ahead_s = sum(later) / sum(1 / seconds(len(group.members)) for group in groups)
    free: list[tuple[float, str, float]] = []
    for group in groups:
        name, step = name_of(group), seconds(len(group.members))
        if name in stay:
            begin_s = left.under_way[name].steps * step if name in left.under_way else 0.0
            ends_s += [begin_s] if name in left.under_way else []
        else:
            begin_s = max(bound_s.get(member, 0.0) for member in group.members)
            begin_s += regroup_s if len(group.members) > 1 else 0.0
        heapq.heappush(free, (ahead_s + begin_s, name, step))
    return ends_s + _ends_of_pulled_s(free, sorted(back), left.waiting[len(later) :])


def _ends_of_pulled_s(
    free: list[tuple[float, str, float]], back: Sequence[tuple[float, int]], left: Sequence[int]
) -> list[float]:
    """Return the times at which batches are done that groups pull one after another.

    Args:
        free: heap of the groups: the time from which each is free, its name, its seconds per step.
        back: begun batches, by the time from which they can be pulled, with their steps.
        left: steps of the batches that wait, in order.
    """
    ends_s: list[float] = []
    returned, waiting = deque(back), deque(left)
    while returned or waiting:
        free_s, name, step = free[0]
        # Returned batches are taken first, once they are back.
        comes_s, steps = returned[0] if returned else (math.inf, 0)
        if waiting and comes_s > free_s:
            done_s = free_s + waiting.popleft() * step
        else:
            returned.popleft()
            done_s = max(free_s, comes_s) + steps * step
        ends_s.append(done_s)
        heapq.heapreplace(free, (done_s, name, step))
    return ends_s
