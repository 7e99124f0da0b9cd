"""What a run would cost on devices that are not rented yet: its profile, its spot market, its policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.policies import POLICIES
from gpu_runtime.simulator.profile import Profile, read_profile
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.simulator.what_if import PolicyAnswer, compare_policies
from gpu_runtime.spot.traces.files import read_trace
from gpu_runtime.spot.traces.generator import TraceShape
from gpu_runtime.spot.traces.summary import summarise
from storage.config.loading import PRESETS
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, quoted
from storage.home import Home
from tasks.recorded_profile import model_key, recorded_profile

PROFILES = PRESETS / "profiles"
"""Folder of the profiles that the project carries."""

MOST_ITERATIONS = 100_000
"""Of a simulated run; beyond it an answer takes hours."""


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
    """

    answers: Sequence[PolicyAnswer]
    profile: Profile
    market: str
    offer: FleetPlan
    iterations: int
    futures: int

    def to_json(self) -> dict[str, Any]:
        """JSON values; everything in them is modelled."""
        return {
            "modelled": True,
            "policies": [answer.to_json() for answer in self.answers],
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
) -> WhatIf:
    """Simulate every policy on the devices and at the prices of the settings.

    Args:
        config: the workload, its devices, its prices, how many iterations.
        profile: what the workload takes.
        question: when spot instances come and go.
        futures: windows of the trace, each with a draw of the profile.
        seed: of the futures.
        on_run: told of each of the `runs_of(futures)` simulated runs.

    Raises:
        ConfigurationError: what is asked cannot be simulated.
        TraceError: the trace cannot be read, or is too short.
    """
    refuse_unfit(config)
    runtime, price = config.runtime, config.price
    offer = FleetPlan(
        runtime.least_reserved, runtime.least_spot, runtime.trainer_workers,
        price.reserved_usd_per_hour, price.spot_usd_per_hour,
    )  # fmt: skip
    market = _market(question)
    answers = compare_policies(config, offer, profile, market, futures, seed, on_run)
    return WhatIf(answers, profile, _in_words(market, question), offer, config.iterations, futures)


def runs_of(futures: int) -> int:
    """How many runs an answer takes."""
    return futures * len(POLICIES)


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
