"""What the dispatcher is asked for: a phase, and what it needs of the devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_runtime.diffusion.samples import GeneratedImage
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.requests import (
    Lease,
    RequestKind,
    SampleRequest,
    WeightsVersion,
    WorkItem,
    WorkLeft,
)
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.sample_chunk import SampleChunk
from storage.errors import WorkerLostError
from storage.prompts.files import PromptRecord
from storage.record.records import DeviceState

Judge = Callable[[Sequence[GeneratedImage]], Sequence[Future[Score]]]
"""Lets scorers judge images while devices go on; one score an image."""


@dataclass(frozen=True)
class Delivery:
    """What a device has finished.

    Attributes:
        lease: that it finished.
        images: those that were not delivered before.
        worker: its name.
        lease_s: seconds since the lease was granted.
    """

    lease: Lease[SampleRequest]
    images: Sequence[GeneratedImage]
    worker: str
    lease_s: float


class Phase(Protocol):
    """Requests of one kind and version of the weights, and what becomes of their images."""

    @property
    def kind(self) -> RequestKind:
        """Of all its requests."""
        ...

    @property
    def version(self) -> WeightsVersion:
        """Of the weights that all its requests are generated with."""
        ...

    @property
    def over(self) -> bool:
        """Whether the dispatcher is to stop; what is leased or waits is then dropped."""
        ...

    @property
    def must_end(self) -> bool:
        """Whether every request has to be done; else a phase without devices is over."""
        ...

    @property
    def awaits_devices(self) -> bool:
        """Whether requests wait for devices that are on their way, when there is no other."""
        ...

    @property
    def calls(self) -> Collection[Future[Any]]:
        """What the phase waits for beside devices, such as scores."""
        ...

    def begin(self, wake: Callable[[], None]) -> Collection[WorkItem[SampleRequest]]:
        """The requests that are known from the start.

        Args:
            wake: lets the dispatcher look at `over` again; may be called from any thread.
        """
        ...

    def more(self) -> Collection[WorkItem[SampleRequest]]:
        """Further requests, asked for until each device has a batch to do next; none if there are none."""
        ...

    def accepts(self, device: Device) -> bool:
        """Whether a device may do requests of the phase at all."""
        ...

    def may_pull(self, device: Device, following: WorkItem[SampleRequest]) -> bool:
        """Whether a device may begin with this request, which is next."""
        ...

    def deliver(self, delivery: Delivery) -> Collection[Future[Any]]:
        """A device has finished a lease; what the phase waits for now, which `settle` gets as it ends."""
        ...

    def settle(self, call: Future[Any]) -> None:
        """One of `calls` has ended."""
        ...


class GeneratingFleet(Protocol):
    """The devices of a phase."""

    def workers(self, version: WeightsVersion) -> list[Device]:
        """The devices that hold these weights now, those under notice too."""
        ...

    def add_ready_workers(self) -> list[Future[Any]]:
        """Take in newcomers; the calls of those on their way: when one ends, add_ready_workers again."""
        ...

    @property
    def forming(self) -> bool:
        """Whether devices that are there are about to form a group, and can be given work then."""
        ...

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """Whether devices should share samples otherwise, or are more; `add_ready_workers` then sees to it.

        Args:
            left: what is left of the phase.
            freed: whether a lease has ended since this was asked last.
        """
        ...

    def enter(self, worker: str, state: DeviceState) -> None:
        """Book what a device does from now on."""
        ...

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """What a device's provider says now."""
        ...

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """A device has died."""
        ...

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """A device hangs: it is killed, and lost."""
        ...


class Scorers(Protocol):
    """The processes that judge images."""

    def judge(
        self, images: Sequence[GeneratedImage], prompts: Mapping[int, PromptRecord]
    ) -> list[Future[Score]]:
        """Let scorers judge images; one score an image, in order."""
        ...

    def wait_for(self, scores: Sequence[Future[Score]]) -> list[Score]:
        """The scores, once all are there."""
        ...


class OtherWork(Protocol):
    """What devices do that find nothing of a phase to do, beside generating."""

    @property
    def left_s(self) -> float | None:
        """Seconds of it that are left for this phase; None where that is not known."""
        ...

    def begin(self, wake: Callable[[], None]) -> None:
        """A run of phases begins.

        Args:
            wake: lets the dispatcher ask again; may be called from any thread.
        """
        ...

    def take(self, devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        """Give some devices something to do.

        Args:
            devices: that have nothing to do.

        Returns:
            The calls of those that have something to do now, by name; each is short. A device is free again
            when its call has ended.
        """
        ...


@dataclass(eq=False)
class Flight:
    """A lease on its device.

    Attributes:
        phase: that its requests belong to.
        device: its holder.
        lease: as it was granted.
        began_s: when it was granted.
        step: denoising step that the last call started will end at.
        since_s: when it began, or its last call ended.
        calls: calls under way, each with the step that it will end at.
        over: the device has nothing more to do with it; what still arrives is late.
        dropped: its requests are not wanted any more; what still arrives is of no use.
        timed_step: step that the last call to end was to end at.
    """

    phase: Phase
    device: Device
    lease: Lease[SampleRequest]
    began_s: float
    step: int = field(init=False)
    since_s: float = field(init=False)
    calls: dict[Future[SampleChunk], int] = field(default_factory=dict)
    over: bool = False
    dropped: bool = False
    timed_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.step = self.timed_step = self.lease.step
        self.since_s = self.began_s

    @property
    def reached(self) -> dict[SampleRequest, int]:
        """How far the samples may have got: the chunk under way counts in full, as it may have been done."""
        return dict.fromkeys(self.lease.requests, min(self.calls.values()))
