"""How a run stands: the same word in the Run box, in the header, in the table of runs and in the report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import streamlit as st

from storage.config.run_config import RunConfig
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore
from tests.dashboard_page import opened_page, ran, read_anew, sentences
from tests.sample_run import write_sample_run
from ui.data.run import read_run
from ui.report.report import report_page

pytestmark = pytest.mark.xdist_group("recorded")


def words(store: RunStore, run_id: str) -> list[str]:
    """What the table of runs, the Run box, the header and the report call it."""
    runs = opened_page("runs")
    table = runs.dataframe[0].value.set_index("run")["status"]
    page = opened_page("health", run=run_id)
    box = next(option for option in page.selectbox[0].options if option.startswith(f"{run_id} · "))
    header = page.header[0].value.partition("-badge[")[2].partition("]")[0]
    return [str(table.loc[run_id]), box.split(" · ")[1], header, read_run(store, run_id).status]


def ended_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_run_whose_process_is_gone_is_interrupted_everywhere(store: RunStore):
    write_sample_run(store, "gone", iterations=1, status="running", pid=(pid := ended_process()))
    assert words(store, "gone") == ["interrupted"] * 4
    text = sentences(opened_page("health"))
    assert f"process {pid} is gone" in text and "`spotlight resume gone`" in text
    assert store.run("gone").status == "running", "the dashboard only reads"


def test_a_run_whose_devices_are_loaded_is_starting_everywhere(store: RunStore):
    store.create_run("new", RunConfig(), {}, os.getpid())
    log = RunLog(store.home, "new")
    log.starting()
    assert words(store, "new") == ["starting"] * 4
    log.ready()
    read_anew()
    assert words(store, "new") == ["running"] * 4


def test_a_run_that_is_being_resumed_is_starting_everywhere_until_it_ends(store: RunStore):
    write_sample_run(store, "again", iterations=1)
    store.set_status("again", "cancelled", "it was stopped")
    time.sleep(0.01)
    RunLog(store.home, "again").starting()
    assert words(store, "again") == ["starting"] * 4
    assert "spotlight resume" not in str(opened_page("health").warning)
    time.sleep(0.01)
    store.set_status("again", "failed", "no device started")
    read_anew()
    assert words(store, "again") == ["failed"] * 4


@pytest.mark.parametrize("name", ["runs", "health"])
def test_a_page_looks_for_new_runs_although_none_goes_on(
    store: RunStore, name: str, monkeypatch: pytest.MonkeyPatch
):
    parts: list[str | None] = []

    def fragment(draw: Callable[..., None], run_every: str | None = None) -> Callable[..., None]:
        parts.append(run_every)
        return draw

    monkeypatch.setattr(st, "fragment", fragment)
    write_sample_run(store, "old", iterations=1)
    page = opened_page(name)
    assert parts == [None, "5s"]
    RunLog(store.home, "old").starting()
    store.create_run("new", RunConfig(), {}, os.getpid())
    read_anew()
    parts.clear()
    ran(page)
    assert parts == (["2s", "5s"] if name == "runs" else [None, "5s"])


def test_the_report_says_levels_and_endings_in_words(store: RunStore):
    write_sample_run(store, "r", iterations=1)
    store.set_status("r", "cancelled", "TerminationSignal")
    report = report_page(store, "r")
    assert "it was told to stop, by Cancel in Prefect" in report
    assert "TerminationSignal" not in report
    levels = re.findall(r'<p class="(problem|warning|passed|unknown)"><b>(\w+)', report)
    assert len(levels) > 5
    assert all(word.lower() == level for level, word in levels)
