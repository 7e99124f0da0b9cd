"""What a phase of generating has to do, what it came to, and what its course depends on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_runtime.fleet.seeding_window import LiveWindow
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.simulator.devices import SimulatedDevice
from storage.record.records import Market


@dataclass(frozen=True)
class PhaseWork:
    """What is to be generated.

    Attributes:
        kind: of all batches.
        version: of the weights of all.
        batches: how many.
        steps: denoising steps of each.
        size: images of a batch.
        images: of all batches; the last one may not be full.
        commit_steps: `runtime.commit_steps`.
        beside_training: whether the trainers are busy otherwise.
        trainers_join: when they are free and roll out too, in ticks; None for not in this phase.
        trainers_leave: when they stop rolling out and train, in ticks, if other devices go on; None for not
            before the end.
        window: says before each of their batches whether trainers stop rolling out and train; None where
            nothing asks.
        train_s: seconds of training that it may be asked about; None where it is not known.
        deadline: when the phase is over in any case, in ticks; None for when all is delivered.
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
    """What a phase came to.

    Attributes:
        delivered: batches.
        lease: ticks that devices had the delivered batches.
        share: what was done of them under these leases, in batches.
        judged: images of drafts that were judged within the phase.
        judging: ticks that scorers need for the last images once all are delivered.
        redone: denoising steps of batches that losses took with them.
        redone_time: ticks that devices need to do them again.
        returned: batches that went back to wait.
        trainers_left: ticks from the beginning of a rollout until all trainers had stopped rolling out; None
            if they did not before its end.
        trainers_back: ticks from the beginning until they had to roll out again; None if they had not.
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
    """All that a phase depends on of its devices: when each is free, and whether it has the weights.

    Args:
        devices: of the fleet.
        work: of the phase.
        now: ticks.
    """
    return tuple(
        (
            max(0, device.free_at - now),
            device.holds == work.version,
            device.noticed,
            device.joined,
            # The others wait until the run knows of it.
            None if device.known_gone is None else device.known_gone - now,
            device.trains,
            device.market,
        )
        for device in devices
    )
