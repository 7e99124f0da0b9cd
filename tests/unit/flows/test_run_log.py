"""A run's log: what goes on, read while it is written."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from typer.testing import CliRunner

from flows import post_train, reproduce
from flows.cli import operating
from flows.cli.command_line import app
from flows.deployed.forms import ReproductionForm
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RunNotFoundError
from storage.home import Home
from storage.record.run_folder import EVENTS_FILE, bare_folders
from storage.record.run_status import RunLog, read_activity, this_process
from storage.record.run_store import RunStore


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def begin_in_another_process(home: Home) -> None:
    """Let a process begin to start the run `r`, and end without a word."""
    code = (
        "from pathlib import Path; from storage.home import Home; "
        "from storage.record.run_status import RunLog; "
        f"RunLog(Home(Path({str(home.path)!r})), 'r').starting()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_phases_that_overlap_are_both_shown(home: Home):
    log = RunLog(home, "r")
    log.starting()
    assert read_activity(home, "r").is_starting
    log.ready()
    with log.phase("train"), log.phase("explore"):
        assert list(read_activity(home, "r").phases) == ["train", "explore"]
    found = read_activity(home, "r")
    assert found.phases == {}
    assert found.is_alive
    assert found.process == this_process()
    assert [m.text for m in found.messages[2:4]] == ["train begins", "explore begins"]
    assert found.messages[-1].text.startswith("train ends after 0.")
    with pytest.raises(ValueError, match="no"), log.phase("rollout"):
        raise ValueError("no")
    assert read_activity(home, "r").phases == {}


def test_a_resumed_run_forgets_the_phases_of_its_last_life(home: Home):
    begin_in_another_process(home)
    left = read_activity(home, "r")
    assert left.is_starting
    assert not left.is_alive
    RunLog(home, "r").starting()
    RunLog(home, "r").ready()
    assert read_activity(home, "r").phases == {}


def test_only_a_process_that_was_killed_leaves_its_start_open(home: Home):
    RunStore(home).create_run("r", RunConfig(), {}, os.getpid())
    with pytest.raises(ConfigurationError), RunLog(home, "r").of_start():
        assert read_activity(home, "r").is_starting
        raise ConfigurationError("refused")
    assert not read_activity(home, "r").is_starting


def test_refused_start_does_not_end_that_of_a_later_process(home: Home):
    RunStore(home).create_run("r", RunConfig(), {}, os.getpid())
    with pytest.raises(ConfigurationError), RunLog(home, "r").of_start():
        begin_in_another_process(home)
        raise ConfigurationError("refused")
    assert read_activity(home, "r").is_starting


def test_run_is_starting_before_it_is_recorded(home: Home, monkeypatch: pytest.MonkeyPatch):
    def enter(store: RunStore, run_id: str, *_: object) -> None:
        assert read_activity(store.home, run_id).is_starting
        raise ConfigurationError("refused")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    monkeypatch.setattr(post_train, "enter_run", enter)
    with pytest.raises(ConfigurationError, match="refused"):
        post_train.train_run(RunConfig(), "r")


def test_refused_reproduction_leaves_no_folder(home: Home, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise ConfigurationError("refused")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    monkeypatch.setattr(reproduce, "find_reference", lambda store, form: ("smoke", None))
    monkeypatch.setattr(reproduce, "judges_beside", lambda config: nullcontext())
    monkeypatch.setattr(reproduce, "run_preflight", lambda config: None)
    monkeypatch.setattr(post_train, "enter_run", refuse)
    with pytest.raises(ConfigurationError, match="refused"):
        reproduce.do_again(ReproductionForm(preset="smoke"), "r")
    assert home.run_ids() == []


@pytest.mark.parametrize("evaluate", [False, True])
def test_reproduction_by_command_is_starting_before_it_has_a_flow_run(
    home: Home, monkeypatch: pytest.MonkeyPatch, evaluate: bool
):
    def made(form: ReproductionForm, again: str) -> None:
        assert read_activity(home, again).is_starting is not evaluate
        raise ConfigurationError("refused")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    monkeypatch.setattr(operating, "_check_reference", lambda *_: None)
    monkeypatch.setattr("flows.server.prefect_server.prefect_server", lambda home, check: nullcontext())
    monkeypatch.setattr("flows.process.cancellation.cancellable", lambda *_: nullcontext())
    monkeypatch.setattr(reproduce, "reproduce", SimpleNamespace(with_options=lambda flow_run_name: made))
    with pytest.raises(ConfigurationError, match="refused"):
        operating.reproduce(preset="smoke", evaluate=evaluate, run_id="r")
    assert home.run_ids() == []


class Unprintable:
    """An argument of a message, without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_warnings_of_libraries_are_noted_on_one_line(home: Home):
    with RunLog(home, "r").with_warnings():
        logging.getLogger("some.library").warning("two\nlines of %s", "it")
        logging.getLogger("some.library").info("not this")
        logging.getLogger("storage.readers.following").warning("nor this: it is an event")
        for text, argument in (("deprecated", FutureWarning), ("odd %s", Unprintable())):
            told = logging.LogRecord("some.library", logging.WARNING, "", 0, text, (argument,), None)
            logging.getLogger().handlers[-1].emit(told)  # ends no run
    logging.getLogger("some.library").warning("nor this")
    assert [m.text for m in read_activity(home, "r").messages] == [
        "warning of some.library: two lines of it", "warning of some.library: deprecated",
        "warning of some.library: odd %s",
    ]  # fmt: skip


