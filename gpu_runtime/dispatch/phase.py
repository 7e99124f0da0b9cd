"""The protocols of the dispatcher: a phase, the fleet and other work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_runtime.diffusion.samples import GeneratedImage
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.scheduling.requests import (
    Lease,
    RequestKind,
    SampleRequest,
    WeightsVersion,
    WorkItem,
    WorkLeft,
)
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import SampleChunk
from storage.errors import WorkerLostError
from storage.record.records import DeviceState

Judge = Callable[[Sequence[GeneratedImage]], Sequence[Future[Score]]]
"""A function that lets scorers judge images while devices continue; one score per image."""


@dataclass(frozen=True)
class Delivery:
    """The images that a device finished.

    Attributes:
        images: images not delivered before.
        lease_s: seconds since the lease was granted.
    """

    lease: Lease[SampleRequest]
    images: Sequence[GeneratedImage]
    worker: str
    lease_s: float


class Phase(Protocol):
    """Requests of one kind and version of the weights, and the handling of their images.

    The defaults are those of a phase that knows all its requests at the start and must do each of them.

    Attributes:
        kind: kind of all its requests.
        version: version of the weights for all its requests.
        must_end: True if every request must be done; otherwise a phase without devices is over.
        plans: True if `more` may return requests; otherwise `begin` returns all.
    """

    kind: RequestKind
    version: WeightsVersion
    must_end: bool = True
    plans: bool = False

    @property
    def over(self) -> bool:
        """True if the dispatcher must stop; leased and waiting requests are then dropped."""
        ...

    @property
    def awaits_devices(self) -> bool:
        """True if, without devices, requests wait for devices on their way."""
        return True

    @property
    def calls(self) -> Collection[Future[Any]]:
        """Calls that the phase awaits besides those of devices, such as scores."""
        return ()

    def begin(self, wake: Callable[[], None]) -> Collection[WorkItem[SampleRequest]]:
        """Begin, and return the requests known so far; any thread may `wake` the dispatcher."""
        ...

    def more(self) -> Collection[WorkItem[SampleRequest]]:
        """Return further requests, if any; called until each device has a batch to do next."""
        return ()

    def accepts(self, device: Device, /) -> bool:
        """Return True if a device may work on the phase at all."""
        ...

    def may_pull(self, device: Device, following: WorkItem[SampleRequest]) -> bool:
        """Return True if a device may begin with this next request."""
        return True

    def deliver(self, delivery: Delivery) -> Collection[Future[Any]]:
        """Take a finished lease; return new calls to await, which `settle` gets as they end."""
        ...

    def settle(self, call: Future[Any]) -> None:
        """Handle one of `calls` that has ended."""


class GeneratingFleet(Protocol):
    """The devices of a phase."""

    def workers(self, version: WeightsVersion) -> list[Device]:
        """Return the devices that hold these weights now, including those under notice.

        The loop examines all of them again whenever this list changes.
        """
        ...

    def add_ready_workers(self) -> list[Future[Any]]:
        """Register newcomers; return the calls of those on their way, and call this again when one ends."""
        ...

    @property
    def forming(self) -> bool:
        """True if present devices are forming a group, which can then get work."""
        ...

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """Return True if `add_ready_workers` should change groups, or add devices; `freed` by a lease.

        Each look of the loop begins with this call.
        """
        ...

    def enter(self, worker: str, state: DeviceState) -> None:
        """Record the state of a device from now on."""

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """Apply a device's current notice, or None."""

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """Remove a device that has died."""

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """Kill a hanging device, which is then lost."""


class OtherWork(ABC):
    """Work other than generating, for devices with nothing to do in a phase."""

    @property
    @abstractmethod
    def left_s(self) -> float | None:
        """Seconds of work left for this phase; None if unknown."""

    @abstractmethod
    def begin(self, wake: Callable[[], None]) -> None:
        """Begin with a run of phases; `wake` makes the dispatcher call `take` again, from any thread."""

    @abstractmethod
    def take(self, devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        """Give work to idle devices; return short calls by device name, whose end frees the device."""


@dataclass(eq=False)
class Flight:
    """A lease on its device.

    Attributes:
        began_s: time at which it was granted.
        step: denoising step that the last call started will end at.
        since_s: time at which it began, or its last call ended.
        calls: calls under way, each with the step that it will end at.
        over: True once the device is done with it; results that still arrive are late.
        dropped: True once its requests are unwanted; results that still arrive are useless.
        timed_step: planned end step of the call that ended last.
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
        """Steps that samples may have reached; the running chunk counts fully, since it may be done."""
        return dict.fromkeys(self.lease.requests, min(self.calls.values()))
