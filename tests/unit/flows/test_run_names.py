"""How a person names a run, and what `--iterations` and `stop` do with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.command_line import app
from flows.run_identity import check_run_id, find_run
from storage.config.run_config import RunConfig
from storage.environment import SIMULATED
from storage.errors import ConfigurationError, RunNotFoundError
from storage.home import Home
from storage.record.run_store import RunStore
from tests.sample_run import write_sample_run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    return RunStore(Home(tmp_path))


def create(store: RunStore, run_id: str, at: float, pid: int = 0, simulated: str = "") -> None:
    store.create_run(run_id, RunConfig(), {SIMULATED: simulated} if simulated else {}, pid or os.getpid(), at)


def test_a_run_is_named_by_its_beginning_or_as_the_last_one(store: RunStore):
    with pytest.raises(RunNotFoundError, match="there is no run yet"):
        find_run(store.home, "last")
    with pytest.raises(ConfigurationError, match="'last' names the newest run"):
        check_run_id("last")
    create(store, "glyphs-1", at=1.0)
    create(store, "glyphs-10", at=3.0)
    create(store, "shapes-1", at=2.0)
    create(store, "what-if-1", at=4.0, simulated="by what-if")
    assert find_run(store.home, "last") == "glyphs-10", "a simulated run is not meant"
    assert find_run(store.home, "sh") == "shapes-1"
    assert find_run(store.home, "glyphs-1") == "glyphs-1", "a whole identifier counts, longer ones or not"
    assert find_run(store.home, "edits") == "edits", "what needs the run says that there is none"
    with pytest.raises(ConfigurationError, match="2 runs begin with 'gly': glyphs-10, glyphs-1; give more"):
        find_run(store.home, "gly")


def test_commands_take_such_names(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_sample_run(store, "glyphs-1", iterations=2)
    monkeypatch.chdir(tmp_path)
    for command in (["report", "last"], ["report", "gly"]):
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert (done.exit_code, (tmp_path / "glyphs-1.html").exists()) == (0, True)
        (tmp_path / "glyphs-1.html").unlink()


def test_a_finished_run_can_go_on(store: RunStore):
    write_sample_run(store, "r", iterations=2)
    for iterations in (1, 2):
        with pytest.raises(ConfigurationError, match=f"has done 2 iterations; .* {iterations} is not more"):
            store.set_limits("r", RunConfig(iterations=iterations))
    assert store.run("r").status == "finished"
    store.set_limits("r", RunConfig(iterations=5))
    row = store.run("r")
    assert (row.status, row.config.iterations, row.summary) == ("interrupted", 5, {})
    store.resume_run("r", os.getpid())
    with pytest.raises(ConfigurationError, match="is running in process"):
        store.set_limits("r", RunConfig(iterations=6))


def test_a_run_that_ended_before_its_first_iteration_can_get_one(store: RunStore):
    store.create_run("r", RunConfig(iterations=3), {}, 0)
    store.set_status("r", "failed")
    store.set_limits("r", RunConfig(iterations=1))
    assert store.run("r").config.iterations == 1


def test_stop_ends_the_process_of_a_run(store: RunStore):
    script = (
        "import os, signal, sys, time; from storage.home import Home; "
        "from storage.record.run_store import RunStore; from pathlib import Path; "
        "store = RunStore(Home(Path(sys.argv[1])))\n"
        "def end(*_):\n    store.set_status('r', 'cancelled'); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(store.home.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    create(store, "r", at=1.0, pid=process.pid)
    done = CliRunner().invoke(app, ["stop", "r"], catch_exceptions=False)
    assert "run r is cancelled after iteration 0; continue with `spotlight resume r`" in done.stdout
    assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ConfigurationError, match="run 'r' is cancelled: there is nothing to stop"):
        CliRunner().invoke(app, ["stop", "r"], catch_exceptions=False)


@pytest.mark.parametrize("earlier", [False, True])
def test_stop_ends_a_process_that_starts_or_resumes_a_run(store: RunStore, earlier: bool):
    script = (
        "import sys, time; from pathlib import Path; from flows.process.stopping import stops_in_order; "
        "from storage.home import Home; from storage.record.run_status import RunLog\n"
        "with stops_in_order('Stopped.'), RunLog(Home(Path(sys.argv[1])), 'r').of_start():\n"
        "    print('ready', flush=True); time.sleep(60)"
    )
    if earlier:
        create(store, "r", at=1.0)
        store.set_status("r", "failed")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(store.home.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    done = CliRunner().invoke(app, ["stop", "r"], catch_exceptions=False)
    said = "run r is failed after iteration 0; continue with" if earlier else "was stopped before it began"
    assert said in done.stdout
    assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(
        ConfigurationError if earlier else RunNotFoundError, match=r"nothing to stop|no run 'r'"
    ):
        CliRunner().invoke(app, ["stop", "r"], catch_exceptions=False)
