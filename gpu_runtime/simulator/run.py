"""A whole run under the virtual clock: explore beside training, roll out, reward, train, evaluate. Pure.

The order of the phases is that of `flows/post_train.py`. What a phase does depends on the devices it begins
with, not on the time: one that no event of the trace disturbs is worked out once, and repeated as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.exploration.window import HEADROOM, DraftGate, WindowForecast
from gpu_runtime.fleet.capacity_decision import MeasuredTimes, RentingTerms, decide_capacity
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.simulator.fleet import FleetPlan, SimulatedFleet
from gpu_runtime.simulator.generation import GenerationPhase, PhaseOutcome, PhaseWork, devices_alike
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, EventLoop
from gpu_runtime.spot.traces.replay import Replay
from storage.config.run_config import RunConfig
from storage.database.records import DeviceState, Market, StateInterval

SimulatedPhase = Literal["draft", "rollout", "reward", "train", "driver", "evaluate"]

_NEVER = 2**62
"""Ticks; no lease expires here, since no simulated device hangs."""


@dataclass(frozen=True)
class SimulatedPlan:
    """How a run is done, whatever it computes.

    Attributes:
        fleet: what is rented.
        timing: when drafts are made.
        drafts: most drafts an iteration; 0 for as many as a window holds, or for every candidate where
            there is no window.
    """

    fleet: FleetPlan
    timing: DraftTiming
    drafts: float = 0.0


@dataclass
class SimulatedRun:
    """What a simulated run came to.

    Attributes:
        wall: ticks from its beginning to its end.
        phases: ticks of all iterations by phase; evaluations are one of them.
        iterations: ticks of each iteration, evaluations not included.
        spent: ticks by market and state, over all devices.
        paid: ticks by market, metered apart from the states.
        usd_per_hour: price of a device by market.
        step: ticks of a batch's denoising step.
        drafts: made and judged in time.
        batches: rolled out.
        redone: denoising steps of batches that losses took with them.
        returned: batches that went back to wait.
        joined, notices, losses: spot devices.
        events: of the clock.
        intervals: what every device did, in ticks; only where they are to be kept.
        wanted: spot devices that were wanted in each iteration, where that was decided.
    """

    usd_per_hour: dict[Market, float]
    step: int
    wall: int = 0
    phases: Counter[SimulatedPhase] = field(default_factory=Counter)
    iterations: list[int] = field(default_factory=list)
    spent: Counter[tuple[Market, DeviceState]] = field(default_factory=Counter)
    paid: Counter[Market] = field(default_factory=Counter)
    drafts: int = 0
    batches: int = 0
    redone: int = 0
    returned: int = 0
    joined: int = 0
    notices: int = 0
    losses: int = 0
    events: int = 0
    intervals: list[StateInterval] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        """Seconds from its beginning to its end."""
        return self.wall / TICKS_PER_S

    @property
    def usd(self) -> float:
        """The bill."""
        return (
            sum(self.usd_per_hour[market] * paid for market, paid in self.paid.items()) / 3600 / TICKS_PER_S
        )

    def share(self, state: DeviceState, market: Market | None = None) -> float:
        """Share of the paid time that devices of a market, or all, were in a state; 0 without any."""
        of = {key: value for key, value in self.spent.items() if market in (None, key[0])}
        whole = sum(of.values())
        return sum(value for key, value in of.items() if key[1] == state) / whole if whole else 0.0

    @property
    def redone_share(self) -> float:
        """Share of the paid time that went into steps which losses took with them; at most.

        No state of its own: as in the ledger of a live run, it is in that which the device was in.
        """
        paid = sum(self.paid.values())
        return self.redone * self.step / paid if paid else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values; whole numbers are ticks."""
        return {
            "wall": self.wall,
            "phases": {phase: self.phases[phase] for phase in sorted(self.phases)},
            "iterations": self.iterations,
            "spent": {f"{market}/{state}": self.spent[market, state] for market, state in sorted(self.spent)},
            "paid": dict(sorted(self.paid.items())),
            "usd": self.usd,
            **{
                name: getattr(self, name)
                for name in ("drafts", "batches", "redone", "returned", "joined", "notices", "losses")
            },
        }


@dataclass(frozen=True)
class _Calm:
    """A phase that no event disturbed, from its beginning on.

    Attributes:
        length: in ticks.
        entered: what which device of the fleet began to do, and when.
        after: of each device, when it is free and whether it holds the phase's weights.
    """

    length: int
    entered: tuple[tuple[int, DeviceState, int], ...]
    after: tuple[tuple[int, bool], ...]
    outcome: PhaseOutcome


