"""The page Cost: the bill by phase, market and state, and the same bill on demand only."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from storage.ledger.ledger import Ledger, read_ledger
from ui.charts.cost import (
    ASSUMPTION,
    OnDemandCost,
    bill_by_phase,
    cost_chart,
    no_saving,
    on_demand_chart,
    on_demand_cost,
    phase_chart,
    state_chart,
)
from ui.charts.layout import PLOT_SETTINGS
from ui.data.devices import bill_entries
from ui.data.run import RunView, load
from ui.elements.formatting import markdown_text, money, percent, short_duration, usd
from ui.elements.run_page import show_page
from ui.elements.widgets import offer_downloads, show_tile


def _show_cost(home: Path, view: RunView) -> None:
    ledger = load(read_ledger, home, view)
    if not ledger.entries:
        st.info("Costs appear with the first evaluation or iteration.", icon=":material/hourglass:")
        return
    compared = on_demand_cost(ledger)
    _show_verdict(ledger, compared, view.is_modelled)
    _show_tiles(view, ledger, compared)
    phases = bill_by_phase(ledger)
    left, right = st.columns(2)
    left.plotly_chart(cost_chart(view), key="cost_by_market", config=PLOT_SETTINGS)
    right.plotly_chart(state_chart(view), key="cost_by_state", config=PLOT_SETTINGS)
    left, right = st.columns(2)
    left.plotly_chart(phase_chart(phases, view.is_modelled), key="cost_by_phase", config=PLOT_SETTINGS)
    if compared is None:
        right.caption("Without spot time, or without a reserved price, there is nothing to compare with.")
    else:
        drawn = on_demand_chart(compared, view.is_modelled)
        right.plotly_chart(drawn, key="cost_on_demand", config=PLOT_SETTINGS)
        st.caption(ASSUMPTION)
    st.caption(
        "No device was rented: every sum of this page is time at the prices of the settings (`price.*`)."
        if view.is_modelled
        else "At the prices of the run's settings (`price.*`)."
    )
    offer_downloads(
        view.row.run_id,
        {"cost up to each iteration": view.cost, "bill by phase and state": bill_entries(ledger)},
    )


def _show_verdict(ledger: Ledger, compared: OnDemandCost | None, modelled: bool) -> None:
    paid = ledger.spent()
    if compared is None:
        st.info(
            markdown_text(
                f"**{money(paid.usd, modelled)} so far**, for {short_duration(paid.device_s)} of devices."
            ),
            icon=":material/payments:",
        )
        return
    on_demand = money(compared.on_demand_usd, modelled)
    text = (
        f"{money(compared.paid_usd, modelled)} so far; with every device at the reserved price of "
        f"{usd(compared.reserved_usd_per_hour)} an hour it would be {on_demand}."
    )
    if why_not := no_saving(ledger, compared, modelled):
        st.info(markdown_text(f"**No saving. {why_not}** {text}"), icon=":material/money_off:")
    else:
        share = percent(compared.saved_usd / compared.on_demand_usd)
        st.success(
            markdown_text(f"**Spot devices saved {usd(compared.saved_usd)} ({share}).** {text}"),
            icon=":material/savings:",
        )


def _show_tiles(view: RunView, ledger: Ledger, compared: OnDemandCost | None) -> None:
    row = st.container(horizontal=True)
    whole, done = ledger.spent(), len(view.metrics)
    each = f"{usd(whole.usd / done)} an iteration" if done else None
    show_tile(row, "Cost so far", usd(whole.usd), each)
    for market in ("reserved", "spot"):
        part = ledger.spent(market=market)
        share = f"{percent(part.usd / whole.usd)} of the bill" if whole.usd else None
        value = usd(part.usd) if part.device_s else "-"
        show_tile(row, market.capitalize(), value, share)
    evaluations = ledger.spent(phase="evaluation")
    share = f"{percent(evaluations.usd / whole.usd)} of the bill" if whole.usd else None
    show_tile(row, "Evaluations", usd(evaluations.usd), share)
    lost = ledger.lost
    show_tile(row, "Discarded work", usd(lost.usd), short_duration(lost.device_s))
    if ledger.judge_usd:
        show_tile(row, "Judge (beside the bill)", usd(ledger.judge_usd), "by usd_per_image")
    if compared is None:
        show_tile(row, "On demand only", "-", None)
        return
    claimed = not no_saving(ledger, compared, view.is_modelled)
    show_tile(
        row, "On demand only", usd(compared.on_demand_usd),
        f"{usd(compared.saved_usd)} more" if claimed else None,
    )  # fmt: skip


show_page(_show_cost)
