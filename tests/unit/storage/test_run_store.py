"""Runs of a home: recorded, found, reconciled, resumed; tags, notes, archive and links of them."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, StorageError
from storage.record.files import read_json
from storage.record.records import IterationRecord
from storage.record.results import results_so_far, run_result
from storage.record.run_folder import RUN_FILE, bare_folders
from storage.record.run_store import RunNotes, RunStore
from tests.sample_run import iteration_record, write_sample_run
from tests.sample_seeds import explored

TABLES = (
    "runs", "iterations", "iteration_metrics", "prompts", "samples", "evaluations", "evaluation_images",
    "worker_states", "costs", "events", "candidates", "sample_images",
)  # fmt: skip


def contents(store: RunStore) -> dict[str, list[tuple]]:
    """Every row of every table."""
    with store.reading() as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall() for table in TABLES
        }


def test_runs_are_listed_where_the_disk_takes_no_mark(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    store.create_run("gone", RunConfig(), {}, child.pid)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("storage.record.run_folder.write_json", full)
    assert store.reconcile() == []
    monkeypatch.undo()
    assert store.reconcile() == ["gone"]


def test_an_empty_home_has_no_runs_and_reading_makes_no_file(store: RunStore):
    assert store.runs() == []
    assert store.reconcile() == []
    with pytest.raises(RunNotFoundError, match="spotlight train"):
        store.run("glyphs-1")
    assert not store.home.database.exists()


def test_a_run_comes_back_as_it_went_in(store: RunStore):
    config = RunConfig.model_validate({"name": "mine", "sampling": {"noise_level": 0.5}})
    store.create_run("mine-1", config, {"torch": "2.13.0"}, os.getpid())
    store.set_summary("mine-1", {"score": 0.5, "nested": {"a": [1]}})
    row = store.run("mine-1")
    assert row.config == config
    assert (row.name, row.status, row.environment) == ("mine", "running", {"torch": "2.13.0"})
    assert row.summary == {"score": 0.5, "nested": {"a": [1]}}
    assert (row.last_iteration, row.error, row.ended_at) == (None, None, None)
    store.set_status("mine-1", "failed", "no memory")
    row = store.run("mine-1")
    assert (row.status, row.error) == ("failed", "no memory")
    assert row.ended_at is not None
    store.resume_run("mine-1", os.getpid())
    row = store.run("mine-1")
    assert (row.status, row.error, row.ended_at) == ("running", None, None)


def test_runs_are_read_once_and_again_when_they_have_changed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    opened: list[str] = []

    def read(path: Path) -> dict[str, Any]:
        opened.append(path.parent.name)
        return read_json(path)

    monkeypatch.setattr("storage.record.reading.read_json", read)

    def statuses() -> list[tuple[str, str]]:
        with store.reading() as connection:
            return connection.execute("SELECT run_id, status FROM runs ORDER BY run_id").fetchall()

    for run_id in ("r-1", "r-2"):
        store.create_run(run_id, RunConfig(), {}, os.getpid())
    assert statuses() == statuses() == [("r-1", "running"), ("r-2", "running")]
    store.set_status("r-2", "finished")
    assert statuses() == [("r-1", "running"), ("r-2", "finished")]
    assert opened == ["r-1", "r-2", "r-2"]
    (store.home.run("r-1") / RUN_FILE).write_text("torn")
    with pytest.raises(StorageError, match="is damaged"):
        statuses()


def test_identifiers(store: RunStore):
    for run_id in ("glyphs-1", "shapes-1"):
        store.create_run(run_id, RunConfig(), {}, os.getpid())
    with pytest.raises(StorageError, match="exists already"):
        store.create_run("glyphs-1", RunConfig(), {}, os.getpid())
    with pytest.raises(RunNotFoundError, match="did you mean glyphs-1"):
        store.run("glyph-1")
    with pytest.raises(RunNotFoundError, match="the latest are shapes-1, glyphs-1"):
        store.commit_iteration(iteration_record("xyz", 1, 0.0))
    with pytest.raises(StorageError, match="is none of"):
        store.set_status("glyphs-1", "done")  # type: ignore[arg-type]
    assert [row.run_id for row in store.runs()] == ["shapes-1", "glyphs-1"]


def test_a_configuration_of_another_version_does_not_hide_the_run(store: RunStore):
    store.create_run("old", RunConfig(), {}, os.getpid())
    store.folder("old").change(RUN_FILE, lambda run: run | {"config": {"gone": 1}})
    [row] = store.runs()
    with pytest.raises(ConfigurationError, match="gone"):
        _ = row.config


def test_a_shorter_record_leaves_nothing_of_a_longer_one(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.commit_iteration(explored(iteration_record("r", 1, 0.0)))
    assert all(contents(store)[table] for table in ("samples", "candidates", "sample_images"))
    store.commit_iteration(IterationRecord("r", 1, 1, 0.0, 1.0, {"only": 1.0}))
    rows = contents(store)
    assert {table: len(found) for table, found in rows.items() if found} == {
        "runs": 1, "iterations": 1, "iteration_metrics": 1,
    }  # fmt: skip


def test_a_failing_record_leaves_no_part_of_itself(store: RunStore):
    write_sample_run(store, iterations=1)
    before = contents(store)
    record = iteration_record("glyphs-sample", 2, 0.0)
    twice = [*record.samples, record.samples[0]]
    with pytest.raises(StorageError, match="samples have the same prompt_id, seed_index"):
        store.commit_iteration(dataclasses.replace(record, samples=twice))
    assert contents(store) == before


class TestReconcile:
    """A run whose process is gone is interrupted; nothing else is."""

    def test_a_dead_process(self, store: RunStore):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        store.create_run("dead", RunConfig(), {}, child.pid)
        store.create_run("mine", RunConfig(), {}, os.getpid())
        assert store.reconcile() == []
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert store.reconcile() == ["dead"]  # not reaped yet: a zombie is as dead
        child.communicate()
        assert store.reconcile() == []
        row = store.run("dead")
        assert row.status == "interrupted"
        assert row.ended_at is not None
        assert store.run("mine").status == "running"

    def test_a_pid_that_was_given_to_another_process(self, store: RunStore):
        store.create_run("old", RunConfig(), {}, os.getpid())
        store.folder("old").change(
            RUN_FILE, lambda run: run | {"process_started_at": run["process_started_at"] - 100}
        )
        assert store.reconcile() == ["old"]

    def test_a_run_of_another_machine_is_left_alone(self, store: RunStore):
        store.create_run("far", RunConfig(), {}, 2**22 + 1)
        store.folder("far").change(RUN_FILE, lambda run: run | {"host": "elsewhere"})
        assert store.reconcile() == []


class TestResuming:
    """One process at a time works on a run."""

    @pytest.fixture
    def other(self):
        """A process that does nothing, to be given the run."""
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        yield child
        child.kill()
        child.communicate()

    def test_of_two_that_look_at_the_same_time_one_wins(self, store: RunStore, other: subprocess.Popen):
        store.create_run("r", RunConfig(), {}, os.getpid())
        store.set_status("r", "interrupted")
        assert {store.run("r").status for _ in range(2)} == {"interrupted"}  # both have looked
        store.resume_run("r", other.pid)
        with pytest.raises(ConfigurationError, match=f"'r' is running in process {other.pid} on .*end that"):
            store.resume_run("r", os.getpid())
        assert store.run("r").pid == other.pid
        store.resume_run("r", other.pid)  # it may say so twice
        store.set_status("r", "finished")
        with pytest.raises(ConfigurationError, match="'r' is finished"):
            store.resume_run("r", os.getpid())
        assert store.run("r").status == "finished"

    def test_many_at_once(self, store: RunStore):
        store.create_run("r", RunConfig(), {}, os.getpid())
        store.set_status("r", "failed", "boom")
        program = (
            "import os, sys\nfrom pathlib import Path\nfrom storage.errors import ConfigurationError\n"
            "from storage.home import Home\nfrom storage.record.run_store import RunStore\n"
            "store = RunStore(Home(Path(sys.argv[1])))\nprint('ready', flush=True)\ninput()\n"
            "try:\n    store.resume_run('r', os.getpid())\n    print('won', flush=True)\n"
            "except ConfigurationError:\n    print('lost', flush=True)\ninput()"
        )
        children = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(store.home.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in range(3)
        ]  # fmt: skip
        try:
            for word in ("ready", None):
                answers = []
                for child in children:
                    assert child.stdout is not None
                    answers.append(child.stdout.readline().strip())
                assert word is None or set(answers) == {word}
                for child in children:
                    assert child.stdin is not None
                    child.stdin.write("\n")
                    child.stdin.flush()
        finally:
            for child in children:
                child.kill()
                child.communicate()
        assert sorted(answers) == ["lost", "lost", "won"]

    def test_taking_over_from_a_machine_of_another_name(self, store: RunStore):
        store.create_run("far", RunConfig(), {}, 2**22 + 1)
        store.folder("far").change(RUN_FILE, lambda run: run | {"host": "elsewhere"})
        with pytest.raises(ConfigurationError, match=r"on elsewhere; .*`spotlight resume far --take-over`"):
            store.resume_run("far", os.getpid())
        seen = store.run("far")
        store.take_over(seen)
        row = store.run("far")
        assert row.status == "interrupted"
        assert f"process {2**22 + 1} of elsewhere" in str(row.error)
        with pytest.raises(ConfigurationError, match="was taken over"):  # a second one looked as early
            store.take_over(seen)
        store.resume_run("far", os.getpid())
        with pytest.raises(ConfigurationError, match="was taken over"):
            store.take_over(seen)
        with pytest.raises(ConfigurationError, match="on this machine"):
            store.take_over(store.run("far"))
        assert store.run("far").status == "running"


class TestTheFolder:
    """What is said when a run's files cannot be used, and what is still shown."""

    def test_a_damaged_file_of_rows(self, store: RunStore):
        write_sample_run(store, iterations=3)
        folder = store.folder("glyphs-sample")
        whole = contents(store)
        [path] = [p for p in folder.listing().files("samples") if "000002" in str(p) or "part" in str(p)]
        path.write_bytes(path.read_bytes()[:100])
        with store.reading() as connection:
            rows = connection.execute("SELECT count(*) FROM samples").fetchall()
            assert connection.damaged == [path], "the page names it"
        assert rows[0][0] < len(whole["samples"])
        assert contents(store) | {"samples": 0} == whole | {"samples": 0}, "all else is shown"
        assert folder.set_aside_damaged() == [path]
        assert folder.damaged() == []
        with store.reading() as connection:
            assert connection.execute("SELECT count(*) FROM samples").fetchall() == rows

    def test_a_foreign_file_is_left_alone(self, store: RunStore):
        write_sample_run(store, iterations=2)
        whole = contents(store)
        run = store.folder("glyphs-sample").path
        (run / "notes of mine.txt").write_text("x")
        (run / "iteration-0000xx").mkdir()
        (store.home.runs / "stray.txt").write_text("x")
        (store.home.runs / "stray").mkdir()
        (store.home.runs / "notes of mine").mkdir()
        (store.home.runs / os.fsdecode(b"caf\xe9")).mkdir()  # from a disk that is not in UTF-8
        assert contents(store) == whole
        assert "stray has no run.json" in bare_folders(store.home)
        store.folder("glyphs-sample").sweep(-1)
        assert (run / "notes of mine.txt").exists()

    def test_a_copy_of_a_run_under_another_name_counts_for_nothing(self, store: RunStore):
        write_sample_run(store, iterations=2)
        whole = contents(store)
        for name in ("backup", "glyphs-sample copy"):  # a file manager names it so
            shutil.copytree(store.home.run("glyphs-sample"), store.home.runs / name)
        assert contents(store) == whole
        assert [row.run_id for row in store.runs()] == ["glyphs-sample"]
        assert results_so_far(store)["glyphs-sample"]["usd"] == pytest.approx(
            run_result(store, "glyphs-sample")["cost_usd"]
        )
        problem = "backup is a copy of run 'glyphs-sample' under another name"
        assert problem in bare_folders(store.home)
        with pytest.raises(StorageError, match=problem):
            store.run("backup")

    @pytest.mark.parametrize("name", ["best", "glyphs-sample (best)"])
    def test_a_renamed_run_is_not_called_a_copy(self, store: RunStore, name: str):
        """It may be the only copy, so the message must not say to move it away."""
        write_sample_run(store, iterations=2)
        whole, named = contents(store), store.home.run("glyphs-sample")
        renamed = named.rename(store.home.runs / name)
        assert store.runs() == []
        problem = bare_folders(store.home)
        assert f"{renamed} is run 'glyphs-sample' under another name, and is skipped" in problem
        assert "rename the folder to glyphs-sample" in problem and "move" not in problem
        renamed.rename(named)
        assert contents(store) == whole and bare_folders(store.home) == ""

    def test_threads_take_turns(self, store: RunStore):
        store.create_run("r", RunConfig(), {}, os.getpid())

        def work(number: int) -> None:
            for k in range(8):
                store.add_event("r", "note", f"{number}/{k}")
                store.set_fact("r", f"{number}/{k}", "x")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert len(contents(store)["events"]) == 32
        assert len(store.run("r").environment) == 32


