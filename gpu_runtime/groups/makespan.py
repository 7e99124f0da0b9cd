"""The ends of batches with planned groups: the rest of a phase, simulated by measured times. Pure."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence

from gpu_runtime.groups.layout import Group
from gpu_runtime.scheduling.history import MEMBERS_JOINED_BY
from gpu_runtime.scheduling.requests import WorkLeft

_SIMULATED_EACH = 8
"""Batches per group that are simulated one by one; any others count only by their steps."""


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
    """Return the seconds until each remaining batch is done, if these groups pull from now on.

    An existing group continues its work. A new one waits until its members have done the steps that they are
    bound to, and for `regroup_s`; the next free group takes the rest of their batches first.

    Args:
        groups: planned groups, at least one.
        standing: groups so far.
        left: work left.
        step_s: degree → seconds of a denoising step; a missing degree counts as the slowest.
        regroup_s: seconds that a group of several devices takes to form.

    Returns:
        One time per batch, unordered; if very many wait, only those of the last ones.
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
    returned, waiting = deque(sorted(back)), deque(left.waiting[len(later) :])
    while returned or waiting:
        free_s, name, step = heapq.heappop(free)
        # Returned batches are taken first, once they are back.
        comes_s, steps = returned[0] if returned else (math.inf, 0)
        if waiting and comes_s > free_s:
            done_s = free_s + waiting.popleft() * step
        else:
            returned.popleft()
            done_s = max(free_s, comes_s) + steps * step
        ends_s.append(done_s)
        heapq.heappush(free, (done_s, name, step))
    return ends_s
