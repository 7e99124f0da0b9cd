"""The page Runs: all runs in a table, and some of them side by side. Live while one of them is."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from ui.elements.run_page import show_home_page
from ui.pages.runs.comparison import show_comparison
from ui.pages.runs.data import load_table
from ui.pages.runs.notes import show_notes
from ui.pages.runs.table import show_filters, show_table, shows_archived, shows_checks


def _show_runs(home: Path) -> None:
    table = load_table(home, archived=shows_archived(), checks=shows_checks())
    if table.empty:  # a home of checks alone, as after `spotlight what-if --record`
        table = load_table(home, archived=shows_archived())
    st.header("Runs", anchor=False)
    shown, filtered_by = show_filters(table)
    show_table(shown)
    show_notes(home, table)
    show_comparison(home, shown, filtered_by)


show_home_page(_show_runs)
