"""The page Spot: the work of every device, its paid time by use, and losses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from storage.ledger.ledger import Ledger
from storage.ledger.modelled import MODELLED
from ui.charts.devices import gantt_chart, groups_chart, utilisation_chart
from ui.charts.layout import PLOT_SETTINGS
from ui.data.ledger import bill_entries
from ui.data.run import RunView
from ui.elements.downloads import offer_downloads
from ui.elements.formatting import markdown_text, moment, percent
from ui.elements.run_page import show_page
from ui.pages.spot.data import SpotView, load_course, load_spot
from ui.pages.spot.verdict import show_imbalance, show_spot_figures, show_spot_verdict

_LATEST = {"Latest": 1, "Latest 3": 3, "Latest 10": 10}
_RANGE = "A range"
_SHOWN_LOSSES = 200


def _show_spot(home: Path, view: RunView) -> None:
    spot = load_spot(home, view)
    if not spot.iterations:
        st.info("The first figures come with the first evaluation or iteration.", icon=":material/hourglass:")
        return
    show_imbalance(spot.ledger)
    show_spot_verdict(spot.ledger, view.is_modelled)
    show_spot_figures(spot.ledger)
    _show_course(home, view, spot)
    _show_use(spot)
    _show_decisions(spot)
    st.subheader("Lost devices")
    _show_losses(spot.ledger)
    _show_accounts(spot.ledger)
    offer_downloads(
        view.row.run_id,
        {"use of the devices": spot.utilisation, "bill by phase and state": bill_entries(spot.ledger)},
    )


def _show_course(home: Path, view: RunView, spot: SpotView) -> None:
    st.subheader("Time line")
    first, last = _chosen_iterations(view, spot.iterations)
    course = load_course(home, view, first, last)
    if course.intervals.empty:
        st.caption("Nothing is recorded of these iterations.")
        return
    drawn = gantt_chart(course, view.metrics, MODELLED if view.is_modelled else "")
    st.plotly_chart(drawn, key="gantt", config=PLOT_SETTINGS)
    if bool((course.groups["degree"] > 1).any()):
        st.plotly_chart(groups_chart(course), key="groups", config=PLOT_SETTINGS)
        st.caption(
            "Each bar is a device's time in one group. Devices of one group share every image of it; their "
            "images differ by rounding from those of one device."
        )
    if not course.degrees.empty:
        _show_degrees(course.degrees)
    shown, recorded = len(course.intervals), max(course.intervals["of"].tolist())
    if shown < recorded:
        st.caption(
            f"The latest {shown:,} of {recorded:,} intervals; choose fewer iterations to see earlier ones."
        )


def _show_degrees(degrees: pd.DataFrame) -> None:
    """Show the degree that devices worked at longest, and the time of a denoising step at each degree.

    Args:
        degrees: degrees of a run, with at least one row; see storage/record/queries/devices.py for the
            columns.
    """
    most = degrees.loc[degrees["share"].idxmax()]
    count, share = int(most["degree"]), float(most["share"])
    together = f"{count} devices share an image" if count > 1 else "each device works alone"
    if share > 0:
        text = f"**Chosen by measured times: {together}**, {percent(share)} of the time of these iterations."
        st.markdown(markdown_text(text))
    st.dataframe(
        pd.DataFrame(
            {
                "images": degrees["request_class"],
                "devices that share one": degrees["degree"],
                "a denoising step (s)": degrees["step_s"].round(4),
                "steps a device-second": (1 / (degrees["step_s"] * degrees["degree"])).round(2),
                "chunks timed": degrees["chunks"],
                "share of the time": [percent(share) for share in degrees["share"]],
            }
        ),
        hide_index=True,
    )
    st.caption(
        "With many images left, the most steps a device-second count; with fewer than devices, the shortest "
        "step. A missing degree was not tried: it could not pay, or there was no time for it yet."
    )


def _chosen_iterations(view: RunView, recorded: list[int]) -> tuple[int, int]:
    """Return the first and the last iteration to draw."""
    run_id = view.row.run_id
    chosen = st.segmented_control(
        "Iterations", [*_LATEST, _RANGE], default="Latest 3", key=f"course-{run_id}",
        label_visibility="collapsed",
    )  # fmt: skip
    # Up to the planned end, not the present one: a growing slider forgets the choice.
    end = max(view.planned_iterations or 0, *recorded)
    if chosen == _RANGE and end > 0:
        return st.slider("Iterations", 0, end, (recorded[-3:][0], recorded[-1]), key=f"range-{run_id}")
    latest = recorded[-_LATEST.get(chosen or "", 3) :]
    return latest[0], latest[-1]


def _show_use(spot: SpotView) -> None:
    st.subheader("What the time went into")
    if spot.utilisation.empty:
        st.caption("Shares appear with the first iteration.")
        return
    used = set(spot.utilisation["market"].tolist())
    markets = [market for market in ("spot", "reserved") if market in used]
    for column, market in zip(st.columns(2), markets, strict=False):
        column.plotly_chart(
            utilisation_chart(spot.utilisation, market), key=f"use-{market}", config=PLOT_SETTINGS
        )
    together = max((spot.utilisation["last"] - spot.utilisation["first"] + 1).tolist())
    note = f" Each bar is {together} iterations." if together > 1 else ""
    st.caption(f"Excludes evaluations and repeated work.{note}")


def _show_decisions(spot: SpotView) -> None:
    """Show how many spot devices the run wanted and why, the latest first; nothing if it did not decide."""
    if spot.decisions.empty:
        return
    st.subheader("Devices rented")
    st.dataframe(
        pd.DataFrame(
            {"when": spot.decisions["happened_at"].map(moment), "decision": spot.decisions["message"]}
        ),
        hide_index=True,
    )
    st.caption(
        "Decided before each iteration by the times of the last ones and the prices; a line for each change. "
        "`runtime.capacity=static` keeps the number of `runtime.spot_workers`."
    )


def _show_losses(ledger: Ledger) -> None:
    """Show the lost devices, the latest first."""
    if not ledger.has_device_events:
        st.caption(
            "The version of this run did not record losses here; see the events of the page Convergence."
        )
        return
    if not ledger.losses:
        st.caption("No device was lost.")
        return
    latest = ledger.losses[::-1][:_SHOWN_LOSSES]
    st.dataframe(
        pd.DataFrame(
            {
                "device": [loss.worker for loss in latest],
                "market": [loss.market for loss in latest],
                "when": [moment(loss.at) for loss in latest],
                "iteration": [loss.iteration for loss in latest],
                "cut": [loss.cut_state or "loading" for loss in latest],
                "for (s)": [round(loss.cut_s, 2) for loss in latest],
                "detail": [loss.detail for loss in latest],
            }
        ),
        hide_index=True,
    )
    if len(ledger.losses) > len(latest):
        st.caption(f"The latest {len(latest)} of {len(ledger.losses):,}.")


def _show_accounts(ledger: Ledger) -> None:
    """Show the bill by phase, market and state, and every worker's paid time against its states."""
    with st.expander("The accounts"):
        st.caption("What was paid for, by phase, market and state")
        st.dataframe(
            pd.DataFrame(
                [
                    (e.phase, e.market, e.state, round(e.spent.device_s, 2), e.spent.usd)
                    for e in ledger.entries
                ],
                columns=["phase", "market", "state", "device-seconds", "US dollars"],
            ),
            hide_index=True,
        )
        st.caption("Workers, in seconds: paid = in a state + unaccounted - in two states")
        st.dataframe(
            pd.DataFrame(
                [
                    (w.worker, w.market, w.paid_s, w.booked_s, w.unaccounted_s, w.double_s)
                    for w in ledger.workers
                ],
                columns=["worker", "market", "paid", "in a state", "unaccounted", "in two states"],
            ),
            hide_index=True,
        )
        if ledger.standbys:
            _show_standbys(ledger)


def _show_standbys(ledger: Ledger) -> None:
    """Show what standby processes have used of their hosts."""
    st.caption("Standbys: they hold no device and are not on the bill; they use their hosts")
    st.dataframe(
        pd.DataFrame(
            [
                (s.standby, s.waited_s, s.cpu_s, s.memory_bytes / 2**20, s.taken, s.lost)
                for s in ledger.standbys
            ],
            columns=["standby", "waited (s)", "processor (s)", "memory (MiB)", "slots taken", "died"],
        ),
        hide_index=True,
    )


show_page(_show_spot)
