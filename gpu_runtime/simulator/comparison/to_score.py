"""The cost of policies to reach a score, and where exploration pays, from learning curves. Pure.

The uncertainties of learning and of the system are kept apart: every figure has an interval for each, with
the other at its median.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_runtime.simulator.comparison.learning_curves import MILESTONES, LearningCurves
from gpu_runtime.simulator.comparison.policies import ON_DEMAND, SPOT, SPOTLIGHT, Arm, Policy
from gpu_runtime.simulator.comparison.what_if import PolicyAnswer, Spread
from gpu_runtime.simulator.simulated_run import CostLine, SimulatedRun

_LEVELS = tuple(percent / 100 for percent in range(5, 101, 5))
"""Shares of the baseline's progress at which exploration may stop paying."""

_AS_MANY = 0.5
"""Share of the explored runs' drafts above which their curve is assumed to hold."""


@dataclass(frozen=True)
class Milestone:
    """The cost of a policy to reach a score.

    Attributes:
        share: share of the baseline's progress.
        iterations: iterations needed, over run seeds.
        unreached: number of run seeds that did not reach it; they count as if they did at their end.
        iteration_s, iteration_usd: seconds and dollars of an iteration, over futures.
    """

    share: float
    score: float
    iterations: Spread
    run_seeds: int
    unreached: int
    iteration_s: Spread
    iteration_usd: Spread

    @property
    def time_s(self) -> float:
        """Seconds to reach it, from medians, without the start and evaluations."""
        return self.iterations.median * self.iteration_s.median

    @property
    def usd(self) -> float:
        """Dollars to reach it, from medians, without the start and evaluations."""
        return self.iterations.median * self.iteration_usd.median

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; time and dollars are without the start and evaluations."""
        return {
            "share": self.share,
            "score": self.score,
            "run_seeds": self.run_seeds,
            "unreached": self.unreached,
            "iterations": asdict(self.iterations),
            "time_s": self._total(self.iteration_s),
            "usd": self._total(self.iteration_usd),
        }

    def _total(self, system: Spread) -> dict[str, Any]:
        learning = self.iterations
        return {
            "median": learning.median * system.median,
            "learning": {"low": learning.low * system.median, "high": learning.high * system.median},
            "system": {"low": learning.median * system.low, "high": learning.median * system.high},
        }


def arm_of(policy: Policy, runs: Sequence[SimulatedRun], curves: LearningCurves) -> Arm | None:
    """Return the arm whose curve the runs follow; `plain` if they made no drafts.

    None if they made far fewer drafts than the curves' explored runs: the value of so few was not measured.

    Args:
        policy: policy of the runs.
        runs: one run in each future.
        curves: curves of the task.
    """
    made = statistics.median(run.more_per_sample for run in runs)
    if policy.arm == "plain" or made == 0:
        return "plain"
    return policy.arm if made >= _AS_MANY * (curves.more_per_sample or 0) else None


def milestones_of(answer: PolicyAnswer, curves: LearningCurves) -> list[Milestone]:
    """Return a policy's milestones; an empty list if no curve applies to it."""
    arm, figures = arm_of(answer.policy, answer.runs, curves), answer.figures
    if arm is None:
        return []
    found = []
    for share in MILESTONES:
        iterations = curves.iterations_to(arm, share)
        if not iterations:
            return []
        found.append(
            Milestone(
                share, curves.score_at(share), Spread.of(iterations), len(iterations),
                curves.unreached(arm, share), figures["iteration_s"], figures["iteration_usd"],
            )
        )  # fmt: skip
    return found


def break_even_of(answers: Sequence[PolicyAnswer]) -> Spread | None:
    """Return the discount at which spot devices cost as much as the same devices on demand, over the futures.

    None if `spot` or `on-demand` was not simulated, or a future pays for no spot device.
    """
    by_name = {answer.policy.name: answer for answer in answers}
    if SPOT not in by_name or ON_DEMAND not in by_name:
        return None
    pairs = zip(by_name[SPOT].runs, by_name[ON_DEMAND].runs, strict=True)
    found = [
        break_even_discount(spot.cost_line, demand.cost_line, demand.usd_per_hour["reserved"])
        for spot, demand in pairs
    ]
    known = [discount for discount in found if discount is not None]
    return Spread.of(known) if len(known) == len(found) else None


def discount_of(answers: Sequence[PolicyAnswer]) -> float:
    """Return a spot device's discount on a reserved one in the runs of `spot`, which must be present."""
    spot = next(answer for answer in answers if answer.policy.name == SPOT)
    return statistics.median(1 - run.usd_per_hour["spot"] / run.usd_per_hour["reserved"] for run in spot.runs)


