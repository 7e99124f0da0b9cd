"""The cost of a run on devices that are not rented yet: its profile, its spot market, its policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_runtime.simulator.chrome_trace import chrome_trace
from gpu_runtime.simulator.comparison.learning_curves import LearningCurves
from gpu_runtime.simulator.comparison.policies import (
    LENDING,
    POLICIES,
    RESERVED,
    SPOT,
    Policy,
    default_policies,
    policies_of,
    unfit,
)
from gpu_runtime.simulator.comparison.to_score import (
    ExplorationWorth,
    Milestone,
    break_even_of,
    exploration_worth,
    milestones_of,
)
from gpu_runtime.simulator.comparison.what_if import (
    PolicyAnswer,
    better_but_simulated,
    compare_policies,
    policy_runs,
    simulated_policies,
)
from gpu_runtime.simulator.comparison.what_if import Spread as Spread
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.profile import Profile as Profile
from gpu_runtime.simulator.simulated_run import SimulatedRun
from storage.config.run_config import RunConfig
from storage.config.sequence_parallel import AUTO
from storage.errors import ConfigurationError, quoted
from storage.record.run_store import RunStore
from tasks.gpu_profile import DEFAULT_GPU, find_gpu
from tasks.market_question import MarketQuestion as MarketQuestion
from tasks.market_question import market_in_words, market_of, offer_of, prices_in_words, serving_in_words
from tasks.prices import with_gpu_prices
from tasks.recorded_curves import find_curves as find_curves
from tasks.simulated_records import record_run
from tasks.what_if_in_words import (
    basis,
    counted_in_words,
    curves_in_words,
    few_trainers_in_words,
    headline,
    other_learner,
)
from tasks.what_if_in_words import conclusions as conclusions

MOST_ITERATIONS = 100_000
"""The most iterations of a simulated run; beyond it an answer takes hours."""

MOST_SPOT = 64
"""The most spot devices that are tried for a goal."""

MOST_DRAWN = 50_000
"""The most devices times iterations of a time line; its file then has some 40 MB."""


@dataclass(frozen=True)
class WhatIf:
    """The question and the answers.

    Attributes:
        answers: one answer per policy.
        profile: assumed times of the workload.
        market: arrivals and losses of spot instances, in words.
        prices: hourly cost of devices, in words.
        offer: devices and prices.
        iterations: number of iterations of each run.
        futures: number of futures behind each figure.
        curves: learning curves (iterations that a score takes); None if unknown.
        degrees: devices that share a sample, by kind of request; 0 if measured times choose.
        model: name of the model, as profiles name it.
        few_trainers: saving if all reserved devices trained, in words; empty for none.
        batch: samples of a batch.
    """

    answers: Sequence[PolicyAnswer]
    profile: Profile
    market: str
    prices: str
    offer: FleetPlan
    iterations: int
    futures: int
    curves: LearningCurves | None = None
    degrees: Mapping[str, int] = field(default_factory=dict)
    model: str = ""
    few_trainers: str = ""
    batch: int = 1

    @property
    def evidence(self) -> str:
        """`counted` if times were counted from operations and bytes, else `modelled`: all is simulated."""
        return "counted" if self.profile.is_counted else "modelled"

    @property
    def shares(self) -> bool:
        """True if several devices may share a sample."""
        return bool(self.degrees) and set(self.degrees.values()) != {1}

    @property
    def sharing(self) -> dict[str, int | str]:
        """The devices that share samples, and those of an instance; empty if all work alone."""
        if not self.shares:
            return {}
        degrees = {kind: degree or "auto" for kind, degree in self.degrees.items()}
        return degrees | {"instance_devices": self.offer.instance_devices or "all"}

    @property
    def serving(self) -> str:
        """The load of the serving fleet, in words; empty if no policy has its devices."""
        lends = any(answer.policy.name == LENDING for answer in self.answers)
        return serving_in_words(self.offer.serving) if lends else ""

    def milestones(self, answer: PolicyAnswer) -> list[Milestone]:
        """Return a policy's cost up to 25, 50, 75 and 100 % of the baseline's progress, where known."""
        return [] if self.curves is None else milestones_of(answer, self.curves)

    @property
    def best(self) -> PolicyAnswer | None:
        """The policy to take; None if no live run can follow any of those compared."""
        return next((answer for answer in self.answers if answer.best), None)

    @property
    def better_but_simulated(self) -> PolicyAnswer | None:
        """The policy that would beat the best one if a live run could follow it."""
        return better_but_simulated(self.answers)

    @property
    def break_even(self) -> Spread | None:
        """The discount at which spot devices cost as much as on-demand ones; None if not compared."""
        return break_even_of(self.answers)

    @property
    def exploration(self) -> ExplorationWorth | None:
        """The worth of exploration: where it pays; None if not compared."""
        return exploration_worth(self.answers, self.curves, self.offer.reserved_usd_per_hour)

    def to_json(self) -> dict[str, Any]:
        """Return the answers as JSON values, all of them modelled."""
        other = other_learner(self.curves, self.model)
        return {
            "modelled": True,
            "evidence": self.evidence,
            "answer": headline(self),
            "counted": self.profile.counted_ranges(self.batch),
            "counted_in_words": counted_in_words(self),
            "policies": [
                {
                    **answer.to_json(),
                    "evidence": self.evidence,
                    "milestones": [
                        each.to_json() | {"other_learner": other} for each in self.milestones(answer)
                    ],
                }
                for answer in self.answers
            ],
            "break_even_discount": self.break_even and self.break_even.to_json(),
            "exploration": self.exploration and self.exploration.to_json(),
            "conclusions": conclusions(self),
            "basis": basis(self),
            "curves": self.curves and self.curves.model_dump(mode="json", exclude={"arms"}),
            "other_learner": other,
            "curves_in_words": curves_in_words(self.curves, self.model),
            "iterations": self.iterations,
            "futures": self.futures,
            "market": self.market,
            "prices": self.prices,
            "reserved": self.offer.reserved,
            "spot": self.offer.spot,
            "trainers": self.offer.trainers,
            "reserved_usd_per_hour": self.offer.reserved_usd_per_hour,
            "spot_usd_per_hour": self.offer.spot_usd_per_hour,
            "profile": self.profile.model_dump(mode="json"),
            **({"sharing": self.sharing} if self.shares else {}),
            **({"serving": self.serving} if self.serving else {}),
        }


def answer(
    config: RunConfig,
    profile: Profile,
    question: MarketQuestion,
    futures: int,
    seed: int = 0,
    on_run: Callable[[], None] = lambda: None,
    policies: Sequence[Policy] | None = None,
    curves: LearningCurves | None = None,
) -> WhatIf:
    """Simulate policies on the devices and at the prices of the settings.

    Args:
        config: workload, devices, prices and number of iterations.
        profile: times of the workload.
        question: arrivals and losses of spot instances.
        futures: number of windows of the trace, each with a draw of the profile.
        seed: seed of the futures.
        on_run: callback after each of the `runs_of(futures, policies)` simulated runs.
        policies: policies to compare; None for the default ones.
        curves: learning curves (iterations that a score takes); None if unknown.

    Raises:
        ConfigurationError: the question cannot be simulated.
        TraceError: the trace cannot be read, or is too short.
    """
    refuse_unfit(config)
    refuse_profile(config, profile)
    offer, market = offer_of(config, question), market_of(question)
    degrees = config.sequence_parallel.by_kind
    policies = chosen_policies(None, config, question.serving, profile) if policies is None else policies
    answers = compare_policies(config, offer, profile, market, futures, seed, on_run, policies)
    said = market_in_words(market, question), prices_in_words(offer)
    about = config.model.key, few_trainers_in_words(config, offer, profile), config.sampling.batch_size
    return WhatIf(answers, profile, *said, offer, config.iterations, futures, curves, degrees, *about)


@dataclass(frozen=True)
class Goal:
    """The spot devices with which a run ends in time.

    Attributes:
        hours: the time, in hours.
        tried: number of spot devices, and the answer of a run with them, rising.
        prices: hourly cost of devices, in words.
    """

    hours: float
    tried: Sequence[tuple[int, PolicyAnswer]]
    prices: str

    @property
    def found(self) -> tuple[int, PolicyAnswer] | None:
        """The fewest devices tried with which the median ends in time; None where none does."""
        return next((pair for pair in self.tried if _hours(pair[1]) <= self.hours), None)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        tried = [{"spot": spot, **answer.to_json()} for spot, answer in self.tried]
        found = self.found and self.found[0]
        return {"hours": self.hours, "spot": found, "tried": tried, "prices": self.prices}


def spot_for(
    config: RunConfig,
    profile: Profile,
    question: MarketQuestion,
    hours: float,
    futures: int,
    seed: int = 0,
    on_run: Callable[[], None] = lambda: None,
) -> Goal:
    """Find the fewest spot devices with which a run ends in time; without exploration.

    The number is doubled until the median of the futures ends in time, then halved towards the last that did
    not.

    Args:
        config, profile, question, futures, seed, on_run: as for `answer`.
        hours: the time, in hours.

    Raises:
        ConfigurationError: the question cannot be simulated.
        TraceError: the trace cannot be read, or is too short.
    """
    refuse_unfit(config)
    refuse_profile(config, profile)
    market, each = market_of(question), max(1, question.instance_devices)
    tried: dict[int, PolicyAnswer] = {}

    def in_time(instances: int) -> bool:
        spot = instances * each
        runtime = config.runtime.model_copy(update={"spot_workers": spot})
        with_spot = config.model_copy(update={"runtime": runtime})
        policies, offer = policies_of([SPOT if spot else RESERVED]), offer_of(with_spot, question)
        [tried[spot]] = compare_policies(with_spot, offer, profile, market, futures, seed, on_run, policies)
        return _hours(tried[spot]) <= hours

    if not in_time(0):
        fewer, enough, most = 0, 1, MOST_SPOT // each
        while enough <= most and not in_time(enough):
            fewer, enough = enough, 2 * enough
        while enough <= most and enough - fewer > 1:
            middle = (fewer + enough) // 2
            fewer, enough = (fewer, middle) if in_time(middle) else (middle, enough)
    return Goal(hours, sorted(tried.items()), prices_in_words(offer_of(config, question)))


def _hours(answer: PolicyAnswer) -> float:
    return answer.figures["wall_s"].median / 3600


def with_all_trainers(config: RunConfig) -> RunConfig:
    """Return the settings with all reserved devices training, where they do not say how many.

    Where devices share samples one trains, as in a live run.
    """
    runtime = config.runtime
    if "trainer_workers" in runtime.model_fields_set or config.sequence_parallel.largest > 1:
        return config
    runtime = runtime.model_copy(update={"trainer_workers": runtime.least_reserved})
    return config.model_copy(update={"runtime": runtime})


def with_prices_of_gpus(config: RunConfig, profile: str | None, spot: str | None) -> RunConfig:
    """Return the settings with the known prices of the GPUs that are named, if any and if they have none.

    Args:
        config: configuration of the run.
        profile, spot: names as for `tasks.profiles.find_profile`.

    Raises:
        ConfigurationError: the price of one of them is not known.
    """
    reserved, other = (find_gpu(name or "") for name in (profile, spot))
    if reserved is None and other is None:
        return config
    kind = reserved.name if reserved is not None else DEFAULT_GPU
    return with_gpu_prices(config, kind, other.name if other is not None else kind)


def time_line(
    config: RunConfig,
    profile: Profile,
    question: MarketQuestion,
    policy: str,
    seed: int = 0,
    policies: Sequence[Policy] = POLICIES,
) -> dict[str, Any]:
    """Return each device's work in a policy's run, in the first future of an answer, as a Chrome trace.

    Args:
        config, profile, question, seed: as for `answer`.
        policy: name of the policy.
        policies: as for `answer`; the policy is one of them.

    Raises:
        ConfigurationError: there is no such policy, or the run is too long to be drawn.
        TraceError: the trace cannot be read, or is too short.
    """
    refuse_time_line(config, policy, policies)
    about = {"policy": policy, "profile": profile.name, "seed": seed, "iterations": config.iterations}
    return chrome_trace(_first_run(config, profile, question, policy, seed), about)


def _first_run(
    config: RunConfig, profile: Profile, question: MarketQuestion, policy: str, seed: int
) -> SimulatedRun:
    """Return a policy's run in an answer's first future, with each device's work; arguments of `answer`."""
    offer, market, alone = offer_of(config, question), market_of(question), policies_of([policy])
    return policy_runs(config, offer, profile, market, 1, seed, policies=alone, keeps=policy)[policy][0]