def test_only_the_end_of_a_long_log_is_read(home: Home):
    log = RunLog(home, "r")
    for number in range(3000):
        log.note(f"message {number}")
    found = read_activity(home, "r", messages=5)
    assert [m.text for m in found.messages] == [f"message {number}" for number in range(2995, 3000)]
    assert read_activity(home, "r", messages=0).messages == ()


def test_lines_of_the_log_are_no_events_and_events_are_lines_of_the_log(home: Home):
    store, log = RunStore(home), RunLog(home, "r")
    log.starting()
    assert store.runs() == [] and bare_folders(home) == "", "a run that starts is no damaged one"
    store.create_run("r", RunConfig(), {}, os.getpid())
    with log.phase("rollout"), (store.folder("r").path / EVENTS_FILE).open("a") as file:
        file.write('{"happened_at": 1.0, "ki')  # a full disk
    store.add_event("r", "mirror", "no answer")
    log.note("done")
    with store.reading("r") as connection:
        assert connection.execute("SELECT event_id, message FROM events").fetchall() == [(1, "no answer")]
    with duckdb.connect(str(home.database), read_only=True) as catalogue:
        assert catalogue.sql("SELECT event_id, message FROM events").fetchall() == [(1, "no answer")]
    assert [m.text for m in read_activity(home, "r").messages][-2:] == ["no answer", "done"]


def test_a_log_stays_in_its_folder_and_ends_no_run_where_it_cannot_be_written(home: Home):
    RunLog(home, "../../outside").note("here")
    assert [path.parent for path in home.runs.iterdir()] == [home.runs]
    assert read_activity(home, "../../outside").messages[0].text == "here"
    shutil.rmtree(home.runs)
    home.runs.write_text("a file where the folder should be")
    RunLog(home, "r").note("lost")
    assert read_activity(home, "r").messages == ()


@pytest.fixture
def logged(home: Home, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """A run of this process with a phase, a message, an event and a torn line at its end."""
    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    store, log = RunStore(home), RunLog(home, "r-1")
    store.create_run("r-1", RunConfig(), {}, os.getpid())
    log.starting()
    log.ready()
    log.note("12 held-out prompts")
    store.add_event("r-1", "worker_lost", "worker spot-0 died")
    with (store.folder("r-1").path / EVENTS_FILE).open("a") as file:
        file.write('{"happened_at": 1.0, "ki')
    return store


def printed(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["logs", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()


def test_logs_prints_a_line_for_each_message_with_its_time(logged: RunStore):
    lines = printed("last")
    assert [line[21:] for line in lines[:1] + lines[2:]] == [
        "start begins", "12 held-out prompts", "worker_lost: worker spot-0 died",
    ]  # fmt: skip
    assert lines[1][21:].startswith("start ends after 0.")
    assert all(line[4] == line[7] == "-" and line[13] == line[16] == ":" for line in lines)
    assert [json.loads(line).get("kind") for line in printed("r", "--json")][-1] == "worker_lost"
    with pytest.raises(RunNotFoundError, match="no run 'other'"):
        printed("other")


def test_logs_follows_a_run_to_its_end(logged: RunStore):
    def go_on() -> None:
        logged.add_event("r-1", "hacking", "the score rises\x1b[31m")
        logged.set_status("r-1", "finished")

    later = threading.Timer(1.0, go_on)
    later.start()
    lines = printed("r-1", "--follow")
    later.join()
    assert lines[4][21:] == "hacking: the score rises\\x1b[31m", "after the torn line"
    assert lines[-1] == "run r-1 is finished"


def test_logs_stops_following_once_nobody_reads_it(logged: RunStore):
    command = [sys.executable, "-m", "flows.cli.command_line", "logs", "r-1", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as child:
        assert child.stdout is not None and child.stdout.readline()
        child.stdout.close()  # as `head -1` does
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            logged.add_event("r-1", "hacking", "the run goes on")
            time.sleep(0.2)
        code = child.poll()
        child.kill()
    assert code == 0


def test_logs_shows_a_run_that_has_no_row_yet(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    RunLog(home, "r").starting()
    assert [line[21:] for line in printed("r")] == ["start begins"]
