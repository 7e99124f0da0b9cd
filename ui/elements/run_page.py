"""The frame of every page: the choice of a run, its title, its links, its errors, its refresh while live."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

import pandas as pd
import streamlit as st

from storage.errors import ConfigurationError, RunNotFoundError, StorageError
from storage.home import DASHBOARD_URL_VARIABLE, HOME_VARIABLE, Home
from storage.processes import python_command
from storage.record.run_folder import bare_folders
from storage.record.run_status import LIVE
from storage.text import file_stem
from ui.data.links import clone_command, load_links
from ui.data.run import RunView, load_activity, load_overview, load_run
from ui.elements.formatting import (
    MODELLED_BADGE,
    ending_in_words,
    moment,
    plain_markdown,
    short_duration,
    simulated_in_words,
)
from ui.server.login import fragment

_LINES = 30
_RECENT = 10  # iterations that the prediction looks back on
_NAMES = {
    "start": "starting", "rollout": "rolling out", "reward": "scoring", "train": "training",
    "explore": "exploring", "redraft": "drafting again", "evaluate": "evaluating", "commit": "saving",
    "explore_wait": "waiting for exploration",
}  # fmt: skip
_REFRESH = "2s"
_WATCH = "5s"  # for what a page does not redraw by itself: new runs, and the status of runs
_CHOSEN = "chosen_run"  # in the session, as changing pages empties the address
_COLOURS = {
    "starting": "violet", "running": "blue", "finished": "green", "failed": "red", "cancelled": "gray",
    "interrupted": "orange", "simulated": "orange",
}  # fmt: skip

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 120.0  # seconds for the report of a long run on a busy machine


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show why the record cannot be read, in place of the content."""
    try:
        yield
    except (StorageError, RunNotFoundError) as error:
        st.error(plain_markdown(str(error)), icon=":material/database_off:")


def _show_links(view: RunView) -> None:
    row, run_id = st.container(horizontal=True), view.row.run_id
    for link in load_links(view):
        if link.address:
            row.link_button(link.name, link.address, icon=":material/open_in_new:", help=link.how or None)
            continue
        with row.popover(link.name, icon=":material/link_off:"):
            st.markdown(link.how)
            if link.command:
                st.code(link.command, language="bash")
    if view.is_live:
        with row.popover("Stop", icon=":material/stop_circle:"):
            st.markdown(
                f"On {plain_markdown(view.row.host)}; what is committed stays, and it can be resumed:"
            )
            st.code(f"spotlight stop {shlex.quote(run_id)}", language="bash")
    if view.simulated is None:
        with row.popover("Clone with changes", icon=":material/content_copy:"):
            try:
                command = clone_command(view)
                st.markdown("A new run with the settings of this one; add or change settings as you like:")
                st.code(command, language="bash", wrap_lines=True)
            except ConfigurationError as error:
                st.caption(plain_markdown(str(error)))
    dashboard = urljoin(st.context.url or "", "/")
    row.download_button(
        "Report", data=lambda: _report(view.home, run_id, dashboard),
        file_name=f"{file_stem(f'{run_id}-report')}.html", mime="text/html",
        key=f"report-{run_id}", on_click="ignore", icon=":material/download:",
        help="One HTML file with the charts of all pages; `spotlight report` writes it too.",
    )  # fmt: skip