def test_what_is_not_given_stays(store: RunStore, run_r: None):
    assert store.notes() == {}
    store.change_notes("r", tags=["paper", " good ", "paper", ""], note=" a word ")
    store.change_notes("r", archived=True)
    assert store.notes() == {"r": RunNotes(("paper", "good"), "a word", True)}
    store.change_notes("r", tags=[], archived=False)
    assert store.notes() == {"r": RunNotes((), "a word", False)}
    longest = RunNotes(tuple(f"{number:040}" for number in range(20)), "x" * 2000)
    store.change_notes("r", tags=longest.tags, note=longest.note)
    assert store.notes_of("r") == longest


def test_the_newest_link_to_a_place_counts(store: RunStore, run_r: None):
    store.change_notes("r", tags=["kept"], note="so $1 <b>", archived=True)
    store.link("r", "prefect", "http://127.0.0.1:4200/v2/runs/flow-run/1")
    store.link("r", "prefect", "http://127.0.0.1:4200/v2/runs/flow-run/2")
    assert store.notes() == {"r": RunNotes(("kept",), "so $1 <b>", True)}
    assert store.links("r") == {"prefect": "http://127.0.0.1:4200/v2/runs/flow-run/2"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tags": ["x" * 41]}, "41 characters, at most 40"),
        ({"tags": [str(number) for number in range(21)]}, "at most 20"),
        ({"note": "x" * 2001}, "at most 2,000"),
    ],
)
def test_what_is_too_long_is_refused(store: RunStore, run_r: None, given: dict, said: str):
    with pytest.raises(ConfigurationError, match=said):
        store.change_notes("r", **given)
    assert store.notes() == {}


def test_a_run_that_is_not_there_is_refused(store: RunStore, run_r: None):
    with pytest.raises(RunNotFoundError, match="no run 'other'"):
        store.change_notes("other", archived=True)
