"""The page Health: rules that name faults, their extent, and the setting that fixes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from storage.ledger.ledger import read_ledger
from ui.data.images import read_quality
from ui.data.run import RunView, load
from ui.elements.formatting import markdown_text
from ui.elements.run_page import show_page
from ui.elements.widgets import offer_downloads
from ui.pages.health.findings import Evidence, Finding, Level, by_level
from ui.pages.health.rules import findings_of

_BOXES: dict[Level, tuple[Callable[..., Any], str]] = {
    "problem": (st.error, ":material/report:"),
    "warning": (st.warning, ":material/visibility:"),
}
_LISTS: dict[Level, tuple[str, str]] = {
    "passed": ("Passed", ":material/check_circle:"),
    "unknown": ("Not measured", ":material/do_not_disturb_on:"),
}


def _show_health(home: Path, view: RunView) -> None:
    if view.metrics.empty and view.scores.empty:
        st.info("The first signs come with the first evaluation or iteration.", icon=":material/hourglass:")
        return
    quality = load(read_quality, home, view, until=view.newest.evaluation_at)
    findings = findings_of(Evidence(view, load(read_ledger, home, view), quality))
    levels = by_level(findings)
    _show_verdict(levels, len(findings))
    for level, (box, icon) in _BOXES.items():
        for finding in levels.get(level, []):
            box(markdown_text(f"**{finding.title}.** {finding.text} {finding.advice}".strip()), icon=icon)
    for level, (heading, icon) in _LISTS.items():
        if level in levels:
            st.subheader(heading)
            lines = [f"{icon} **{finding.title}.** {finding.text}" for finding in levels[level]]
            st.markdown(markdown_text("  \n".join(lines)))  # the icons are bullets enough
    rows = [(found.level, found.title, found.text, found.advice) for found in findings]
    table = pd.DataFrame(rows, columns=["level", "rule", "found", "advice"])
    offer_downloads(view.row.run_id, {"findings": table})


def _show_verdict(levels: dict[Level, list[Finding]], rules: int) -> None:
    counts = {"problem": len(levels.get("problem", [])), "warning": len(levels.get("warning", []))}
    others = rules - sum(counts.values())
    if others == rules:
        st.success(f"**No problems**, by {rules} checks.", icon=":material/check_circle:")
        return
    parts = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    st.markdown(f"**{', '.join(parts)}**, {others} other checks.")


show_page(_show_health)
