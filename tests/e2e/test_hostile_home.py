"""Hostile names, texts and databases: shown as text, and no file outside the home is read."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from streamlit.testing.v1 import AppTest

from storage.config.run_config import RunConfig
from storage.record.records import DeviceEvent
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.dashboard_page import UI, opened_page
from tests.sample_run import evaluation_record, iteration_record
from tests.sample_seeds import explored, mark_as_exploring

PAGES = ("runs", "convergence", "seeds", "spot", "cost", "images", "health")
SECRET = "canary-4f1d"
MARKUP = "<script>alert(1)</script> ![x](http://127.0.0.1/x.png) <img src=x onerror=alert(2)>"
NAMES = ("../../secret.txt", "..", "/etc/passwd", "x' OR 1=1; --", MARKUP, "a\x00b", "runs/link", "link")


def everything_on(page: AppTest) -> str:
    """All that the page sends to the browser, as text."""
    return str(page.main) + "".join(str(element.proto) for element in page.get("html"))


@pytest.fixture
def hostile(store: RunStore) -> RunStore:
    """A run called like a path, with markup in its texts, and links to a secret beside it."""
    home = store.home.path
    (home.parent / "secret.txt").write_text(SECRET)
    run_id = "../../secret.txt"
    (home / "runs").mkdir()
    (home / "runs" / "link").symlink_to(home.parent)
    config = RunConfig().changed(runtime={"reserved_workers": 1, "spot_workers": 1})
    store.create_run(run_id, config, {"commit": MARKUP}, os.getpid())
    mark_as_exploring(store, run_id)
    for iteration in (1, 2):
        record = explored(iteration_record(run_id, iteration, 18.0 * iteration))
        record.device_events.append(DeviceEvent("reserved-0", "reserved", "joined", 18.0))
        record.device_events.append(DeviceEvent("spot-0", "spot", "failed", 18.0, MARKUP))
        samples = [dataclasses.replace(s, prompt=MARKUP, detail=MARKUP) for s in record.samples]
        drafts = [dataclasses.replace(c, prompt=MARKUP) for c in record.candidates]
        store.commit_iteration(dataclasses.replace(record, samples=samples, candidates=drafts))
    for iteration in (0, 2):
        evaluation = evaluation_record(run_id, iteration, 18.0 * (iteration + 1))
        evaluation.images[:] = [
            dataclasses.replace(i, prompt=MARKUP, detail=MARKUP, error=MARKUP) for i in evaluation.images
        ]
        store.commit_evaluation(evaluation)
    store.add_event(run_id, "staleness", MARKUP)
    store.set_status(run_id, "failed", MARKUP)
    store.change_notes(run_id, tags=[MARKUP[:40]], note=MARKUP)
    store.link(run_id, "mlflow", "javascript:alert(3)")
    return store


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_hostile_text_and_read_no_other_file(hostile: RunStore, name: str):
    page = opened_page(name, run="../../secret.txt")
    assert SECRET not in everything_on(page)
    for element in page.get("html"):
        assert "<script" not in element.proto.body
        assert "<img src=x" not in element.proto.body
    for box in [*page.error, *page.warning, *page.info, *page.success, *page.markdown, *page.header]:
        assert "![x](" not in box.value, "a picture from elsewhere would be fetched"
    for chart in page.get("plotly_chart"):
        assert "<script" not in str(chart.proto)


@pytest.mark.parametrize("wanted", NAMES)
def test_an_address_can_name_runs_only(hostile: RunStore, wanted: str):
    hostile.create_run("sound", RunConfig(), {}, os.getpid())
    page = opened_page("convergence", run=wanted)
    assert SECRET not in everything_on(page)
    if wanted == "../../secret.txt":  # what a run of the database is called
        assert page.header[0].value.startswith(wanted)
    else:
        assert [title.value for title in page.title] == ["No such run"]


def test_a_catalogue_made_elsewhere_is_not_read(hostile: RunStore):
    secret = hostile.home.path.parent / "secret.txt"
    with duckdb.connect(str(hostile.home.database)) as file:
        file.execute("DROP VIEW events")
        file.execute(
            f"CREATE VIEW events AS SELECT '../../secret.txt' AS run_id, 1 AS event_id, 0.0 AS happened_at, "
            f"'mlflow' AS kind, content AS message FROM read_text('{secret}')"
        )
    page = opened_page("convergence")
    assert SECRET not in everything_on(page)
    assert not page.error


@pytest.mark.parametrize("name", ["events.jsonl", "notes.json", "run.json", "samples.parquet"])
def test_a_link_in_a_run_s_folder_shows_nothing_of_what_it_leads_to(hostile: RunStore, name: str):
    run = hostile.home.run("../../secret.txt")
    [file, *_] = [*run.glob(name), *run.glob(f"*/{name}")]
    file.unlink()
    file.symlink_to(hostile.home.path.parent / "secret.txt")
    for page in ("convergence", "seeds"):
        assert SECRET not in everything_on(opened_page(page))


def test_a_status_of_a_later_version_is_shown_as_it_is(hostile: RunStore):
    hostile.folder("../../secret.txt").change(RUN_FILE, lambda run: run | {"status": "paused"})
    page = opened_page("convergence", run="../../secret.txt")
    assert ":gray-badge[paused]" in page.header[0].value


def test_a_report_is_one_file_in_which_nothing_runs_or_is_fetched(hostile: RunStore, tmp_path: Path):
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "report.html"
    answer = subprocess.run(
        [sys.executable, "-m", "flows.cli.command_line", "report", "../../secret.txt", "--out", str(out)],
        cwd=UI.parent, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(out)
    page = out.read_text(encoding="utf-8")
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]
    assert "default-src 'none'" in page
    assert SECRET not in page
    assert MARKUP not in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page and "alert(3)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    after = page.split("</head>", 1)[1]  # before it stands plotly.js
    assert page.count("plotly.js v") == 1, "embedded once"
    assert ' src="http' not in after and " href=" not in after
    assert after.count('class="plot"') >= 15