class Simulation:
    """One run.

    Args:
        config: what is computed.
        plan: how.
        times: of its workload.
        replay: spot instances over time; None for none.
        repeats: whether undisturbed phases are worked out once; the figures are the same.
        keeps_intervals: whether the run's intervals are kept.
    """

    def __init__(
        self,
        config: RunConfig,
        plan: SimulatedPlan,
        times: WorkloadTimes,
        replay: Replay | None = None,
        repeats: bool = True,
        keeps_intervals: bool = False,
    ) -> None:
        self._config = config
        self._plan = plan
        self._times = times
        self._loop = EventLoop()
        self._fleet = SimulatedFleet(self._loop, plan.fleet, times.start, replay, times.loss)
        self._scheduler: PullScheduler[int] = PullScheduler(1, _NEVER, 1)
        self._forecast = WindowForecast()
        self._measured = MeasuredTimes()
        self._rolled_out: int | None = None
        self._evaluated = 0  # ticks since then
        self._next_batch = 0
        self._repeats = repeats
        self._keeps_intervals = keeps_intervals
        self._calm: dict[Hashable, _Calm] = {}
        markets: tuple[Market, ...] = ("reserved", "spot")
        prices: dict[Market, float] = {market: plan.fleet.usd_per_hour(market) for market in markets}
        self._run = SimulatedRun(prices, times.step)

    def run(self, on_iteration: Callable[[int], None] = lambda iteration: None) -> SimulatedRun:
        """Do it all.

        Args:
            on_iteration: told of each iteration that is done.
        """
        config, run, loop = self._config, self._run, self._loop
        loop.run_until(lambda: self._fleet.reserved_loaded)
        self._fleet.take_in()
        self._pass(self._times.opening)
        self._evaluate(0)
        for iteration in range(1, config.iterations + 1):
            began = loop.now
            self._iterate(WeightsVersion(iteration - 1), iteration < config.iterations)
            run.iterations.append(loop.now - began)
            self._account()
            every = config.evaluation.every
            if iteration == config.iterations or (every and iteration % every == 0):
                self._evaluate(iteration)
            on_iteration(iteration)
        self._account()
        counts = self._fleet.counts
        run.wall, run.events = loop.now, loop.done
        run.joined, run.notices, run.losses = counts.joined, counts.notices, counts.losses
        run.returned = self._scheduler.counters.returned
        return run

    def _iterate(self, version: WeightsVersion, more: bool) -> None:
        """One iteration; drafts beside reward and training where another one follows."""
        config, run = self._config, self._run
        if self._plan.timing is DraftTiming.BEFORE_ROLLOUT:
            with self._timed("draft"):
                self._draft_on_all(version)
        samples = config.algorithm.prompts_per_iteration * config.algorithm.group_size
        work = self._work(RequestKind.ROLLOUT, version, samples, config.sampling.rollout_steps)
        if self._plan.fleet.decided:
            self._decide(work.batches, config.iterations - version.policy_version)
        with self._timed("rollout"):
            judging = self._generate(work).judging
        self._measure(work.steps)
        run.batches += work.batches
        training = samples * self._times.train_sample
        run.phases["reward"] += judging
        run.phases["train"] += training
        self._train(version, judging, training, more)
        with self._timed("driver"):
            self._pass(self._times.driver)

    def _decide(self, batches: int, left: int) -> None:
        """Rent what pays in an iteration, as `RentedCapacity` of a live run does."""
        fleet, measured, now = self._plan.fleet, self._measured, self._loop.now
        if self._rolled_out is not None:
            measured.add_rest((now - self._rolled_out - self._evaluated) / TICKS_PER_S)
        explores = self._plan.timing is DraftTiming.TRAINING_WINDOW
        terms = RentingTerms(
            fleet.reserved, fleet.reserved_usd_per_hour, fleet.spot_usd_per_hour, fleet.spot, float(explores)
        )
        wanted = decide_capacity(measured.forecast(batches, left), terms, self._fleet.spot_rented).wanted
        self._fleet.want(wanted)
        self._run.wanted.append(wanted)

    def _measure(self, steps: int) -> None:
        """A rollout is over: what its batches took."""
        times = self._times
        self._measured.add_batch_time((steps * times.step + times.decode) / TICKS_PER_S)
        self._measured.add_start(times.start / TICKS_PER_S)
        self._rolled_out, self._evaluated = self._loop.now, 0

    @contextmanager
    def _timed(self, phase: SimulatedPhase) -> Iterator[None]:
        began = self._loop.now
        yield
        self._run.phases[phase] += self._loop.now - began

    def _work(self, kind: RequestKind, version: WeightsVersion, images: int, steps: int) -> PhaseWork:
        size, commit_steps = self._config.sampling.batch_size, self._config.runtime.commit_steps
        return PhaseWork(kind, version, -(-images // size), steps, size, images, commit_steps)

    def _evaluate(self, iteration: int) -> None:
        settings = self._config.evaluation
        images = settings.prompts * settings.images_per_prompt
        averaged = self._config.optimizer.ema_decay > 0 and iteration > 0
        version = WeightsVersion(iteration, averaged)
        work = self._work(RequestKind.EVALUATE, version, images, self._config.sampling.evaluate_steps)
        began = self._loop.now
        with self._timed("evaluate"):
            self._pass(self._generate(work).judging)
        self._evaluated += self._loop.now - began
        self._account()

    def _pass(self, length: int) -> None:
        """Nothing is generated for a while."""
        self._loop.run_until(lambda: False, self._loop.now + length)

    def _train(self, version: WeightsVersion, judging: int, length: int, more: bool) -> None:
        """Training steps once the last images are judged; drafts beside both, where there is more to do."""
        began = self._loop.now
        closes = began + judging + length
        for device in self._fleet.trainers:
            self._fleet.enter(device, "train", began + judging)
        if more and self._plan.timing is DraftTiming.TRAINING_WINDOW:
            self._draft_in_window(version, closes)
        self._pass(closes - self._loop.now)
        for device in self._fleet.trainers:
            self._fleet.enter(device, "idle")

    def _draft_in_window(self, version: WeightsVersion, closes: int) -> None:
        began = self._loop.now
        self._fleet.take_in()
        drafters = sum(
            d.joined and not d.noticed and not d.trains and d.known_gone is None for d in self._fleet
        )
        budget = self._budget(drafters)
        size = self._config.sampling.batch_size
        if drafters and budget >= size:
            steps = self._config.sampling.rollout_steps
            work = self._work(RequestKind.EXPLORE, version, int(budget // size) * size, steps)
            work = replace(work, beside_training=True, deadline=closes)
            outcome = self._generate(work, DraftGate(self._forecast.fits))
            self._forecast.add_drafts(outcome.lease, outcome.share * size)
        self._forecast.add_window(closes - began)

    def _budget(self, drafters: int) -> float:
        """Drafts that are planned for a window, as `SeedSearch` does."""
        most = self._candidates
        if self._plan.drafts:
            return min(self._plan.drafts, most)
        held = self._forecast.budget(drafters)
        return most if held is None else min(HEADROOM * held, most)

    @property
    def _candidates(self) -> float:
        """Every draft that an iteration may make."""
        exploration = self._config.exploration
        prompts = round(self._config.algorithm.prompts_per_iteration * exploration.prompt_pool)
        return float(prompts * exploration.candidates)

    def _draft_on_all(self, version: WeightsVersion) -> None:
        """Drafts with the rollout's own weights, on all devices; their judging ends before the rollout."""
        drafts = round(min(self._plan.drafts or self._candidates, self._candidates))
        work = self._work(RequestKind.EXPLORE, version, drafts, self._config.sampling.rollout_steps)
        self._pass(self._generate(work).judging)

    def _generate(self, work: PhaseWork, gate: DraftGate | None = None) -> PhaseOutcome:
        """Do a phase, or repeat it as it was where nothing can disturb it."""
        self._fleet.take_in()
        loop, devices = self._loop, list(self._fleet)
        began, changes = loop.now, self._fleet.counts.changes
        key = self._key(work, gate)
        calm = self._calm.get(key) if self._repeats else None
        next_at = loop.next_at
        if calm is not None and (next_at is None or next_at > began + calm.length):
            for number, state, after in calm.entered:
                self._fleet.timeline.enter(devices[number].name, state, began + after)
            loop.skip_to(began + calm.length)
            for device, (free_after, holds) in zip(devices, calm.after, strict=True):
                device.free_at = began + free_after
                device.holds = work.version if holds else device.holds
            return self._count(work, calm.outcome)
        phase = GenerationPhase(loop, self._fleet, self._scheduler, self._times, work, self._next_batch, gate)
        self._next_batch += work.batches
        outcome = phase.run()
        if changes == self._fleet.counts.changes:
            places = {device: number for number, device in enumerate(devices)}
            self._calm[key] = _Calm(
                loop.now - began,
                tuple((places[device], state, at - began) for device, state, at in phase.entered),
                tuple((max(0, device.free_at - began), device.holds == work.version) for device in devices),
                outcome,
            )
        return self._count(work, outcome)

    def _key(self, work: PhaseWork, gate: DraftGate | None) -> Hashable:
        """All that a phase's course depends on, as long as no event disturbs it."""
        now = self._loop.now
        closes = None if work.deadline is None else work.deadline - now
        known = self._forecast.state() if gate is not None else {}
        forecast = tuple((name, tuple(values)) for name, values in known.items())
        return work.kind, work.batches, closes, forecast, devices_alike(list(self._fleet), work, now)

    def _count(self, work: PhaseWork, outcome: PhaseOutcome) -> PhaseOutcome:
        self._run.drafts += outcome.judged
        self._run.redone += outcome.redone
        return outcome

    def _account(self) -> None:
        """Take in what the devices did and were paid for."""
        run, now = self._run, self._loop.now
        intervals = self._fleet.timeline.take(now)
        for interval in intervals:
            run.spent[interval.market, interval.state] += int(interval.ended_at - interval.started_at)
        for paid in self._fleet.meter.take(now):
            run.paid[paid.market] += int(paid.paid_s)
        if self._keeps_intervals:
            run.intervals += intervals
