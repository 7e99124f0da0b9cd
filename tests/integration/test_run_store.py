"""Runs in a real DuckDB file: recorded, found, reconciled."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

from storage.config.run_config import RunConfig
from storage.database.records import IterationRecord
from storage.database.run_store import RunStore
from storage.errors import ConfigurationError, RunNotFoundError, StorageError
from storage.home import Home
from tests.sample_run import evaluation_record, iteration_record, write_sample_run

TABLES = (
    "runs", "iterations", "iteration_metrics", "prompts", "samples", "evaluations", "evaluation_images",
    "worker_states", "costs", "events", "candidates", "sample_images",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Home(tmp_path), wait_s=2.0)


def contents(store: RunStore) -> dict[str, list[tuple]]:
    """Every row of every table."""
    with store.database.reading() as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall() for table in TABLES
        }


def test_home_is_named_by_the_environment(tmp_path: Path):
    home = Home.from_environment({"SPOTLIGHT_HOME": str(tmp_path / "a")})
    assert home.path == tmp_path / "a"
    assert home.ensure().artifacts.is_dir()
    assert home.mlflow_uri == f"sqlite:///{tmp_path}/a/mlflow.db"
    assert Home.from_environment({}).path == Path(__file__).resolve().parents[2] / ".spotlight"


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
    with store.database.writing() as connection:
        connection.execute("UPDATE runs SET config = ?", [json.dumps({"gone": 1})])
    [row] = store.runs()
    with pytest.raises(ConfigurationError, match="gone"):
        _ = row.config


def test_writing_a_record_twice_is_writing_it_once(store: RunStore):
    write_sample_run(store, iterations=3)
    iteration = iteration_record("glyphs-sample", 4, 5e8)
    evaluation = evaluation_record("glyphs-sample", 4, 6e8)
    store.commit_iteration(iteration)
    store.commit_evaluation(evaluation)
    once = contents(store)
    store.commit_iteration(iteration)
    store.commit_evaluation(evaluation)
    assert contents(store) == once
    assert len(once["samples"]) == 4 * 256


def test_a_shorter_record_leaves_nothing_of_a_longer_one(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.commit_iteration(iteration_record("r", 1, 0.0))
    store.commit_iteration(IterationRecord("r", 1, 1, 0.0, 1.0, {"only": 1.0}))
    rows = contents(store)
    tables = ("iterations", "iteration_metrics", "samples", "worker_states", "costs")
    assert [len(rows[table]) for table in tables] == [
        1, 1, 0, 0, 0,
    ]  # fmt: skip


def test_a_failing_record_leaves_no_part_of_itself(store: RunStore):
    write_sample_run(store, iterations=1)
    before = contents(store)
    record = iteration_record("glyphs-sample", 2, 0.0)
    twice = [*record.samples, record.samples[0]]
    with pytest.raises(StorageError, match="duplicate key"):
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
        time.sleep(0.2)
        assert store.reconcile() == ["dead"]  # not waited for yet: a zombie is as dead
        child.communicate()
        assert store.reconcile() == []
        row = store.run("dead")
        assert row.status == "interrupted"
        assert row.ended_at is not None
        assert store.run("mine").status == "running"

    def test_a_pid_that_was_given_to_another_process(self, store: RunStore):
        store.create_run("old", RunConfig(), {}, os.getpid())
        with store.database.writing() as connection:
            connection.execute("UPDATE runs SET process_started_at = process_started_at - 100")
        assert store.reconcile() == ["old"]

    def test_a_run_of_another_machine_is_left_alone(self, store: RunStore):
        store.create_run("far", RunConfig(), {}, 2**22 + 1)
        with store.database.writing() as connection:
            connection.execute("UPDATE runs SET host = 'elsewhere'")
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
        with pytest.raises(ConfigurationError, match=f"'r' is going on in process {other.pid} of .*end that"):
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
            "from storage.home import Home\nfrom storage.database.run_store import RunStore\n"
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
        with store.database.writing() as connection:
            connection.execute("UPDATE runs SET host = 'elsewhere'")
        with pytest.raises(ConfigurationError, match=r"of elsewhere; .*`spotlight resume far --take-over`"):
            store.resume_run("far", os.getpid())
        seen = store.run("far")
        store.take_over(seen)
        row = store.run("far")
        assert row.status == "interrupted"
        assert f"process {2**22 + 1} of elsewhere" in str(row.error)
        with pytest.raises(ConfigurationError, match="changed hands"):  # a second one looked as early
            store.take_over(seen)
        store.resume_run("far", os.getpid())
        with pytest.raises(ConfigurationError, match="changed hands"):
            store.take_over(seen)
        with pytest.raises(ConfigurationError, match="of this machine"):
            store.take_over(store.run("far"))
        assert store.run("far").status == "running"


class TestTheFile:
    """What the database says when it cannot be used."""

    def test_another_schema(self, store: RunStore):
        store.create_run("r", RunConfig(), {}, os.getpid())
        with store.database.writing() as connection:
            connection.execute("UPDATE schema_version SET version = 99")
        for attempt in (store.runs, lambda: store.add_event("r", "a", "b")):
            with pytest.raises(StorageError, match=r"version 99.*move the file away"):
                attempt()

    def test_no_database(self, store: RunStore):
        store.home.database.write_bytes(b"not a database" * 1000)
        with pytest.raises(StorageError, match="not a valid DuckDB"):
            store.runs()

    def test_a_file_without_tables_yet_is_empty(self, store: RunStore):
        duckdb.connect(str(store.home.database)).close()  # a first writer killed before its commit
        assert store.runs() == []
        store.create_run("r", RunConfig(), {}, os.getpid())

    def test_a_lock_that_stays_names_its_holder(self, store: RunStore):
        store.create_run("r", RunConfig(), {}, os.getpid())
        path = str(store.home.database)
        program = f"import duckdb; c = duckdb.connect({path!r}); print('ready', flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert child.stdout is not None
            child.stdout.readline()
            impatient = RunStore(store.home, wait_s=0.3)
            for attempt in (impatient.runs, lambda: impatient.add_event("r", "a", "b")):
                with pytest.raises(
                    StorageError, match=rf"stayed locked for 0.3 s by process {child.pid} \(.*duckdb"
                ):
                    attempt()
            threading.Timer(0.3, child.kill).start()
            assert len(store.runs()) == 1  # waits, and gets it
        finally:
            child.kill()
            child.communicate()

    def test_threads_take_turns(self, store: RunStore):
        store.create_run("r", RunConfig(), {}, os.getpid())
        patient = RunStore(store.home, wait_s=120.0)  # each of 64 calls may have to wait for the three others
        failures: list[StorageError] = []

        def work(number: int) -> None:
            try:
                for k in range(8):
                    patient.add_event("r", "note", f"{number}/{k}")
                    patient.runs()
            except StorageError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(contents(store)["events"]) == 32
