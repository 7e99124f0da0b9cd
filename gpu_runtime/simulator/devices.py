"""A simulated run's devices, a phase's work, and the workers, whose calls take virtual time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.groups.grouped_fleet import GeneratingGroup
from gpu_runtime.scheduling.capacity_decision import LiveWindow
from gpu_runtime.scheduling.group_layout import WorkerGroup
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.virtual_time import Event, EventLoop
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import SampleChunk, Worker
from storage.record.records import Market

NOTICE = Notice("trace", None, 0.0, "its instance leaves")
"""Preemption notice that all noticed devices share."""

_ONE_KIND: frozenset[Market] = frozenset({"reserved"})


@dataclass(frozen=True)
class PhaseWork:
    """The batches to generate in a phase.

    Attributes:
        steps: denoising steps of each.
        size: images in a full batch.
        images: images in all batches; the last one may not be full.
        beside_training: True if the trainers are busy training.
        trainers_join: tick at which they are free and roll out too; None for never in this phase.
        trainers_leave: tick at which they stop rolling out to train, if other devices continue; None for not
            before the end.
        window: decides before each of their batches whether trainers stop rolling out to train; None if
            nothing does.
        deadline: tick at which the phase ends in any case; None to end once all is delivered.
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
        redone_time: device ticks needed to redo them.
        returned: batches that returned to the queue.
        trained: intervals of training on a rollout's samples, beside and after it, in ticks from its
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


class BatchTimes(NamedTuple):
    """A batch's ticks per denoising step, and for decoding."""

    step: int
    decode: int


class VirtualCall(Future[SampleChunk]):
    """A call for denoising steps of a batch.

    Attributes:
        begun, until: steps done before and after it.
        since: tick at which the worker begins it.
        end: event at which it is answered.
    """

    def __init__(self, begun: int, until: int, since: int, end: Event) -> None:
        super().__init__()
        self.begun, self.until, self.since, self.end = begun, until, since, end


class _BatchSoFar(NamedTuple):
    """A batch and the denoising steps done so far."""

    request: int
    step: int


