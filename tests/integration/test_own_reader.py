"""A reader of a person's own, by `package.module:Name`: what it is told, and that it holds up no run."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import storage.readers.following
from storage.config.run_config import RunConfig
from storage.config.tracking import TrackingConfig
from storage.errors import ConfigurationError
from storage.readers.following import REPORT, position_file, send_evaluation
from storage.readers.protocol import ReadRun
from storage.readers.registry import check_readers
from storage.record.run_store import RunStore
from tests.read_runs import BEGAN_AT, Followed, begin, commit, followed, recorded_points
from tests.running_up import wait_until
from tests.sample_run import evaluation_record

PACKAGE = '''
"""A reader that keeps what it is told, while its server is there."""

import threading
from pathlib import Path

from storage.errors import ConfigurationError
from storage.readers.protocol import Reader, ReaderPlugin

told = []
trouble = {}
goes_on = threading.Event()
goes_on.set()


class Kept(Reader):
    label = "Kept"
    page = "https://kept.example.org/r"

    def _tell(self, *values):
        goes_on.wait(60)
        if values[0] in trouble:
            raise trouble[values[0]]
        told.append(values)

    def open(self, run, last):
        self._tell("open", run.run_id, last)

    def iteration(self, number, figures, at):
        self._tell("iteration", number, figures, at)

    def evaluation(self, number, figures, images, at):
        self._tell("evaluation", number, figures, sorted(images), at)

    def event(self, kind, message, at):
        self._tell("event", kind, message)

    def artifact(self, path):
        self._tell("artifact", path.name)

    def end(self, status, at):
        self._tell("end", status)


def check(tracking):
    if "check" in trouble:
        raise ConfigurationError(trouble["check"])


KEPT = ReaderPlugin(lambda home, tracking: Kept(), check)
'''
NAME = "kept_by_tests.reader:KEPT"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the tiny package."""
    import importlib

    package = tmp_path / "packages" / "kept_by_tests"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "reader.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in ("kept_by_tests", "kept_by_tests.reader"):
        sys.modules.pop(name, None)
    module = importlib.import_module("kept_by_tests.reader")
    yield module
    module.goes_on.set()


def kinds(own: Any) -> list[str]:
    return [f"{values[0]} {values[1]}" for values in own.told]


def test_it_is_told_all_that_is_recorded_in_order(store: RunStore, own: Any):
    config = begin(store, "r", os.getpid(), to=[NAME])
    commit(store, "r", 1)
    store.add_event("r", "worker_lost", "worker spot-0 died")
    store.commit_evaluation(evaluation_record("r", 1, BEGAN_AT + 100, 4, 2))
    (store.home.run("r") / REPORT).write_text("<p>all of it</p>")
    run = Followed(store, "r", config)
    store.set_status("r", "finished")
    run.readers.finish("finished")
    assert run.troubles == []
    assert store.links("r") == {NAME: "https://kept.example.org/r"}
    assert kinds(own) == [
        "open r", "evaluation 0", "iteration 1", "evaluation 1", "event worker_lost", "artifact report.html",
        "end finished",
    ]  # fmt: skip
    figures, at = own.told[2][2:]
    assert at == BEGAN_AT + 36
    recorded = recorded_points(store.home, "r")
    assert all((1, value) in recorded[name] for name, value in figures.items())
    assert len(figures) > 10
    pictures = own.told[3][3]
    assert len(pictures) == 2 and pictures == own.told[1][3], "the same names at every evaluation"
    assert all(name.startswith("held-out/00") for name in pictures)
    assert followed(store, "later", begin(store, "later", os.getpid(), to=[NAME])) == []
    assert [kind for kind in kinds(own)[7:] if kind.startswith("open")] == ["open later"]
    assert not (store.home.path / "mlflow.db").exists()


