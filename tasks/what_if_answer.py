"""An answer of `spotlight what-if`, as JSON and as text: when spot devices and exploration pay off."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpu_runtime.simulator.comparison.learning_curves import LearningCurves
from gpu_runtime.simulator.comparison.policies import LENDING, SPOTLIGHT
from gpu_runtime.simulator.comparison.to_score import (
    ExplorationWorth,
    Milestone,
    arm_of,
    break_even_of,
    discount_of,
    exploration_worth,
    milestones_of,
)
from gpu_runtime.simulator.comparison.what_if import (
    Comparison,
    PolicyAnswer,
    Spread,
    better_but_simulated,
)
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.profile import Profile
from storage.config.loading import list_presets, load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from tasks.market_question import prices_in_words, serving_in_words

_WORTH_SAYING = 0.95
"""Largest share of a run's time and dollars at which an alternative is worth mentioning."""


@dataclass(frozen=True)
class WhatIf:
    """The question and the answers, one per policy.

    Attributes:
        market: arrivals and losses of spot instances, as text.
        curves: learning curves (iterations that a score takes); None if unknown.
        all_train: the recommended policy's answer if all reserved devices trained; None if they do or cannot.
    """

    answers: Sequence[PolicyAnswer]
    asked: Comparison
    market: str
    curves: LearningCurves | None = None
    all_train: PolicyAnswer | None = None

    @property
    def model(self) -> str:
        """Name of the model, as profiles name it."""
        return self.asked.config.model.key

    @property
    def sharing(self) -> dict[str, int | str]:
        """How many devices share samples and form an instance, as text; empty if all work alone."""
        degrees = self.asked.config.sequence_parallel.by_kind
        if set(degrees.values()) == {1}:
            return {}
        each = self.asked.offer.instance_devices or "all"
        return {kind: degree or "auto" for kind, degree in degrees.items()} | {"instance_devices": each}

    @property
    def serving(self) -> str:
        """The serving fleet's load, as text; empty if no policy borrows its devices."""
        lends = any(answer.policy.name == LENDING for answer in self.answers)
        return serving_in_words(self.asked.offer.serving) if lends else ""

    def milestones(self, answer: PolicyAnswer) -> list[Milestone]:
        """Return a policy's cost up to 25, 50, 75 and 100 % of the baseline's progress, if known."""
        return [] if self.curves is None else milestones_of(answer, self.curves)

    @property
    def best(self) -> PolicyAnswer | None:
        """The recommended policy; None if no live run can follow any of those compared."""
        return next((answer for answer in self.answers if answer.best), None)

    @property
    def exploration(self) -> ExplorationWorth | None:
        """The worth of exploration, and when it pays; None if not compared."""
        return exploration_worth(self.answers, self.curves, self.asked.offer.reserved_usd_per_hour)

    def to_json(self) -> dict[str, Any]:
        """Return the answers as JSON values, all of them modelled."""
        asked, other = self.asked, other_learner(self.curves, self.model)
        config, offer, profile = asked.config, asked.offer, asked.profile
        even, worth = break_even_of(self.answers), self.exploration
        evidence = profile.evidence_of_runs(config.sequence_parallel.largest > 1)
        return {
            "modelled": True,
            "evidence": evidence,
            "answer": headline(self),
            "counted": profile.counted_ranges(config.sampling.batch_size),
            "counted_in_words": counted_in_words(self),
            "policies": [
                {
                    **answer.to_json(),
                    "evidence": evidence,
                    "milestones": [
                        each.to_json() | {"other_learner": other} for each in self.milestones(answer)
                    ],
                }
                for answer in self.answers
            ],
            "break_even_discount": even and asdict(even),
            "exploration": worth and asdict(worth),
            "conclusions": conclusions(self),
            "basis": basis(self),
            "curves": self.curves and self.curves.model_dump(mode="json", exclude={"arms"}),
            "other_learner": other,
            "curves_in_words": curves_in_words(self.curves, self.model),
            "iterations": config.iterations,
            "futures": asked.futures,
            "market": self.market,
            "prices": prices_in_words(offer),
            "reserved": offer.reserved,
            "spot": offer.spot,
            "trainers": offer.trainers,
            "reserved_usd_per_hour": offer.reserved_usd_per_hour,
            "spot_usd_per_hour": offer.spot_usd_per_hour,
            "profile": profile.model_dump(mode="json"),
            **({"sharing": self.sharing} if self.sharing else {}),
            **({"serving": self.serving} if self.serving else {}),
        }


