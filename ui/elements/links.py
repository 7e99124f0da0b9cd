"""The row of links of a run's page: where it can be looked at elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from ui.data.links import Link


def show_links(links: Sequence[Link]) -> None:
    """Show a button a place: a link where its page answers, else what to do to come there."""
    row = st.container(horizontal=True)
    for link in links:
        if link.address:
            row.link_button(link.name, link.address, icon=":material/open_in_new:", help=link.how or None)
            continue
        with row.popover(link.name, icon=":material/link_off:"):
            st.markdown(link.how)
            if link.command:
                st.code(link.command, language="bash")
