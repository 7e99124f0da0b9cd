"""The choice of how many devices share the samples of a phase: from measured times to groups. Pure.

Unmeasured degrees are tried first, on real samples: their steps count, so a trial costs two changes of groups
and the extra time of a few chunks. The smallest comes first, and a larger one only if the last made a
denoising step faster: if two devices take as long as one, four are never tried.

Groups change only if the phase then ends clearly sooner, including the change: times are noisy, but the cost
of a change is certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpu_runtime.groups.layout import Group, Layout, large_first, plan_layout
from gpu_runtime.groups.makespan import batch_ends_s
from gpu_runtime.groups.step_times import StepTimeTable
from gpu_runtime.scheduling.requests import WorkLeft

LEAST_GAIN = 0.1
"""Share that a change of groups must save of the time left, and a larger degree of a step's time."""

TRIAL_SHARE = 0.1
"""Share of the time left that the two changes of groups of a trial may take."""


def choose_layout(
    devices: Mapping[str, str],
    before: Sequence[Group],
    left: WorkLeft,
    step_times: StepTimeTable,
    degrees: Sequence[int],
) -> Layout:
    """Choose the groups.

    Args:
        devices: live device → its instance.
        before: groups so far; members that are gone are not in `devices`.
        left: work left in the phase.
        step_times: measured times of its requests.
        degrees: numbers of devices that may share a sequence, including 1, in rising order.
    """
    standing = [group for group in before if _intact(group, devices)]
    trial = degree_to_try(devices, step_times, degrees)
    if trial == 1:
        return plan_layout(devices, {1: 1.0}, before)
    usable = {degree: step_s for degree, step_s in step_times.known.items() if degree in degrees}
    stay = _as_they_are(devices, standing, usable)
    if not (devices and left.batches):
        return stay
    stay_s = batch_ends_s(stay.groups, standing, left, usable, step_times.regroup_s)
    if trial is not None:
        under_way = any(len(group.members) == trial for group in standing)
        if under_way or 2 * step_times.regroup_s <= TRIAL_SHARE * max(stay_s):
            return plan_layout(devices, large_first(degrees, trial), before, left.batches)
    best, best_s = stay, stay_s
    for at_once in _falling(min(left.batches, len(devices))):
        layout = plan_layout(devices, usable, before, at_once)
        ends_s = batch_ends_s(layout.groups, standing, left, usable, step_times.regroup_s)
        sooner = (max(ends_s), sum(ends_s)) < (max(best_s), sum(best_s))
        if sooner and _clearly_better(ends_s, stay_s, left.batches < len(stay.groups)):
            best, best_s = layout, ends_s
    return best


def _clearly_better(ends_s: Sequence[float], stay_s: Sequence[float], idle: bool) -> bool:
    """Return True if batches end so much sooner than with the present groups that these should change.

    If devices are idle, it is enough that the batches end sooner on average and the last one no later: a
    group that is done first then helps the others.
    """
    if max(ends_s) < (1 - LEAST_GAIN) * max(stay_s):
        return True
    return idle and max(ends_s) <= max(stay_s) and sum(ends_s) < (1 - LEAST_GAIN) * sum(stay_s)


def degree_to_try(
    devices: Mapping[str, str], step_times: StepTimeTable, degrees: Sequence[int]
) -> int | None:
    """Return the smallest degree worth a trial: not measured yet, while all smaller ones made steps faster.

    Args:
        devices: live device → its instance; no degree is above the devices of the largest instance.
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


def _intact(group: Group, devices: Mapping[str, str]) -> bool:
    return all(devices.get(member) == group.instance for member in group.members)


def _as_they_are(
    devices: Mapping[str, str], standing: Sequence[Group], usable: Mapping[int, float]
) -> Layout:
    """Return the existing groups, if their degree is known; a device in none works alone."""
    groups = [group for group in standing if len(group.members) in usable]
    taken = {member for group in groups for member in group.members}
    groups += [Group(devices[name], (name,)) for name in sorted(devices) if name not in taken]
    return Layout(tuple(groups), ())


def _falling(most: int) -> Iterator[int]:
    """Yield the numbers of simultaneous batches to consider: all, half of them, a quarter, ..."""
    while most >= 1:
        yield most
        most //= 2