def goal_answer(hours: float, tried: Mapping[int, PolicyAnswer], asked: Comparison) -> dict[str, Any]:
    """Return, as JSON values, the fewest spot devices whose median run ends within so many hours.

    Args:
        tried: a run's answer by its number of spot devices.
        asked: the run with any such number.
    """
    rows = [{"spot": spot, **tried[spot].to_json()} for spot in sorted(tried)]
    found = next((row for row in rows if hours_of(tried[row["spot"]]) <= hours), None)
    if found is None:
        said = f"No tried number of spot devices, up to {rows[-1]['spot']}, ends within {hours:g} h"
    else:
        said = f"With {found['spot']} spot devices a run ends within {hours:g} h: {run_in_words(found)}"
    shared, prices = asked.config.sequence_parallel.largest > 1, prices_in_words(asked.offer)
    in_words = asked.profile.runs_in_words(shared)
    return {
        "modelled": True,
        "evidence": asked.profile.evidence_of_runs(shared),
        "answer": f"{said}; medians, lowest and highest of the futures, {in_words}.",
        "basis": [paid_in_words(asked.offer), *profile_in_words(asked.profile)],
        "goal": {"hours": hours, "spot": found and found["spot"], "tried": rows, "prices": prices},
    }


def hours_of(answer: PolicyAnswer) -> float:
    """Return the median of a run's hours."""
    return answer.figures["wall_s"].median / 3600


def headline(result: WhatIf) -> str:
    """Return the recommended policy's time and dollars, always in hours and dollars of the whole run."""
    best, offer = result.best or result.answers[0], result.asked.offer
    return (
        f"{best.policy.name}: {run_in_words(best.to_json())} for {result.asked.config.iterations} iterations "
        f"on {offer.reserved} reserved and {offer.spot} spot devices, "
        f"{result.asked.profile.runs_in_words(result.asked.config.sequence_parallel.largest > 1)}."
    )


def run_in_words(row: Mapping[str, Any]) -> str:
    """Return the hours and dollars in a row of an answer, each with the lowest and highest of the futures."""
    time, usd = row["wall_s"], row["usd"]
    hours = hours_in_words(Spread(*(time[end] / 3600 for end in ("median", "low", "high"))))
    return f"{hours} and {dollars(usd['median'])} ({dollars(usd['low'])} to {dollars(usd['high'])})"


def hours_in_words(hours: Spread) -> str:
    """Return hours with the ends of their range."""
    return f"{number(hours.median, 3)} h ({number(hours.low, 3)} to {number(hours.high, 3)})"


def number(value: float, digits: int) -> str:
    """Return a number with at least so many digits, and whole if it has more."""
    return f"{value:,.0f}" if value >= 10**digits - 0.5 else f"{value:.{digits}g}"


def basis(result: WhatIf) -> list[str]:
    """Return an answer's basis: prices, market, sharing, the profile's evidence and the curves."""
    curves = curves_in_words(result.curves, result.model)
    shared, sharing = [], dict(result.sharing)
    if sharing:
        each = sharing.pop("instance_devices")
        where = "all devices are on one machine" if each == "all" else f"an instance has {each} devices"
        degrees = ", ".join(f"{kind} {degree}" for kind, degree in sharing.items())
        shared = [f"devices that share a sample: {degrees}; {where}"]
    return [
        paid_in_words(result.asked.offer),
        f"spot: {result.market}",
        *shared,
        *([result.serving] if result.serving else []),
        *profile_in_words(result.asked.profile),
        "All policies do the same iterations; only figures about a score show what they learn.",
        *([curves] if curves else []),
    ]


