"""Policies compared over several futures, each a window of a trace and a draw of the profile. Pure.

All policies see the same futures, so they differ by what they do, not by chance. With a counted profile, the
second future has the low end of every range, and the third the high end.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.simulator.comparison.policies import DEFAULT_POLICIES, POLICIES, SPOTLIGHT, Policy
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.lent_devices import LentDevices
from gpu_runtime.simulator.profile import HighEnd, LowEnd, Profile, WorkloadTimes
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import Trace
from storage.config.run_config import RunConfig
from storage.prompts.files import held_out_prompts

_MARGIN = 1.5
"""Length of a trace as a multiple of the run's time on the reserved devices alone."""

KINDS = tuple(RequestKind)
"""Kinds of requests; each may have a different degree."""

_ALIKE = 0.01
"""Relative difference in dollars within which policies count as equally expensive."""


@dataclass(frozen=True)
class Spread:
    """A figure over the futures: its median, minimum and maximum."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class PolicyAnswer:
    """The simulated figures of a policy.

    Attributes:
        figures: figures by their names in `figures_of`.
        best: True if it is the recommended policy, which a live run can follow.
        runs: one run in each future.
    """

    policy: Policy
    figures: dict[str, Spread]
    best: bool = False
    runs: Sequence[SimulatedRun] = ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        figures = {name: asdict(spread) for name, spread in self.figures.items()}
        policy = {"policy": self.policy.name, "summary": self.policy.summary, "best": self.best}
        return {**policy, "live": self.policy.only_simulated is None, **figures}


@dataclass(frozen=True)
class Comparison:
    """A run on a fleet and a market, to be simulated under several policies in the same futures.

    Attributes:
        config: the workload, and the number of iterations.
        offer: devices that can be rented, and their prices.
        market: arrivals and losses of spot instances.
        futures: number of futures, at least 1.
        seed: seed of the futures; the same seed gives the same figures.
    """

    config: RunConfig
    offer: FleetPlan
    profile: Profile
    market: SpotMarket
    futures: int
    seed: int = 0

    def answers(
        self, policies: Sequence[Policy] = DEFAULT_POLICIES, on_run: Callable[[], None] = lambda: None
    ) -> list[PolicyAnswer]:
        """Return the figures of policies."""
        runs = self.runs(policies, on_run)
        answers = [PolicyAnswer(each, figures_of(runs[each.name]), runs=runs[each.name]) for each in policies]
        best = best_of(answers)
        return [replace(answer, best=answer.policy.name == best) for answer in answers]

    def runs(
        self,
        policies: Sequence[Policy] = DEFAULT_POLICIES,
        on_run: Callable[[], None] = lambda: None,
        keeps: str = "",
    ) -> dict[str, list[SimulatedRun]]:
        """Return each policy's runs, one per future; those of the policy `keeps` have intervals.

        Args:
            policies, on_run: as for `answers`.
            keeps: the policy whose runs keep the intervals of every device; empty for none.
        """
        simulated, config, offer = simulated_policies(policies), self.config, self.offer
        runs: dict[str, list[SimulatedRun]] = {policy.name: [] for policy in simulated}
        spare_s = 0.0  # a future begins where the rest of the price history is long enough for a run
        if offer.prices:
            scorers = config.runtime.scorer_workers
            times = self.profile.times(
                config.sampling.batch_size, scorers, training_speed(config, offer.trainers)
            )
            length_s = max(known.length_s for known in offer.prices.values())
            spare_s = max(0.0, length_s - trace_length_s(config, times, offer.reserved))
        for future in range(self.futures):
            drafts, traces = 0.0, dict[tuple[int, float], Trace]()
            offered = offer.beginning(_chance("prices", self.seed, future).uniform(0.0, spare_s))
            for policy in simulated:
                plan = policy.plan(offered, drafts)
                if config.sequence_parallel.largest > 1:  # no more trainers than in a live run
                    trainers = min(plan.fleet.trainers, offer.trainers)
                    plan = replace(plan, fleet=replace(plan.fleet, trainers=trainers))
                run = self._simulate(plan, future, traces, policy.name == keeps)
                if policy.name == SPOTLIGHT:
                    drafts = run.drafts / config.iterations
                runs[policy.name].append(run)
                on_run()
        return runs

    def _simulate(
        self, plan: SimulatedPlan, future: int, traces: dict[tuple[int, float], Trace], keeps_intervals: bool
    ) -> SimulatedRun:
        """Return a run in a future, whose traces are drawn once and kept in `traces`."""
        config, fleet = self.config, plan.fleet
        times = drawn_times(config, self.profile, fleet.trainers, future, self.seed)
        replay = None
        if plan.lends:
            free = fleet.serving.free(fleet.spot, _chance("serving", self.seed, future))
            replay = LentDevices(fleet.spot, fleet.serving.slack_s, times.of("spot").step / TICKS_PER_S, free)
        elif fleet.spot:
            # A separate generator: the window is the same whatever the profile draws.
            algorithm = config.algorithm
            samples = algorithm.prompts_per_iteration * algorithm.group_size
            work = plan.runs * (1 + plan.more_samples / samples)
            key = fleet.spot, work * trace_length_s(config, times, fleet.reserved)
            if key not in traces:
                traces[key] = self.market.window(*key, _chance("trace", self.seed, future))
            replay = Replay(traces[key], self.market.notice_s)
        return Simulation(config, plan, times, replay, keeps_intervals=keeps_intervals).run()


def drawn_times(
    config: RunConfig, profile: Profile, trainers: int, future: int, seed: int = 0
) -> WorkloadTimes:
    """Return a future's times of a run: a draw of its profile.

    Args:
        config: the workload.
        trainers: number of devices that train together.
        future: its number, from 0.
        seed: seed of the futures.
    """
    ends = {1: LowEnd, 2: HighEnd} if profile.is_counted else {}
    chance = _chance("profile", seed, future, ends.get(future, random.Random))
    speed = training_speed(config, trainers)
    return profile.times(config.sampling.batch_size, config.runtime.scorer_workers, speed, chance)


def training_speed(config: RunConfig, trainers: int) -> float:
    """Return the speed of devices that train together, in that of one: the one with most shards decides."""
    shards = config.algorithm.gradient_shards
    return shards / math.ceil(shards / trainers) if shards > 1 else trainers


def _chance(purpose: str, seed: int, future: int, kind: type[random.Random] = random.Random) -> random.Random:
    """Return the generator of a future's draws for a purpose."""
    return kind(f"{purpose} {(seed, future)}")