class PhaseUnderWay(ABC):
    """The current phase as its devices and fleet see it; it answers calls to the workers."""

    def __init__(
        self, loop: EventLoop, times: WorkloadTimes, work: PhaseWork, scheduler: PullScheduler[Any]
    ) -> None:
        self._loop, self._times, self._work, self._scheduler = loop, times, work, scheduler
        self._batch_times: dict[tuple[frozenset[Market], int], BatchTimes] = {}

    @abstractmethod
    def take_in(self, device: SimulatedDevice) -> None:
        """Give its first work to a device that has joined."""

    @abstractmethod
    def warn(self, device: SimulatedDevice) -> None:
        """Give the device nothing more: its instance has a preemption notice."""

    @abstractmethod
    def halt(self, device: SimulatedDevice) -> None:
        """Halt a device whose instance was lost; the run does not know yet."""

    @abstractmethod
    def awaits(self, device: SimulatedDevice) -> bool:
        """Return True if a call to a device is in flight, whose failure tells the run of its loss."""

    @abstractmethod
    def fail_calls(self, device: SimulatedDevice) -> None:
        """Fail the calls to a lost device."""

    @abstractmethod
    def _learn(self, worker: VirtualWorker) -> None:
        """Fail calls to devices that were lost while they had none."""

    def ask(self, worker: VirtualWorker, method: str, args: Sequence[Any]) -> Future[Any]:
        """Start a call of a worker's method, by name."""
        if method == "leave_group":
            return Future()  # the fleet does not wait for it
        if method == "begin_samples":
            worker.batch = args[2][0]
            commit = self._scheduler.committed(worker.batch)
            assert commit is not None, "it was just leased"
            worker.step, _ = commit
        times = self._times_of(worker)
        since = worker.calls[-1].end.at if worker.calls else self._loop.now
        begun = worker.step
        worker.step += args[-1]
        takes = args[-1] * times.step + (times.decode if worker.step == self._work.steps else 0)
        end = self._loop.at(since + takes, partial(self._answer, worker))
        if worker.halted:
            end.cancel()
            self._learn(worker)
        worker.calls.append(call := VirtualCall(begun, worker.step, since, end))
        return call

    def _answer(self, worker: VirtualWorker) -> None:
        """Answer a worker's oldest call."""
        call = worker.calls.popleft()
        made: Any = (_BatchSoFar(worker.batch, call.until),)
        notice = next((NOTICE for device in worker.members if device.noticed), None)
        if call.until == self._work.steps:
            call.set_result(SampleChunk(samples=made, notice=notice))
        else:
            call.set_result(SampleChunk(made if call.until > call.begun else (), notice=notice))

    def _stop(self, worker: VirtualWorker) -> None:
        """Make a worker answer after its current denoising step and skip the later ones."""
        if not worker.calls or worker.halted:
            return
        step, first = self._times_of(worker).step, worker.calls[0]
        reached = min(first.until, first.begun - (first.since - self._loop.now) // step)
        at = first.since + (reached - first.begun) * step
        for call in worker.calls:
            if reached < self._work.steps:
                call.end.cancel()
                call.begun, call.until = min(call.begun, reached), reached
                call.end = self._loop.at(at, partial(self._answer, worker))

    def _times_of(self, worker: VirtualWorker) -> BatchTimes:
        """Return a worker's times for a batch: those of its slowest kind of device."""
        degree, kinds = len(worker.members), _ONE_KIND
        if self._times.spot is not None:
            kinds = frozenset[Market](device.market for device in worker.members)
        found = self._batch_times.get((kinds, degree))
        if found is None:
            times_of_kinds = [self._times.of(market) for market in kinds]
            slowest = max(times_of_kinds, key=lambda times: times.step_of(self._work.kind, degree))
            found = BatchTimes(slowest.step_of(self._work.kind, degree), slowest.decode)
            self._batch_times[kinds, degree] = found
        return found


class VirtualWorker(RemoteActor[Worker]):
    """One device's worker.

    Attributes:
        phase: phase that it works for.
        members: devices that compute for it.
        calls: unanswered calls for denoising steps, oldest first.
        batch, step: batch of the last call, and the denoising step that it ends at.
    """

    phase: PhaseUnderWay
    members: tuple[SimulatedDevice, ...] = ()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: deque[VirtualCall] = deque()
        self.batch = self.step = 0

    @property
    def halted(self) -> bool:
        """True if a member's instance is lost."""
        return any(device.known_gone is not None for device in self.members)

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """See `RemoteActor`."""
        return self.phase.ask(self, method.__name__, args)

    def kill(self) -> None:
        """See `RemoteActor`; no worker hangs."""


class VirtualGroup(GeneratingGroup, VirtualWorker):
    """Devices that share each batch; one call stands for all members, as they take the same time."""

    def __init__(
        self,
        phase: PhaseUnderWay,
        place: WorkerGroup,
        devices: Sequence[Device],
        call_off: Callable[[WorkerGroup], None],
    ) -> None:
        super().__init__(place, devices, call_off)
        self.phase = phase
        self.members = tuple(simulated(device) for device in devices)
        self.joined: Future[None] = Future()
        """Done once its members have met, or will not."""
        self.meeting: Event | None = None
        """Event at which they meet; None until all are free."""

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """See `GeneratingGroup`."""
        return VirtualWorker.call(self, method, *args)

    def ask(self, start: Callable[[Device], Future[Any]], limit_s: float | None = None) -> Future[Any]:
        """See `GeneratingGroup`; members are only asked to join."""
        return self.phase.ask(self, "join_group", ())

    @property
    def open_calls(self) -> dict[Future[Any], str]:
        """See `GeneratingGroup`."""
        return dict.fromkeys(self.calls, self.name)


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """The state of a simulated device.

    Attributes:
        came: tick at which its process began.
        loading: event at which it will have loaded its model; None afterwards.
        joined: True once it is part of the fleet; its loading is then on the bill.
        known_gone: tick at which the run can learn of its instance's loss; None while the instance exists.
        holds: version of its weights.
        coming: tick at which it will hold the phase's weights, or its loss is known; None if neither is due.
        free_at: tick until which a call whose result is unused keeps it busy.
        place: its slot in its market.
        instance: name of its instance.
        device: the device as the dispatcher sees it.
        own: its worker.
        worker: the same, or the group whose calls it executes.
    """

    name: str
    market: Market
    came: int = 0
    trains: bool = False
    loading: Event | None = None
    joined: bool = False
    known_gone: int | None = None
    holds: WeightsVersion | None = None
    coming: int | None = None
    noticed: bool = False
    free_at: int = 0
    place: int = 0
    instance: str = ""
    device: Device = field(init=False)
    own: VirtualWorker = field(init=False)
    worker: VirtualWorker = field(init=False)

    def __post_init__(self) -> None:
        self.own = self.worker = VirtualWorker(self.name)
        self.own.members = (self,)
        self.device = Device(self.own, self.market)

    @property
    def serves(self) -> bool:
        """True if it has joined and, as far as the run knows, stays."""
        return self.joined and self.known_gone is None and not self.noticed

    def state(self, version: WeightsVersion, now: int) -> Hashable:
        """Return everything about it that a phase with these weights depends on; times count from now."""
        return (
            max(0, self.free_at - now), self.holds == version, self.noticed, self.joined,
            # The others wait until the run knows of the loss.
            None if self.known_gone is None else self.known_gone - now,
            self.trains, self.market,
        )  # fmt: skip


def simulated(device: Device) -> SimulatedDevice:
    """Return the simulated device behind a device of the dispatcher."""
    assert isinstance(device.actor, VirtualWorker), "all workers are virtual"
    return device.actor.members[0]
