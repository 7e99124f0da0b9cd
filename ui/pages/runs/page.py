"""The page Runs: all runs in a table, and selected ones side by side. Live while any run is."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from storage.errors import SpotlightError
from storage.home import Home
from storage.record.run_store import LONGEST_NOTE, RunStore
from ui.elements.formatting import duration, moment, plain_markdown
from ui.elements.run_page import show_home_page, show_left_out
from ui.pages.runs.comparison import show_comparison
from ui.pages.runs.data import load_table, matching

_OPENED = Path(__file__).resolve().parents[1] / "convergence" / "page.py"
_COLUMNS = {  # of the table: headings by the columns of `load_table`
    "run_id": "run", "purpose": "purpose", "status": "status", "created_at": "started", "preset": "preset",
    "reward": "reward", "strategy": "strategy", "tags": "tags", "note": "note", "iterations": "iterations",
    "score_before": "score before", "score_now": "score now", "score_best": "best", "exact_now": "exact now",
    "wall_s": "at work", "usd": "US dollars", "modelled": "prices",
}  # fmt: skip
_FILTERS = ("status", "preset", "reward", "strategy")
_ARCHIVED, _CHECKS = "run_archived", "run_checks"  # in the session: toggles drawn after the runs are read
_REFUSED = "run_notes_refused"  # in the session: the refusal of the last change
_SCORES = ("score before", "score now", "best", "exact now")


def _show_filters(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
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
    archived = row.toggle("Archived", key=_ARCHIVED, help="Also show archived runs.")
    checks = row.toggle(
        "Checks", key=_CHECKS, help="Also show runs of `spotlight chaos` and `reproduce`, and simulated ones."
    )
    filtered_by = "".join(f"/{name}={values}" for name, values in chosen.items() if values)
    filtered_by += f"/{words}" * bool(words) + "/archived" * archived + "/checks" * checks
    return matching(table, words, chosen, archived), filtered_by


def _show_table(table: pd.DataFrame) -> None:
    if table.empty:
        st.caption("No run matches; clear the search and filters, or switch on *Archived* and *Checks*.")
        return
    unused = [name for name in ("purpose", "tags", "note", "modelled") if not any(table[name].tolist())]
    unused += ["exact_now"] * (not any(table["verdicts"]))
    shown = table.assign(
        created_at=table["created_at"].map(moment), tags=table["tags"].map(list),
        wall_s=table["wall_s"].map(duration),
        modelled=["modelled" if modelled else "" for modelled in table["modelled"]],
    ).loc[:, [name for name in _COLUMNS if name not in unused]]  # fmt: skip
    cheap = table["usd"].between(0, 0.1, inclusive="neither").any()
    event = st.dataframe(
        shown.rename(columns=_COLUMNS), hide_index=True, key="run_table", on_select="rerun",
        selection_mode="single-cell",
        column_config={
            **{name: st.column_config.NumberColumn(format="%.3f") for name in _SCORES},
            "run": st.column_config.TextColumn(width="medium"),
            "US dollars": st.column_config.NumberColumn(format="$%.4f" if cheap else "$%.2f"),
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
    st.caption("Click a run to open it.")


def _show_notes(home: Home, table: pd.DataFrame) -> None:
    with st.expander("Tag, note or archive", icon=":material/sell:"):
        chosen = st.multiselect("Runs", table["run_id"].tolist(), key="noted", placeholder="Choose runs")
        if refused := st.session_state.pop(_REFUSED, None):
            st.error(plain_markdown(refused), icon=":material/block:")
        if not chosen:
            st.caption("An archived run is unchanged, but lists omit it. *Archived* above shows it again.")
            return
        rows = table.set_index("run_id").loc[chosen]
        key = "+".join(chosen)
        with st.form(f"notes-{key}"):
            one = len(chosen) == 1
            tags = st.text_input(
                "Tags" if one else "Tags to add", ", ".join(rows["tags"].iloc[0]) if one else "",
                key=f"tags-{key}", placeholder="commas between",
            )  # fmt: skip
            note = None
            if one:
                note = st.text_area(
                    "Note", rows["note"].iloc[0], key=f"note-{key}", max_chars=LONGEST_NOTE, height=80
                )
            archived = st.checkbox("Archived", bool(rows["archived"].all()), key=f"archived-{key}")
            if st.form_submit_button("Save", icon=":material/save:"):
                _save(home, rows, tags, note, archived)


def _save(home: Home, rows: pd.DataFrame, tags: str, note: str | None, archived: bool) -> None:
    store, given = RunStore(home), tags.split(",")
    try:
        for run_id, present in zip(rows.index, rows["tags"], strict=True):
            wanted = given if len(rows) == 1 else [*present, *given]
            store.change_notes(str(run_id), tags=wanted, note=note, archived=archived)
    except SpotlightError as error:
        st.session_state[_REFUSED] = str(error)
    load_table.clear()
    st.rerun()


def _show_runs(home: Home) -> None:
    archived, checks = (bool(st.session_state.get(name)) for name in (_ARCHIVED, _CHECKS))
    table = load_table(home, archived=archived, checks=checks)
    if table.empty:  # a home with only checks, as after `spotlight what-if --record`
        table = load_table(home, archived=archived)
    st.header("Runs", anchor=False)
    show_left_out(home)
    shown, filtered_by = _show_filters(table)
    _show_table(shown)
    _show_notes(home, table)
    show_comparison(home, shown, filtered_by)


show_home_page(_show_runs)
