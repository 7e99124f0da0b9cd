"""The loop that hands leases to devices, which pull, commit every few denoising steps, and deliver.

Rollouts, evaluations and drafts all go through it. Invariants:

- A device has at most one lease, for weights that it holds; it does not pull while under notice.
- Work that a device loses or gives back continues elsewhere from its last commit, to the same bits. Results
  that it still sends for such a lease are committed or delivered once, like any other.
- A device without work in the first phase works on the phase beside it, and stops there after a chunk of
  denoising steps once requests of the first one wait.
- Nothing starts for a phase that is over, and its late results are dropped.
- A device with calls under way is hung `runtime.lease_s` after its last answer, with or without a valid
  lease: one under notice has given its lease back while it still has a call.
- The loop waits in one place: for the next call to end, for a wake-up, or for the next hang timeout. One
  thread runs it at a time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import Delivery, Flight, GeneratingFleet, OtherWork, Phase
from gpu_runtime.scheduling.pull_scheduler import PullScheduler, steps_to_commit
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, UnderWay, WorkLeft
from gpu_runtime.worker.history import HistoryLog, names_of
from gpu_runtime.worker.protocol import SampleChunk, Worker
from storage.config.runtime import RuntimeConfig
from storage.errors import RuntimeFailure, WorkerLostError

_CALLS_AHEAD = 2
"""Calls that a device has at once: while one's commit is sent and recorded, it works on the next."""


class _Elsewhere(NamedTuple):
    """Work of a device other than generating; after `until_s` it counts as hung."""

    device: Device
    call: Future[Any]
    until_s: float


