"""A generation phase under the virtual clock: the scheduler of live runs with simulated devices. Pure.

A request of the scheduler is a whole batch here: samples of a batch are leased, committed and delivered
together in a live run too. No events are scheduled between the beginning and the end of a lease: chunks of
denoising steps all take equally long, so the commits that a loss or a notice finds follow from the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from gpu_runtime.exploration.window import DraftGate
from gpu_runtime.scheduling.pull_scheduler import PullScheduler, steps_to_commit
from gpu_runtime.scheduling.requests import Lease, RequestKind, WorkItem
from gpu_runtime.simulator.devices import BatchTimes, Flight, Holder, SimulatedDevice
from gpu_runtime.simulator.fleet import PhaseUnderWay, SimulatedFleet
from gpu_runtime.simulator.grouping import Grouping
from gpu_runtime.simulator.phase_work import PhaseOutcome, PhaseWork
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.push_dispatch import PushDispatch
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, Event, EventLoop
from storage.errors import SchedulingError
from storage.record.records import DeviceState, Market

_ONE_KIND: frozenset[Market] = frozenset({"reserved"})


class PhaseSetup(NamedTuple):
    """All that a phase consists of.

    Attributes:
        scheduler: assigns batches, its requests, to devices.
        gate: decides whether a batch of drafts may still begin; None without a window.
        first: number of the first batch; numbers are unique in the run.
    """

    loop: EventLoop
    fleet: SimulatedFleet
    times: WorkloadTimes
    grouping: Grouping
    work: PhaseWork
    scheduler: PullScheduler[int]
    gate: DraftGate | None
    first: int


class GenerationPhase(PhaseUnderWay):
    """Devices take a phase's weights, pull and deliver batches; others join; lost ones resume elsewhere."""

    def __init__(self, setup: PhaseSetup) -> None:
        self.outcome = PhaseOutcome()
        self.entered: list[tuple[SimulatedDevice, DeviceState, int]] = []
        """Each state that a device entered, and when in ticks."""
        self._loop, self._fleet, self._times = setup.loop, setup.fleet, setup.times
        self._grouping, self._gate, self._scheduler = setup.grouping, setup.gate, setup.scheduler
        self._work = work = setup.work
        self._pushed = setup.scheduler if isinstance(setup.scheduler, PushDispatch) else None
        self._first = self._next = setup.first
        self._last = setup.first + work.batches
        self._away = work.beside_training  # True while the trainers are away
        self._turns: list[Event] = []  # switches of the trainers between training and rolling out
        self._began = self._loop.now
        self._drafts = work.kind is RequestKind.EXPLORE
        self._state: DeviceState = "explore" if self._drafts else "rollout"
        self._batch_times: dict[tuple[frozenset[Market], int], BatchTimes] = {}
        # Those that may still pull. Ordered: removed from the front and from the middle in constant time.
        self._idle: OrderedDict[str, Holder] = OrderedDict()
        # A device that the gate refuses once is refused for the rest of the window, which only gets shorter,
        # so it need not be asked again whenever a batch comes back.
        self._closed: set[str] = set()
        self._left: set[str] = set()  # trainers that the live window has released
        self._busy = 0
        self._scorers_free = self._loop.now
        self._loaded_by = 0

    def run(self) -> PhaseOutcome:
        """Simulate the phase and return its outcome.

        Raises:
            SchedulingError: batches are left, but no device is left or will come.
        """
        work = self._work
        self._fleet.phase = self
        gone = [device for device in self._fleet if device.joined and device.known_gone is not None]
        for device in gone:
            self._call_in_vain(device)
        # All wait until each device that the run counts on holds the weights, or is known to be lost.
        self._loaded_by = max((device.known_gone or 0 for device in gone if device.coming), default=0)
        if self._pushed is not None:
            self._ask_for(work.batches)
        for device in list(self._fleet):
            self.take_in(device)
        self._loaded_by = 0
        if work.trainers_join is not None:
            self._turns.append(self._loop.at(work.trainers_join, self._let_trainers_join))
        if work.trainers_leave is not None:
            self._turns.append(self._loop.at(work.trainers_leave, self._let_trainers_leave))
        finished = self._loop.run_until(self._is_over, work.deadline)
        if not finished and work.deadline is None:
            raise SchedulingError(
                f"{work.batches - self.outcome.delivered} batches are left, but no device; let one stay"
            )
        self._end()
        return self.outcome

    def on_notice(self, device: SimulatedDevice) -> None:
        """Stop a device at the end of its current denoising step."""
        self._stop(device)
        self._forget(device)

    def _forget(self, device: SimulatedDevice) -> None:
        """Account for a device that begins nothing any more."""
        if self._pushed is not None:
            self._pushed.on_notice(device.name)
            self._wake()
        self._ask_trainers_again()

    def _stop(self, holder: Holder) -> None:
        self._idle.pop(holder.name, None)
        flight = holder.flight
        if flight is not None:
            self._hand_back_after(holder, flight, -(-(self._loop.now - flight.since) // flight.step))

    def _hand_back_after(self, holder: Holder, flight: Flight, steps: int) -> None:
        """End a lease after so many of its denoising steps; one that has no more than these is delivered."""
        reached = flight.lease.step + steps
        if reached < flight.lease.steps:
            flight.end.cancel()
            flight.until = reached
            at = flight.since + steps * flight.step
            flight.end = self._loop.at(at, partial(self._hand_back, holder, flight, reached))

    def on_gone(self, device: SimulatedDevice) -> None:
        """Halt a device, which keeps its lease until the run knows that it is lost."""
        self._idle.pop(device.name, None)
        if device.coming is not None:
            device.coming.cancel()
        if device.flight is not None:
            device.flight.end.cancel()
            device.flight.halted = self._loop.now
        if device.flight is None and device.coming is None:  # no call fails that would tell
            self._forget(device)

    def on_lost(self, device: SimulatedDevice) -> None:
        """Take back the batch of a lost device; it continues elsewhere from the last commit."""
        self._busy -= 1
        flight = device.flight
        if flight is not None:
            self._take_back(device, flight)
        elif self._pushed is not None:
            self._pushed.on_worker_lost(device.name)
            self._wake()
        self._ask_trainers_again()

    def _take_back(self, holder: Holder, flight: Flight) -> None:
        holder.flight = None
        lease, now = flight.lease, self._loop.now
        assert flight.halted is not None, "a device is gone before it is lost"
        done = (flight.halted - flight.since) // flight.step
        # The last chunk ends with the images, so it is delivered, not committed.
        chunks = min(done // flight.chunk, (lease.steps - lease.step - 1) // flight.chunk)
        committed = lease.step + chunks * flight.chunk
        if committed > lease.step:
            self._scheduler.commit(lease, dict.fromkeys(lease.requests, (committed, None)), now)
        begun = min(lease.steps, committed + flight.chunk)
        self._scheduler.on_worker_lost(holder.name, dict.fromkeys(lease.requests, begun))
        self.outcome.redone += begun - committed
        self.outcome.redone_time += (begun - committed) * flight.step * len(holder.members)
        self._wake()

    def take_in(self, device: SimulatedDevice) -> None:
        """Let a device that has loaded its model take the phase's weights and pull."""
        if not device.serves or self._is_away(device):
            return
        now, behind = self._loop.now, device.holds != self._work.version
        if not behind and device.free_at <= now:
            self._on_ready(device)
            return
        self._enter(device, "load" if behind else "idle")
        ready = max(now, device.free_at) + (self._times.of(device.market).weights if behind else 0)
        ready = max(ready, self._loaded_by)
        self._busy += 1
        device.coming = self._loop.at(ready, partial(self._ready, device))

    def _call_in_vain(self, device: SimulatedDevice) -> None:
        """Let a lost device be asked to load the weights, as the run does not know of the loss yet."""
        if device.holds == self._work.version or self._is_away(device):
            return
        assert device.known_gone is not None, "it is gone"
        self._enter(device, "load")
        self._busy += 1
        device.coming = Event(device.known_gone, lambda: None)

    def _ready(self, device: SimulatedDevice) -> None:
        self._busy -= 1
        device.coming = None
        device.holds = self._work.version
        self._on_ready(device)

    def _on_ready(self, device: SimulatedDevice) -> None:
        """Let a device that holds the weights and is free pull."""
        self._pull(device)

    def _pull(self, holder: Holder) -> None:
        lease = None
        if self._may_pull(holder):
            now = self._loop.now
            lease = self._scheduler.pull(holder.name, now, self._work.version, 1, (self._work.kind,))
        if lease is None:
            self._enter(holder, "idle")
            if not (
                holder.noticed
                or self._is_away(holder)
                or holder.name in self._closed
                or holder.name in self._left
            ):
                self._idle[holder.name] = holder
            return
        self._busy += 1
        self._enter(holder, self._state)
        self._begin(holder, lease)

    def _begin(self, holder: Holder, lease: Lease[int]) -> None:
        """Begin a lease on a batch."""
        times, now = self._times_of(holder), self._loop.now
        at = now + (lease.steps - lease.step) * times.step + times.decode
        event = self._loop.at(at, partial(self._deliver, holder))
        holder.flight = Flight(lease, now, event, times.step, times.chunk)

    def _times_of(self, holder: Holder) -> BatchTimes:
        """Return how fast a holder does a batch: as fast as the slowest kind of its devices."""
        degree, kinds = len(holder.members), _ONE_KIND
        if self._times.spot is not None:
            kinds = frozenset[Market](device.market for device in holder.members)
        found = self._batch_times.get((kinds, degree))
        if found is None:
            kind = self._work.kind
            known = [self._times.of(market) for market in kinds]
            slowest = max(known, key=lambda times: times.step_of(kind, degree))
            step_s = slowest.step_s if degree == 1 else slowest.step_seconds(slowest.shared[degree])
            chunk = steps_to_commit(self._work.commit_steps, step_s, self._drafts)
            found = BatchTimes(slowest.step_of(kind, degree), slowest.decode, chunk)
            self._batch_times[kinds, degree] = found
        return found

    def _may_pull(self, holder: Holder) -> bool:
        closed = self._work.deadline is not None and self._loop.now >= self._work.deadline
        if holder.noticed or closed or self._is_away(holder) or self._leaves(holder):
            return False
        kind = self._work.kind
        if not self._scheduler.waiting(kind):
            if self._next == self._last:
                return False
            self._ask_for(1)  # batches are added as devices can take them
        if self._gate is None:
            return True
        elapsed = self._loop.now - self._began
        may_begin = self._gate.may_begin(holder.name, elapsed, float(self._work.size))
        if not may_begin:
            self._closed.add(holder.name)
        return may_begin

    def _deliver(self, holder: Holder) -> None:
        flight, now = holder.flight, self._loop.now
        assert flight is not None
        holder.flight = None
        self._busy -= 1
        lease = flight.lease
        accepted = self._scheduler.deliver(lease, lease.requests, now)
        self.outcome.delivered += len(accepted)
        self.outcome.lease += now - flight.since
        self.outcome.share += (lease.steps - lease.step) / lease.steps
        self._judge(lease, now)
        self._go_on(holder)

    def _go_on(self, holder: Holder) -> None:
        """Begin the next lease after a delivery."""
        self._pull(holder)

    def _judge(self, lease: Lease[int], now: int) -> None:
        """Queue images for the scorers; drafts not judged by the deadline do not count."""
        work = self._work
        is_last = lease.requests[0] == self._last - 1
        images = work.images - (work.batches - 1) * work.size if is_last else work.size
        self._scorers_free = max(now, self._scorers_free) + images * self._times.score
        if work.kind is RequestKind.ROLLOUT:
            self.outcome.judged_at[lease.requests[0] - self._first] = self._scorers_free - self._began
        if self._drafts and (work.deadline is None or self._scorers_free <= work.deadline):
            self.outcome.judged += images

    def _hand_back(self, holder: Holder, flight: Flight, reached: int) -> None:
        """Return a device's batch to the queue, committed at the step that it has reached."""
        holder.flight = None
        self._busy -= 1
        lease = flight.lease
        if reached > lease.step:
            commits = dict.fromkeys(lease.requests, (reached, None))
            self._scheduler.commit(lease, commits, self._loop.now)
        self._scheduler.hand_back(lease)
        self._stand_by(holder)

    def _stand_by(self, holder: Holder) -> None:
        """Make a holder idle after it has handed its lease back."""
        self._enter(holder, "idle")
        self._wake()
        if holder.serves and not self._is_away(holder):  # a trainer that was called back meanwhile
            self._pull(holder)

    def _ask_for(self, batches: int) -> None:
        """Add the next batches to the queue."""
        work, numbers = self._work, range(self._next, self._next + batches)
        self._scheduler.add([WorkItem(number, work.kind, work.steps, work.version) for number in numbers])
        self._next += batches

    def _is_idle(self, device: SimulatedDevice) -> bool:
        """Return True if a device finds nothing to do here, or has left to train."""
        return self._idle.get(device.name) is device or device.name in self._left

    def _is_away(self, holder: Holder) -> bool:
        """Return True if a holder trains, or waits for samples to train on."""
        return self._away and holder.trains

    @property
    def _others_go_on(self) -> bool:
        """True if a device that does not train is left."""
        return any(device.serves and not device.trains for device in self._fleet)

    def _let_trainers_join(self) -> None:
        """Let the trainers roll out from now on."""
        self._away = False
        for device in self._fleet.trainers:
            if device.flight is None:
                self.take_in(device)

    def _let_trainers_leave(self) -> None:
        """Stop the trainers, each at the end of its denoising step, if other devices can go on."""
        if not self._others_go_on:
            return
        self._away, left = True, self._loop.now
        for device in self._fleet.trainers:
            if device.coming is not None:
                device.coming.cancel()
                device.free_at, device.coming = device.coming.at, None
                self._busy -= 1
                left = max(left, device.free_at)
            self._stop(device)
            if device.flight is not None:
                left = max(left, device.flight.end.at)
            else:
                self._enter(device, "idle")
        self.outcome.trainers_left = left - self._began

    def _leaves(self, holder: Holder) -> bool:
        """Return True if a trainer trains from now on, by the live window; one called back stays."""
        if not holder.trains or self.outcome.trainers_back is not None or self._goes_on():
            return False
        self._left.add(holder.name)
        return True

    def _goes_on(self) -> bool:
        """Return True if the trainers should roll out one more batch each."""
        work, now = self._work, self._loop.now
        if work.window is None or work.train_s is None:
            return True
        others = [
            device
            for device in self._fleet
            if device.joined and not device.noticed and not device.trains and device.holds == work.version
            and (device.known_gone is None or device.known_gone > now)
        ]  # fmt: skip
        left_s = work.train_s - self._trained_s()
        return work.window.goes_on(self._steps_left() / work.steps, len(others), left_s)

    def _trained_s(self) -> float:
        """Return the seconds of training done since all trainers left, at most those of what is judged."""
        assert self._work.train_s is not None, "else nothing asks"
        if not all(map(self._is_idle, self._fleet.trainers)):
            return 0.0
        passed = self._loop.now - self._began
        judged = sum(at <= passed for at in self.outcome.judged_at.values()) / self._work.batches
        return min(
            (passed - self._idle_since(self._fleet.trainers)) / TICKS_PER_S, judged * self._work.train_s
        )

    def _steps_left(self) -> int:
        """Return the denoising steps left, as the run knows them: whole chunks of a batch under way."""
        left = (self._work.batches - self.outcome.delivered) * self._work.steps
        for number in range(self._first, self._next):
            commit = self._scheduler.committed(number)
            left -= 0 if commit is None else commit.step
        for flight in (device.flight for device in self._fleet):
            if flight is not None:
                until = self._loop.now if flight.halted is None else flight.halted
                done = (until - flight.since) // (flight.step * flight.chunk) * flight.chunk
                left -= min(done, flight.lease.steps - flight.lease.step)
        return left

    def _ask_trainers_again(self) -> None:
        """Let trainers that train roll out again, if no other device can go on or a loss requires it."""
        outcome, trainers = self.outcome, self._fleet.trainers
        if outcome.trainers_left is not None and self._away and not self._others_go_on:
            outcome.trainers_back = self._loop.now - self._began
            self._let_trainers_join()
        if self._left and self._goes_on():
            if all(map(self._is_idle, trainers)):
                outcome.trainers_left = self._idle_since(trainers)
                outcome.trainers_back = self._loop.now - self._began
            self._left.clear()
            for device in trainers:
                if device.flight is None:
                    self._pull(device)

    def _idle_since(self, devices: Sequence[SimulatedDevice]) -> int:
        """Return the ticks from the beginning until the last of some idle devices became idle."""
        since = {holder.name: at for holder, _, at in self.entered}
        return max(since[device.name] for device in devices) - self._began

    def _wake(self) -> None:
        """Let idle devices pull as long as batches wait."""
        for _ in range(len(self._idle)):
            if not self._scheduler.waiting(self._work.kind):
                return
            self._pull(self._idle.popitem(last=False)[1])

    def _is_over(self) -> bool:
        """Return True once all is delivered; for drafts also if no device is busy or loading."""
        if self.outcome.delivered == self._work.batches:
            return True
        return self._drafts and not self._busy and not self._fleet.any_loading

    def _end(self) -> None:
        """Drop what devices still work on; they stay busy until the end of their chunk."""
        self._fleet.phase = None
        for turn in self._turns:
            turn.cancel()
        now = self._loop.now
        self.outcome.judging = max(0, self._scorers_free - now)
        rolls_out = self._work.kind is RequestKind.ROLLOUT and self.outcome.trainers_left is None
        if rolls_out and all(map(self._is_idle, self._fleet.trainers)):
            self.outcome.trainers_left = self._idle_since(self._fleet.trainers)
        for device in self._fleet:
            if device.coming is not None:
                device.coming.cancel()
                device.free_at, device.coming = device.coming.at, None
            flight = device.flight
            if flight is not None:
                flight.end.cancel()
                chunk = flight.chunk * flight.step
                begun = max(1, -(-(now - flight.since) // chunk))
                device.free_at = min(flight.end.at, flight.since + begun * chunk)
                device.flight = None
                self._scheduler.drop(flight.lease.requests)
            if device.joined and not (self._is_away(device) or self._is_idle(device)):
                self._enter(device, "idle")
        self._scheduler.drop_waiting(self._work.kind)

    def _enter(self, holder: Holder, state: DeviceState) -> None:
        """Book the state of a holder's devices from now on."""
        for device in holder.members:
            self._fleet.enter(device, state)
            self.entered.append((device, state, self._loop.now))