@dataclass(frozen=True)
class ExplorationWorth:
    """The range in which exploration beside training pays, compared with the cheapest policy without it.

    Attributes:
        cheapest: name of that policy, for the same iterations at the given prices.
        saving_needed: share of the iterations that exploration has to save, over futures; 0 or less if it
            costs nothing.
        known_to: highest share of the baseline's progress that most explored run seeds reached; nothing is
            known beyond it. None without a curve, or if they reached none.
        known_to_score: score at `known_to`.
        pays_until_usd_per_hour: highest price of a spot device at which it pays at that score, over futures,
            at most the reserved price; 0 if it pays at no price; None if no score is known.
        stops_at: share of the baseline's progress from which it costs more; None if it still pays at
            `known_to`.
        stops_at_score: score at `stops_at`.
    """

    cheapest: str
    saving_needed: Spread
    known_to: float | None = None
    known_to_score: float | None = None
    pays_until_usd_per_hour: Spread | None = None
    stops_at: float | None = None
    stops_at_score: float | None = None


def exploration_worth(
    answers: Sequence[PolicyAnswer], curves: LearningCurves | None, reserved_usd_per_hour: float
) -> ExplorationWorth | None:
    """Return where exploration pays.

    None if Spotlight was not simulated or makes no drafts, or if no policy without exploration that a live
    run can follow was simulated.

    Args:
        curves: curves of the task; None if unknown.
        reserved_usd_per_hour: price of a reserved device, the highest price considered.
    """
    ours = next((answer for answer in answers if answer.policy.name == SPOTLIGHT), None)
    others = [a for a in answers if a.policy.arm == "plain" and a.policy.only_simulated is None]
    if ours is None or not others or not any(run.drafts for run in ours.runs):
        return None
    cheapest = min(others, key=lambda answer: answer.figures["iteration_usd"].median)
    pairs = zip(cheapest.runs, ours.runs, strict=True)
    saved = [1 - theirs.iteration_usd / usd for theirs, own in pairs if (usd := own.iteration_usd)]
    needed = Spread.of(saved or [0.0])
    levels: list[float] = []
    if curves is not None and arm_of(ours.policy, ours.runs, curves) == ours.policy.arm:
        # Levels that more than half of the explored run seeds reached, so that their median was measured.
        # The baseline's median reaches all, since the shares are relative to its last score.
        explored = len(curves.arms.get("stale", ()))
        levels = [share for share in _LEVELS if 2 * curves.unreached("stale", share) < explored]
    if curves is None or not levels:
        return ExplorationWorth(cheapest.policy.name, needed)
    arms: tuple[Arm, Arm] = ("plain", "stale")
    plain, stale = (
        {share: statistics.median(curves.iterations_to(arm, share)) for share in levels} for arm in arms
    )
    our_usd = ours.figures["iteration_usd"].median
    least_usd = cheapest.figures["iteration_usd"].median
    stops = stops_paying(
        levels,
        {at: iterations * our_usd for at, iterations in stale.items()},
        {at: iterations * least_usd for at, iterations in plain.items()},
    )
    # The number of devices that `sized` rents depends on the price, so its cost is not a line.
    lined = [other for other in others if not any(run.wanted for run in other.runs)]
    until = [
        pays_until(
            ours.runs[future].cost_line.times(stale[levels[-1]]),
            [other.runs[future].cost_line.times(plain[levels[-1]]) for other in lined],
            reserved_usd_per_hour,
        )
        for future in range(len(ours.runs))
    ]
    return ExplorationWorth(
        cheapest.policy.name,
        needed,
        levels[-1],
        curves.score_at(levels[-1]),
        Spread.of([price or 0.0 for price in until]) if lined else None,
        stops,
        None if stops is None else curves.score_at(stops),
    )


def break_even_discount(spot: CostLine, on_demand: CostLine, reserved_usd_per_hour: float) -> float | None:
    """Return the spot discount at which both ways cost the same, as a share of the reserved price.

    Below 0 if spot devices pay without a discount, above 1 if they would not pay even for free; None if no
    spot device is paid for.

    Args:
        spot: cost line with spot devices.
        on_demand: cost line without them.
        reserved_usd_per_hour: price of a reserved device.
    """
    paid = spot.spot_hours * reserved_usd_per_hour
    return None if paid == 0 else 1 - (on_demand.usd(0.0) - spot.reserved_usd) / paid


def pays_until(ours: CostLine, others: Sequence[CostLine], most: float) -> float | None:
    """Return the highest price, up to `most`, at which we reach a score for no more than others; or None.

    Args:
        ours: our dollars to a score.
        others: dollars of the other ways to it, at least one.
        most: the highest price considered.
    """
    least, until = 0.0, most
    for other in others:
        # Our extra cost at price 0, and per dollar of the price.
        at_zero, slope = ours.reserved_usd - other.reserved_usd, ours.spot_hours - other.spot_hours
        if slope > 0:
            until = min(until, -at_zero / slope)
        elif slope < 0:
            least = max(least, -at_zero / slope)
        elif at_zero > 0:
            return None
    return until if least <= until else None


def stops_paying(
    shares: Sequence[float], ours: Mapping[float, float], others: Mapping[float, float]
) -> float | None:
    """Return the share from which on we always cost more than others; None if we do not at the last one.

    Args:
        shares: shares of the progress, rising.
        ours: dollars to reach each.
        others: dollars of the cheapest other way to reach each.
    """
    found = None
    for share in reversed(shares):
        if ours[share] <= others[share]:
            return found
        found = share
    return found