def paid_in_words(offer: FleetPlan) -> str:
    """Describe the prices of devices, and how many of them train."""
    trainers = offer.trainers
    return (
        f"prices: {prices_in_words(offer)}; {trainers} of the reserved devices train{'s' * (trainers == 1)}"
    )


def profile_in_words(profile: Profile, called: str = "profile") -> list[str]:
    """Describe a profile's workload and the source of its figures, including different spot devices."""
    evidence = [f"  {evidence}: {', '.join(names)}" for evidence, names in profile.evidence.items()]
    beside = [] if profile.spot is None else profile_in_words(profile.spot, "on spot devices")
    return [f"{called} {profile.name}: {profile.summary}", *evidence, *beside]


def counted_in_words(result: WhatIf) -> str:
    """Return the counted times with their ranges; empty if none was counted."""
    said = []
    for profile in filter(None, (result.asked.profile, result.asked.profile.spot)):
        times = (
            f"{name} {number(each['value'], 2)} ({number(each['low'], 2)} to {number(each['high'], 2)})"
            for name, each in profile.counted_ranges(result.asked.config.sampling.batch_size).items()
        )
        if words := ", ".join(times):
            said.append(f"on {profile.device} {words}")
    if not said:
        return ""
    futures = "the futures" if result.asked.futures > 2 else "3 futures or more"
    return (
        f"Counted from operations and bytes, not measured, in seconds: {'; '.join(said)}; {futures} cover "
        "both ends."
    )


def conclusions(result: WhatIf) -> list[str]:
    """Return better alternatives, and when spot devices and exploration pay off."""
    found = _only_simulated_in_words(result)
    found += _few_trainers_in_words(result)
    even, worth = break_even_of(result.answers), result.exploration
    if even is not None:
        offered = discount_of(result.answers)
        if even.median <= 0:
            says = "Spot devices cost less than the same devices on demand even without a discount"
        elif even.median > 1:
            says = "Spot devices cost more than the same devices on demand even at a price of 0"
        else:
            says = (
                "Spot devices cost less than the same devices on demand at discounts above "
                f"{even.median:.0%} (lowest and highest future {even.low:.0%} and {even.high:.0%})"
            )
        found.append(f"{says}; the discount is {offered:.0%}.")
    if worth is not None:
        found.append(_exploration_in_words(worth, result))
    found += _missing_drafts_in_words(result)
    found += _milestones_in_words(result)
    if result.curves is not None and (other := other_learner(result.curves, result.model)):
        found.append(
            f"The curves {result.curves.name} were {other}: figures about scores show how the bill follows "
            f"from the curves, not how {result.model} learns."
        )
    return found


def _curves_named(result: WhatIf) -> str:
    """Return the name of the curves, with the model they were measured on if it differs."""
    assert result.curves is not None
    other = other_learner(result.curves, result.model)
    return f"{result.curves.name} ({other})" if other else result.curves.name


def other_learner(curves: LearningCurves | None, model: str) -> str:
    """Name the curves' model if it differs from the bill's model; otherwise return an empty text."""
    if curves is None or curves.model == model:
        return ""
    return f"measured on {curves.learner or curves.model or 'an unnamed model'}, not on {model}"


def curves_in_words(curves: LearningCurves | None, model: str) -> str:
    """Describe the origin of the learning curves; empty without any."""
    if curves is None:
        return ""
    other = other_learner(curves, model)
    return f"curves {curves.name}: {curves.summary} ({curves.source}){other and ', '}{other}"


