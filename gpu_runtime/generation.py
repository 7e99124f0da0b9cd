"""The loop that generates: free devices pull, commit every few denoising steps, deliver.

What a device loses goes on elsewhere from its last commit, to the same bits. Devices that come in the
midst of a phase pull once they hold its weights. The loop waits for one thing at a time: the next call
that ends, or the moment when a lease expires.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from gpu_runtime.devices import Device
from gpu_runtime.diffusion.sampler import GeneratedSample, SampleState
from gpu_runtime.history_log import HistoryLog, names_of
from gpu_runtime.samples_in_flight import SampleChunk
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.scheduling.scheduler_counters import Counters
from gpu_runtime.scheduling.work_items import Lease, WorkItem
from gpu_runtime.sequence_parallel.phase_end import UnderWay, WorkLeft
from gpu_runtime.spot.notice import Notice
from gpu_runtime.worker_protocol import Worker
from storage.config import RunConfig
from storage.errors import WorkerLostError
from storage.records import DeviceState

_CALLS_AHEAD = 2
"""Calls that a device has at once: while one's commit travels and is booked, it works on the next."""


@dataclass(frozen=True)
class Delivered:
    """A finished sample and who finished it."""

    sample: GeneratedSample
    worker: str


class GeneratingFleet(Protocol):
    """What the loop needs of the fleet."""

    def workers(self, key: str) -> list[Device]:
        """The devices that hold the weights called `key` now, those under notice too."""
        ...

    def welcome(self) -> list[Future[Any]]:
        """Take in newcomers; the calls of those on their way: when one ends, welcome again."""
        ...

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """Whether devices should share samples otherwise; if so, `welcome` lets them.

        Args:
            left: what is left of the phase.
            freed: whether a lease has ended since this was asked last.
        """
        ...

    def enter(self, worker: str, state: DeviceState) -> None:
        """Book what a device does from now on."""
        ...

    def heed(self, device: Device, notice: Notice | None) -> None:
        """What a device's provider says now."""
        ...

    def lose(self, device: Device, error: WorkerLostError) -> None:
        """A device has died."""
        ...

    def give_up(self, device: Device, reason: str) -> None:
        """A device hangs: it is killed, and lost."""
        ...


@dataclass(eq=False)
class _Flight:
    """A lease on its device.

    Attributes:
        device: its holder.
        lease: as it was granted.
        step: denoising step that the last call started will end at.
        since: when it began, or its last call ended.
        calls: calls under way, each with the step that it will end at.
        over: the device has nothing more to do with it; what still arrives is late.
        timed_step: step that the last call to end was to end at.
    """

    device: Device
    lease: Lease[SampleRequest]
    step: int
    since: float
    calls: dict[Future[SampleChunk], int] = field(default_factory=dict)
    over: bool = False
    timed_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.timed_step = self.lease.step

    @property
    def reached(self) -> dict[SampleRequest, int]:
        """How far the samples may have got: the chunk under way counts in full, as nobody can tell."""
        return dict.fromkeys(self.lease.requests, min(self.calls.values()))


