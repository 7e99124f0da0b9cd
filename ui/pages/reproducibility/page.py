"""The page Reproducibility: whether reproductions of recorded runs gave the same result."""

from __future__ import annotations

import json

import pandas as pd
import streamlit as st

from storage.evaluations.reproductions import reproductions
from storage.home import Home
from storage.record.run_store import RunStore
from ui.data.run import CACHE_S
from ui.elements.formatting import duration, moment, plain_markdown
from ui.elements.run_page import errors_shown
from ui.elements.widgets import show_frame

_WORDS = {
    "recorded": "reference recorded", "identical": "bit-identical", "within": "within the interval",
    "drifted": "drifted", "failed": "failed",
}  # fmt: skip
_SIGNS = {"recorded": "○", "identical": "✓", "within": "✓", "drifted": "✗", "failed": "✗"}
_BAD = ("drifted", "failed")


@st.cache_data(ttl=CACHE_S, max_entries=4, show_spinner=False)
def _load(home: Home) -> pd.DataFrame:
    with RunStore(home).reading() as connection:
        return reproductions(connection)


@errors_shown()
def _show() -> None:
    st.header("Reproducibility", anchor=False)
    rows = _load(Home.from_environment())
    if rows.empty:
        st.info("No reproductions yet.", icon=":material/replay:")
        st.markdown("Reproduce a finished run, or schedule it every night:")
        st.code("spotlight reproduce RUN\nspotlight up --schedule", language="bash")
        return
    for row in rows.drop_duplicates("series").to_dict("records"):  # the newest of each series
        box = st.error if row["verdict"] in _BAD else st.info if row["verdict"] == "recorded" else st.success
        box(
            f"**{plain_markdown(row['series'])}**, {moment(row['started_at'])}: {_WORDS[row['verdict']]}. "
            f"{plain_markdown(row['message'])}"
        )
    st.subheader("All reproductions, newest first", anchor=False)
    shown = pd.DataFrame(
        {
            "": rows["verdict"].map(_SIGNS.__getitem__),
            "when": rows["started_at"].map(moment),
            "series": rows["series"],
            "how": rows["how"],
            "verdict": rows["verdict"].map(_WORDS.__getitem__),
            "score was": rows["score_was"],
            "score is": rows["score_is"],
            "difference": rows["difference"],
            "low (95 %)": rows["low"],
            "high (95 %)": rows["high"],
            "took": (rows["ended_at"] - rows["started_at"]).map(duration),
            "reference": rows["reference"],
            "run": rows["run_id"],
        }
    )
    show_frame(shown, "%.4f")
    differing = rows[rows["differences"] != "[]"]
    if differing.empty:
        return
    st.subheader("What differs", anchor=False)
    columns = ("reproduction_id", "started_at", "series", "verdict")
    labels = {
        str(reproduction): f"{moment(at)} · {series} · {_WORDS[verdict]}"
        for reproduction, at, series, verdict in zip(*(differing[name] for name in columns), strict=True)
    }
    chosen = st.selectbox("Reproduction", list(labels), format_func=labels.__getitem__)
    found = differing.loc[differing["reproduction_id"] == chosen, "differences"].iloc[0]
    show_frame(pd.DataFrame(json.loads(found), columns=["kind", "what", "was", "is"]))


_show()
