"""What a drafting loop works with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.devices import Device
from gpu_runtime.scoring_pool import Judging
from gpu_runtime.spot.notice import Notice
from gpu_runtime.training_window import TrainingWindow
from storage.errors import WorkerLostError
from storage.prompts import PromptRecord
from storage.records import DeviceState


class DraftingFleet(Protocol):
    """What the loop needs of the fleet; callable from the thread that explores."""

    def enter(self, worker: str, state: DeviceState) -> None:
        """Book what a device does from now on."""
        ...

    def lose(self, device: Device, error: WorkerLostError) -> None:
        """A device has died."""
        ...

    def give_up(self, device: Device, reason: str) -> None:
        """A device hangs: it is killed, and lost."""
        ...

    def heed(self, device: Device, notice: Notice | None) -> None:
        """What a device's provider says now."""
        ...


@dataclass
class Bench:
    """What a drafting loop works with.

    Attributes:
        fleet: where devices' states are booked and their deaths reported.
        devices: those that draft.
        judging: the scorers.
        prompts: what images are judged by, by prompt_id.
        weights_key: what the devices hold.
        batch_size: drafts that a device makes at once.
        cost: of a draft of each fidelity, in full drafts.
        window: the training window to keep to; None where nobody trains meanwhile.
        stops_with_training: whether the loop ends with the training steps.
        fits: whether so many full drafts may be begun after so many seconds.
        lease_s: seconds that a chunk may take before its device counts as hung.
    """

    fleet: DraftingFleet
    devices: list[Device]
    judging: Judging
    prompts: Mapping[int, PromptRecord]
    weights_key: str
    batch_size: int
    cost: Mapping[str, float]
    window: TrainingWindow | None = None
    stops_with_training: bool = True
    fits: Callable[[float, float], bool] = lambda elapsed_s, full_drafts: True
    lease_s: float = math.inf