def _few_trainers_in_words(result: WhatIf) -> list[str]:
    """Describe what the best policy saves if all reserved devices train, and the settings of such a run."""
    best, more, offer = result.best, result.all_train, result.asked.offer
    if best is None or more is None:
        return []
    if more.figures["usd"].median > _WORTH_SAYING * best.figures["usd"].median:
        return []
    fleet = best.policy.plan(replace(offer, trainers=offer.reserved), 0.0).fleet
    config, strategy = result.asked.config, best.policy.strategy
    settings: dict[str, object] = {
        "runtime.reserved_workers": fleet.reserved,
        "runtime.spot_workers": fleet.spot,
    }
    if config.exploration.strategy != strategy:
        settings["exploration.strategy"] = strategy
    few = f"{offer.trainers} of {offer.reserved} reserved devices train{'s' * (offer.trainers == 1)}"
    # Capacity that decides the number of spot devices has options beyond these flags.
    flags = "" if fleet.decided else train_together(config, fleet.trainers, settings)
    preset = f"--preset {config.name} " * (config.name in {preset.name for preset in list_presets()})
    command = f"`spotlight train` {preset}--iterations {config.iterations} {flags}, and any other `--set`"
    return [
        f"{few}. If all of them do (--trainers {offer.reserved}), {best.policy.name} takes "
        f"{run_in_words(more.to_json())}{f': {command}' if flags else '.'}"
    ]


def train_together(config: RunConfig, devices: int, settings: Mapping[str, object] | None = None) -> str:
    """Return the `--set` flags of a run in which so many reserved devices train; empty if it is refused.

    Args:
        settings: further settings, which the flags include.
    """
    settings = {**(settings or {}), "runtime.trainer_workers": devices}
    if (shards := even_shards(config, devices)) != config.algorithm.gradient_shards:
        settings["algorithm.gradient_shards"] = shards
    try:
        load_config(None, list(settings.items()), {}, config)
    except ConfigurationError:
        return ""
    return " ".join(f"--set {name}={value}" for name, value in settings.items())


def even_shards(config: RunConfig, devices: int) -> int:
    """Return the `algorithm.gradient_shards` with which so many reserved devices train for equal times.

    Where adapters are trained, each device holds all weights and sums shards of the gradient. Otherwise the
    weights may exceed a device and are divided, unless the settings have shards.
    """
    shards = config.algorithm.gradient_shards
    sums = shards > 1 or config.adaptation.mode == "lora"
    return devices if sums and shards % devices else shards


