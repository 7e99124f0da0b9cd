"""By how many devices images are shared where measured times choose it: the choice, and the times."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from ui.elements.formatting import markdown_text, percent


def show_degrees(degrees: pd.DataFrame) -> None:
    """The degree that devices worked at longest, and what a denoising step took at each.

    Args:
        degrees: of a run, with at least one row; see storage/database/queries/devices.py for the columns.
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
        "step. A degree that is missing was not worth a trial, or there was no time for one yet."
    )
