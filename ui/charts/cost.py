"""The bill: its charts, and the same bill with every device rented on demand.

The latter assumes that the same devices do the same work in the same seconds, and that a spot second costs as
much as a reserved one of this run. So it is neither the cost of a faster run without losses, nor that of a
run on the reserved devices alone, which would have taken longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from storage.ledger.ledger import Ledger
from ui.charts.layout import add_line, as_bill, dollars, laid_out
from ui.data.run import RunView
from ui.elements.formatting import short_duration
from ui.elements.palette import MARKET_COLOURS

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


def no_saving(ledger: Ledger, compared: OnDemandCost, modelled: bool) -> str:
    """Return why no saving can be claimed, as a sentence; empty if one can.

    It can if money was paid, and spot devices worked more than they idled.

    Args:
        compared: from `on_demand_cost`.
        modelled: True if its dollars are modelled.
    """
    idle_s = ledger.spent(market="spot", state="idle").device_s
    worked_s = sum(ledger.spent(market="spot", state=state).device_s for state in _WORK)
    if idle_s > worked_s:
        return f"Spot devices idled {short_duration(idle_s)} and worked {short_duration(worked_s)}."
    if compared.saved_usd <= 0:
        return "The spot devices cost as much as reserved ones."
    return "No device was rented: processes of one machine stood for them." if modelled else ""


def bill_by_phase(ledger: Ledger) -> pd.DataFrame:
    """Return the bill by phase and market: columns phase, market, device_s, usd."""
    keys = dict.fromkeys((entry.phase, entry.market) for entry in ledger.entries)
    spent = {key: ledger.spent(phase=key[0], market=key[1]) for key in keys}
    return pd.DataFrame(
        [(*key, part.device_s, part.usd) for key, part in spent.items()],
        columns=["phase", "market", "device_s", "usd"],
    )


def bill_charts(view: RunView, ledger: Ledger) -> list[go.Figure]:
    """Return the charts of the bill, and that of the same bill on demand only, if it compares."""
    compared, phases = on_demand_cost(ledger), bill_by_phase(ledger)
    charts = [cost_chart(view), state_chart(view), phase_chart(phases, view.is_modelled)]
    return charts if compared is None else [*charts, on_demand_chart(compared, view.is_modelled)]


def cost_chart(view: RunView) -> go.Figure:
    """Return a chart of the dollars paid up to each iteration, spot on top of reserved."""
    figure = go.Figure()
    for market, colour in MARKET_COLOURS.items():
        paid = view.cost[f"{market}_usd"]
        hover = {"stackgroup": "markets", "hovertemplate": "$%{y:.4g}"}
        add_line(figure, view.cost["iteration"], paid, market, colour, 1.5, **hover)
    figure = laid_out(figure, "Cost so far, by market", "Iteration", dollars(view.is_modelled))
    return figure.update_yaxes(rangemode="tozero", tickprefix="$")


def state_chart(view: RunView) -> go.Figure:
    """Return a chart of the paid device time by state, the most expensive state first."""
    frame = view.cost_by_state
    states = {state: state for state in dict.fromkeys(frame["state"])}
    return market_bars(frame, "state", states, "What was paid for", view.is_modelled)


def market_bars(
    frame: pd.DataFrame, column: str, names: Mapping[str, str], title: str, modelled: bool
) -> go.Figure:
    """Return a chart of dollars by market, with a bar for each value of a column.

    Args:
        frame: columns market, device_s, usd and `column`.
        column: column that the bars stand for, such as `state`.
        names: the column's values in the order of the bars, with their names in the chart.
    """
    figure = go.Figure()
    order = list(names)[::-1]  # plotly draws the first bar at the bottom
    for market, colour in MARKET_COLOURS.items():
        part = frame[frame["market"] == market].set_index(column)[["usd", "device_s"]]
        part = part.reindex(order, fill_value=0.0)
        figure.add_bar(
            y=[names[value] for value in order], x=part["usd"], name=market, orientation="h",
            marker={"color": colour}, customdata=part["device_s"],
            hovertemplate="$%{x:.4g}, %{customdata:.0f} device-seconds",
        )  # fmt: skip
    return as_bill(figure, title, modelled)


# Phases of the bill in the order of the chart, and what it calls them.
_PHASE_NAMES = {"iteration": "iterations", "evaluation": "evaluations", "discarded": "discarded work"}


def phase_chart(frame: pd.DataFrame, modelled: bool) -> go.Figure:
    """Return a chart of the cost of iterations, evaluations and discarded work, from `bill_by_phase`."""
    recorded = set(frame["phase"])
    names = {phase: name for phase, name in _PHASE_NAMES.items() if phase in recorded}
    return market_bars(frame, "phase", names, "By phase and market", modelled)


def on_demand_chart(cost: OnDemandCost, modelled: bool) -> go.Figure:
    """Return a chart of the bill beside the same bill with every device at the reserved price."""
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
            hovertemplate="$%{x:.4g}",
        )  # fmt: skip
    return as_bill(figure, "The bill, and on demand only", modelled).update_yaxes(autorange="reversed")