def dollars(usd: float) -> str:
    """Return an amount with at least two digits."""
    return f"${usd:,.0f}" if usd >= 100 else f"${usd:.2f}" if usd >= 0.1 else f"${usd:.2g}"


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which a time is written, and its seconds."""
    if seconds < 7200:
        return ("{:.1f} s", 1.0) if seconds < 120 else ("{:.1f} min", 60.0)
    return ("{:.1f} h", 3600.0) if seconds < 2 * 86400 else ("{:.1f} d", 86400.0)


def duration(seconds: float) -> str:
    """Return a time in one unit; minutes are whole."""
    form, unit = ("{:.0f} min", 60.0) if 120 <= seconds < 7200 else time_unit(seconds)
    return form.format(seconds / unit)


def _only_simulated_in_words(result: WhatIf) -> list[str]:
    """Say that a policy that no live run can follow beats the recommended one."""
    better, best = better_but_simulated(result.answers), result.best
    if better is None:
        return []
    usd = dollars(better.figures["usd"].median)
    beside = f" instead of {dollars(best.figures['usd'].median)} of {best.policy.name}" if best else ""
    return [
        f"{better.policy.name} would cost least, {usd}{beside}, but is only simulated: no live run has "
        f"{better.policy.only_simulated}."
    ]


def _missing_drafts_in_words(result: WhatIf) -> list[str]:
    """Say that Spotlight makes no drafts, or fewer than were measured."""
    ours = next((answer for answer in result.answers if answer.policy.name == SPOTLIGHT), None)
    if ours is None:
        return []
    if not any(run.drafts for run in ours.runs):
        return [
            f"{SPOTLIGHT} makes no drafts in such a run and learns as without exploration: drafts need a "
            "device that is free while others train, and a following iteration."
        ]
    if result.curves is None or arm_of(ours.policy, ours.runs, result.curves) is not None:
        return []
    made = statistics.median(run.more_per_sample for run in ours.runs)
    return [
        f"{SPOTLIGHT} makes {made:.2g} drafts per sample, but the exploring runs of the curves "
        f"{result.curves.name} made {result.curves.more_per_sample:.2g}: the effect of so few was not "
        "measured, so there are no figures for its scores."
    ]


def _milestones_in_words(result: WhatIf) -> list[str]:
    """Describe the cost up to each share, for the best policy and for the cheapest to the last score."""
    live = [answer for answer in result.answers if answer.policy.only_simulated is None]
    found = {answer.policy.name: rows for answer in live if (rows := result.milestones(answer))}
    if result.curves is None or not found:
        return []
    # If most run seeds end below the last score, its dollars are unknown.
    ends = {name: rows[-1] for name, rows in found.items()}
    known = [name for name, end in ends.items() if 2 * end.unreached < end.run_seeds]
    cheapest = min(known, key=lambda name: ends[name].usd, default="")
    best = result.best.policy.name if result.best else ""
    said = []
    for name in dict.fromkeys([best, cheapest]):
        if not (rows := found.get(name)):
            continue
        shares = " / ".join(f"{each.share * 100:.0f}" for each in rows)
        time = " / ".join(("≥" if each.unreached else "") + duration(each.time_s) for each in rows)
        usd = " / ".join(("≥" if each.unreached else "") + dollars(each.usd) for each in rows)
        least = ""
        if name == cheapest and len(known) > 1:
            least = ", the cheapest of those that most run seeds complete"
        said.append(
            f"{name} takes {time} and {usd} to {shares} % of the baseline's progress, by the curves "
            f"{_curves_named(result)}{least}."
        )
    return said


def _exploration_in_words(worth: ExplorationWorth, result: WhatIf) -> str:
    low, needed, high = (
        f"{max(0.0, share):.0%}"
        for share in (worth.saving_needed.low, worth.saving_needed.median, worth.saving_needed.high)
    )
    says = f"An iteration with exploration during training costs no more than one of {worth.cheapest}"
    if high != "0%":
        says = (
            f"Exploration during training costs less than {worth.cheapest} if it saves more than {needed} "
            f"of the iterations ({low} to {high})"
        )
    until, curves = worth.pays_until_usd_per_hour, result.curves
    if curves is None or worth.known_to is None or (until is None and worth.stops_at is None):
        return f"{says}."
    if worth.known_to == 1:
        level = f"the baseline's last score, {curves.target:.3g}"
    else:
        level = (
            f"{worth.known_to:.0%} of the baseline's progress, a score of {worth.known_to_score:.3g} (most "
            "of their exploring runs end there)"
        )
    if worth.stops_at is None:
        says += f"; by the curves {_curves_named(result)} it pays up to {level}"
    else:
        says += (
            f"; by the curves {_curves_named(result)}, known up to {level}, it stops paying from "
            f"{worth.stops_at:.0%} of the baseline's progress on, a score of {worth.stops_at_score:.3g}"
        )
    if until is None or worth.stops_at is not None:
        return f"{says}."
    live = [answer for answer in result.answers if answer.policy.only_simulated is None]
    sized = any(any(run.wanted for run in answer.runs) for answer in live)
    but = " (against policies other than sized, whose devices depend on it)" if sized else ""
    if until.median >= result.asked.offer.reserved_usd_per_hour:
        return f"{says}. Up to there it pays at any spot price up to the reserved one{but}."
    if until.median == 0:
        return f"{says}. Up to there it pays at no spot price{but}."
    return (
        f"{says}. Up to there it pays up to ${until.median:.2f} per spot device-hour "
        f"({until.low:.2f} to {until.high:.2f}){but}."
    )