class Dispatcher:
    """The loop over the phases of a run, one after another, on one scheduler.

    Leases are numbered throughout the run. Any thread may call `run`, but not two at a time.

    Args:
        ended: queue of calls, in the order of their end; None in it wakes the loop.
        call_steps: returns the denoising steps of a device's next call, given those of a chunk and those left
            of its lease; None for one chunk per call.
    """

    def __init__(
        self,
        settings: RuntimeConfig,
        batch_size: int,
        clock: Callable[[], float] = time.monotonic,
        history: HistoryLog | None = None,
        scheduler: PullScheduler[SampleRequest] | None = None,
        ended: SimpleQueue[Future[Any] | None] | None = None,
        call_steps: Callable[[Device, int, int], int] | None = None,
    ) -> None:
        self._commit_steps = settings.commit_steps
        self._lease_s = settings.lease_s
        self._other_limit_s = settings.trainer_limit_s
        self._batch_size = batch_size
        self._call_steps = call_steps or (lambda device, chunk, left: chunk)
        self._clock = clock
        self._history = history or HistoryLog(None, "")
        self._scheduler = scheduler or PullScheduler[SampleRequest]()
        self.counters = self._scheduler.counters
        """Counts of drops, losses and repeats over all phases."""
        self._ended: SimpleQueue[Future[Any] | None] = SimpleQueue() if ended is None else ended
        self._flights: OrderedDict[str, Flight] = OrderedDict()  # by last answer, the longest ago first
        self._flight_of: dict[Future[SampleChunk], Flight] = {}
        self._coming: set[Future[Any]] = set()  # calls of devices that are joining the phase
        self._devices: Sequence[Device] = ()  # as last listed by the fleet
        self._idle: dict[str, Device] = {}  # those of them without work
        self._freed: list[Device] = []  # since the last look
        self._lease_ended = False  # since then
        self._elsewhere: dict[str, _Elsewhere] = {}
        self._running = False
        # Phases of the current `run`, most important first, and those that began and have not ended.
        self._phases: tuple[Phase, ...] = ()
        self._begun: list[Phase] = []

    def run(
        self,
        fleet: GeneratingFleet,
        phase: Phase,
        beside: Phase | None = None,
        other: OtherWork | None = None,
    ) -> None:
        """Run a phase: each of its requests at most once, all with the same weights.

        Args:
            beside: phase of another kind with the same weights, for devices without work in `phase`. Their
                leases of it survive the end of `phase`: the next `run` continues or drops them.
            other: work for devices without work in either phase. The end of `phase` does not wait for it.

        Raises:
            RuntimeFailure: if a trainer died or hangs, a worker holds the wrong weights, or no device is left
                for requests that must be done.
        """
        self._fleet, self._coming, self._devices = fleet, set(), ()
        self._freed, self._lease_ended = [], False
        self._phases = (phase,) if beside is None else (phase, beside)
        self._elsewhere, self._running = {}, True
        if other is not None:
            other.begin(lambda: self._ended.put(None))
        try:
            self._drop(one for one in self._begun if one not in self._phases)
            for one in self._phases:
                self._begin_phase(one)
            self._add_ready_workers()
            while not phase.over:
                self._dispatch(other)
                if not self._has_work():
                    break
                for call in self._await():
                    self._settle(call)
                self._give_up_what_hangs()
            self._history.note("generated", kind=phase.kind)
            self._drop([phase])
        except BaseException:
            self._drop(self._begun)
            raise
        finally:
            self._running = False

    def busy(self, worker: str) -> bool:
        """Return True if a device has a lease, or other work not yet settled (after `run`: not ended)."""
        other = self._elsewhere.get(worker)
        works = other is not None and (self._running or not other.call.done())
        return works or worker in self._flights

    def work_left(self) -> WorkLeft:
        """Return the work left in the phase, in batches, without the phase beside it."""
        kind = self._phases[0].kind
        under_way = {
            name: UnderWay(flight.lease.steps - flight.timed_step, flight.step - flight.timed_step)
            for name, flight in self._flights.items()
            if flight.lease.kind is kind and self._scheduler.is_valid(flight.lease)
        }
        return WorkLeft(tuple(self._scheduler.waiting_steps(kind)[:: self._batch_size]), under_way)

    def _has_work(self) -> bool:
        """Return True if there is anything to wait for.

        Raises:
            RuntimeFailure: if there is nothing, although mandatory requests are left.
        """
        if self._flights or self._elsewhere or any(phase.calls for phase in self._phases):
            return True
        phase = self._phases[0]
        awaited = self._fleet.forming or phase.awaits_devices
        if self._coming and awaited and self._scheduler.waiting(phase.kind):
            return True
        if phase.must_end:
            left = self._scheduler.unfinished(phase.kind)
            raise RuntimeFailure(f"no device is left for {left} samples")
        return False

    def _begin_phase(self, phase: Phase) -> None:
        """Begin a phase, unless an earlier `run` has."""
        if phase in self._begun:
            return
        self._begun.append(phase)
        items = phase.begin(lambda: self._ended.put(None))
        self._scheduler.add(items)
        # Not all drafts are known at the start.
        known = [] if phase.kind is RequestKind.EXPLORE else list(items)
        if self._history.kept:
            names, steps = names_of(item.request for item in known), known[0].steps if known else 0
            self._history.note("generate", kind=phase.kind, requests=names, steps=steps)

    def _add_ready_workers(self) -> None:
        """Let the fleet fill free slots and add loaded devices; the calls that it waits for wake the loop."""
        for call in self._fleet.add_ready_workers():
            if call not in self._coming:
                self._coming.add(call)
                call.add_done_callback(self._ended.put)

    def _dispatch(self, other: OtherWork | None) -> None:
        """Let every free device pull unless under notice; groups may change before."""
        freed, self._freed = self._freed, []
        lease_ended, self._lease_ended = self._lease_ended, False
        if self._fleet.regroups(self.work_left, lease_ended):
            self._add_ready_workers()
        devices = self._fleet.workers(self._phases[0].version)
        if devices is not self._devices:
            self._devices, self._idle = devices, {}
            busy = self._flights.keys() | self._elsewhere.keys()
            freed = [device for device in devices if device.name not in busy]
        self._idle |= {device.name: device for device in freed}
        for phase in self._phases:
            if self._coming and phase is self._phases[0] and all(one.notice for one in self._idle.values()):
                self._refill(phase, 1)  # one batch waits for the first device to join
            for device in tuple(self._idle.values()):
                if not (phase.plans or self._scheduler.waiting(phase.kind)):
                    break
                if device.notice is None and phase.accepts(device):
                    self._refill(phase, 1)
                    self._pull(phase, device)
        for device in freed:
            if device.name in self._idle:
                self._fleet.enter(device.name, "idle")
        if other is not None:  # for devices that find nothing to generate
            for name, call in other.take([one for one in self._idle.values() if one.notice is None]).items():
                until_s = self._clock() + self._other_limit_s
                self._elsewhere[name] = _Elsewhere(self._idle.pop(name), call, until_s)
                call.add_done_callback(self._ended.put)
        for phase in self._phases:  # ahead, while they are busy, because planning takes time
            if phase.plans and not phase.over:
                self._refill(phase, sum(one.notice is None and phase.accepts(one) for one in devices))

    def _refill(self, phase: Phase, devices: int) -> None:
        """Get requests while devices could take them; a partial batch wastes a device's time."""
        while self._scheduler.waiting(phase.kind) < devices * self._batch_size:
            items = phase.more()
            if not items:
                return
            self._scheduler.add(items)

    def _pull(self, phase: Phase, device: Device) -> None:
        """Let a free device start on the next requests of a phase, if it may."""
        version, kind = phase.version, phase.kind
        following = self._scheduler.following(version, kind)
        if following is None or not phase.may_pull(device, following):
            return
        lease = self._scheduler.pull(device.name, version, self._batch_size, kind)
        if lease is None:
            return
        del self._idle[device.name]
        self._fleet.enter(device.name, "explore" if kind is RequestKind.EXPLORE else "rollout")
        flight = self._flights[device.name] = Flight(phase, device, lease, self._clock())
        if self._history.kept:
            facts = {"worker": device.name, "step": lease.step, "until": lease.steps}
            names = names_of(lease.requests)
            self._history.note("lease", lease=lease.number, kind=lease.kind, **facts, requests=names)
        self._go_on(flight, begins=True)

    def _go_on(self, flight: Flight, begins: bool = False) -> None:
        """Start the next chunks of a lease, before earlier ones are committed."""
        lease, device, drafts = flight.lease, flight.device, flight.lease.kind is RequestKind.EXPLORE
        ahead = 1 if drafts else _CALLS_AHEAD
        while begins or (len(flight.calls) < ahead and flight.step < lease.steps):
            most, left = steps_to_commit(self._commit_steps, device.step_s, drafts), lease.steps - flight.step
            steps = self._call_steps(device, min(most, left), left)
            flight.step += steps
            if begins:
                work = [
                    state if isinstance(state, SampleState) else request
                    for request, state in zip(lease.requests, lease.states, strict=True)
                ]
                version = flight.phase.version
                call = device.actor.call(Worker.begin_samples, version, lease.number, work, steps)
                begins = False
            else:
                call = device.actor.call(Worker.advance_samples, lease.number, steps)
            flight.calls[call] = flight.step
            self._flight_of[call] = flight
            call.add_done_callback(self._ended.put)

    def _await(self) -> list[Future[Any]]:
        """Wait for a call to end, a device to time out or a wake-up; return all ended calls."""
        limits_s = [one.since_s + self._lease_s for one in islice(self._flights.values(), 1)]
        limits_s += [one.until_s for one in self._elsewhere.values()]
        left_s = max(0.0, min(limits_s) - self._clock()) if limits_s else None
        ended: list[Future[Any] | None] = []
        try:
            ended.append(self._ended.get(timeout=left_s))
            while True:
                # Record arrived answers before any device can time out.
                ended.append(self._ended.get_nowait())
        except Empty:
            return [call for call in ended if call is not None]

    def _settle(self, call: Future[Any]) -> None:
        """Handle the end of a chunk, of a phase's call or of a joining device's call.

        Nothing more starts for a phase that is over, because the run may be ending.
        """
        flight = self._flight_of.pop(call, None)
        if flight is not None:
            if not (flight.dropped or flight.phase.over):
                self._settle_chunk(flight, call)
        elif call in self._coming:
            self._coming.remove(call)
            if not self._phases[0].over:
                self._add_ready_workers()
        elif name := next((name for name, one in self._elsewhere.items() if one.call is call), ""):
            self._freed.append(self._elsewhere.pop(name).device)  # its other work has ended
            error = call.exception()
            if isinstance(error, WorkerLostError):
                self._fleet.on_worker_lost(self._freed[-1], error)
                if not self._phases[0].over:
                    self._add_ready_workers()
        else:  # or a late call of an earlier phase
            for phase in self._phases:
                if not phase.over and call in phase.calls:
                    phase.settle(call)

    def _settle_chunk(self, flight: Flight, call: Future[SampleChunk]) -> None:
        try:
            chunk = call.result()
        except WorkerLostError as error:
            if not flight.over:
                self._end(flight)
                self._history.note("back", lease=flight.lease.number, why="lost")
                self._scheduler.on_worker_lost(flight.device.name, flight.reached)
                self._fleet.on_worker_lost(flight.device, error)
                self._add_ready_workers()
            return
        step, now_s = flight.calls.pop(call), self._clock()
        # Chunks cut short by a notice and answers out of order say nothing of the time of a step.
        if step > flight.timed_step and chunk.notice is None and (chunk.states or chunk.samples):
            flight.device.step_s = (now_s - flight.since_s) / (step - flight.timed_step)
        flight.since_s, flight.timed_step = now_s, step
        if not flight.over:
            self._flights.move_to_end(flight.device.name)
        left = self._book(flight, chunk)
        if flight.over:
            return
        self._fleet.on_notice(flight.device, chunk.notice)
        if chunk.notice is not None:
            self._history.note("back", lease=flight.lease.number, why="notice")
            self._scheduler.hand_back(flight.lease)
            self._add_ready_workers()
        elif left and not flight.device.retiring and not self._yields(flight) and not flight.phase.over:
            self._go_on(flight)
        if not flight.calls and not (left and flight.phase.over):
            self._end(flight)
            if left and chunk.notice is None:
                why = "yielded" if self._yields(flight) else "retired"
                self._history.note("back", lease=flight.lease.number, why=why)
            self._scheduler.hand_back(flight.lease)  # only if a chunk did less than planned

    def _yields(self, flight: Flight) -> bool:
        """Return True if a lease of the phase beside must end because requests of the first phase wait."""
        phase = self._phases[0]
        return flight.phase is not phase and self._scheduler.waiting(phase.kind) > 0

    def _book(self, flight: Flight, chunk: SampleChunk) -> bool:
        """Commit or deliver a chunk; return True if the lease's device has samples left."""
        lease = flight.lease
        reached = {state.request: (state.step, state) for state in chunk.states}
        held = self._scheduler.commit(lease, reached)
        brought = [sample.request for sample in chunk.samples]
        accepted = set(self._scheduler.deliver(lease, brought))
        if self._history.kept and chunk.states:
            self._history.note("commit", lease=lease.number, step=chunk.states[0].step)
        if self._history.kept and brought:
            self._history.note(
                "deliver",
                lease=lease.number,
                accepted=names_of(request for request in brought if request in accepted),
                dropped=names_of(request for request in brought if request not in accepted),
            )
        images = [sample for sample in chunk.samples if sample.request in accepted]
        if images:
            delivery = Delivery(lease, images, flight.device.name, self._clock() - flight.began_s)
            for call in flight.phase.deliver(delivery):
                call.add_done_callback(self._ended.put)
        return bool(held) and not chunk.samples

    def _give_up_what_hangs(self) -> None:
        now = self._clock()
        hung = takewhile(lambda one: one.since_s + self._lease_s <= now, self._flights.values())
        for flight in list(hung):
            self._end(flight)
            lease = flight.lease
            if self._scheduler.expire(lease, flight.reached):
                self._history.note("back", lease=lease.number, why="expired")
            self._fleet.kill_hung_worker(
                flight.device,
                f"no answer on its {len(lease.requests)} samples in runtime.lease_s={self._lease_s:g} s",
            )
            self._add_ready_workers()
        for name, one in list(self._elsewhere.items()):
            if one.until_s <= self._clock() and not one.call.done():
                del self._elsewhere[name]  # it is lost now, even if its call takes long to end
                self._fleet.kill_hung_worker(
                    one.device, f"no answer in {self._other_limit_s:g} s (runtime.lease_s={self._lease_s:g})"
                )
                self._add_ready_workers()

    def _end(self, flight: Flight) -> None:
        """Detach a device from a lease; calls that end later are late."""
        flight.over = self._lease_ended = True
        del self._flights[flight.device.name]
        self._freed.append(flight.device)

    def _drop(self, phases: Iterable[Phase]) -> None:
        """Drop phases that are over, with their waiting requests and devices' remaining work."""
        for phase in list(phases):
            for flight in [flight for flight in self._flights.values() if flight.phase is phase]:
                self._end(flight)
                flight.dropped = True
                self._history.note("back", lease=flight.lease.number, why="dropped")
                self._scheduler.drop(flight.lease.requests)
            self._scheduler.drop_waiting(phase.kind)
            self._begun.remove(phase)
