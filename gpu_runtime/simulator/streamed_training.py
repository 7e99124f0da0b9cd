"""The times at which trainers train on prompt groups that are judged one after another. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from gpu_runtime.simulator.phase_work import PhaseOutcome, PhaseWork
from storage.config.run_config import AlgorithmConfig


def judged_groups(outcome: PhaseOutcome, work: PhaseWork, group: int) -> list[int]:
    """Return when all samples of each prompt group were judged, in ticks from the beginning of the rollout.

    Args:
        outcome: outcome of the rollout.
        work: work of the rollout; its images are whole groups.
        group: samples of a prompt.
    """
    judged, size = outcome.judged_at, work.size
    return [
        max(judged[batch] for batch in range(first // size, (first + group - 1) // size + 1))
        for first in range(0, work.images, group)
    ]


def fed_groups(judged: Sequence[int], algorithm: AlgorithmConfig) -> list[int]:
    """Return when trainers may begin with each group, as `gpu_runtime/fleet/trainers.py` feeds them.

    The first update's groups are fed in order, each once it and those before it are judged. All others are
    fed once everything is judged, as are all groups if advantages depend on all rewards.

    Args:
        judged: result of `judged_groups`.
        algorithm: settings that divide groups over updates.
    """
    fed, last = list(accumulate(judged, max)), max(judged)
    if algorithm.advantage_std == "batch":
        return [last] * len(fed)
    first = fed[:: algorithm.updates_per_iteration]
    return first + [last] * (len(fed) - len(first))


def training_spans(
    outcome: PhaseOutcome, groups: Sequence[int], length: int, rolled: int
) -> list[tuple[int, int]]:
    """Return the intervals in which trainers train, in ticks from the beginning of the rollout.

    Trainers that had to roll out again continue when the rollout is over, with the group that they could not
    finish before.

    Args:
        outcome: outcome of the rollout.
        groups: ticks at which they may begin with each prompt group, in the order of training.
        length: ticks of training on a group, by all trainers together.
        rolled: ticks of the rollout.
    """
    free = rolled if outcome.trainers_left is None else outcome.trainers_left
    back = rolled if outcome.trainers_back is None else outcome.trainers_back
    spans: list[tuple[int, int]] = []
    for at in groups:
        since = max(free, at)
        if back < rolled and since < rolled and since + length > back:
            since = max(rolled, at)
        free = since + length
        if spans and spans[-1][1] == since:
            since = spans.pop()[0]
        spans.append((since, free))
    return spans