def record(
    store: RunStore,
    run_id: str,
    config: RunConfig,
    profile: Profile,
    question: MarketQuestion,
    policy: Policy,
    seed: int = 0,
    curves: LearningCurves | None = None,
) -> None:
    """Record a policy's run in the first of an answer's futures in a home, as a simulated run.

    Args:
        store: store of the home.
        run_id: new identifier.
        config, profile, question, seed, curves: as for `answer`.
        policy: policy of the run.

    Raises:
        TraceError: the trace cannot be read, or is too short.
        StorageError: a run already has that identifier.
    """
    market, offer = market_in_words(market_of(question), question), offer_of(config, question)
    fleet = policy.plan(offer, 0.0).fleet
    trainers = f"{fleet.trainers} of {fleet.reserved} reserved devices train{'s' * (fleet.trainers == 1)}"
    devices = f"{trainers}, {fleet.spot} spot devices at most"
    kinds = f"profile {profile.name}"
    if profile.spot is not None:
        kinds += f", of spot devices {profile.spot.name}"
    about = f"{devices}; {kinds}; {market}; {prices_in_words(offer)}; seed {seed}"
    if curves is not None:
        about += f"; scores by the {curves_in_words(curves, config.model.key)}"
    run = _first_run(config, profile, question, policy.name, seed)
    record_run(store, run_id, config, policy, run, about, curves)


