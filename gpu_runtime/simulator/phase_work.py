"""The work of a generation phase, its outcome, and the device state that it depends on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_runtime.fleet.capacity_decision import LiveWindow
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.simulator.devices import SimulatedDevice
from storage.record.records import Market


@dataclass(frozen=True)
class PhaseWork:
    """The batches to generate in a phase.

    Attributes:
        kind: kind of all batches.
        version: version of the weights for all batches.
        batches: number of batches.
        steps: denoising steps of each.
        size: images of a full batch.
        images: images of all batches; the last one may not be full.
        commit_steps: `runtime.commit_steps`.
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
    commit_steps: int = 0
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


def devices_alike(
    devices: Sequence[SimulatedDevice], work: PhaseWork, now: int
) -> tuple[tuple[int, bool, bool, bool, int | None, bool, Market], ...]:
    """Return the state of each device that a phase depends on, such as when it is free.

    Args:
        devices: devices of the fleet.
        work: work of the phase.
        now: the time in ticks.
    """
    return tuple(
        (
            max(0, device.free_at - now),
            device.holds == work.version,
            device.noticed,
            device.joined,
            # The others wait until the run knows of the loss.
            None if device.known_gone is None else device.known_gone - now,
            device.trains,
            device.market,
        )
        for device in devices
    )
