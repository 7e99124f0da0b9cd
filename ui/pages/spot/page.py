"""The page of the spot devices: what every device did, and what the money went into. Live while a run is."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from storage.errors import StorageError
from ui.charts.layout import PLOT_SETTINGS, cost_chart, state_chart
from ui.data.run import RunView
from ui.elements.downloads import offer_downloads
from ui.elements.formatting import plain_markdown
from ui.elements.run_page import show_page
from ui.pages.convergence.verdict import planned_iterations
from ui.pages.cost.data import bill_entries
from ui.pages.spot.charts import gantt_chart, utilisation_chart
from ui.pages.spot.data import SpotView, load_course, load_spot
from ui.pages.spot.degrees_table import show_degrees
from ui.pages.spot.group_chart import groups_chart
from ui.pages.spot.verdict import (
    show_accounts,
    show_imbalance,
    show_losses,
    show_spot_figures,
    show_spot_verdict,
)

_LATEST = {"Latest": 1, "Latest 3": 3, "Latest 10": 10}
_RANGE = "A range"


def _show_spot(home: Path, view: RunView) -> None:
    try:
        spot = load_spot(home, view)
        if not spot.iterations:
            st.info(
                "The first figures come with the first evaluation or iteration.", icon=":material/hourglass:"
            )
            return
        show_imbalance(spot.ledger)
        show_spot_verdict(spot.ledger)
        show_spot_figures(spot.ledger)
        _show_course(home, view, spot)
    except StorageError as error:
        st.error(plain_markdown(str(error)), icon=":material/database_off:")
        return
    _show_use(spot)
    st.subheader("Cost")
    left, right = st.columns(2)
    left.plotly_chart(cost_chart(view), key="spot_cost_by_market", config=PLOT_SETTINGS)
    right.plotly_chart(state_chart(view), key="spot_cost_by_state", config=PLOT_SETTINGS)
    st.subheader("Lost devices")
    show_losses(spot.ledger)
    show_accounts(spot.ledger)
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
    st.plotly_chart(gantt_chart(course, view), key="gantt", config=PLOT_SETTINGS)
    if bool((course.groups["degree"] > 1).any()):
        st.plotly_chart(groups_chart(course), key="groups", config=PLOT_SETTINGS)
        st.caption(
            "Each bar is a device's time in one group. Devices of one group share every image of it; their "
            "images differ by rounding from those of one device."
        )
    if not course.degrees.empty:
        show_degrees(course.degrees)
    shown, there = len(course.intervals), max(course.intervals["of"].tolist())
    if shown < there:
        st.caption(
            f"The latest {shown:,} of {there:,} intervals; choose fewer iterations to see the earlier ones."
        )


def _chosen_iterations(view: RunView, recorded: list[int]) -> tuple[int, int]:
    """The first and the last iteration to draw."""
    run_id = view.row.run_id
    chosen = st.segmented_control(
        "Iterations", [*_LATEST, _RANGE], default="Latest 3", key=f"course-{run_id}",
        label_visibility="collapsed",
    )  # fmt: skip
    # Up to the planned end, not the present one: a slider that grows forgets what was chosen.
    end = max(planned_iterations(view) or 0, *recorded)
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
    for place, market in zip(st.columns(2), markets, strict=False):
        place.plotly_chart(
            utilisation_chart(spot.utilisation, market), key=f"use-{market}", config=PLOT_SETTINGS
        )
    together = max((spot.utilisation["last"] - spot.utilisation["first"] + 1).tolist())
    note = f" Each bar is {together} iterations." if together > 1 else ""
    st.caption(f"Without evaluations and work done again.{note}")


show_page(_show_spot)