def _report(home: Home, run_id: str, dashboard: str) -> bytes:
    """Return the report as HTML from a separate process: a page does not import the charts of the others."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "report.html"
        subprocess.run(
            python_command("-m", "ui.report", "--out", str(out), "--", run_id), cwd=_ROOT,
            env=os.environ | {HOME_VARIABLE: str(home.path), DASHBOARD_URL_VARIABLE: dashboard},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=True,
        )  # fmt: skip
        return out.read_bytes()


def _show_live(view: RunView) -> None:
    now = time.time()
    done, planned = len(view.metrics), view.planned_iterations
    parts = [f"Iteration {done} of {planned}" if planned else f"Iteration {done}"]
    for name, began_at in view.activity.phases.items():  # empty without a log
        parts.append(f"{_NAMES.get(name, name)} for {short_duration(max(0.0, now - began_at))}")
    left_s = seconds_left(view, now)
    if left_s is not None:
        parts.append(f"about {short_duration(left_s)} left")
    st.progress(min(1.0, done / planned) if planned else 0.0, text=" · ".join(parts))
    messages = view.activity.messages[-_LINES:]
    if messages:
        with st.expander("Log"):
            lines = [f"{time.strftime('%H:%M:%S', time.localtime(m.at))}  {m.text}" for m in messages]
            st.code("\n".join(lines), language=None, height=240)


def seconds_left(view: RunView, now: float) -> float | None:
    """Return the predicted seconds to the end; None before the first iteration, or if the length is unknown.

    The prediction uses recent iterations with their evaluations; breaks of the run do not count.
    """
    planned, done = view.planned_iterations, len(view.metrics)
    if not planned or not done:
        return None
    ended_s = view.metrics["elapsed_s"].to_numpy(dtype=float)[-_RECENT - 1 :]
    lengths = view.metric("iteration_s")[-_RECENT:]
    each_s = (ended_s[-1] - ended_s[0]) / (len(ended_s) - 1) if len(ended_s) > 1 else float(lengths.mean())
    since_s = max(0.0, now - float(view.metrics["ended_at"].iloc[-1]))
    # A late iteration, or a night between a kill and a resume, does not change the time of the others.
    return max(0.0, each_s * (planned - done) - min(since_s, each_s)) if each_s == each_s else None


def show_page(draw: Callable[[RunView], None]) -> None:
    """Choose a run and show it, `draw` below its title; if there is none, say how to start one."""
    home, overview = _opened()
    if overview is None:
        return
    run_id = _choose(overview)
    if run_id is None:
        fragment(_show_unknown, run_every=_REFRESH)(home, st.query_params["run"])
        return
    live = bool(overview.loc[overview["run_id"] == run_id, "status"].isin(LIVE).all())
    fragment(_show_run, run_every=_REFRESH if live else None)(home, run_id, live, draw)
    _watch(home, overview)


def show_home_page(draw: Callable[[Home], None]) -> None:
    """Show a page about all runs of the home; if there is none, say how to start one."""
    home, overview = _opened()
    if overview is not None:
        live = bool(overview["status"].isin(LIVE).any())
        fragment(errors_shown()(draw), run_every=_REFRESH if live else None)(home)
        _watch(home, overview)


def _opened() -> tuple[Home, pd.DataFrame | None]:
    """Return the home and its runs; None for runs once the page has told why it shows none."""
    home = Home.from_environment()
    with errors_shown():
        overview = load_overview(home)
        if not overview.empty:
            return home, overview
        fragment(_show_nothing, run_every=_REFRESH)(home)
    return home, None


def _watch(home: Home, overview: pd.DataFrame) -> None:
    """Redraw the whole page when a run is new or has another status than the page shows."""
    columns = ["run_id", "status"]

    def look() -> None:
        try:
            now = load_overview(home)
        except StorageError:
            return  # if this persists, the page's next reading reports it
        if not now[columns].equals(overview[columns]):
            st.rerun()

    fragment(look, run_every=_WATCH)()


def show_left_out(home: Home) -> None:
    """Name the folders of runs that lists leave out, if there are some."""
    if left_out := bare_folders(home):
        st.warning(plain_markdown(left_out), icon=":material/database_off:")


def _show_nothing(home: Home) -> None:
    try:
        empty = load_overview(home).empty
    except StorageError:
        empty = False  # redraw the whole page, which reports the fault
    if not empty:
        st.rerun()
    st.title("No runs yet")
    show_left_out(home)
    st.markdown("Start one; it appears here within seconds. This one takes minutes, without a GPU:")
    st.code("spotlight train --preset glyphs", language="bash")
    st.caption(
        f"Looking in `{home.path}`. Runs kept elsewhere? Set `SPOTLIGHT_HOME` before starting the dashboard."
    )


def _choose(overview: pd.DataFrame) -> str | None:
    """Return the run to show: the address's `?run=`, the last page's, the newest live one, or the newest.

    A simulated run, or one that is part of a check, such as one under faults, gives way to any other. Unless
    live, it is offered only if it is the one to show, or if there is no other; so is an archived run.

    None if the address names an unknown run: another one would be taken for it.
    """
    rows = overview.to_dict("records")
    named = st.query_params.get("run")
    wanted = st.session_state.get(_CHOSEN) if named is None else named
    listed = [
        row
        for row in rows
        if row["run_id"] == wanted or (not row["archived"] and (row["status"] in LIVE or _is_regular(row)))
    ]
    labels = {row["run_id"]: _label(row) for row in listed or rows}
    gives_way = [(row["status"] not in LIVE, not _is_regular(row)) for row in listed or rows]
    ids = list(labels)
    index = ids.index(wanted) if wanted in ids else None
    if named is None and index is None:
        index = gives_way.index(min(gives_way))
    chosen = st.selectbox(
        "Run", ids, index=index, format_func=labels.__getitem__, placeholder="Choose an existing one"
    )
    if chosen is not None:
        st.query_params["run"] = chosen
        st.session_state[_CHOSEN] = chosen
    return chosen


def _show_unknown(home: Home, run_id: str) -> None:
    """Show an unknown run from the address: it is starting, or does not exist."""
    with errors_shown():
        if run_id in load_overview(home)["run_id"].tolist():
            st.rerun()  # it has its row: redraw the whole page
        activity = load_activity(home, run_id)
        if activity.is_starting and activity.is_alive:
            _show_title(run_id, "starting")
            waiting = "Its first figures appear here once its devices are loaded."
            st.info(waiting, icon=":material/hourglass:")
            return
        try:
            load_run(home, run_id)
        except (StorageError, RunNotFoundError):
            st.title("No such run")
            raise


def _show_title(run_id: str, status: str, purpose: str = "", modelled: bool = False) -> None:
    marked = f" :gray-badge[:material/labs: {plain_markdown(purpose)}]" if purpose else ""
    marked += f" {MODELLED_BADGE}" * modelled
    colour = _COLOURS.get(status, "gray")  # a later version may have others
    badge = f":{colour}-badge[{plain_markdown(status)}]"
    st.header(f"{plain_markdown(run_id)} {badge}{marked}", anchor=False)


def _is_regular(row: dict) -> bool:
    return not row["purpose"] and row["status"] != "simulated"


def _label(row: dict) -> str:
    parts = (row["run_id"], row["purpose"], row["status"], moment(row["created_at"]))
    text = " · ".join(filter(None, parts))
    if row["status"] in LIVE or pd.isna(row["score_before"]):  # the list is older than the page below
        return text
    return f"{text} · score {row['score_before']:.2f} → {row['score_now']:.2f}"


@errors_shown()
def _show_run(home: Home, run_id: str, live: bool, draw: Callable[[RunView], None]) -> None:
    view = load_run(home, run_id)
    if live and not view.is_live:
        st.rerun()  # it has ended: redraw the whole page, without the refreshing
    _show_title(run_id, view.status, view.purpose, view.is_modelled and view.simulated is None)
    badges = [f":gray-badge[{plain_markdown(tag)}]" for tag in view.notes.tags]
    if view.notes.archived:
        badges.insert(0, ":gray-badge[:material/archive: archived]")
    if badges:
        st.markdown(" ".join(badges))
    if view.notes.note:
        st.caption(plain_markdown(view.notes.note))
    _show_links(view)
    _show_trouble(view)
    if view.is_live:
        _show_live(view)
    draw(view)


def _show_trouble(view: RunView) -> None:
    run_id = view.row.run_id.replace("`", "'")  # it is shown in a code span
    if view.damaged:
        st.warning(
            f"Rows are missing here: {len(view.damaged)} files of this run are damaged, the first is "
            f"{plain_markdown(str(view.damaged[0]))}. Copy them again from an intact copy",
            icon=":material/database_off:",
        )
    if view.is_live:
        return
    if view.simulated is not None:
        st.warning(plain_markdown(simulated_in_words(view.simulated)), icon=":material/science:")
    if view.row.status == "running":
        st.warning(
            f"The run's process {view.row.pid} is gone. Resume from its last checkpoint with "
            f"`spotlight resume {run_id}`",
            icon=":material/link_off:",
        )
    elif view.status in ("failed", "interrupted", "cancelled"):
        happened = "failed" if view.status == "failed" else f"was {view.status}"
        given, command = view.row.error or "", f"`spotlight resume {run_id}`"
        error = plain_markdown(ending_in_words(given).rstrip("."))
        helps = not given.startswith("ConfigurationError") and command not in given
        advice = f". Resume with {command}" if helps else ""
        st.warning(f"The run {happened}{error and f': {error}'}{advice}", icon=":material/error:")
    elif view.row.error:
        st.info(f"The run ended early: {plain_markdown(view.row.error)}", icon=":material/payments:")
