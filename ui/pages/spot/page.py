"""The page Spot: every device's work, the use of its paid time, and losses."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from storage.environment import MODELLED
from storage.record.ledger import MOST_UNACCOUNTED, Ledger, bill_entries, read_ledger
from storage.record.queries import devices as device_queries
from storage.record.queries.runs import events
from storage.record.reading import RecordConnection
from storage.text import usd
from ui.charts.devices import MOST_BARS, gantt_chart, groups_chart, read_course, utilisation_charts
from ui.data.run import IDLE_SPOT_ADVICE, RunView, load
from ui.elements.formatting import figure as as_figure
from ui.elements.formatting import fine_percent, markdown_text, moment, money, percent, short_duration
from ui.elements.run_page import show_page
from ui.elements.widgets import (
    PLOT_SETTINGS,
    offer_downloads,
    show_frame,
    show_in_pairs,
    show_rows,
    show_tiles,
)


def _show_spot_verdict(ledger: Ledger, modelled: bool) -> None:
    idle, unexplored = ledger.spot_idle_share, ledger.spot_idle_share_unexplored
    if idle is None or unexplored is None:
        st.info(
            "**No spot worker in this run**: all its paid time is reserved. To start a run with two:",
            icon=":material/bolt:",
        )
        st.code("spotlight train --preset glyphs --set runtime.spot_workers=2", language="bash")
        return
    bill = ledger.spent(market="spot")
    paid = f"{short_duration(bill.device_s)} of spot devices, {money(bill.usd, modelled)}."
    text = f"**Spot devices were idle for {percent(idle)} of their paid time"
    if unexplored > idle:
        text += f"; without exploration it would be {percent(unexplored)}.** {paid}"
    else:
        text += f".** {paid} None of it was used for exploration. {IDLE_SPOT_ADVICE}"
    (st.success if unexplored > idle else st.info)(markdown_text(text), icon=":material/bolt:")


def _show_imbalance(ledger: Ledger) -> None:
    if ledger.is_balanced:
        return
    faults = []
    if ledger.unaccounted_share > MOST_UNACCOUNTED:
        worst = max(ledger.workers, key=lambda worker: abs(worker.unaccounted_s))
        kind = "less" if worst.unaccounted_s > 0 else "more"
        faults.append(
            f"the states differ from the paid device time by {fine_percent(ledger.unaccounted_share)} (at "
            f"most {100 * MOST_UNACCOUNTED:g} % is allowed), most for {worst.worker}: "
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
            f"**The states do not sum to the bill.** {'; '.join(faults)}. The figures below are off by the "
            "same amount; the workers' accounts at the end of the page show where."
        ),
        icon=":material/receipt_long:",
    )


def _show_spot_figures(ledger: Ledger) -> None:
    whole, lost = ledger.spent(), ledger.lost
    idle, unexplored = ledger.spot_idle_share, ledger.spot_idle_share_unexplored
    cut_s = sum(loss.cut_s for loss in ledger.losses)
    show_tiles(
        ("Spot idle", "-" if idle is None else percent(idle),
         None if unexplored is None else f"{percent(unexplored)} without exploring",
         "Share of the paid spot time; below, the share if exploration time had been idle instead. "
         "This is an upper bound: without exploration, no device would have waited for it."),
        ("Paid device time", short_duration(whole.device_s), usd(whole.usd),
         "Every second of every device, including idle ones, at the prices in the run's settings."),
        ("Devices lost", str(len(ledger.losses)) if ledger.has_device_events else "-",
         f"cut at most {short_duration(cut_s)}" if ledger.losses else None,
         "Devices that were preempted or failed. Below, how long they had been in their last state: other "
         "devices repeat at most that much. A dash means the run's version did not record losses."),
        ("Discarded work", short_duration(lost.device_s), usd(lost.usd),
         "Paid work after the last checkpoint of a run that was killed: its resume repeats it."),
        ("Goodput", "-" if ledger.goodput is None else f"{as_figure(ledger.goodput)}/s",
         f"{percent(ledger.useful_samples / ledger.samples)} gave a gradient" if ledger.samples else None,
         "Samples of kept rollouts per paid device-second. Below, the share of samples that gave a "
         "gradient, because scores in their prompt group differ."),
        ("Unaccounted", fine_percent(ledger.unaccounted_share) if ledger.is_measured else "-",
         f"{len(ledger.overlaps)} overlaps",
         "Difference between the states and the independently measured paid time; at most "
         f"{100 * MOST_UNACCOUNTED:g} % is allowed. A dash means the run's version did not measure it."),
    )  # fmt: skip


_LATEST = {"Latest": 1, "Latest 3": 3, "Latest 10": 10}
_RANGE = "A range"
_SHOWN_LOSSES = 200
_MOST_DECISIONS = 200


def _read_spot(
    connection: RecordConnection, run_id: str
) -> tuple[list[int], Ledger, pd.DataFrame, pd.DataFrame]:
    """Return a run's iterations, ledger, utilisation and decisions at one moment."""
    return (
        device_queries.recorded_iterations(connection, run_id),
        read_ledger(connection, run_id),
        device_queries.utilisation(connection, run_id, MOST_BARS),
        events(connection, run_id, _MOST_DECISIONS, ("capacity",)),
    )


