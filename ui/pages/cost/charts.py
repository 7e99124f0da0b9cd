"""Charts of the page Cost: the bill by phase, and the same bill on demand only."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from ui.charts.cost import market_bars
from ui.charts.layout import dollars, laid_out
from ui.elements.palette import MARKET_COLOURS
from ui.pages.cost.data import OnDemandCost

# Phases of the bill in the order of the chart, and what it calls them.
_PHASE_NAMES = {"iteration": "iterations", "evaluation": "evaluations", "discarded": "discarded work"}


def phase_chart(frame: pd.DataFrame, modelled: bool) -> go.Figure:
    """Return a chart of the cost of iterations, evaluations and discarded work, by market.

    Args:
        frame: columns phase, market, device_s, usd; at least one row.
        modelled: True if the dollars are modelled.
    """
    recorded = set(frame["phase"])
    names = {phase: name for phase, name in _PHASE_NAMES.items() if phase in recorded}
    return market_bars(frame, "phase", names, "By phase and market", modelled)


def on_demand_chart(cost: OnDemandCost, modelled: bool) -> go.Figure:
    """Return a chart of the bill beside the same bill with every device at the reserved price.

    Args:
        cost: the two bills.
        modelled: True if the dollars are modelled.
    """
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
    figure = laid_out(figure, "The bill, and on demand only", dollars(modelled), "")
    figure.update_layout(barmode="stack", hovermode="closest")
    return figure.update_xaxes(tickprefix="$").update_yaxes(autorange="reversed")
