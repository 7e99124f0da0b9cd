"""The table of the page Runs: its columns, its filters, and a click that opens a run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from ui.elements.formatting import duration, moment
from ui.pages.runs.data import matching

_OPENED = Path(__file__).resolve().parents[1] / "convergence" / "page.py"
_FILTERS = ("status", "preset", "reward", "strategy")
_ARCHIVED, _CHECKS = "run_archived", "run_checks"  # in the session: toggles drawn after the runs are read
_SCORES = ("score before", "score now", "best", "exact now")


def shows_archived() -> bool:
    """Return True if a person has asked for archived runs too."""
    return bool(st.session_state.get(_ARCHIVED))


def shows_checks() -> bool:
    """Return True if a person has asked for runs that are part of a check, and simulated ones, too."""
    return bool(st.session_state.get(_CHECKS))


def show_filters(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Show the search and the filters.

    Args:
        table: frame from `load_table`.

    Returns:
        The rows that they leave, and the chosen filters as text: a key for choices among these rows.
    """
    row = st.container(horizontal=True, vertical_alignment="bottom")
    words = row.text_input(
        "Search", key="run_words", placeholder="identifier, tag, note", width=220, icon=":material/search:"
    )
    chosen = {
        name: row.multiselect(
            name.capitalize(), sorted(set(table[name])), key=f"run_{name}", placeholder="all", width=170
        )
        for name in _FILTERS
    }
    archived = row.toggle("Archived", key=_ARCHIVED, help="Show archived runs too.")
    checks = row.toggle(
        "Checks", key=_CHECKS, help="Show runs of `spotlight chaos` and `reproduce` and simulated ones too."
    )
    filtered_by = "".join(f"/{name}={values}" for name, values in chosen.items() if values)
    filtered_by += f"/{words}" * bool(words) + "/archived" * archived + "/checks" * checks
    return matching(table, words, chosen, archived), filtered_by


def show_table(table: pd.DataFrame) -> None:
    """Show the runs; a click on a run opens it.

    Args:
        table: frame from `load_table`, or rows of it.
    """
    if table.empty:
        st.caption("No run matches; empty the search and the filters, or switch on *Archived* and *Checks*.")
        return
    shown = _shown(table)
    unused = [name for name in ("purpose", "tags", "note") if not any(table[name].tolist())]
    unused += [] if any(table["verdicts"]) else ["exact now"]
    shown = shown.drop(columns=unused)
    event = st.dataframe(
        shown, hide_index=True, key="run_table", on_select="rerun", selection_mode="single-cell",
        column_config={
            **{name: st.column_config.NumberColumn(format="%.3f") for name in _SCORES},
            "US dollars": st.column_config.NumberColumn(format="$%.4f"),
            "prices": st.column_config.TextColumn(help="modelled: no device was rented"),
            "tags": st.column_config.ListColumn(),
        },
    )  # fmt: skip
    cells = event["selection"]["cells"]
    if cells:
        st.switch_page(_OPENED, query_params={"run": str(table["run_id"].iloc[cells[0][0]])})
    recorded = int(table["of"].iloc[0])
    if recorded > len(table):
        st.caption(f"{len(table):,} of {recorded:,} runs; `spotlight runs` lists all.")
    st.caption("A click on a run opens it.")


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run": table["run_id"],
            "purpose": table["purpose"],
            "status": table["status"],
            "started": table["created_at"].map(moment),
            "preset": table["preset"],
            "reward": table["reward"],
            "strategy": table["strategy"],
            "tags": table["tags"].map(list),
            "note": table["note"],
            "iterations": table["iterations"],
            "score before": table["score_before"],
            "score now": table["score_now"],
            "best": table["score_best"],
            "exact now": table["exact_now"],
            "at work": table["wall_s"].map(duration),
            "US dollars": table["usd"],
            "prices": ["modelled" if modelled else "as set" for modelled in table["modelled"]],
        }
    )