def test_the_example_logs_a_run_s_figures_by_iteration(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    opened: list[dict[str, Any]] = []
    logged: list[tuple[int, dict[str, float]]] = []
    ended: list[str] = []
    there = SimpleNamespace(
        log=lambda figures, step: logged.append((step, figures)), finish=lambda: ended.append("r")
    )
    swanlab = SimpleNamespace(init=lambda **given: opened.append(given) or there)
    monkeypatch.setitem(sys.modules, "swanlab", swanlab)
    config = begin(store, "r", os.getpid(), to=["examples.own_reader:SWANLAB"])
    commit(store, "r", 1, 2)
    assert followed(store, "r", config) == []
    assert [(one["id"], one["resume"]) for one in opened] == [("r", "allow")]
    assert opened[0]["config"]["name"] == "of-a-name"
    assert [step for step, _ in logged] == [0, 1, 2] and ended == ["r"]
    recorded = recorded_points(store.home, "r")
    assert all((step, value) in recorded[name] for step, figures in logged for name, value in figures.items())


def test_it_goes_on_where_it_stopped_and_back_where_the_run_went_back(store: RunStore, own: Any):
    config = begin(store, "r", os.getpid(), to=[NAME])
    commit(store, "r", 1, 2, 3)
    assert followed(store, "r", config, "interrupted") == []
    own.told.clear()
    store.resume_run("r", os.getpid())
    store.discard_after("r", 1)
    commit(store, "r", 2, life=1)
    assert followed(store, "r", config) == []
    assert kinds(own)[:2] == ["open r", "iteration 2"]
    assert own.told[0] == ("open", "r", 1)
    assert kinds(own)[-1] == "end finished"


def test_what_another_process_has_sent_meanwhile_is_not_sent_again(store: RunStore, own: Any):
    config = begin(store, "r", os.getpid(), to=[NAME])
    commit(store, "r", 1)
    waiting = Followed(store, "r", config)
    assert followed(store, "r", config, "interrupted") == []
    own.told.clear()
    commit(store, "r", 2)
    waiting.readers.finish("finished")
    assert kinds(own) == ["open r", "iteration 2", "end finished"]


def test_a_copy_that_was_made_anew_is_filled_from_the_start_also_after_a_failure(
    store: RunStore, own: Any, monkeypatch: pytest.MonkeyPatch
):
    config = begin(store, "r", os.getpid(), to=[NAME])
    commit(store, "r", 1)
    assert followed(store, "r", config, "interrupted") == []
    monkeypatch.setattr(own.Kept, "open", lambda self, run, last: 0)
    own.trouble["evaluation"] = OSError("away")
    assert len(followed(store, "r", config, "interrupted")) == 2
    own.told.clear()
    own.trouble.clear()
    monkeypatch.setattr(own.Kept, "open", lambda self, run, last: None)
    assert followed(store, "r", config) == []
    assert kinds(own) == ["evaluation 0", "iteration 1", "end finished"]


def test_an_outage_is_told_once_and_ends_with_what_it_lacked(
    store: RunStore, own: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage.readers.following, "RETRY_S", 0.05)
    config = begin(store, "r", os.getpid(), to=[NAME])
    run = Followed(store, "r", config)
    own.trouble["iteration"] = ConnectionError("no route\nto it")
    for iteration in (1, 2, 3):
        commit(store, "r", iteration)
        run.readers.wake()
    wait_until("the outage is told", lambda: bool(run.troubles))
    assert run.troubles == [
        "Kept failed (ConnectionError: no route); the run continues, and missing data is sent later"
    ]
    own.trouble.clear()
    wait_until("it answers again", lambda: len(run.troubles) == 2)
    commit(store, "r", 4)
    run.readers.finish("finished")
    assert run.troubles[1:] == ["Kept answers again; the missing data was sent"]
    assert [kind for kind in kinds(own) if not kind.startswith("open")] == [
        "evaluation 0", "iteration 1", "iteration 2", "iteration 3", "iteration 4", "end finished",
    ]  # fmt: skip


def test_many_refusals_are_two_messages(store: RunStore, own: Any):
    config = begin(store, "r", os.getpid(), to=[NAME])
    own.trouble["iteration"] = ValueError("no such figure")
    commit(store, "r", 1, 2, 3)
    assert followed(store, "r", config) == [
        "Kept refused iteration 1 (ValueError: no such figure); the run continues without it",
        "Kept refused 3 things, the last was iteration 3; all figures are in the run's record",
    ]
    assert kinds(own)[-1] == "end finished"


def test_neither_commits_nor_the_end_wait_for_one_that_hangs(store: RunStore, own: Any):
    config = begin(store, "r", os.getpid(), to=[NAME])
    own.goes_on.clear()
    run = Followed(store, "r", config)
    for iteration in (1, 2):
        commit(store, "r", iteration)
        run.readers.wake()
    assert own.told == [], "it hangs, and the run came here all the same"
    run.readers.finish("finished", wait_s=0.05)
    assert run.troubles == [
        "Kept did not take everything within 0.05 s and lacks the figures of iterations 1 to 2, the run's "
        "end; all figures are in the run's record, and the next run of the home sends them"
    ]
    own.goes_on.set()


def test_a_run_that_is_cancelled_before_its_first_iteration_asks_no_reader_nor_does_one_without(
    store: RunStore, own: Any
):
    run = Followed(store, "r", begin(store, "r", os.getpid(), to=[NAME]))
    run.readers.finish("cancelled")
    assert own.told == []
    assert not position_file(store.home.run("r"), NAME).exists()
    config = begin(store, "none", os.getpid(), to=[])
    before = threading.active_count()
    assert followed(store, "none", config) == [] and threading.active_count() == before
    assert not (store.home.run("none") / "readers").exists()


def test_it_takes_an_evaluation_as_a_run_of_its_own(
    store: RunStore, own: Any, caplog: pytest.LogCaptureFixture
):
    config = RunConfig.model_validate({"tracking": {"to": [NAME]}})
    run = ReadRun("e-1", {}, {}, 1.0, evaluates="r")
    send_evaluation(store.home, config.tracking, run, 5, {"evaluation_score.颜色": 0.5}, 2.0)
    assert own.told == [
        ("open", "e-1", -1),
        ("evaluation", 5, {"score/evaluation_score.颜色": 0.5}, [], 2.0),
        ("end", "finished"),
    ]  # fmt: skip
    own.trouble["open"] = OSError("away")
    send_evaluation(store.home, config.tracking, run, 5, {}, 2.0)
    assert "Kept lacks evaluation e-1 (OSError: away)" in caplog.text


def test_what_cannot_work_is_refused_before_a_run(own: Any):
    check_readers(TrackingConfig(to=(NAME,)))
    own.trouble["check"] = "set KEPT_KEY"
    for to, said in (
        ((NAME,), "set KEPT_KEY"),
        (("mlfow",), "did you mean mlflow"),
        (("kept_by_tests.reader:Kept",), "is a ABCMeta, not a ReaderPlugin"),
        (("kept_by_tests.nothing:X",), "cannot be imported"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            check_readers(TrackingConfig(to=to))


def test_a_position_is_one_of_a_place(store: RunStore, own: Any, monkeypatch: pytest.MonkeyPatch):
    config = begin(store, "r", os.getpid(), to=[NAME])
    assert followed(store, "r", config, "interrupted") == []
    file = position_file(store.home.run("r"), NAME)
    assert json.loads(file.read_text()) | {"at": 0} == {
        "to": "Kept", "moment": 1, "at": 0, "events": 0, "ended": "interrupted",
    }  # fmt: skip
    monkeypatch.setattr(own.Kept, "label", "Kept elsewhere")
    own.told.clear()
    assert followed(store, "r", config) == []
    assert kinds(own)[:2] == ["open r", "evaluation 0"]
    file.write_text("{torn")
    own.told.clear()
    assert followed(store, "r", config) == []
    assert kinds(own)[:2] == ["open r", "evaluation 0"]
