"""The prices and scores at which spot devices and exploration start or stop paying. Pure.

A policy's dollars per iteration are linear in the price of a spot device: the cost of its reserved devices,
plus its spot device-hours times that price. A policy's behavior does not depend on prices, except for
policies that decide how much they rent, which are left out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_runtime.simulator.simulated_run import SimulatedRun


@dataclass(frozen=True)
class CostLine:
    """Dollars as a linear function of the price of a spot device.

    Attributes:
        reserved_usd: dollars at the price 0.
        spot_hours: spot device-hours.
    """

    reserved_usd: float
    spot_hours: float

    def usd(self, spot_usd_per_hour: float) -> float:
        """Return the dollars at a price."""
        return self.reserved_usd + self.spot_hours * spot_usd_per_hour

    def times(self, iterations: float) -> CostLine:
        """Return the line of so many iterations, given that this is the line of one."""
        return CostLine(self.reserved_usd * iterations, self.spot_hours * iterations)


def cost_line(run: SimulatedRun) -> CostLine:
    """Return the cost line of one iteration: the bill times the iterations' share of the run's time."""
    share = sum(run.iterations) / run.wall / len(run.iterations)
    hours = run.paid_hours
    return CostLine(hours.get("reserved", 0.0) * run.usd_per_hour["reserved"], hours.get("spot", 0.0)).times(
        share
    )


def break_even_discount(spot: CostLine, on_demand: CostLine, reserved_usd_per_hour: float) -> float | None:
    """Return the discount on a spot device at which both ways cost the same: a share of the reserved price.

    Below 0 where spot devices pay without a discount, above 1 where they would not pay even for free; None
    where no spot device is paid for.

    Args:
        spot: line of the way with spot devices.
        on_demand: line of the way without.
        reserved_usd_per_hour: price of a reserved device.
    """
    paid = spot.spot_hours * reserved_usd_per_hour
    return None if paid == 0 else 1 - (on_demand.usd(0.0) - spot.reserved_usd) / paid


def pays_until(ours: CostLine, others: Sequence[CostLine], most: float) -> float | None:
    """Return the highest price of a spot device at which our way costs no more than any other; None if none.

    Args:
        ours: dollars to some score.
        others: dollars of the other ways to it, at least one.
        most: the highest price considered.
    """
    least, until = 0.0, most
    for other in others:
        # How much more we cost at the price 0, and for each dollar of the price.
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
    """Return the share of the baseline's progress from which on we cost more; None if not at the last share.

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