def refuse_time_line(config: RunConfig, policy: str | None, policies: Sequence[Policy] = POLICIES) -> None:
    """Refuse a time line that cannot be drawn.

    Args:
        config: workload and devices.
        policy: name; None for the best of those that a live run can follow.
        policies: policies that are compared.

    Raises:
        ConfigurationError: there is no such policy, or the run is too long.
    """
    names = [known.name for known in policies]
    if policy is not None and policy not in names:
        raise ConfigurationError(
            f"--policy {quoted(policy)} is no policy that is compared; name one of {', '.join(names)}"
        )
    if policy is None and all(known.only_simulated for known in policies):
        raise ConfigurationError(
            f"no live run can follow {', '.join(names)}, so none is the best; name one of them by --policy"
        )
    refuse_long(config)


def refuse_long(config: RunConfig) -> None:
    """Refuse a run too long to keep each device's work in each iteration.

    Raises:
        ConfigurationError: the run is too long.
    """
    drawn = config.iterations * (config.runtime.least_reserved + config.runtime.least_spot)
    if drawn > MOST_DRAWN:
        raise ConfigurationError(
            f"a time line of {config.iterations:,} iterations on so many devices has {drawn:,} parts, above "
            f"{MOST_DRAWN:,}; ask for fewer --iterations"
        )


