"""The bill of a run by phase, and that of the same run with every device rented on demand.

The latter assumes that the same devices do the same work in the same seconds, and that a spot second costs as
much as a reserved one of this run. So it is neither the cost of a faster run without losses, nor that of a
run on the reserved devices alone, which would have taken longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from storage.ledger.ledger import Ledger
from ui.elements.formatting import short_duration

ASSUMPTION = (
    "Assumption: the same devices for the same seconds, each spot second at the reserved price of this run. "
    "Time that losses cost is in both; a run on the reserved devices alone would take longer and is not "
    "what is compared."
)


_WORK = ("rollout", "explore", "train")


@dataclass(frozen=True)
class OnDemandCost:
    """A bill, and the same bill on demand only, in dollars.

    Attributes:
        reserved_usd_per_hour: mean price of a reserved device in this run.
        spot_as_reserved_usd: cost of the spot devices' seconds at that price.
    """

    reserved_usd: float
    spot_usd: float
    reserved_usd_per_hour: float
    spot_as_reserved_usd: float

    @property
    def paid_usd(self) -> float:
        """The actual bill."""
        return self.reserved_usd + self.spot_usd

    @property
    def on_demand_usd(self) -> float:
        """The bill on demand only."""
        return self.reserved_usd + self.spot_as_reserved_usd

    @property
    def saved_usd(self) -> float:
        """The saving by spot devices."""
        return self.on_demand_usd - self.paid_usd


def on_demand_cost(ledger: Ledger) -> OnDemandCost | None:
    """Return the comparison; None without spot time, or if the bill gives no reserved price."""
    reserved, spot = ledger.spent(market="reserved"), ledger.spent(market="spot")
    if not spot.device_s or not reserved.device_s or not reserved.usd:
        return None
    usd_per_s = reserved.usd / reserved.device_s
    return OnDemandCost(reserved.usd, spot.usd, 3600 * usd_per_s, usd_per_s * spot.device_s)


@dataclass(frozen=True)
class Saving:
    """The claim that can be made about a bill and the same bill on demand only.

    Attributes:
        usd: saving; 0 if none is claimed.
        why_not: reason why none is claimed, as a sentence; empty if one is.
    """

    usd: float
    why_not: str = ""


def saving(ledger: Ledger, compared: OnDemandCost, modelled: bool) -> Saving:
    """Return the saving, if one can be claimed: money was paid, and spot devices worked more than they idled.

    Args:
        ledger: ledger of the run.
        compared: result of `on_demand_cost`.
        modelled: True if its dollars are modelled.
    """
    idle_s = ledger.spent(market="spot", state="idle").device_s
    worked_s = sum(ledger.spent(market="spot", state=state).device_s for state in _WORK)
    if idle_s > worked_s:
        return Saving(
            0.0, f"Spot devices idled {short_duration(idle_s)} and worked {short_duration(worked_s)}."
        )
    if compared.saved_usd <= 0:
        return Saving(0.0, "The spot devices cost as much as reserved ones.")
    if modelled:
        return Saving(0.0, "No device was rented: processes of one machine stood for them.")
    return Saving(compared.saved_usd)


def bill_by_phase(ledger: Ledger) -> pd.DataFrame:
    """Return the bill by phase and market: columns phase, market, device_s, usd."""
    keys = dict.fromkeys((entry.phase, entry.market) for entry in ledger.entries)
    spent = {key: ledger.spent(phase=key[0], market=key[1]) for key in keys}
    return pd.DataFrame(
        [(*key, part.device_s, part.usd) for key, part in spent.items()],
        columns=["phase", "market", "device_s", "usd"],
    )