def simulated_policies(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    """Return the policies to simulate, in display order: those given, and Spotlight if one needs it."""
    names = {policy.name for policy in policies}
    if any(policy.needs_drafts for policy in policies):
        names.add(SPOTLIGHT)
    return tuple(policy for policy in POLICIES if policy.name in names)


def figures_of(runs: Sequence[SimulatedRun]) -> dict[str, Spread]:
    """Return the figures of a policy's runs, one in each future."""
    values = {
        "wall_s": [run.wall_s for run in runs],
        "usd": [run.usd for run in runs],
        "iteration_s": [statistics.fmean(run.iterations) / TICKS_PER_S for run in runs],
        "iteration_usd": [run.iteration_usd for run in runs],
        "losses": [float(run.losses) for run in runs],
        "drafts_per_iteration": [run.drafts / len(run.iterations) for run in runs],
        "idle_share": [run.share("idle") for run in runs],
        "spot_idle_share": [run.share("idle", "spot") for run in runs],
        "redone_share": [run.redone_share for run in runs],
    }
    return {name: Spread.of(column) for name, column in values.items()}


def best_of(answers: Sequence[PolicyAnswer]) -> str | None:
    """Return the name of the cheapest policy that a live run can follow; None if there is none.

    Among policies that cost the same within 1 %, it is the one with the most drafts. The figures leave out
    the value of drafts, which depends on learning.
    """
    live = [answer for answer in answers if answer.policy.only_simulated is None]
    return _first(live).policy.name if live else None


def better_but_simulated(answers: Sequence[PolicyAnswer]) -> PolicyAnswer | None:
    """Return the best policy if no live run can follow it, else None."""
    first = _first(answers)
    return first if first.policy.only_simulated is not None else None


def _first(answers: Sequence[PolicyAnswer]) -> PolicyAnswer:
    """Return the best policy by dollars, then by drafts."""
    # Two runs that share devices are not comparable to one.
    single = [answer for answer in answers if all(run.runs == 1 for run in answer.runs)] or answers
    least = min(answer.figures["usd"].median for answer in single)
    cheap = [a for a in single if a.figures["usd"].median <= (1 + _ALIKE) * least]
    return min(cheap, key=lambda a: (-a.figures["drafts_per_iteration"].median, a.figures["usd"].median))


def trace_length_s(config: RunConfig, times: WorkloadTimes, reserved: int) -> float:
    """Return the seconds that a trace has to cover for a run that may get no spot devices.

    Args:
        config: the workload.
        times: times of its parts.
        reserved: number of reserved devices.
    """
    shares = config.sequence_parallel
    if shares.largest == 1:
        return _MARGIN * undisturbed(config, times, reserved) / TICKS_PER_S
    # By the slowest degree: groups change, and measured times may choose any.
    known = [degree for degree in times.degrees if degree <= min(shares.largest, reserved)]
    slowest = max(undisturbed(config, times, reserved // d * d, dict.fromkeys(KINDS, d)) for d in known)
    return _MARGIN * slowest / TICKS_PER_S


def undisturbed(
    config: RunConfig, times: WorkloadTimes, devices: int, degrees: Mapping[str, int] | None = None
) -> int:
    """Return the ticks of a run without drafts on equal devices that stay, by a formula.

    Args:
        times: times of its parts, for a given number of trainers.
        devices: number of devices that generate, a multiple of every degree, as is the number on each
            instance.
        degrees: number of devices that share a sample, by kind; None for the settings' fixed degrees.
    """
    sampling, algorithm = config.sampling, config.algorithm
    degrees = config.sequence_parallel.by_kind if degrees is None else degrees

    def generate(images: int, steps: int, kind: RequestKind) -> tuple[int, dict[int, int]]:
        """Return the ticks at which all is rolled out, and at which each batch is judged."""
        size, groups = sampling.batch_size, devices // degrees[kind]
        turn = steps * times.step_of(kind, degrees[kind]) + times.decode
        begins = times.weights + (times.regroup if degrees[kind] > 1 else 0)
        batches = -(-images // size)
        judged = {}
        for batch in range(batches):
            turns, last = batch // groups + 1, min(images, (batch + 1) * size)
            # Scorers get a turn's images when it ends. All earlier turns bring the same number, so the images
            # that they score without a pause begin with the first turn or with this one.
            judged[batch] = begins + max(
                ended * turn + (last - (ended - 1) * groups * size) * times.score for ended in (1, turns)
            )
        return begins + -(-batches // groups) * turn, judged

    samples = algorithm.prompts_per_iteration * algorithm.group_size
    rolled, judged = generate(samples, sampling.rollout_steps, RequestKind.ROLLOUT)
    group, training = algorithm.group_size, samples * times.train_sample
    all_judged = max(judged.values())
    if algorithm.advantage_std == "batch":
        trained = all_judged + training
    else:
        # Training begins with the first update's groups as they are judged; all others follow.
        firsts = range(0, algorithm.prompts_per_iteration, algorithm.updates_per_iteration)
        left = [len(firsts) - place for place in range(len(firsts))]
        complete = [judged[((number + 1) * group - 1) // sampling.batch_size] for number in firsts]
        trained = max(
            max(rolled, at) + groups * group * times.train_sample
            for at, groups in zip(complete, left, strict=True)
        )
        later = training - len(firsts) * group * times.train_sample
        trained = max(trained, all_judged) + later if later else trained
    iteration = trained + times.driver
    evaluations = [number for number in range(config.iterations + 1) if config.evaluates_after(number)]
    # An evaluation without the average uses the weights of the next rollout, so they are loaded once.
    updates = algorithm.updates_per_iteration
    shared = sum(not config.optimizer.uses_average(number * updates) for number in evaluations[:-1])
    whole = times.start + times.opening + config.iterations * iteration - shared * times.weights

    def evaluated(iteration: int) -> int:
        held_out = held_out_prompts(config, iteration) * config.evaluation.images_per_prompt
        return max(generate(held_out, sampling.evaluate_steps, RequestKind.EVALUATE)[1].values())

    between = evaluations[1:-1]
    return whole + 2 * evaluated(0) + (len(between) * evaluated(between[0]) if between else 0)
