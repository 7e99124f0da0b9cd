"""What a run would cost on devices that are not rented yet: its profile, its spot market, its policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_runtime.simulator.chrome_trace import chrome_trace
from gpu_runtime.simulator.comparison.learning_curves import LearningCurves
from gpu_runtime.simulator.comparison.policies import DEFAULT_POLICIES, POLICIES, Policy, policies_of
from gpu_runtime.simulator.comparison.to_score import (
    ExplorationWorth,
    Milestone,
    break_even_of,
    exploration_worth,
    milestones_of,
)
from gpu_runtime.simulator.comparison.what_if import (
    PolicyAnswer,
    compare_policies,
    policy_runs,
    simulated_policies,
)
from gpu_runtime.simulator.comparison.what_if import Spread as Spread
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.profile import Profile, read_profile
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.spot.traces.files import read_trace
from gpu_runtime.spot.traces.generator import TraceShape
from gpu_runtime.spot.traces.summary import summarise
from storage.config.loading import PRESETS
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, quoted
from storage.home import Home
from tasks.recorded_curves import find_curves as find_curves
from tasks.recorded_profile import model_key, recorded_profile

PROFILES = PRESETS / "profiles"
"""Folder of the profiles that the project carries."""

MOST_ITERATIONS = 100_000
"""Of a simulated run; beyond it an answer takes hours."""

MOST_DRAWN = 50_000
"""Devices times iterations of a time line; its file then has some 40 MB."""


@dataclass(frozen=True)
class WhatIf:
    """What was asked, and the answers.

    Attributes:
        answers: of each policy.
        profile: what the workload was taken to take.
        market: when spot instances come and go, in words.
        offer: devices and prices.
        iterations: of each run.
        futures: over which each figure goes.
        curves: how many iterations a score takes; None where that is not known.
    """

    answers: Sequence[PolicyAnswer]
    profile: Profile
    market: str
    offer: FleetPlan
    iterations: int
    futures: int
    curves: LearningCurves | None = None

    def milestones(self, answer: PolicyAnswer) -> list[Milestone]:
        """What a policy takes to 25, 50, 75 and 100 % of the baseline's progress, where that is known."""
        return [] if self.curves is None else milestones_of(answer, self.curves)

    @property
    def break_even(self) -> Spread | None:
        """Discount at which spot devices cost as much as the same devices on demand; None if not compared."""
        return break_even_of(self.answers, self.offer.reserved_usd_per_hour)

    @property
    def exploration(self) -> ExplorationWorth | None:
        """Where exploration pays; None if not compared."""
        return exploration_worth(self.answers, self.curves, self.offer.reserved_usd_per_hour)

    def to_json(self) -> dict[str, Any]:
        """JSON values; everything in them is modelled."""
        return {
            "modelled": True,
            "policies": [
                {**answer.to_json(), "milestones": [each.to_json() for each in self.milestones(answer)]}
                for answer in self.answers
            ],
            "break_even_discount": self.break_even and self.break_even.to_json(),
            "exploration": self.exploration and self.exploration.to_json(),
            "conclusions": conclusions(self),
            "curves": self.curves and self.curves.model_dump(mode="json", exclude={"arms"}),
            "iterations": self.iterations,
            "futures": self.futures,
            "market": self.market,
            "reserved": self.offer.reserved,
            "spot": self.offer.spot,
            "trainers": self.offer.trainers,
            "reserved_usd_per_hour": self.offer.reserved_usd_per_hour,
            "spot_usd_per_hour": self.offer.spot_usd_per_hour,
            "profile": self.profile.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class MarketQuestion:
    """How spot instances are taken to come and go.

    Attributes:
        trace: a file; empty for drawn traces.
        loss_rate: losses of an instance an hour, for drawn traces; None for what a trace's shape has.
        joint: share of the losses that take several at once; None likewise.
        notice_s: seconds of notice.
    """

    trace: str = ""
    loss_rate: float | None = None
    joint: float | None = None
    notice_s: float = 0.0


def answer(
    config: RunConfig,
    profile: Profile,
    question: MarketQuestion,
    futures: int,
    seed: int = 0,
    on_run: Callable[[], None] = lambda: None,
    policies: Sequence[Policy] = DEFAULT_POLICIES,
    curves: LearningCurves | None = None,
) -> WhatIf:
    """Simulate policies on the devices and at the prices of the settings.

    Args:
        config: the workload, its devices, its prices, how many iterations.
        profile: what the workload takes.
        question: when spot instances come and go.
        futures: windows of the trace, each with a draw of the profile.
        seed: of the futures.
        on_run: called after each of the `runs_of(futures, policies)` simulated runs.
        policies: those to compare.
        curves: how many iterations a score takes; None where that is not known.

    Raises:
        ConfigurationError: what is asked cannot be simulated.
        TraceError: the trace cannot be read, or is too short.
    """
    refuse_unfit(config)
    offer, market = _offer(config), _market(question)
    answers = compare_policies(config, offer, profile, market, futures, seed, on_run, policies)
    return WhatIf(answers, profile, _in_words(market, question), offer, config.iterations, futures, curves)


def time_line(
    config: RunConfig,
    profile: Profile,
    question: MarketQuestion,
    policy: str,
    seed: int = 0,
    policies: Sequence[Policy] = DEFAULT_POLICIES,
) -> dict[str, Any]:
    """What every device does in a policy's run, in the first of an answer's futures, as a Chrome trace.

    Args:
        config, profile, question, seed: of `answer`.
        policy: its name.
        policies: of `answer`; the policy is one of them.

    Raises:
        ConfigurationError: there is no such policy, or the run is too long to be drawn.
        TraceError: the trace cannot be read, or is too short.
    """
    refuse_time_line(config, policy, policies)
    offer = _offer(config)
    alone = policies_of([policy])
    runs = policy_runs(config, offer, profile, _market(question), 1, seed, policies=alone, keeps=policy)
    about = {"policy": policy, "profile": profile.name, "seed": seed, "iterations": config.iterations}
    return chrome_trace(runs[policy][0], about)


def refuse_time_line(
    config: RunConfig, policy: str | None, policies: Sequence[Policy] = DEFAULT_POLICIES
) -> None:
    """Refuse a time line that cannot be drawn.

    Args:
        config: the workload and its devices.
        policy: a name; None for whichever is best.
        policies: those that are compared.

    Raises:
        ConfigurationError: there is no such policy, or the run is too long.
    """
    names = [known.name for known in policies]
    if policy is not None and policy not in names:
        raise ConfigurationError(
            f"--policy {quoted(policy)} is no policy that is compared; name one of {', '.join(names)}"
        )
    drawn = config.iterations * (config.runtime.least_reserved + config.runtime.least_spot)
    if drawn > MOST_DRAWN:
        raise ConfigurationError(
            f"a time line of {config.iterations:,} iterations on so many devices has {drawn:,} parts, above "
            f"{MOST_DRAWN:,}; ask for fewer --iterations"
        )


def runs_of(futures: int, policies: Sequence[Policy] = DEFAULT_POLICIES) -> int:
    """How many runs an answer takes.

    Args:
        futures: of each policy.
        policies: those to compare.
    """
    return futures * len(simulated_policies(policies))


def chosen_policies(names: str | None) -> Sequence[Policy]:
    """The policies to compare, from names with commas between; all for `all`, the default ones for None.

    Raises:
        ConfigurationError: there is none of a name.
    """
    if names == "all":
        return POLICIES
    return DEFAULT_POLICIES if names is None else policies_of(name.strip() for name in names.split(","))


def conclusions(result: WhatIf) -> list[str]:
    """From which discount spot devices pay, and where exploration stops paying, as sentences."""
    found = []
    offer, even, worth = result.offer, result.break_even, result.exploration
    if even is not None:
        offered = 1 - offer.spot_usd_per_hour / offer.reserved_usd_per_hour
        if even.median <= 0:
            says = "Spot devices cost less than the same devices on demand even without a discount"
        elif even.median > 1:
            says = "Spot devices cost more than the same devices on demand even for nothing"
        else:
            says = (
                "Spot devices cost less than the same devices on demand from a discount of "
                f"{even.median:.0%} on (lowest and highest future {even.low:.0%} and {even.high:.0%})"
            )
        found.append(f"{says}; the discount is {offered:.0%}.")
    if worth is not None:
        found.append(_exploration_in_words(worth, result))
    return found


def _exploration_in_words(worth: ExplorationWorth, result: WhatIf) -> str:
    low, needed, high = (
        f"{max(0.0, share):.0%}"
        for share in (worth.saving_needed.low, worth.saving_needed.median, worth.saving_needed.high)
    )
    says = f"An iteration with exploration beside training costs no more than one of {worth.cheapest}"
    if high != "0%":
        says = (
            f"Exploration beside training costs less than {worth.cheapest} if it saves more than {needed} "
            f"of the iterations ({low} to {high})"
        )
    until, curves = worth.pays_until_usd, result.curves
    if curves is None or worth.known_to is None or (until is None and worth.stops_at is None):
        return f"{says}."
    if worth.known_to == 1:
        level = f"the baseline's last score, {curves.target:.3g}"
    else:
        level = (
            f"{worth.known_to:.0%} of the baseline's progress, a score of {worth.known_to_score:.3g} (most "
            "of their explored runs end there)"
        )
    if worth.stops_at is None:
        says += f"; by the curves {curves.name} it pays up to {level}"
    else:
        says += (
            f"; by the curves {curves.name}, known up to {level}, it stops paying from "
            f"{worth.stops_at:.0%} of the baseline's progress on, a score of {worth.stops_at_score:.3g}"
        )
    if until is None or worth.stops_at is not None:
        return f"{says}."
    sized = any(any(run.wanted for run in answer.runs) for answer in result.answers)
    but = " (against policies other than sized, whose devices depend on it)" if sized else ""
    if until.median >= result.offer.reserved_usd_per_hour:
        return f"{says}. So far it pays at any price of a spot device up to that of a reserved one{but}."
    if until.median == 0:
        return f"{says}. So far it pays at no price of a spot device{but}."
    return (
        f"{says}. So far it pays up to ${until.median:.2f} an hour of a spot device "
        f"({until.low:.2f} to {until.high:.2f}){but}."
    )


def refuse_unfit(config: RunConfig) -> None:
    """Refuse what the simulator does not do.

    Raises:
        ConfigurationError: naming it.
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
    if config.sequence_parallel.largest > 1:
        raise ConfigurationError(
            f"sequence_parallel lets {config.sequence_parallel.largest} devices share a sample, but "
            "simulated devices work alone; set all its degrees to 1"
        )


def find_profile(home: Home, config: RunConfig, name: str | None) -> Profile:
    """The profile to take.

    Args:
        home: where recorded runs are.
        config: the workload.
        name: of a profile that the project carries, a .json file, or a recorded run; None for the carried
            one of this model and size.

    Raises:
        ConfigurationError: there is none, or it cannot be read.
    """
    carried = [read_profile(path) for path in sorted(PROFILES.glob("*.json"))]
    names = ", ".join(profile.name for profile in carried)
    if name is None:
        key = model_key(config)
        for profile in carried:
            if key in profile.models:
                return profile
        raise ConfigurationError(
            f"no profile of {key}; name one by --profile ({names}), a .json file, or a recorded run of it"
        )
    if name.endswith(".json"):
        return read_profile(Path(name))
    for profile in carried:
        if profile.name == name:
            return profile
    try:
        return recorded_profile(home, name)
    except RunNotFoundError as error:
        raise ConfigurationError(
            f"--profile {quoted(name)} is no profile ({names}), no .json file and no run"
        ) from error


def _offer(config: RunConfig) -> FleetPlan:
    runtime, price = config.runtime, config.price
    return FleetPlan(
        runtime.least_reserved, runtime.least_spot, runtime.trainer_workers,
        price.reserved_usd_per_hour, price.spot_usd_per_hour,
    )  # fmt: skip


def _market(question: MarketQuestion) -> SpotMarket:
    shape = TraceShape(capacity=1, length_s=1.0)
    if question.trace:
        if question.loss_rate is not None or question.joint is not None:
            raise ConfigurationError("--trace says which instances go; leave --loss-rate and --joint out")
        return SpotMarket(read_trace(question.trace), shape, notice_s=question.notice_s)
    rate = 3600 / shape.mean_lifetime_s if question.loss_rate is None else question.loss_rate
    joint = shape.multi_loss_share if question.joint is None else question.joint
    if rate == 0:
        return SpotMarket(None, shape, losses=False)
    shape = TraceShape(capacity=1, length_s=1.0, mean_lifetime_s=3600 / rate, multi_loss_share=joint)
    return SpotMarket(None, shape, notice_s=question.notice_s)


def _in_words(market: SpotMarket, question: MarketQuestion) -> str:
    notice = f", {market.notice_s:g} s of notice" if market.notice_s else ", without notice"
    if market.recorded is not None:
        known = summarise(market.recorded)
        rate = known.losses_per_instance_hour or 0.0
        return (
            f"windows of {Path(question.trace).name}: {known.length_s / 3600:.1f} h, {known.losses} losses, "
            f"{rate:.2f} of an instance an hour{notice}"
        )
    if not market.losses:
        return "no instance is lost"
    shape = market.shape
    return (
        f"drawn traces: {3600 / shape.mean_lifetime_s:.2f} losses of an instance an hour, "
        f"{shape.multi_loss_share:.0%} of them together; a replacement comes after "
        f"{shape.mean_reacquire_s / 60:.0f} min{notice}"
    )
