"""A generation phase under the virtual clock: the dispatcher of live runs with simulated devices. Pure.

The phase replaces everything around a live run's dispatcher: requests, the fleet, and the workers, whose
calls end when their denoising steps would be done. A request is a whole batch here: in a live run, too, a
batch's samples are leased, committed and delivered together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.phase import Delivery, Phase
from gpu_runtime.exploration.window import DraftGate
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion, WorkItem, WorkLeft
from gpu_runtime.simulator.devices import (
    NOTICE,
    PhaseOutcome,
    PhaseUnderWay,
    PhaseWork,
    SimulatedDevice,
    VirtualWorker,
    simulated,
)
from gpu_runtime.simulator.fleet import SimulatedFleet
from gpu_runtime.simulator.grouping import Grouping
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.push_dispatch import PushDispatch
from gpu_runtime.simulator.simulated_feed import SimulatedFeed
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, Event, EventLoop, VirtualCalls, ticks
from gpu_runtime.spot.notices.notice import Notice
from storage.config.runtime import RuntimeConfig
from storage.errors import WorkerLostError
from storage.record.records import DeviceState


class PhaseSetup(NamedTuple):
    """Everything that a phase is built from.

    Attributes:
        scheduler: assigns batches, its requests, to devices.
        gate: decides whether a batch of drafts may still begin; None without a window.
        feed: prompt groups of a rollout to train on; None if trainers train on them later.
        first: number of the first batch; numbers are unique in the run.
    """

    loop: EventLoop
    fleet: SimulatedFleet
    times: WorkloadTimes
    grouping: Grouping
    work: PhaseWork
    runtime: RuntimeConfig
    scheduler: PullScheduler[Any]
    gate: DraftGate | None
    feed: SimulatedFeed | None
    first: int


class GenerationPhase(PhaseUnderWay, Phase):
    """A phase whose devices take its weights, then pull and deliver batches; lost batches resume elsewhere.

    It is both the dispatcher's `Phase` and its `GeneratingFleet`, of devices that work alone.
    """

    forming = False

    def __init__(self, setup: PhaseSetup) -> None:
        self.outcome = PhaseOutcome()
        self.entered: list[tuple[SimulatedDevice, DeviceState, int]] = []
        """States that devices entered, with their ticks."""
        super().__init__(setup.loop, setup.times, setup.work, setup.scheduler)
        self._fleet, self._grouping, self._gate, work = setup.fleet, setup.grouping, setup.gate, setup.work
        self._feed = setup.feed
        self.kind, self.version = work.kind, work.version
        self._drafts = work.kind is RequestKind.EXPLORE
        self.must_end = not self._drafts
        self._pushed = setup.scheduler if isinstance(setup.scheduler, PushDispatch) else None
        self._first = setup.first
        self._away = work.beside_training  # True while the trainers are away
        self._events: list[Event] = []  # at which trainers join or leave, or devices arrive
        self._began = self._loop.now
        self._states: dict[str, DeviceState] = {}
        self._ready_devices: dict[str, Device] = {}  # they hold the weights and are not refused
        self._listed: list[Device] | None = None
        self._due: dict[int, list[SimulatedDevice]] = {}  # devices on their way, by `coming`
        self._newcomer: Future[None] | None = None
        self._trainers_go_on: bool | None = None  # None until they are asked again
        self._scorers_free = self._loop.now
        self._loaded_by = 0
        self._redone = self._scheduler.counters.redone_steps
        self._ended = VirtualCalls(self._loop, work.deadline)
        ended: Any = self._ended
        # No simulated device hangs, and a call for a whole lease may take long.
        runtime = setup.runtime.model_copy(update={"lease_s": math.inf})
        self._dispatcher = Dispatcher(runtime, 1, self._clock, None, self._scheduler, ended, self.undisturbed)

    def _clock(self) -> float:
        """Return the seconds since the phase began, so that a phase is the same at any time of a run."""
        return (self._loop.now - self._began) / TICKS_PER_S

    def run(self) -> PhaseOutcome:
        """Simulate the phase and return its outcome.

        Raises:
            SchedulingError: batches are left, but no device is left or will come.
        """
        work = self._work
        self._fleet.phase = self
        for device in self._fleet:
            waits = device.joined and device.holds != work.version and not self._is_away(device)
            if waits and device.known_gone is not None:
                # The run does not know of the loss: all wait until the call for its weights fails.
                self.enter(device.name, "load")
                device.coming = device.known_gone
                self._loaded_by = max(self._loaded_by, device.coming)
        for device in list(self._fleet):
            self.take_in(device)
        self._loaded_by = 0
        if work.trainers_join is not None:
            self._events.append(self._loop.at(work.trainers_join, self._let_trainers_join))
        if work.trainers_leave is not None:
            self._events.append(self._loop.at(work.trainers_leave, self._let_trainers_leave))
        self._generate()
        self._end()
        return self.outcome

    def _generate(self) -> None:
        if self._feed is not None:
            self._feed.enter = self.enter
        self._dispatcher.run(self, self, other=self._feed)

    # The dispatcher's `Phase`.

    @property
    def over(self) -> bool:
        """True once all is delivered, or at the deadline."""
        return self.outcome.delivered == self._work.batches or self._ended.closed

    @property
    def awaits_devices(self) -> bool:
        """True if a device may come; drafts wait only for devices that load or are on their way."""
        return (
            self.must_end
            or self._fleet.loading > 0
            or any(device.coming is not None for device in self._fleet)
        )

    def begin(self, wake: Callable[[], None]) -> list[WorkItem[Any]]:
        """Return all batches."""
        work, numbers = self._work, range(self._first, self._first + self._work.batches)
        return [WorkItem(number, work.kind, work.steps, work.version) for number in numbers]

    def accepts(self, device: Device) -> bool:
        """Return False for a trainer that is away, or that leaves as the live window decides."""
        one = simulated(device)
        if self._is_away(one):
            return False
        device.retiring = False  # a trainer that was called back
        return not one.trains or self._goes_on()

    def may_pull(self, device: Device, following: WorkItem[Any]) -> bool:
        """Return True if a batch may begin: before the deadline, and if the gate, if any, allows it."""
        if self._work.deadline is not None and self._loop.now >= self._work.deadline:
            return False
        elapsed = self._loop.now - self._began
        if self._gate is None or self._gate.may_begin(device.name, elapsed, float(self._work.size)):
            return True
        # Refused for the rest of the window, which only gets shorter.
        self._remove(device.name)
        return False

    def deliver(self, delivery: Delivery) -> tuple[()]:
        """Queue a batch's images for the scorers; drafts not judged by the deadline do not count."""
        work, lease, now = self._work, delivery.lease, self._loop.now
        (made,) = delivery.images
        number: Any = made.request
        self.outcome.delivered += 1
        self.outcome.lease += ticks(delivery.lease_s)
        self.outcome.share += (lease.steps - lease.step) / lease.steps
        is_last = number == self._first + work.batches - 1
        images = work.images - (work.batches - 1) * work.size if is_last else work.size
        self._scorers_free = max(now, self._scorers_free) + images * self._times.score
        if self._feed is not None:
            self._feed.note(number - self._first, self._scorers_free)
        if self._drafts and (work.deadline is None or self._scorers_free <= work.deadline):
            self.outcome.judged += images
        return ()

    # The dispatcher's `GeneratingFleet`.

    def workers(self, version: WeightsVersion) -> list[Device]:
        """See `GeneratingFleet`; the same list until a device comes or goes."""
        if self._listed is None:
            self._listed = list(self._ready_devices.values())
        return self._listed

    def add_ready_workers(self) -> list[Future[Any]]:
        """Return a call that ends when a device arrives."""
        if self._newcomer is None:
            self._newcomer = Future()
        return [self._newcomer]

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """See `GeneratingFleet`; each device works alone."""
        self._trainers_go_on = None
        return False

    def enter(self, worker: str, state: DeviceState) -> None:
        """See `GeneratingFleet`."""
        if self._states.get(worker) != state:
            self._states[worker] = state
            device = self._fleet.devices[worker]
            self._fleet.enter(device, state)
            self.entered.append((device, state, self._loop.now))

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """See `GeneratingFleet`."""
        device.notice = notice

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """See `GeneratingFleet`; the fleet knows already."""
        lost = simulated(device)
        redone = self._scheduler.counters.redone_steps - self._redone
        self._redone += redone
        self.outcome.redone += redone
        self.outcome.redone_time += redone * self._times_of(lost.worker).step * len(lost.worker.members)
        self._ask_trainers_again()

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """See `GeneratingFleet`; no worker hangs."""

    # What happens to devices.

    def undisturbed(self, device: Device, chunk: int, left: int) -> int:
        """Return the denoising steps of a device's next call: all chunks that end before any disturbance.

        A lost lease thus continues from the same commit as if each chunk were a call.

        Args:
            device: device, or group, that has a lease.
            chunk: steps of a chunk.
            left: steps left in the lease.
        """
        worker, work = simulated(device).worker, self._work
        if work.window is not None and self._feed is not None and self._feed.left_s is not None:
            return chunk  # the window looks at the commits of all devices
        moments = [at for at in (self._fleet.disturbed_at, work.deadline) if at is not None]
        if not moments:
            return left
        times = self._times_of(worker)
        calm = min(moments) - (worker.calls[-1].end.at if worker.calls else self._loop.now)
        if left * times.step + times.decode <= calm:
            return left
        return max(chunk, min(calm // times.step, left - 1) // chunk * chunk)

    def warn(self, device: SimulatedDevice) -> None:
        """Stop a device at the end of its current denoising step."""
        if device.worker.calls:
            self._stop(device.worker)
        else:
            device.device.notice = NOTICE
        self._forget(device)

    def _forget(self, device: SimulatedDevice) -> None:
        """Account for a device that begins nothing more."""
        if self._pushed is not None:
            self._pushed.on_notice(device.name)
            self._ended.put(None)
        self._ask_trainers_again()

    def halt(self, device: SimulatedDevice) -> None:
        """Halt a device, which keeps its lease until the run knows of its loss."""
        for call in device.worker.calls:
            if call.end.at > self._loop.now:
                call.end.cancel()
        if device.coming is not None:
            device.coming = device.known_gone
        elif not device.worker.calls:  # no call will fail and reveal the loss
            self._remove(device.name)
            self._forget(device)

    def awaits(self, device: SimulatedDevice) -> bool:
        """Return True if a call to a device's worker is under way."""
        return device.coming is not None or bool(device.worker.calls)

    def _learn(self, worker: VirtualWorker) -> None:
        """Fail calls to devices that were lost while they had none."""
        for device in worker.members:
            if device.known_gone is not None and device.known_gone <= self._loop.now:
                self._loop.at(self._loop.now, partial(self._fleet.learn, device))

    def fail_calls(self, device: SimulatedDevice) -> None:
        """Fail a lost device's calls."""
        self._remove(device.name)
        if device.coming is not None:
            device.coming = None
            if self._pushed is not None:
                self._pushed.on_worker_lost(device.name)
            self._ended.put(None)
            self._ask_trainers_again()
        for call in device.worker.calls:
            call.set_exception(WorkerLostError(f"{device.name} is gone"))
        device.worker.calls.clear()

    def _remove(self, name: str) -> None:
        """Give a device nothing more in this phase."""
        if self._ready_devices.pop(name, None) is not None:
            self._listed = None

    def take_in(self, device: SimulatedDevice) -> None:
        """Let a device with a loaded model take the phase's weights and pull."""
        if not device.serves or self._is_away(device):
            return
        now, behind = self._loop.now, device.holds != self._work.version
        if not behind and device.free_at <= now:
            self._ready([device])
            return
        self.enter(device.name, "load" if behind else "idle")
        ready = max(now, device.free_at) + (self._times.of(device.market).weights if behind else 0)
        self._await(device, max(ready, self._loaded_by))

    def _await(self, device: SimulatedDevice, at: int) -> None:
        """Wait for a device that holds the weights at a tick; devices of one tick come together."""
        device.coming = at
        if at not in self._due:
            self._due[at] = []
            self._events.append(self._loop.at(at, partial(self._arrive, at)))
        self._due[at].append(device)

    def _arrive(self, at: int) -> None:
        self._ready([one for one in self._due.pop(at) if one.coming == at and one.known_gone is None])

    def _ready(self, devices: Sequence[SimulatedDevice]) -> None:
        """Let free devices that hold the weights pull."""
        for device in devices:
            device.coming = None
            device.holds = self._work.version
            device.worker.phase = self
            self._ready_devices[device.name] = device.device
        self._changed()

    def _changed(self) -> None:
        """Make the dispatcher ask for the devices again."""
        self._listed, came, self._newcomer = None, self._newcomer, None
        if came is not None:
            came.set_result(None)

    # Trainers.

    def _is_away(self, device: SimulatedDevice) -> bool:
        """Return True if a device trains, or waits for samples to train on."""
        return self._away and device.trains

    @property
    def _others_go_on(self) -> bool:
        """True if there is still a device that does not train."""
        return any(device.serves and not device.trains for device in self._fleet)

    def _let_trainers_join(self) -> None:
        """Let the trainers roll out from now on."""
        self._away = False
        for device in self._fleet.trainers:
            if not device.worker.calls:
                self.take_in(device)

    def _let_trainers_leave(self) -> None:
        """Stop the trainers, each at the end of its denoising step, if other devices can continue."""
        self._away = self._others_go_on
        for device in self._fleet.trainers if self._away else ():
            self._stop(device.worker)
            device.device.retiring = True

    def _goes_on(self) -> bool:
        """Return True if each trainer should roll out one more batch; decided once per look."""
        work, now = self._work, self._loop.now
        if work.window is None or self._feed is None:
            return True
        if self._trainers_go_on is None:
            others = sum(
                device.joined and not device.noticed and not device.trains and device.holds == work.version
                and (device.known_gone is None or device.known_gone > now)
                for device in self._fleet
            )  # fmt: skip
            batches = self._dispatcher.work_left().steps / work.steps
            self._trainers_go_on = work.window.goes_on(batches, others, self._feed.left_s)
        return self._trainers_go_on

    def _ask_trainers_again(self) -> None:
        """Let trainers roll out again if no other device can continue, or the live window says so."""
        if self._feed is not None:
            self._away = self._away and self._others_go_on
            self._ended.put(None)

    def _end(self) -> None:
        """Drop devices' unfinished work; they stay busy until the end of their chunk."""
        self._fleet.phase = None
        for event in self._events:
            event.cancel()
        self.outcome.judging = max(0, self._scorers_free - self._loop.now)
        of_trainers = [device.worker.calls for device in self._fleet.trainers]
        free = max([self._loop.now, *(calls[-1].end.at for calls in of_trainers if calls)])
        for device in self._fleet:
            calls, device.worker = device.worker.calls, device.own
            if device.coming is not None:
                device.free_at, device.coming = device.coming, None
            elif calls:
                device.free_at = calls[-1].end.at
            for call in calls:
                call.end.cancel()
            calls.clear()
            if device.joined and not self._is_away(device) and not self._dispatcher.busy(device.name):
                self.enter(device.name, "idle")
        if self._feed is not None:
            spans, began = self._feed.end(free), self._began
            self.outcome.trained = [(since - began, until - began) for since, until in spans]
