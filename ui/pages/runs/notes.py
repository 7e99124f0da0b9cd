"""Tags, note and archive of runs, changed on the page Runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from storage.errors import SpotlightError
from storage.home import Home
from storage.record.run_notes import LONGEST_NOTE, NoteStore
from ui.elements.formatting import plain_markdown
from ui.pages.runs.data import load_table

_REFUSED = "run_notes_refused"  # in the session: the refusal of the last change


def show_notes(home: Path, table: pd.DataFrame) -> None:
    """Let a person tag, note and archive runs.

    Args:
        home: home that holds the runs.
        table: frame from `load_table`, whose rows can be chosen.
    """
    with st.expander("Tag, note or archive", icon=":material/sell:"):
        chosen = st.multiselect("Runs", table["run_id"].tolist(), key="noted", placeholder="Choose runs")
        if refused := st.session_state.pop(_REFUSED, None):
            st.error(plain_markdown(refused), icon=":material/block:")
        if not chosen:
            st.caption("An archived run stays as it is; lists leave it out. *Archived* above shows it again.")
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


def _save(home: Path, rows: pd.DataFrame, tags: str, note: str | None, archived: bool) -> None:
    store, given = NoteStore(Home(home)), tags.split(",")
    try:
        for run_id, present in zip(rows.index, rows["tags"], strict=True):
            wanted = given if len(rows) == 1 else [*present, *given]
            store.change(str(run_id), tags=wanted, note=note, archived=archived)
    except SpotlightError as error:
        st.session_state[_REFUSED] = str(error)
    load_table.clear()
    st.rerun()
