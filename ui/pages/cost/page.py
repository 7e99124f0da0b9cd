"""The page Cost: the bill by phase, market and state, compared with on-demand devices only."""

from __future__ import annotations

import streamlit as st

from storage.record.ledger import Ledger, Spent, bill_entries, read_ledger
from storage.text import usd
from ui.charts import cost
from ui.data.run import RunView, load
from ui.elements.formatting import markdown_text, money, percent, short_duration
from ui.elements.run_page import show_page
from ui.elements.widgets import Tile, offer_downloads, show_in_pairs, show_tiles


def _show_cost(view: RunView) -> None:
    ledger = load(read_ledger, view)
    if not ledger.entries:
        st.info("Costs appear with the first evaluation or iteration.", icon=":material/hourglass:")
        return
    compared = cost.on_demand_cost(ledger, view.is_modelled)
    _show_verdict(ledger, compared, view.is_modelled)
    _show_tiles(view, ledger, compared)
    cells = show_in_pairs(cost.bill_charts(view, ledger), "cost")
    if compared is None:
        cells[-1].caption("There is nothing to compare without spot time and a reserved price.")
    else:
        st.caption(cost.ASSUMPTION)
    st.caption(
        "No device was rented: all amounts on this page are time at the prices in the settings (`price.*`)."
        if view.is_modelled
        else "At the prices in the run's settings (`price.*`)."
    )
    offer_downloads(
        view.row.run_id,
        {"cost up to each iteration": view.cost, "bill by phase and state": bill_entries(ledger)},
    )


def _show_verdict(ledger: Ledger, compared: cost.OnDemandCost | None, modelled: bool) -> None:
    if compared is None:
        paid = ledger.spent()
        text = f"**{money(paid.usd, modelled)} so far** for {short_duration(paid.device_s)} of device time."
        st.info(markdown_text(text), icon=":material/payments:")
        return
    on_demand = money(compared.on_demand_usd, modelled)
    text = (
        f"{money(compared.paid_usd, modelled)} so far; with every device at the reserved price of "
        f"{usd(compared.reserved_usd_per_hour)} an hour it would be {on_demand}."
    )
    if compared.no_saving:
        text = f"**No saving is claimed. {compared.no_saving}** {text}"
        st.info(markdown_text(text), icon=":material/money_off:")
    else:
        share = percent(compared.saved_usd / compared.on_demand_usd)
        text = f"**Spot devices saved {usd(compared.saved_usd)} ({share}).** {text}"
        st.success(markdown_text(text), icon=":material/savings:")


def _show_tiles(view: RunView, ledger: Ledger, compared: cost.OnDemandCost | None) -> None:
    whole, lost, done = ledger.spent(), ledger.lost, len(view.metrics)

    def of_bill(title: str, part: Spent, value: str = "") -> Tile:
        share = f"{percent(part.usd / whole.usd)} of the bill" if whole.usd else None
        return title, value or usd(part.usd), share

    tiles: list[Tile] = [
        ("Cost so far", usd(whole.usd), f"{usd(whole.usd / done)} an iteration" if done else None)
    ]
    for market in ("reserved", "spot"):
        part = ledger.spent(market=market)
        tiles.append(of_bill(market.capitalize(), part, "" if part.device_s else "-"))
    tiles.append(of_bill("Evaluations", ledger.spent(phase="evaluation")))
    tiles.append(("Discarded work", usd(lost.usd), short_duration(lost.device_s)))
    if ledger.judge_usd:
        tiles.append(("Judge (not on the bill)", usd(ledger.judge_usd), "by usd_per_image"))
    value = "-" if compared is None else usd(compared.on_demand_usd)
    more = f"{usd(compared.saved_usd)} more" if compared is not None and not compared.no_saving else None
    show_tiles(*tiles, ("On demand only", value, more))


show_page(_show_cost)