def runs_of(futures: int, policies: Sequence[Policy]) -> int:
    """Return the number of runs of an answer.

    Args:
        futures: number of futures of each policy.
        policies: policies to compare.
    """
    return futures * len(simulated_policies(policies))


def chosen_policies(names: str | None, config: RunConfig, serving: str, profile: Profile) -> Sequence[Policy]:
    """Return the policies to compare.

    Args:
        names: names separated by commas; `all` for all possible ones, None for the default ones.
        config: configuration of the run; the number of devices that share a sample limits the policies.
        serving: serving load of the question; if it is given, its policy is among the default ones.
        profile: profile of the workload; it may cover two kinds of device.

    Raises:
        ConfigurationError: a name is unknown, or its policy cannot be simulated.
    """
    of_run = config.sequence_parallel.by_kind, 1 if profile.spot is None else 2
    if names is None:
        lending = [policy for policy in policies_of([LENDING]) if serving and not unfit(policy, *of_run)]
        return [*default_policies(*of_run), *lending]
    if names == "all":
        return [policy for policy in POLICIES if not unfit(policy, *of_run)]
    chosen = policies_of(name.strip() for name in names.split(","))
    for policy in chosen:
        if why := unfit(policy, *of_run):
            raise ConfigurationError(f"policy {policy.name} {why}")
    if serving and LENDING not in [policy.name for policy in chosen]:
        raise ConfigurationError(
            f"a serving fleet is given, and none of the policies {names} borrows from one; add {LENDING}"
        )
    return chosen


def refuse_unfit(config: RunConfig) -> None:
    """Refuse settings that the simulator does not support.

    Raises:
        ConfigurationError: a setting is not supported; the message names it.
    """
    if config.iterations > MOST_ITERATIONS:
        raise ConfigurationError(
            f"iterations is {config.iterations:,}, above {MOST_ITERATIONS:,}; ask for fewer: time and "
            "dollars grow in proportion"
        )
    if config.runtime.counts_devices:
        raise ConfigurationError(
            f"the settings ask for {config.runtime.devices_in_words}, and a simulated one has none of its "
            "own; give their numbers: --reserved and --spot"
        )


def refuse_profile(config: RunConfig, profile: Profile) -> None:
    """Refuse a profile without the time of a denoising step as shared under the settings.

    Raises:
        ConfigurationError: a time is missing, which the message names; or the profile covers two kinds of
            device, and trainers leave rollouts by a time that is taken for all devices.
    """
    if profile.spot is not None and config.runtime.trainers_leave:
        raise ConfigurationError(
            "runtime.trainers_leave is simulated for devices of one kind; set it to false, or leave out the "
            "profile of spot devices"
        )
    shared = sorted(set(config.sequence_parallel.by_kind.values()) - {AUTO})
    # A device left over by the groups works alone, and measured times begin with one that does.
    profile.refuse_without(*sorted({1, *shared}))
