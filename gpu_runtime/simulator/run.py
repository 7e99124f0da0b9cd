"""A whole run under the virtual clock: explore beside training, roll out, reward, train, evaluate. Pure.

Phases are in the order of `flows/post_train.py`. A phase depends on the devices that it begins with, not on
the time: one that no trace event disturbs is simulated once, and then repeated.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.strategies.strategy import Ahead
from gpu_runtime.exploration.window import HEADROOM, DraftGate, WindowForecast
from gpu_runtime.scheduling.capacity_decision import LiveWindow, TrainingTime
from gpu_runtime.scheduling.pull_scheduler import PullScheduler, steps_to_commit
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.simulator.devices import PhaseOutcome, PhaseWork
from gpu_runtime.simulator.fleet import SimulatedFleet
from gpu_runtime.simulator.generation import GenerationPhase, PhaseSetup
from gpu_runtime.simulator.grouped_generation import GroupedPhase
from gpu_runtime.simulator.grouping import Grouping
from gpu_runtime.simulator.lent_devices import LentDevices
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.push_dispatch import PushDispatch
from gpu_runtime.simulator.renting import Renting
from gpu_runtime.simulator.simulated_feed import SimulatedFeed
from gpu_runtime.simulator.simulated_run import LedgerPhase, SimulatedPhase, SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, EventLoop, ticks
from gpu_runtime.spot.traces.replay import Replay
from storage.config.run_config import RunConfig
from storage.prompts.files import held_out_prompts
from storage.record.records import DeviceState, Market


@dataclass(frozen=True)
class _UndisturbedPhase:
    """A phase that no event disturbed; ticks count from its beginning.

    Attributes:
        length: its length in ticks.
        entered: number of a device in the fleet, the state it entered, and when.
        after: when each device is free, whether it holds the phase's weights, and its step time.
    """

    length: int
    entered: tuple[tuple[int, DeviceState, int], ...]
    after: tuple[tuple[int, bool, float | None], ...]
    outcome: PhaseOutcome


class Simulation:
    """One run; it implements `Drafting`, through which its strategy makes drafts.

    Its seed plans are empty: the time of an iteration depends on the number of drafts, not on the seeds.

    Args:
        replay: spot instances over time; None for no spot instances.
        repeats: True to simulate undisturbed phases once; the figures are the same.
        keeps_intervals: True to keep the run's intervals.
    """

    def __init__(
        self,
        config: RunConfig,
        plan: SimulatedPlan,
        times: WorkloadTimes,
        replay: Replay | LentDevices | None = None,
        repeats: bool = True,
        keeps_intervals: bool = False,
    ) -> None:
        self._config = config
        self._plan = plan
        self._times = times
        self._loop = EventLoop()
        self._fleet = SimulatedFleet(self._loop, plan.fleet, times, replay)
        self._scheduler: PullScheduler[int] = PullScheduler()
        self._forecast = WindowForecast()
        self._seeds: SeedPlan | None = None  # chosen ahead for the next iteration
        self._window_closes = 0  # tick at which the current training ends
        self._next_batch = 0
        self._repeats = repeats
        self._keeps_intervals = keeps_intervals
        self._undisturbed: dict[Hashable, _UndisturbedPhase] = {}
        self._grouping = Grouping(config.sequence_parallel.by_kind, times, plan)
        markets: tuple[Market, ...] = ("reserved", "spot")
        prices: dict[Market, float] = {market: plan.fleet.usd_per_hour(market) for market in markets}
        self._run = SimulatedRun(prices, runs=plan.runs)
        self._usd: defaultdict[Market, float] = defaultdict(float)  # dollars multiplied by ticks per second
        # A plan that deals batches beforehand, or has a fixed window, decides nothing during a rollout.
        asks = config.runtime.trainers_leave and not (plan.pushes or plan.seeds)
        self._window = LiveWindow() if asks else None
        updates = config.algorithm.updates_per_iteration
        trainers, group_time = self._fleet.trainers, config.algorithm.group_size * times.train_sample
        self._feed = SimulatedFeed(
            self._loop, [one.device for one in trainers], config.algorithm, group_time, not plan.seeds
        )
        self._renting = Renting(self._loop, plan.fleet, self._fleet, updates, asks)
        self._untrained = 0  # ticks of training due beside the next rollout, if runs share devices

    def run(self) -> SimulatedRun:
        """Simulate the run and return its outcome."""
        config, run, loop = self._config, self._run, self._loop
        self._renting.decide()
        loop.run_until(lambda: not self._fleet.reserved_loading)
        self._fleet.take_in()
        self._pass(self._times.opening)
        self._evaluate(0)
        iterate = self._iterate if self._plan.runs == 1 else self._iterate_together
        for iteration in range(1, config.iterations + 1):
            began = loop.now
            iterate(WeightsVersion(iteration - 1), iteration < config.iterations)
            run.iterations.append(loop.now - began)
            self._account(iteration, "iteration")
            if config.evaluates_after(iteration):
                self._evaluate(iteration)
        fleet = self._fleet
        run.wall, run.events, run.wanted = loop.now, loop.done, self._renting.wanted
        samples = config.algorithm.prompts_per_iteration * config.algorithm.group_size
        drafted = run.drafts / max(1, config.iterations - 1)  # no iteration follows the last one
        run.more_per_sample = (drafted + self._plan.more_samples) / samples
        run.joined, run.notices, run.losses = fleet.joined, fleet.notices, fleet.losses
        for market, paid in run.paid.items():
            if market in self._plan.fleet.prices:
                run.usd_per_hour[market] = 3600 * self._usd[market] / paid
        return run

    def _iterate(self, version: WeightsVersion, more: bool) -> None:
        """Simulate one iteration, with drafts beside reward and training if another one follows."""
        iteration, strategy = version.policy_version + 1, self._plan.strategy
        if self._seeds is None:
            strategy.before_rollout(iteration, self)
        ahead = strategy.ahead(iteration + 1, self) if more else None
        work = replace(self._rollout(version), window=self._window)
        self._renting.decide(work.batches, self._config.iterations - version.policy_version)
        self._seeds = None
        if self._plan.seeds:
            self._roll_out_then_train(work)
        else:
            self._seeds = self._roll_out_and_train(work, ahead)
        self._run.batches += work.batches
        with self._timed("driver"):
            self._pass(self._times.driver)

    def _iterate_together(self, version: WeightsVersion, more: bool) -> None:
        """Simulate one iteration of each run that shares the devices."""
        runs, iteration = self._plan.runs, version.policy_version
        for number in range(runs):
            self._roll_out_beside_training(self._rollout(WeightsVersion(runs * iteration + number)))
        if not more or self._config.evaluates_after(iteration + 1):
            # Train what is due, without a rollout beside it.
            self._book_trainers("train")
            with self._timed("train"):
                self._pass(self._untrained)
            self._book_trainers("idle")
            self._untrained = 0

    def _roll_out_and_train(self, work: PhaseWork, ahead: Ahead | None) -> SeedPlan | None:
        """Roll out, judge and train; return the seeds chosen beside judging and training."""
        loop, run, began = self._loop, self._run, self._loop.now
        self._feed.expect(work)
        with self._timed("rollout"):
            outcome = self._generate(work, feed=self._feed)
        batch = work.steps * self._times.step + self._times.decode
        self._renting.on_rolled_out(batch, self._times.start)
        if self._window is not None:
            self._window.on_rolled_out([batch / TICKS_PER_S])
        spans = self._train_spans(outcome, began)
        judged, self._window_closes = loop.now + outcome.judging, spans[-1][1]
        whole_s = sum(until - since for since, until in spans) / TICKS_PER_S
        beside_s = sum(max(0, min(judged, until) - since) for since, until in spans) / TICKS_PER_S
        self._renting.training = TrainingTime(whole_s, beside_s)
        self._feed.on_trained(whole_s)
        run.phases["reward"] += outcome.judging
        run.phases["train"] += self._window_closes - judged
        self._fleet.on_training()
        seeds = None if ahead is None else ahead.choose()
        self._pass(max(0, self._window_closes - loop.now))
        return seeds

    def _rollout(self, version: WeightsVersion) -> PhaseWork:
        config, group = self._config, self._config.algorithm.group_size
        prompts = config.algorithm.prompts_per_iteration + round(self._plan.more_samples / group)
        return self._work(RequestKind.ROLLOUT, version, prompts * group, config.sampling.rollout_steps)

    def _roll_out_then_train(self, work: PhaseWork) -> None:
        """Simulate RLBoost's window: trainers roll out until it ends, then train on what others deliver.

        No more spot devices are rented than are useful beside the training.
        """
        fleet, times, began = self._fleet, self._times, self._loop.now
        rollout_s = work.batches * (work.steps * times.step + times.decode) / TICKS_PER_S
        train_s = work.images * times.train_sample / TICKS_PER_S
        trainers = fleet.trainers
        self._feed.expect(work)
        if train_s:
            # Devices beyond this number, RLBoost's `N_prem`, wait for the trainers even without a window.
            useful = math.floor(rollout_s / train_s)
            plan = self._plan.fleet
            fleet.want(min(plan.spot, max(1, useful - (plan.reserved - plan.trainers))))
        fleet.take_in()
        others = sum(device.serves and not device.trains for device in fleet)
        # After it, the rest takes the others as long as training: rollout = window · all + train · others.
        window_s = max(0.0, (rollout_s - others * train_s) / (len(trainers) + others))
        with self._timed("rollout"):
            leaves = replace(work, trainers_leave=began + times.weights + ticks(window_s))
            outcome = self._generate(leaves, feed=self._feed)
        spans = self._train_spans(outcome, began)
        with self._timed("train"):
            self._pass(spans[-1][1] - self._loop.now)

    def _train_spans(self, outcome: PhaseOutcome, began: int) -> list[tuple[int, int]]:
        """Book and return the intervals in which trainers train on a rollout that began at tick `began`."""
        spans = [(began + since, began + until) for since, until in outcome.trained]
        for device in self._fleet.trainers:
            for since, until in spans:
                if until >= self._loop.now:  # earlier ones are booked
                    self._fleet.enter(device, "train", since)
                    self._fleet.enter(device, "idle", until)
        return spans

    def _roll_out_beside_training(self, work: PhaseWork) -> None:
        """Roll out for one run on the devices that do not train for the other, then on all devices."""
        closes = self._loop.now + self._untrained
        if self._untrained:
            self._book_trainers("train")
            work = replace(work, beside_training=True, trainers_join=closes)
        with self._timed("rollout"):
            self._pass(self._generate(work).judging)
        with self._timed("train"):
            self._pass(max(0, closes - self._loop.now))
        self._book_trainers("idle")
        self._run.batches += work.batches
        self._untrained = work.images * self._times.train_sample
        with self._timed("driver"):
            self._pass(self._times.driver)

    def _book_trainers(self, state: DeviceState) -> None:
        for device in self._fleet.trainers:
            self._fleet.enter(device, state)

    @contextmanager
    def _timed(self, phase: SimulatedPhase) -> Iterator[None]:
        began = self._loop.now
        yield
        self._run.phases[phase] += self._loop.now - began

    def _work(self, kind: RequestKind, version: WeightsVersion, images: int, steps: int) -> PhaseWork:
        size = self._config.sampling.batch_size
        return PhaseWork(kind, version, -(-images // size), steps, size, images)

    def _evaluate(self, iteration: int) -> None:
        """Evaluate the weights after an iteration of each run that shares the devices."""
        config, runs = self._config, self._plan.runs
        images = held_out_prompts(config, iteration) * config.evaluation.images_per_prompt
        averaged = config.optimizer.uses_average(iteration * config.algorithm.updates_per_iteration)
        for number in range(runs):
            version = WeightsVersion(runs * iteration + number, averaged)
            work = self._work(RequestKind.EVALUATE, version, images, config.sampling.evaluate_steps)
            began = self._loop.now
            with self._timed("evaluate"):
                self._pass(self._generate(work).judging)
            self._renting.evaluated += self._loop.now - began
            self._account(iteration, "evaluation")

    def _pass(self, length: int) -> None:
        """Let this many ticks pass without generating."""
        self._loop.run_until(lambda: False, self._loop.now + length)

    def plain(self, iteration: int) -> SeedPlan:
        """See `Drafting`."""
        return SeedPlan(iteration, {})

    def in_window(self, iteration: int) -> Ahead:
        """See `Drafting`; no drafts begin beside the rollout."""
        return Ahead(lambda: self._draft_in_window(iteration))

    def on_all_devices(self, iteration: int, as_in_window: bool = False) -> SeedPlan:
        """See `Drafting`; these drafts are judged before the rollout."""
        drafts = min(self._plan.drafts or self._candidates, self._candidates)
        if as_in_window:
            drafts = self._budget()
        steps = self._config.sampling.rollout_steps
        version = WeightsVersion(iteration - 1)
        with self._timed("draft"):
            self._pass(self._generate(self._work(RequestKind.EXPLORE, version, round(drafts), steps)).judging)
        return SeedPlan(iteration, {})

    def _draft_in_window(self, iteration: int) -> SeedPlan:
        """Draft beside the current training, with the weights from before it, until it ends or longer."""
        version, closes = WeightsVersion(iteration - 2), self._window_closes
        began, stops = self._loop.now, self._config.exploration.stop_with_training
        self._fleet.take_in()
        budget, size = self._budget(HEADROOM), self._config.sampling.batch_size
        drafts = int(budget // size) * size if stops else int(budget)
        if drafts:
            work = self._work(RequestKind.EXPLORE, version, drafts, self._config.sampling.rollout_steps)
            work = replace(work, beside_training=True, deadline=closes if stops else None)
            outcome = self._generate(work, DraftGate(self._forecast.fits) if stops else None)
            if not stops:
                self._pass(outcome.judging)
                self._run.phases["draft"] += max(0, self._loop.now - closes)
            self._forecast.add_drafts(outcome.lease, outcome.share * size)
        self._forecast.add_window(closes - began)
        return SeedPlan(iteration, {})

    def _budget(self, headroom: float = 1.0) -> float:
        """Return the drafts to plan for a window, as `SeedSearch` does; 0 if no device can draft."""
        drafters = sum(device.serves and not device.trains for device in self._fleet)
        if not drafters:
            return 0.0
        most = self._candidates
        if self._plan.drafts:
            return min(self._plan.drafts, most)
        # A group of devices that share drafts makes one at a time.
        held = self._forecast.budget(-(-drafters // self._config.sequence_parallel.explore))
        return most if held is None else min(headroom * held, most)

    @property
    def _candidates(self) -> float:
        """Most drafts that an iteration may make."""
        return float(self._config.prompts_explored * self._config.exploration.candidates)

    def _generate(
        self, work: PhaseWork, gate: DraftGate | None = None, feed: SimulatedFeed | None = None
    ) -> PhaseOutcome:
        """Simulate a phase, or repeat a known one if nothing can disturb it.

        Args:
            feed: feed that already expects this rollout's groups; None if nothing is trained on beside it.
        """
        self._fleet.take_in()
        loop, devices = self._loop, list(self._fleet)
        began, changes = loop.now, self._fleet.changes
        key = self._key(work, gate, feed)
        known = self._undisturbed.get(key) if self._repeats else None
        next_at = loop.next_at
        if known is not None and (next_at is None or next_at > began + known.length):
            for number, state, after in known.entered:
                self._fleet.timeline.enter(devices[number].name, state, began + after)
            self._pass(known.length)
            for device, (free_after, holds, step_s) in zip(devices, known.after, strict=True):
                device.free_at = began + free_after
                device.holds = work.version if holds else device.holds
                device.device.step_s = step_s
            return self._count(known.outcome)
        scheduler = self._scheduler
        if self._plan.pushes:
            present = [d.name for d in self._fleet if d.serves and not (d.trains and work.beside_training)]
            scheduler = PushDispatch(present, work.version, work.kind)
        memory = self._grouping.memory(work.kind)
        setup = PhaseSetup(
            loop, self._fleet, self._times, self._grouping, work, self._config.runtime, scheduler, gate, feed,
            self._next_batch,
        )  # fmt: skip
        phase = (GroupedPhase if self._grouping.shares(work.kind) else GenerationPhase)(setup)
        self._next_batch += work.batches
        returned = scheduler.counters.returned
        outcome = phase.run()
        outcome.returned = scheduler.counters.returned - returned
        # The measured times of earlier phases must be unchanged, too.
        if changes == self._fleet.changes and memory == self._grouping.memory(work.kind):
            numbers = {device: number for number, device in enumerate(devices)}
            self._undisturbed[key] = _UndisturbedPhase(
                loop.now - began,
                tuple((numbers[device], state, at - began) for device, state, at in phase.entered),
                tuple(
                    (max(0, device.free_at - began), device.holds == work.version, device.device.step_s)
                    for device in devices
                ),
                outcome,
            )
        return self._count(outcome)

    def _key(self, work: PhaseWork, gate: DraftGate | None, feed: SimulatedFeed | None) -> Hashable:
        """Return everything that a phase depends on while no event disturbs it."""
        now = self._loop.now
        moments = (work.deadline, work.trainers_join, work.trainers_leave)
        turns = tuple(None if at is None else at - now for at in moments)
        known = self._forecast.state() if gate is not None else {}
        forecast = tuple((name, tuple(values)) for name, values in known.items())
        devices = list(self._fleet)
        states = tuple(device.state(work.version, now) for device in devices)
        commits = tuple(
            steps_to_commit(self._config.runtime.commit_steps, one.device.step_s) for one in devices
        )
        grouping = self._grouping.key(work.kind, devices)
        trains = feed is not None, None if feed is None else feed.left_s
        return work.kind, work.images, turns, forecast, states, commits, grouping, trains

    def _count(self, outcome: PhaseOutcome) -> PhaseOutcome:
        self._run.drafts += outcome.judged
        self._run.redone += outcome.redone
        self._run.redone_time += outcome.redone_time
        self._run.returned += outcome.returned
        return outcome

    def _account(self, iteration: int, phase: LedgerPhase) -> None:
        """Add the devices' states and paid time since the last account."""
        run, now = self._run, self._loop.now
        intervals = [self._plan.fleet.priced(interval) for interval in self._fleet.timeline.take(now)]
        for interval in intervals:
            run.spent[interval.market, interval.state] += int(interval.ended_at - interval.started_at)
            self._usd[interval.market] += interval.usd
        for paid in self._fleet.meter.take(now):
            run.paid[paid.market] += int(paid.paid_s)
        if self._keeps_intervals:
            run.intervals += intervals
            run.ends.append((iteration, phase, now))
            run.device_events = self._fleet.events
