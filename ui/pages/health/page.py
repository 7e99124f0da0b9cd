"""The page Health: rules that find problems, their extent, and the setting that fixes them."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from storage.record.ledger import read_ledger
from ui.data.run import RunView, load, read_quality
from ui.elements.formatting import plain_markdown
from ui.elements.run_page import show_page
from ui.elements.widgets import offer_downloads
from ui.pages.health.findings import Evidence, by_level
from ui.pages.health.rules import findings_of


def _show_health(view: RunView) -> None:
    if view.metrics.empty and view.scores.empty:
        st.info(
            "The first findings appear with the first evaluation or iteration.", icon=":material/hourglass:"
        )
        return
    quality = load(read_quality, view, until=view.newest.evaluation_at)
    findings = findings_of(Evidence(view, load(read_ledger, view), quality))
    levels = by_level(findings)
    serious = {level: levels.get(level, []) for level in ("problem", "warning")}
    counts = [f"{len(of)} {level}{'s' * (len(of) > 1)}" for level, of in serious.items() if of]
    if counts:
        others = len(findings) - sum(map(len, serious.values()))
        st.markdown(f"**{', '.join(counts)}**, {others} other checks.")
    else:
        st.success(f"**No problems**, by {len(findings)} checks.", icon=":material/check_circle:")
    for level, box, icon in (("problem", st.error, "report"), ("warning", st.warning, "visibility")):
        for finding in serious[level]:
            text = plain_markdown(f"{finding.text} {finding.advice}".strip())  # it may quote an error
            box(f"**{finding.title}.** {text}", icon=f":material/{icon}:")
    lists = (("passed", "Passed", "check_circle"), ("unknown", "Not measured", "do_not_disturb_on"))
    for level, heading, icon in lists:
        if level in levels:
            st.subheader(heading)
            lines = [
                f":material/{icon}: **{found.title}.** {plain_markdown(found.text)}"
                for found in levels[level]
            ]
            st.markdown("  \n".join(lines))  # the icons serve as bullets
    rows = [(found.level, found.title, found.text, found.advice) for found in findings]
    table = pd.DataFrame(rows, columns=["level", "rule", "found", "advice"])
    offer_downloads(view.row.run_id, {"findings": table})


show_page(_show_health)
