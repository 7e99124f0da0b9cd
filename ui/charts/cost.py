"""The bill: its charts, and the same bill with every device rented on demand.

The latter assumes that the same devices do the same work in the same seconds, and that a spot second costs as
much as a reserved one of this run. So it is neither the cost of a faster run without losses, nor that of a
run on the reserved devices alone, which would have taken longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from storage.record.ledger import Ledger, bill_entries
from ui.charts.layout import add_line, as_bill, dollars, laid_out
from ui.data.run import RunView
from ui.elements.formatting import short_duration
from ui.elements.palette import MARKET_COLOURS

ASSUMPTION = (
    "Assumption: the same devices for the same seconds, each spot second at the reserved price of this run. "
    "Both include time lost to preemptions; a run on the reserved devices alone, which would take longer, "
    "is not compared."
)

_WORK = ("rollout", "explore", "train")
_PHASE_NAMES = {"iteration": "iterations", "evaluation": "evaluations", "discarded": "discarded work"}


@dataclass(frozen=True)
class OnDemandCost:
    """A bill, and the same bill on demand only, in dollars.

    Attributes:
        reserved_usd_per_hour: mean price of a reserved device in this run.
        spot_as_reserved_usd: cost of the spot devices' seconds at that price.
        no_saving: why no saving can be claimed, as a sentence; empty if money was paid, and spot devices
            worked more than they idled.
    """

    reserved_usd: float
    spot_usd: float
    reserved_usd_per_hour: float
    spot_as_reserved_usd: float
    no_saving: str

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


def on_demand_cost(ledger: Ledger, modelled: bool) -> OnDemandCost | None:
    """Return the comparison; None without spot time, or if the bill gives no reserved price."""
    reserved, spot = ledger.spent(market="reserved"), ledger.spent(market="spot")
    if not spot.device_s or not reserved.device_s or not reserved.usd:
        return None
    usd_per_s = reserved.usd / reserved.device_s
    idle_s = ledger.spent(market="spot", state="idle").device_s
    worked_s = sum(ledger.spent(market="spot", state=state).device_s for state in _WORK)
    no_saving = "No device was rented: processes on one machine stood in for them." if modelled else ""
    if idle_s > worked_s:
        no_saving = f"Spot devices idled {short_duration(idle_s)} and worked {short_duration(worked_s)}."
    elif usd_per_s * spot.device_s <= spot.usd:
        no_saving = "The spot devices cost as much as reserved ones."
    return OnDemandCost(reserved.usd, spot.usd, 3600 * usd_per_s, usd_per_s * spot.device_s, no_saving)


def bill_charts(view: RunView, ledger: Ledger) -> list[go.Figure]:
    """Return the charts of the bill, spot on top of reserved, and of the same bill on demand only.

    The last is left out if there is nothing to compare.
    """
    compared, bill = on_demand_cost(ledger, view.is_modelled), bill_entries(ledger)
    recorded = set(bill["phase"])
    phases = {phase: name for phase, name in _PHASE_NAMES.items() if phase in recorded}
    so_far = go.Figure()
    for market, colour in MARKET_COLOURS.items():
        paid = view.cost[f"{market}_usd"]
        hover = {"stackgroup": "markets", "hovertemplate": "$%{y:,.4r}"}
        add_line(so_far, view.cost["iteration"], paid, market, colour, 1.5, **hover)
    laid_out(
        so_far, "Cost so far, by market", "Iteration", dollars(view.is_modelled),
        yaxis_rangemode="tozero", yaxis_tickprefix="$",
    )  # fmt: skip
    charts = [
        so_far,
        market_bars(bill, "state", "What was paid for", view.is_modelled),
        market_bars(bill, "phase", "By phase and market", view.is_modelled, phases),
    ]
    return charts if compared is None else [*charts, _on_demand_chart(compared, view.is_modelled)]


def market_bars(
    bill: pd.DataFrame, column: str, title: str, modelled: bool, names: Mapping[str, str] | None = None
) -> go.Figure:
    """Return a chart of dollars by market, with a bar for each value of a column.

    Args:
        bill: columns market, device_s, usd and `column`.
        column: column that the bars stand for, such as `state`.
        names: the column's values in the order of the bars, with their names in the chart; by default the
            most expensive comes first.
    """
    if names is None:
        by_value: Any = bill.groupby(column)["usd"].sum()
        dearest = by_value.sort_values(ascending=False, kind="stable").index
        names = dict(zip(dearest, dearest, strict=True))
    figure = go.Figure()
    order = list(names)[::-1]  # plotly draws the first bar at the bottom
    for market, colour in MARKET_COLOURS.items():
        spent: Any = bill[bill["market"] == market].groupby(column)[["usd", "device_s"]].sum()
        part = spent.reindex(order, fill_value=0.0)
        figure.add_bar(
            y=[names[value] for value in order], x=part["usd"], name=market, orientation="h",
            marker={"color": colour}, customdata=part["device_s"],
            hovertemplate="$%{x:,.4r}, %{customdata:.0f} device-seconds",
        )  # fmt: skip
    return as_bill(figure, title, modelled)


def _on_demand_chart(cost: OnDemandCost, modelled: bool) -> go.Figure:
    figure = go.Figure()
    bars = {
        "reserved": [cost.reserved_usd, cost.reserved_usd],
        "spot": [cost.spot_usd, 0.0],
        "spot, at the reserved price": [0.0, cost.spot_as_reserved_usd],
    }
    for name, amounts in bars.items():
        hypothetical = name not in MARKET_COLOURS
        figure.add_bar(
            y=["this run", "on demand only"], x=amounts, name=name, orientation="h",
            marker={
                "color": MARKET_COLOURS["reserved" if hypothetical else name],
                "pattern": {"shape": "/" if hypothetical else ""},
            },
            hovertemplate="$%{x:,.4r}",
        )  # fmt: skip
    return as_bill(figure, "The bill, and on demand only", modelled, yaxis_autorange="reversed")