def _show_spot(view: RunView) -> None:
    iterations, ledger, utilisation, decisions = load(_read_spot, view)
    if not iterations:
        st.info("The first figures come with the first evaluation or iteration.", icon=":material/hourglass:")
        return
    _show_imbalance(ledger)
    _show_spot_verdict(ledger, view.is_modelled)
    _show_spot_figures(ledger)
    _show_course(view, iterations)
    st.subheader("Where the time went")
    if utilisation.empty:
        st.caption("Shares appear with the first iteration.")
    else:
        show_in_pairs(utilisation_charts(utilisation), "use")
        together = max((utilisation["last"] - utilisation["first"] + 1).tolist())
        note = f" Each bar is {together} iterations." if together > 1 else ""
        st.caption(f"Excludes evaluations and discarded work.{note}")
    if not decisions.empty:
        st.subheader("Devices rented")
        happened = zip(decisions["happened_at"].map(moment), decisions["message"], strict=True)
        show_rows(["when", "decision"], happened)
        st.caption(
            "Decided before each iteration from recent times and prices; one line per change. "
            "`runtime.capacity=static` keeps the number at `runtime.spot_workers`."
        )
    st.subheader("Lost devices")
    _show_losses(ledger)
    _show_accounts(ledger)
    offer_downloads(
        view.row.run_id, {"use of the devices": utilisation, "bill by phase and state": bill_entries(ledger)}
    )


def _show_course(view: RunView, iterations: list[int]) -> None:
    st.subheader("Time line")
    run_id = view.row.run_id
    chosen = st.segmented_control(
        "Iterations", [*_LATEST, _RANGE], default="Latest 3", key=f"course-{run_id}",
        label_visibility="collapsed",
    )  # fmt: skip
    # Up to the planned end, not the current one: a growing slider forgets the choice.
    end = max(view.planned_iterations or 0, *iterations)
    if chosen == _RANGE and end > 0:
        latest = iterations[-3:]
        first, last = st.slider("Iterations", 0, end, (latest[0], latest[-1]), key=f"range-{run_id}")
    else:
        latest = iterations[-_LATEST.get(chosen or "", 3) :]
        first, last = latest[0], latest[-1]
    course = load(read_course, view, first, last)
    if course.intervals.empty:
        st.caption("Nothing is recorded for these iterations.")
        return
    drawn = gantt_chart(course, view.metrics, MODELLED if view.is_modelled else "")
    st.plotly_chart(drawn, key="gantt", config=PLOT_SETTINGS)
    if bool((course.groups["degree"] > 1).any()):
        st.plotly_chart(groups_chart(course), key="groups", config=PLOT_SETTINGS)
        st.caption(
            "Each bar is a device's time in one group. A group's devices share all its images, which "
            "differ by rounding from those of a single device."
        )
    if not course.degrees.empty:
        _show_degrees(course.degrees)
    shown, recorded = len(course.intervals), max(course.intervals["of"].tolist())
    if shown < recorded:
        st.caption(
            f"The latest {shown:,} of {recorded:,} intervals; choose fewer iterations to see earlier ones."
        )


def _show_degrees(degrees: pd.DataFrame) -> None:
    most = degrees.loc[degrees["share"].idxmax()]
    count, share = int(most["degree"]), float(most["share"])
    together = f"{count} devices share an image" if count > 1 else "each device works alone"
    if share > 0:
        text = f"**Chosen by measured times: {together}**, {percent(share)} of these iterations' time."
        st.markdown(markdown_text(text))
    table = {
        "images": degrees["request_class"],
        "devices that share one": degrees["degree"],
        "a denoising step (s)": degrees["step_s"].round(4),
        "steps a device-second": (1 / (degrees["step_s"] * degrees["degree"])).round(2),
        "chunks timed": degrees["chunks"],
        "share of the time": degrees["share"].map(percent),
    }
    show_frame(pd.DataFrame(table))
    st.caption(
        "With many images left, the most steps a device-second win; with fewer images than devices, the "
        "shortest step. A missing degree was not tried: it could not pay off, or time was too short so far."
    )


def _show_losses(ledger: Ledger) -> None:
    if not ledger.has_device_events:
        st.caption("This run's version did not record losses here; see the events on the page Convergence.")
        return
    if not ledger.losses:
        st.caption("No device was lost.")
        return
    latest = ledger.losses[::-1][:_SHOWN_LOSSES]
    show_rows(
        ["device", "market", "when", "iteration", "cut", "for (s)", "detail"],
        [
            (
                loss.worker, loss.market, moment(loss.at), loss.iteration, loss.cut_state or "loading",
                round(loss.cut_s, 2), loss.detail,
            )
            for loss in latest
        ],
    )  # fmt: skip
    if len(ledger.losses) > len(latest):
        st.caption(f"The latest {len(latest)} of {len(ledger.losses):,}.")


def _show_accounts(ledger: Ledger) -> None:
    with st.expander("The accounts"):
        st.caption("Paid time, by phase, market and state")
        bill = bill_entries(ledger).rename(columns={"device_s": "device-seconds", "usd": "US dollars"})
        show_frame(bill.round({"device-seconds": 2}))
        st.caption("Workers, in seconds: paid = in a state + unaccounted - in two states")
        show_rows(
            ["worker", "market", "paid", "in a state", "unaccounted", "in two states"],
            [(w.worker, w.market, w.paid_s, w.booked_s, w.unaccounted_s, w.double_s) for w in ledger.workers],
        )
        if ledger.standbys:
            st.caption("Standbys hold no device and are not on the bill, but they use their hosts")
            show_rows(
                ["standby", "waited (s)", "CPU (s)", "memory (MiB)", "slots taken", "died"],
                [
                    (s.standby, s.waited_s, s.cpu_s, s.memory_bytes / 2**20, s.taken, s.lost)
                    for s in ledger.standbys
                ],
            )


show_page(_show_spot)
