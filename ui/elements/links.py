"""The row of links on a run's page: other views of the run, commands for it, and its report."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from storage.errors import ConfigurationError
from storage.home import DASHBOARD_URL_VARIABLE, HOME_VARIABLE
from storage.processes import python_command
from ui.data.commands import clone_command, stop_command
from ui.data.links import Link
from ui.data.run import RunView
from ui.elements.downloads import file_stem
from ui.elements.formatting import plain_markdown

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 120.0
"""Seconds for the report of a long run on a busy machine."""


def show_links(home: Path, view: RunView, links: Sequence[Link]) -> None:
    """Show one button per place (a link if its page answers, else how to get there), commands, the report.

    Args:
        home: home that holds the run.
        view: the run.
        links: places of the run.
    """
    row, run_id = st.container(horizontal=True), view.row.run_id
    for link in links:
        if link.address:
            row.link_button(link.name, link.address, icon=":material/open_in_new:", help=link.how or None)
            continue
        with row.popover(link.name, icon=":material/link_off:"):
            st.markdown(link.how)
            if link.command:
                st.code(link.command, language="bash")
    _show_commands(row, view)
    dashboard = urljoin(st.context.url or "", "/")
    row.download_button(
        "Report", data=lambda: _report(home, run_id, dashboard),
        file_name=f"{file_stem(run_id, 'report')}.html", mime="text/html",
        key=f"report-{run_id}", on_click="ignore", icon=":material/download:",
        help="One HTML file with the charts of all pages; `spotlight report` writes it too.",
    )  # fmt: skip


def _show_commands(row: DeltaGenerator, view: RunView) -> None:
    """Show how to stop a run at work, and how to start another one like it."""
    if command := stop_command(view):
        with row.popover("Stop", icon=":material/stop_circle:"):
            st.markdown(
                f"On {plain_markdown(view.row.host)}; what is committed stays, and it can be resumed:"
            )
            st.code(command, language="bash")
    if view.simulated is not None:
        return
    with row.popover("Clone with changes", icon=":material/content_copy:"):
        try:
            command = clone_command(view)
        except ConfigurationError as error:
            st.caption(plain_markdown(str(error)))
            return
        st.markdown("A new run with the settings of this one; add or change what you like:")
        st.code(command, language="bash", wrap_lines=True)


def _report(home: Path, run_id: str, dashboard: str) -> bytes:
    """Return the report as HTML from a separate process: a page does not import the charts of the others."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "report.html"
        subprocess.run(
            python_command("-m", "ui.report", "--out", str(out), "--", run_id), cwd=_ROOT,
            env=os.environ | {HOME_VARIABLE: str(home), DASHBOARD_URL_VARIABLE: dashboard},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=True,
        )  # fmt: skip
        return out.read_bytes()
