"""The work of a generation phase, its outcome, and the times of training on what it delivers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gpu_runtime.scheduling.capacity_decision import LiveWindow
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from storage.config.run_config import AlgorithmConfig


@dataclass(frozen=True)
class PhaseWork:
    """The batches to generate in a phase.

    Attributes:
        steps: denoising steps of each.
        size: images of a full batch.
        images: images of all batches; the last one may not be full.
        beside_training: True if the trainers are busy training.
        trainers_join: tick at which they are free and roll out too; None for never in this phase.
        trainers_leave: tick at which they stop rolling out and train, if other devices go on; None for not
            before the end.
        window: decides before each of their batches whether trainers stop rolling out and train; None if
            they do not ask.
        train_s: seconds of training, for the window; None where unknown.
        deadline: tick at which the phase ends in any case; None for when all is delivered.
    """

    kind: RequestKind
    version: WeightsVersion
    batches: int
    steps: int
    size: int
    images: int
    beside_training: bool = False
    trainers_join: int | None = None
    trainers_leave: int | None = None
    window: LiveWindow | None = None
    train_s: float | None = None
    deadline: int | None = None


@dataclass
class PhaseOutcome:
    """The outcome of a phase.

    Attributes:
        delivered: number of batches delivered.
        lease: ticks for which devices held the delivered batches.
        share: work done on them under these leases, in batches.
        judged: images of drafts judged within the phase.
        judging: ticks that scorers need for the last images once all are delivered.
        redone: denoising steps of batches that were lost.
        redone_time: ticks that devices need to redo them.
        returned: batches that returned to the queue.
        trainers_left: ticks from the beginning of a rollout until all trainers had stopped rolling out; None
            if they did not before its end.
        trainers_back: ticks from the beginning until they had to roll out again; None if they did not.
        judged_at: ticks from the beginning until each batch of a rollout was judged.
    """

    delivered: int = 0
    lease: int = 0
    share: float = 0.0
    judged: int = 0
    judging: int = 0
    redone: int = 0
    redone_time: int = 0
    returned: int = 0
    trainers_left: int | None = None
    trainers_back: int | None = None
    judged_at: dict[int, int] = field(default_factory=dict)


def judged_groups(outcome: PhaseOutcome, work: PhaseWork, group: int) -> list[int]:
    """Return when each prompt group of a rollout of whole groups was judged, in ticks from its beginning.

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