class Generation:
    """One phase of generating: each request exactly once, all with the same weights.

    Args:
        fleet: the devices.
        requests: distinct, of one policy version.
        key: name of the weights that the devices hold.
        config: the run's configuration.
        clock: seconds, of a clock that never goes back.
        scheduler: who gets what; a pull scheduler by default.
        history: where leases, commits and deliveries are noted; None notes nothing.
        first_lease: number of the first lease; those of a run are told apart by their numbers.
    """

    def __init__(
        self,
        fleet: GeneratingFleet,
        requests: Sequence[SampleRequest],
        key: str,
        config: RunConfig,
        clock: Callable[[], float] = time.monotonic,
        scheduler: PullScheduler[SampleRequest] | None = None,
        history: HistoryLog | None = None,
        first_lease: int = 0,
    ) -> None:
        size = config.sampling.batch_size
        self._fleet = fleet
        self._requests = requests
        self._key = key
        self._commit_steps = config.runtime.commit_steps
        self._commit_s = config.runtime.commit_s
        self._lease_s = config.runtime.lease_s
        self._clock = clock
        self._batch_size = size
        self._history = history or HistoryLog(None, "")
        self._scheduler = scheduler or PullScheduler[SampleRequest](size, self._lease_s, size, first_lease)
        steps = {kind: config.sampling.rollout_steps for kind in RequestKind}
        steps[RequestKind.EVALUATE] = config.sampling.evaluate_steps
        self._steps = steps
        self._scheduler.add(
            WorkItem(request, request.kind, steps[request.kind], request.prompt_id, request.policy_version)
            for request in requests
        )
        self._flights: dict[str, _Flight] = {}
        self._freed = False
        self._flight_of: dict[Future[SampleChunk], _Flight] = {}
        # Calls that have ended, in the order in which they did.
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        # Calls of devices on their way into the phase.
        self._coming: set[Future[Any]] = set()
        self._delivered: dict[SampleRequest, Delivered] = {}

    @property
    def counters(self) -> Counters:
        """What went otherwise than planned."""
        return self._scheduler.counters

    @property
    def next_lease(self) -> int:
        """Number of the next lease to be granted."""
        return self._scheduler.next_lease

    def run(self) -> list[Delivered]:
        """Generate; the result has the order of the requests.

        Raises:
            RuntimeFailure: if the trainer died or hangs, or a worker holds other weights than it should.
        """
        if self._requests:
            steps = self._steps[self._requests[0].kind]
            self._history.note("generate", requests=names_of(self._requests), steps=steps)
        self._welcome()
        self._feed()
        while not self._scheduler.done():
            for call in self._await():
                self._settle(call)
            self._give_up_what_hangs()
            self._feed()
        self._history.note("generated")
        return [self._delivered[request] for request in self._requests]

    def work_left(self) -> WorkLeft:
        """What nobody has finished yet, in batches."""
        leased = {request for flight in self._flights.values() for request in flight.lease.requests}
        waiting = sorted(
            self._steps[request.kind] - commit.step
            for request in self._requests
            if request not in leased and (commit := self._scheduler.committed(request)) is not None
        )
        under_way = {
            name: UnderWay(flight.lease.steps - flight.timed_step, flight.step - flight.timed_step)
            for name, flight in self._flights.items()
        }
        return WorkLeft(tuple(waiting[:: self._batch_size]), under_way)

    def _welcome(self) -> None:
        """Places are free, or devices have loaded: the loop is told when there is more of it."""
        for call in self._fleet.welcome():
            if call not in self._coming:
                self._coming.add(call)
                call.add_done_callback(self._ended.put)

    def _feed(self) -> None:
        """Let every free device pull that is not under notice; before that, groups may change."""
        freed, self._freed = self._freed, False
        if self._fleet.regroups(self.work_left, freed):
            self._welcome()
        for device in self._fleet.workers(self._key):
            if device.name in self._flights:
                continue
            lease = None if device.notice is not None else self._pull(device)
            self._fleet.enter(device.name, "rollout" if lease else "idle")
            if lease:
                self._begin(device, lease)

    def _pull(self, device: Device) -> Lease[SampleRequest] | None:
        version = self._requests[0].policy_version if self._requests else 0
        return self._scheduler.pull(device.name, self._clock(), version, self._batch_size)

    def _begin(self, device: Device, lease: Lease[SampleRequest]) -> None:
        work = [
            state if isinstance(state, SampleState) else request
            for request, state in zip(lease.requests, lease.states, strict=True)
        ]
        flight = self._flights[device.name] = _Flight(device, lease, lease.step, self._clock())
        names = names_of(lease.requests)
        self._history.note("lease", lease=lease.number, worker=device.name, step=lease.step, requests=names)
        self._start(
            flight,
            lambda steps: device.actor.call(Worker.begin_samples, self._key, lease.number, work, steps),
        )
        self._go_on(flight)

    def _go_on(self, flight: _Flight) -> None:
        """Start the next chunks of a lease, ahead of the commits of those before."""
        actor, number = flight.device.actor, flight.lease.number
        while len(flight.calls) < _CALLS_AHEAD and flight.step < flight.lease.steps:
            self._start(flight, lambda steps: actor.call(Worker.advance_samples, number, steps))

    def _start(self, flight: _Flight, call_for: Callable[[int], Future[SampleChunk]]) -> None:
        steps = min(self._steps_to_commit(flight.device) or math.inf, flight.lease.steps - flight.step)
        flight.step += int(steps)
        call = call_for(int(steps))
        flight.calls[call] = flight.step
        self._flight_of[call] = flight
        call.add_done_callback(self._ended.put)

    def _steps_to_commit(self, device: Device) -> int:
        """Denoising steps of a device's next chunk; 0 for all that are left.

        A commit costs some milliseconds, whatever the model: it must save more than that.
        """
        least = self._commit_steps
        if not (least and self._commit_s and device.step_s):
            return least
        return least * max(1, math.ceil(self._commit_s / (least * device.step_s)))

    def _await(self) -> list[Future[Any]]:
        """Wait for a call to end, or a lease to expire; all calls that have ended."""
        expiry_s = self._scheduler.next_expiry_s
        left_s = None if expiry_s is None else max(0.0, expiry_s - self._clock())
        ended: list[Future[Any]] = []
        try:
            ended.append(self._ended.get(timeout=left_s))
            while True:
                # What is there already must be booked before anyone is said to hang.
                ended.append(self._ended.get_nowait())
        except Empty:
            return ended

    def _settle(self, call: Future[Any]) -> None:
        """A chunk has been done, or its device has died; or a device has come nearer."""
        if call in self._coming:
            self._coming.remove(call)
            self._welcome()
            return
        flight = self._flight_of.pop(call)
        try:
            chunk = call.result()
        except WorkerLostError as error:
            if not flight.over:
                self._end(flight)
                self._history.note("back", lease=flight.lease.number, why="lost")
                self._scheduler.lose(flight.device.name, flight.reached)
                self._fleet.lose(flight.device, error)
                self._welcome()
            return
        self._time(flight, flight.calls.pop(call), chunk)
        left = self._book(flight, chunk)
        if flight.over:
            return
        self._fleet.heed(flight.device, chunk.notice)
        if chunk.notice is not None:
            self._history.note("back", lease=flight.lease.number, why="notice")
            self._scheduler.hand_back(flight.lease)
            self._welcome()
        elif left and not flight.device.retiring:
            self._go_on(flight)
        if not flight.calls:
            self._end(flight)
            if left and chunk.notice is None:
                self._history.note("back", lease=flight.lease.number, why="retired")
            self._scheduler.hand_back(flight.lease)  # nothing, unless a chunk did less than it should

    def _time(self, flight: _Flight, step: int, chunk: SampleChunk) -> None:
        """Learn from a call that ended at `step` how long a step takes its device."""
        now, done = self._clock(), step - flight.timed_step
        # What a notice has cut says nothing, nor do calls whose answers come in another order.
        if done > 0 and chunk.notice is None and (chunk.states or chunk.samples):
            flight.device.step_s = (now - flight.since) / done
        flight.since, flight.timed_step = now, step

    def _book(self, flight: _Flight, chunk: SampleChunk) -> bool:
        """Commit or deliver; whether the lease's samples are still its device's to do."""
        now, lease, device = self._clock(), flight.lease, flight.device
        reached = {state.request: (state.step, state) for state in chunk.states}
        held = self._scheduler.commit(lease, reached, now)
        accepted = set(self._scheduler.deliver(lease, [sample.request for sample in chunk.samples], now))
        self._write_down(lease, chunk, accepted)
        self._delivered |= {
            sample.request: Delivered(sample, device.name)
            for sample in chunk.samples
            if sample.request in accepted
        }
        return bool(held) and not chunk.samples

    def _write_down(
        self, lease: Lease[SampleRequest], chunk: SampleChunk, accepted: set[SampleRequest]
    ) -> None:
        """What a chunk brought, for the history."""
        if not self._history.kept:
            return
        if chunk.states:
            self._history.note("commit", lease=lease.number, step=chunk.states[0].step)
        if chunk.samples:
            brought = [sample.request for sample in chunk.samples]
            self._history.note(
                "deliver",
                lease=lease.number,
                accepted=names_of(request for request in brought if request in accepted),
                dropped=names_of(request for request in brought if request not in accepted),
            )

    def _give_up_what_hangs(self) -> None:
        for lease in self._scheduler.expire(self._clock()):
            self._history.note("back", lease=lease.number, why="expired")
            flight = self._flights[lease.holder]
            self._end(flight)
            for request, step in flight.reached.items():
                commit = self._scheduler.committed(request)
                if commit is not None:
                    self.counters.redone_steps += max(0, step - commit.step)
            self._fleet.give_up(
                flight.device,
                f"no word of its {len(lease.requests)} samples in runtime.lease_s={self._lease_s:g} s",
            )
            self._welcome()

    def _end(self, flight: _Flight) -> None:
        """A device has nothing more to do with a lease; calls of it that still end are late."""
        flight.over = self._freed = True
        del self._flights[flight.device.name]
