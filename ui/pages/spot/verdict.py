"""The ten-second answer about spot devices: do they work for their money, and is all of it accounted for."""

from __future__ import annotations

import streamlit as st

from storage.ledger.ledger import MOST_UNACCOUNTED, Ledger
from ui.elements.formatting import figure as as_figure
from ui.elements.formatting import markdown_text, percent, short_duration, usd
from ui.elements.tiles import show_tile


def show_spot_verdict(ledger: Ledger) -> None:
    """How much of the paid spot time is idle, and what exploring makes of it."""
    idle, unexplored = ledger.spot_idle_share, ledger.spot_idle_share_unexplored
    if idle is None or unexplored is None:
        st.info(
            "**No spot worker in this run**: all its paid time is reserved. To start a run with two:",
            icon=":material/bolt:",
        )
        st.code("spotlight train --preset glyphs --set runtime.spot_workers=2", language="bash")
        return
    bill = ledger.by_market["spot"]
    paid = f"{short_duration(bill.device_s)} of spot devices, {usd(bill.usd)} at the set prices."
    if unexplored > idle:
        text = (
            f"**Spot devices idle {percent(idle)} of their paid time; if they did not explore, "
            f"{percent(unexplored)}.** {paid}"
        )
        st.success(markdown_text(text), icon=":material/bolt:")
    else:
        text = (
            f"**Spot devices idle {percent(idle)} of their paid time.** {paid} None of it went into "
            "exploring; `exploration.strategy=stale` lets them draft seeds while the reserved device trains."
        )
        st.info(markdown_text(text), icon=":material/bolt:")


def show_imbalance(ledger: Ledger) -> None:
    """Say so where the states do not sum to the bill; nothing where they do."""
    if ledger.is_balanced:
        return
    faults = []
    if ledger.unaccounted_share > MOST_UNACCOUNTED:
        worst = max(ledger.workers, key=lambda worker: abs(worker.unaccounted_s))
        kind = "less" if worst.unaccounted_s > 0 else "more"
        faults.append(
            f"the states differ from the paid device time by {100 * ledger.unaccounted_share:.2g} % (at most "
            f"{100 * MOST_UNACCOUNTED:g} % is allowed), most of all of {worst.worker}: "
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
    """Six figures in a row; a dash where a run has none."""
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
        "Devices that died. Below, how long they had been doing what they were doing: what they held was "
        "done again by others. A dash where the run was recorded before losses were.",
    )  # fmt: skip
    show_tile(
        row, "Work done again", short_duration(lost.device_s), usd(lost.usd),
        "Paid work of iterations that a resumed run did again, because their checkpoint was gone.",
    )  # fmt: skip
    show_tile(
        row, "Goodput", "-" if ledger.goodput is None else f"{as_figure(ledger.goodput)}/s",
        f"{ledger.useful_samples:,} of {ledger.samples:,} taught" if ledger.samples else None,
        "Samples of kept rollouts per paid device-second. Below, how many are in groups whose scores differ: "
        "the others teach nothing.",
    )  # fmt: skip
    show_tile(
        row, "Unaccounted", f"{100 * ledger.unaccounted_share:.2g} %" if ledger.is_measured else "-",
        f"{len(ledger.overlaps)} overlaps",
        "By how much the states differ from the paid time, which is measured apart from them; at most "
        f"{100 * MOST_UNACCOUNTED:g} % is allowed. A dash where the run was recorded before it was measured.",
    )  # fmt: skip
