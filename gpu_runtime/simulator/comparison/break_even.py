"""From which prices and scores on spot devices and exploration pay. Pure.

A policy's dollars of an iteration are a straight line over the price of a spot device: what it pays for
reserved devices, and its spot device-hours times that price. What a policy does depends on no price, but for
those that decide how much they rent, which are left out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_runtime.simulator.simulated_run import SimulatedRun


@dataclass(frozen=True)
class CostLine:
    """Dollars over the price of a spot device.

    Attributes:
        reserved_usd: at the price 0.
        spot_hours: device-hours.
    """

    reserved_usd: float
    spot_hours: float

    def usd(self, spot_usd_per_hour: float) -> float:
        """Dollars at a price."""
        return self.reserved_usd + self.spot_hours * spot_usd_per_hour

    def times(self, iterations: float) -> CostLine:
        """Of so many iterations, where this is that of one."""
        return CostLine(self.reserved_usd * iterations, self.spot_hours * iterations)


def cost_line(run: SimulatedRun) -> CostLine:
    """That of an iteration: the iterations' share of the time, of the whole bill."""
    share = sum(run.iterations) / run.wall / len(run.iterations)
    hours = run.paid_hours
    return CostLine(hours.get("reserved", 0.0) * run.usd_per_hour["reserved"], hours.get("spot", 0.0)).times(
        share
    )


def break_even_discount(spot: CostLine, on_demand: CostLine, reserved_usd_per_hour: float) -> float | None:
    """Share that a spot device must be cheaper than a reserved one for both ways to cost the same.

    Below 0 where spot devices pay without a discount, above 1 where they do not even for nothing; None where
    none is paid for.

    Args:
        spot: of the way with spot devices.
        on_demand: of the way without.
        reserved_usd_per_hour: price of a reserved device.
    """
    paid = spot.spot_hours * reserved_usd_per_hour
    return None if paid == 0 else 1 - (on_demand.usd(0.0) - spot.reserved_usd) / paid


def pays_until(ours: CostLine, others: Sequence[CostLine], most: float) -> float | None:
    """The highest price of a spot device at which we are not dearer than any other; None if there is none.

    Args:
        ours: dollars to some score.
        others: dollars of the other ways to it, at least one.
        most: the highest price that is asked for.
    """
    least, until = 0.0, most
    for other in others:
        # Dollars that we are dearer, at the price 0 and for each dollar of it.
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
    """The share of the baseline's progress from which on we are dearer; None if we are not at the last one.

    Args:
        shares: rising.
        ours: dollars to each.
        others: dollars of the cheapest other way to each.
    """
    found = None
    for share in reversed(shares):
        if ours[share] <= others[share]:
            return found
        found = share
    return found
