"""Runs of a language model's RL under the virtual clock, as RLBoost does them.

Requests are of unlike lengths, many run at once on each instance, and training begins while the rest is
rolled out. Spotlight does no such runs: a DiT's samples take equal steps, one batch at a time. This is a
check of the scheduler, the traces, the fleet and the clock against published measurements of another system.
The instance that decodes many requests at once and the choice of an instance for a request are the
benchmark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.decoding_instance import DecodingInstance
from benchmarks.language_workload import LanguageWorkload
from gpu_runtime.fleet.seeding_window import SeedingWindows, solved_window_s
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.work_items import WorkItem
from gpu_runtime.simulator.fleet import FleetPlan, SimulatedDevice, SimulatedFleet
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, EventLoop, ticks
from gpu_runtime.spot.traces.replay import Replay
from storage.record.records import Market

_NEVER = 2**62
_ROLLOUT = RequestKind.ROLLOUT


@dataclass(frozen=True)
class Ways:
    """What of RLBoost is in use.

    Attributes:
        seeds: reserved instances roll out before they train.
        remembers: windows are remembered by number of spot instances.
        migrates: requests go on elsewhere from the last token; otherwise lost ones begin anew.
    """

    seeds: bool = True
    remembers: bool = True
    migrates: bool = True


@dataclass(frozen=True)
class StreamedResult:
    """What a run came to, from loaded reserved instances on.

    Attributes:
        iteration_s: of each iteration.
        tokens: of prompts and responses trained on, of all.
        usd: the bill.
        spot_instances: mean number of spot instances paid for.
        losses: of spot instances.
        moved: requests that went to another instance, or began anew.
    """

    iteration_s: tuple[float, ...]
    tokens: int
    usd: float
    spot_instances: float
    losses: int
    moved: int

    @property
    def tokens_per_s(self) -> float:
        """Throughput."""
        return self.tokens / sum(self.iteration_s)

    @property
    def tokens_per_usd(self) -> float:
        """Throughput per dollar."""
        return self.tokens / self.usd


class StreamedRun:
    """Iterations one after another; spot instances come and go meanwhile.

    Args:
        workload: what is computed.
        plan: instances, all reserved ones of which train; prices are of an instance.
        ways: what of RLBoost is in use.
        replay: of spot instances; None for none.
        seed: of the lengths.
    """

    def __init__(
        self, workload: LanguageWorkload, plan: FleetPlan, ways: Ways, replay: Replay | None, seed: int = 0
    ) -> None:
        self._workload, self._plan, self._ways, self._seed = workload, plan, ways, seed
        self._loop = EventLoop()
        self._fleet = SimulatedFleet(self._loop, plan, ticks(workload.start_s), replay)
        self._scheduler: PullScheduler[int] = PullScheduler(1, _NEVER, workload.most_running)
        instances = plan.reserved + max(1, plan.spot)
        train_s = workload.prompts * workload.group * workload.train_token_s * workload.mean_tokens
        first_s = solved_window_s(workload.work_s(instances), train_s, plan.reserved, max(1, plan.spot))
        self._windows = SeedingWindows(first_s, ways.remembers)
        self._instances: dict[str, DecodingInstance] = {}
        self._version = 0
        self._next = 0
        self._moved = 0
        self._steps: dict[int, int] = {}  # tokens of each open response
        self._left = 0  # responses to come
        self._missing: list[int] = []  # responses to come, by prompt
        self._tokens: list[int] = []  # by prompt
        self._first = 0
        self._pooled = 0  # tokens that wait for the trainers
        self._trainer_free: int | None = None  # None while the reserved instances roll out
        self._waited = 0
        self._last_spot = 0

    def run(self, least_s: float) -> StreamedResult:
        """Iterations until so many seconds have passed, the last one to its end."""
        loop, fleet = self._loop, self._fleet
        loop.run_until(lambda: fleet.reserved_loaded)
        loop.run_until(lambda: False, loop.now)  # spot instances that have loaded by now
        fleet.take_in()
        fleet.phase = self
        for device in fleet:
            if device.joined:
                self._instances[device.name] = DecodingInstance(device)
        self._paid()
        began, tokens = loop.now, 0
        lengths_s: list[float] = []
        while not lengths_s or loop.now - began < ticks(least_s):
            at = loop.now
            tokens += self._iterate(len(lengths_s))
            lengths_s.append((loop.now - at) / TICKS_PER_S)
        paid = self._paid()
        usd = sum(self._plan.usd_per_hour(market) * hours for market, hours in paid.items())
        spot = paid["spot"] * 3600 / sum(lengths_s)
        return StreamedResult(tuple(lengths_s), tokens, usd, spot, fleet.counts.losses, self._moved)

    def _paid(self) -> dict[Market, float]:
        """Instance-hours by market since the last call."""
        self._fleet.timeline.take(self._loop.now)
        hours: dict[Market, float] = {"reserved": 0.0, "spot": 0.0}
        for paid in self._fleet.meter.take(self._loop.now):
            hours[paid.market] += paid.paid_s / TICKS_PER_S / 3600
        return hours

    def _iterate(self, iteration: int) -> int:
        """One iteration; the tokens that it trained on."""
        loop, workload = self._loop, self._workload
        lengths = workload.lengths(iteration, self._seed)
        self._begin(lengths)
        spot = len(self._spot())
        window_s = self._windows.window_s(spot) if self._ways.seeds else 0.0
        over = loop.at(loop.now + ticks(workload.weights_s + window_s), self._train_if_spot)
        loop.run_until(lambda: not self._left)
        over.cancel()
        rolled = loop.now
        if self._trainer_free is None:
            self._begin_training()
        assert self._trainer_free is not None
        end = max(rolled, self._trainer_free) + ticks(workload.update_s)
        self._trainer_free = None
        loop.run_until(lambda: False, end)
        if spot and self._ways.seeds:
            spot_s = (end - self._last_spot) / TICKS_PER_S
            self._windows.add_waits(spot, self._waited / TICKS_PER_S, spot_s)
        return sum(lengths) + len(lengths) * workload.prompt_tokens

    def _begin(self, lengths: Sequence[int]) -> None:
        """Requests wait, and every instance takes the new weights."""
        workload, now = self._workload, self._loop.now
        self._fleet.take_in()
        self._version += 1
        self._first, self._next = self._next, self._next + len(lengths)
        self._left, self._waited, self._pooled, self._last_spot = len(lengths), 0, 0, now
        self._missing = [workload.group] * workload.prompts
        self._tokens = [workload.group * workload.prompt_tokens] * workload.prompts
        items = [WorkItem(self._first + n, _ROLLOUT, steps, self._version) for n, steps in enumerate(lengths)]
        self._steps = {item.request: item.steps for item in items}
        self._scheduler.add(items)
        for instance in self._instances.values():
            self._take_weights(instance)

    def _take_weights(self, instance: DecodingInstance) -> None:
        instance.serves = False
        self._fleet.enter(instance.device, "load")
        version = self._version

        def ready() -> None:
            reserved_trains = instance.device.trains and self._trainer_free is not None
            if instance.device.name in self._instances and version == self._version and not reserved_trains:
                self._serve(instance)

        self._loop.at(self._loop.now + ticks(self._workload.weights_s), ready)

    def _serve(self, instance: DecodingInstance) -> None:
        """An instance runs requests from now on."""
        instance.serves = True
        instance.advance(self._loop.now, self._workload)

        def deal() -> None:
            self._deal()
            self._balance(instance)

        # After the others that are ready at this moment: the first must not take what is for all.
        self._loop.at(self._loop.now, deal)

    def _spot(self) -> list[DecodingInstance]:
        return [instance for instance in self._instances.values() if not instance.device.trains]

    def _deal(self) -> None:
        """Waiting requests go to the instance with the fewest, one by one."""
        workload, now, touched = self._workload, self._loop.now, set[DecodingInstance]()
        serving = [instance for instance in self._instances.values() if instance.serves]
        while serving and self._scheduler.waiting(_ROLLOUT):
            instance = min(serving, key=lambda each: len(each.running))
            if len(instance.running) >= workload.most_running:
                break
            if instance not in touched:
                instance.advance(now, workload)
                touched.add(instance)
            lease = self._scheduler.pull(instance.device.name, now, self._version, 1, (_ROLLOUT,))
            assert lease is not None, "something waits"
            step_s = workload.token_s + workload.row_s * (len(instance.running) + 1)
            read = (workload.prompt_tokens + lease.step) * workload.prefill_token_s / step_s
            instance.begin(lease, lease.steps - lease.step + read)
        for instance in serving:
            if instance in touched:
                self._announce(instance)

    def _announce(self, instance: DecodingInstance) -> None:
        """Put an instance's next finished request on the clock."""
        if instance.event is not None:
            instance.event.cancel()
            instance.event = None
        ends = instance.next_end()
        working = "rollout" if instance.running else "idle"
        if not (instance.device.trains and self._trainer_free is not None):
            self._fleet.enter(instance.device, working)
        if ends is not None:
            step_s = self._workload.token_s + self._workload.row_s * len(instance.running)
            after = max(0, ticks((ends - instance.reached) * step_s))
            instance.event = self._loop.at(self._loop.now + after, lambda: self._deliver(instance))

    def _deliver(self, instance: DecodingInstance) -> None:
        """An instance's finished requests go to the trainers."""
        now = self._loop.now
        instance.event = None
        instance.advance(now, self._workload)
        for lease in instance.take_finished():
            self._scheduler.deliver(lease, lease.requests, now)
            self._left -= 1
            if not instance.device.trains:
                self._last_spot = now
            self._train_on(lease.requests[0])
        self._deal()
        self._announce(instance)
        if not instance.running and self._left:
            self._balance(instance)

    def _train_on(self, request: int) -> None:
        place = (request - self._first) // self._workload.group
        self._missing[place] -= 1
        self._tokens[place] += self._steps.pop(request)
        if self._missing[place]:
            return
        if self._trainer_free is None:
            self._pooled += self._tokens[place]
            return
        now = self._loop.now
        self._waited += max(0, now - self._trainer_free)
        self._trainer_free = max(now, self._trainer_free) + self._training(self._tokens[place])

    def _training(self, tokens: int) -> int:
        return ticks(tokens * self._workload.train_token_s)

    def _train_if_spot(self) -> None:
        """The window is over: train, if an instance is left that rolls out the rest."""
        if self._left and any(instance.serves for instance in self._spot()):
            self._begin_training()

    def _begin_training(self) -> None:
        self._trainer_free = self._loop.now + self._training(self._pooled)
        self._pooled = 0
        for instance in self._instances.values():
            if instance.device.trains:
                self._stop(instance, migrates=True)
                self._fleet.enter(instance.device, "train")
        self._deal()

    def _stop(self, instance: DecodingInstance, migrates: bool) -> None:
        """An instance runs nothing any more; its requests wait, from their last token or anew."""
        now = self._loop.now
        instance.advance(now, self._workload)
        instance.serves = False
        if instance.event is not None:
            instance.event.cancel()
            instance.event = None
        for request in list(instance.running):
            self._give_back(instance, request, migrates)

    def _give_back(self, instance: DecodingInstance, request: int, migrates: bool) -> None:
        running = instance.running.pop(request)
        done = instance.done_of(running)
        if migrates and done > running.lease.step:
            self._scheduler.commit(running.lease, {request: (done, None)}, self._loop.now)
        self._scheduler.hand_back(running.lease)
        self._moved += 1

    def _balance(self, instance: DecodingInstance) -> None:
        """An instance takes running requests from those with many, as far as that makes them faster."""
        if not (instance.serves and self._ways.migrates and instance.device.name in self._instances):
            return
        few = self._workload.balanced_running
        others = [other for other in self._instances.values() if other.serves and other is not instance]
        taken = False
        for other in sorted(others, key=lambda each: -len(each.running)):
            count = min(len(other.running) - few, (len(other.running) - len(instance.running)) // 2)
            if count > 0:
                other.advance(self._loop.now, self._workload)
                for request in other.longest(count):
                    self._give_back(other, request, migrates=True)
                # The others are full: what was given back is for the instance with the fewest.
                self._deal()
                self._announce(other)
                taken = True
        if taken:
            self._announce(instance)

    # Calls of the fleet.

    def on_joined(self, device: SimulatedDevice) -> None:
        """A spot instance has loaded: it takes the weights, and joins in the same iteration."""
        self._instances[device.name] = DecodingInstance(device)
        self._take_weights(self._instances[device.name])

    def on_notice(self, device: SimulatedDevice) -> None:
        """No instance is warned."""

    def on_gone(self, device: SimulatedDevice) -> None:
        """An instance is lost: its requests go on elsewhere, on the reserved ones if it was the last."""
        instance = self._instances.pop(device.name, None)
        if instance is None:
            return
        self._stop(instance, self._ways.migrates)
        self._scheduler.on_worker_lost(device.name)
        self._fleet.take_in()
        self._deal()
        if self._left and self._trainer_free is not None and not self._spot():
            at = max(self._loop.now, self._trainer_free)
            self._loop.at(at, self._roll_out_again)

    def on_lost(self, device: SimulatedDevice) -> None:
        """The run knows of a loss at once."""

    def _roll_out_again(self) -> None:
        if not self._left or self._trainer_free is None or self._spot():
            return
        self._trainer_free = None
        for instance in list(self._instances.values()):
            self._serve(instance)
