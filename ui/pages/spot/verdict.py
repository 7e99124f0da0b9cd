"""The short answer of the page Spot: idle spot devices, and whether all paid time is accounted for."""

from __future__ import annotations

import streamlit as st

from storage.ledger.ledger import MOST_UNACCOUNTED, Ledger
from ui.data.methods import IDLE_SPOT_ADVICE
from ui.elements.formatting import figure as as_figure
from ui.elements.formatting import fine_percent, markdown_text, money, percent, short_duration, usd
from ui.elements.tiles import show_tile


def show_spot_verdict(ledger: Ledger, modelled: bool) -> None:
    """Show how much of the paid spot time is idle, and how much would be without exploration.

    Args:
        ledger: ledger of the run.
        modelled: True if its dollars are modelled.
    """
    idle, unexplored = ledger.spot_idle_share, ledger.spot_idle_share_unexplored
    if idle is None or unexplored is None:
        st.info(
            "**No spot worker in this run**: all its paid time is reserved. To start a run with two:",
            icon=":material/bolt:",
        )
        st.code("spotlight train --preset glyphs --set runtime.spot_workers=2", language="bash")
        return
    bill = ledger.by_market["spot"]
    paid = f"{short_duration(bill.device_s)} of spot devices, {money(bill.usd, modelled)}."
    if unexplored > idle:
        text = (
            f"**Spot devices idle {percent(idle)} of their paid time; if they did not explore, "
            f"{percent(unexplored)}.** {paid}"
        )
        st.success(markdown_text(text), icon=":material/bolt:")
    else:
        text = (
            f"**Spot devices idle {percent(idle)} of their paid time.** {paid} None of it went into "
            f"exploration. {IDLE_SPOT_ADVICE}"
        )
        st.info(markdown_text(text), icon=":material/bolt:")


def show_imbalance(ledger: Ledger) -> None:
    """Show a message if the states do not sum to the bill."""
    if ledger.is_balanced:
        return
    faults = []
    if ledger.unaccounted_share > MOST_UNACCOUNTED:
        worst = max(ledger.workers, key=lambda worker: abs(worker.unaccounted_s))
        kind = "less" if worst.unaccounted_s > 0 else "more"
        faults.append(
            f"the states differ from the paid device time by {fine_percent(ledger.unaccounted_share)} (at "
            f"most {100 * MOST_UNACCOUNTED:g} % is allowed), most of all of {worst.worker}: "
            f"{short_duration(abs(worst.unaccounted_s))} {kind}"
        )
    if ledger.overlaps:
        first = ledger.overlaps[0]
        faults.append(
            f"{len(ledger.overlaps)} times a worker was in two states at once, first {first.worker} in "
            f"iteration {first.iteration} ({first.state}, {short_duration(first.double_s)})"
        )
    st.error(
        markdown_text(
            f"**The states do not sum to the bill.** {'; '.join(faults)}. The figures below are off by as "
            "much; the accounts of the workers, at the end of the page, show where."
        ),
        icon=":material/receipt_long:",
    )


def show_spot_figures(ledger: Ledger) -> None:
    """Show six figures in a row, with a dash for each that the run does not have."""
    row = st.container(horizontal=True)
    whole, lost = ledger.spent(), ledger.lost
    idle, unexplored = ledger.spot_idle_share, ledger.spot_idle_share_unexplored
    show_tile(
        row, "Spot idle", "-" if idle is None else percent(idle),
        None if unexplored is None else f"{percent(unexplored)} without exploring",
        "Share of the paid spot time; below, what it would be if the time of exploring had been idle. "
        "That is at most so: time that others waited for the exploring would not have been paid.",
    )  # fmt: skip
    show_tile(
        row, "Paid device time", short_duration(whole.device_s), usd(whole.usd),
        "Every second of every device, idle ones too, at the prices of the run's settings.",
    )  # fmt: skip
    cut_s = sum(loss.cut_s for loss in ledger.losses)
    show_tile(
        row, "Devices lost", str(len(ledger.losses)) if ledger.has_device_events else "-",
        f"cut at most {short_duration(cut_s)}" if ledger.losses else None,
        "Devices that were preempted or failed. Below, how long they had been in their last state: other "
        "devices repeat at most that much. A dash for runs of versions that did not record losses.",
    )  # fmt: skip
    show_tile(
        row, "Repeated work", short_duration(lost.device_s), usd(lost.usd),
        "Paid work of iterations that a resumed run repeated, because they were after its last checkpoint.",
    )  # fmt: skip
    show_tile(
        row, "Goodput", "-" if ledger.goodput is None else f"{as_figure(ledger.goodput)}/s",
        f"{percent(ledger.useful_samples / ledger.samples)} gave a gradient" if ledger.samples else None,
        "Samples of kept rollouts per paid device-second. Below, the share of samples that produced a "
        "gradient: those of prompt groups whose scores differ.",
    )  # fmt: skip
    show_tile(
        row, "Unaccounted", fine_percent(ledger.unaccounted_share) if ledger.is_measured else "-",
        f"{len(ledger.overlaps)} overlaps",
        "By how much the states differ from the paid time, which is measured apart from them; at most "
        f"{100 * MOST_UNACCOUNTED:g} % is allowed. A dash for runs of versions that did not measure it.",
    )  # fmt: skip
