"""The work of a generation phase, and its outcome. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_runtime.scheduling.capacity_decision import LiveWindow
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion


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
        trained: intervals of training on a rollout's samples, beside it and after it, in ticks from the
            beginning.
    """

    delivered: int = 0
    lease: int = 0
    share: float = 0.0
    judged: int = 0
    judging: int = 0
    redone: int = 0
    redone_time: int = 0
    returned: int = 0
    trained: Sequence[tuple[int, int]] = ()
