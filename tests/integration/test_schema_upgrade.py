"""A file of an earlier schema: read as it is, brought up to date by the first writer, nothing lost."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import duckdb
import pytest

from storage.config.run_config import RunConfig
from storage.database.queries import devices as device_queries
from storage.database.queries import runs as queries
from storage.database.queries import seeds as seed_queries
from storage.database.records import DeviceEvent, GroupRecord, StandbyTime, StepTimeRecord
from storage.database.run_notes import NoteStore
from storage.database.run_store import RunStore
from storage.database.schema import SCHEMA_VERSION
from storage.errors import StorageError
from storage.evaluations import reproductions
from storage.evaluations.separate import EvaluationStore
from storage.home import Home
from storage.ledger import ledger
from storage.ledger.standby_accounts import StandbyAccount
from tests.sample_run import iteration_record
from tests.sample_seeds import explored

_BY_VERSION = {
    2: {"candidates", "sample_images"},
    3: {"device_events"},
    4: {
        "reproductions", "sequence_groups", "step_times", "separate_evaluations",
        "separate_evaluation_images",
    },
    5: {"paid_time"},
    6: {"standby_time"},
    7: {"run_notes", "run_links"},
    8: {"evaluation_image_figures", "separate_evaluation_image_figures"},
}  # fmt: skip
LATER_TABLES = {
    version: {table for later, tables in _BY_VERSION.items() if later > version for table in tables}
    for version in (1, 2, 3, 4, 5, 6, 7)
}


@pytest.fixture(params=sorted(LATER_TABLES))
def version(request: pytest.FixtureRequest) -> int:
    """The version that the file is of."""
    return request.param


@pytest.fixture
def store(tmp_path: Path, version: int) -> RunStore:
    """A home whose database is of an earlier version, with a run of two iterations."""
    store = RunStore(Home(tmp_path / "home"), wait_s=2.0)
    donor = RunStore(Home(tmp_path / "donor"))
    donor.create_run("old", RunConfig(), {"torch": "2.13.0"}, os.getpid())
    for iteration in (1, 2):
        donor.commit_iteration(iteration_record("old", iteration, 18.0 * iteration))
    donor.add_event("old", "note", "a word")
    store.home.path.mkdir()
    with duckdb.connect(str(store.home.database)) as file:
        tables = Path(__file__).parent / f"schema_version_{version}.sql"
        file.execute(tables.read_text(encoding="utf-8"))
        file.execute(f"ATTACH '{donor.home.database}' AS donor (READ_ONLY)")
        for table in tables_of(file) - {"schema_version"}:
            file.execute(f"INSERT INTO {table} SELECT * FROM donor.{table}")
    return store


def tables_of(file: duckdb.DuckDBPyConnection) -> set[str]:
    rows = file.execute(
        "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
    ).fetchall()
    return {name for (name,) in rows}


def contents(store: RunStore) -> tuple[int, dict[str, list[tuple]]]:
    """The version that the file says, and every row of its own tables."""
    with duckdb.connect(str(store.home.database), read_only=True) as file:
        [(version,)] = file.execute("SELECT version FROM schema_version").fetchall()
        names = tables_of(file) - {"schema_version"}
        return version, {t: file.execute(f"SELECT * FROM {t} ORDER BY ALL").fetchall() for t in names}


def test_a_reader_sees_the_old_runs_and_changes_nothing(store: RunStore, version: int):
    before = store.home.database.read_bytes()
    assert store.run("old").last_iteration == 2
    with store.database.reading() as connection:
        assert len(queries.metric_curves(connection, "old")) == 2
        assert seed_queries.stale_and_fresh(connection, "old").empty
        assert seed_queries.pictured_prompts(connection, "old").empty
        assert seed_queries.best_and_worst(connection, "old").empty
        assert set(seed_queries.drafts_by_prompt(connection, "old")["drafts"]) == {0}
        account = ledger.read_ledger(connection, "old")
        assert device_queries.device_events(connection, "old", 0, 9, 9).empty
        assert reproductions.reproductions(connection).empty
        assert device_queries.sequence_groups(connection, "old", 0, 9, 9).empty
        assert device_queries.degree_times(connection, "old", 0, 9).empty
    assert EvaluationStore(store.home).all() == []
    assert NoteStore(store.home).notes() == {}
    assert account.is_measured == (version >= 5) and account.standbys == ()
    assert not account.has_device_events
    assert account.spent().device_s == pytest.approx(2 * 3 * 18)
    assert store.home.database.read_bytes() == before


def test_the_first_writer_brings_it_up_to_date(store: RunStore, version: int):
    said, before = contents(store)
    assert said == version
    assert LATER_TABLES[version].isdisjoint(before)
    assert len(before["samples"]) == 512
    with store.database.writing():
        pass
    said, after = contents(store)
    assert said == SCHEMA_VERSION
    assert after == before | {table: [] for table in LATER_TABLES[version]}
    record = explored(iteration_record("old", 3, 54.0))
    loss = DeviceEvent("spot-0", "spot", "lost", 72.0)
    group = GroupRecord(1, 0, "", ("reserved-0", "spot-0"), 54.0, 60.0)
    times = StepTimeRecord("64x64, 4 at a time", 2, 0.25, 3)
    waited = StandbyTime("standby-0", 18.0, 4.0, 2**29)
    store.commit_iteration(
        dataclasses.replace(
            record, device_events=[loss], groups=[group], step_times=[times], standby_time=[waited]
        )
    )
    with store.database.reading() as connection:
        assert not seed_queries.stale_and_fresh(connection, "old").empty
        account = ledger.read_ledger(connection, "old")
        assert [x.worker for x in account.losses] == ["spot-0"]
        assert account.is_measured and account.is_balanced
        assert sum(worker.booked_s for worker in account.workers) == pytest.approx(
            3 * 18 * (3 if version >= 5 else 1)
        )
        assert account.standbys == (StandbyAccount("standby-0", 18.0, 4.0, 2**29, 0, 0),)
        shared = device_queries.sequence_groups(connection, "old", 0, 9, 9)
        assert shared["worker"].tolist() == ["reserved-0", "spot-0"] and set(shared["degree"]) == {2}
        [taken] = device_queries.degree_times(connection, "old", 0, 9).to_dict("records")
        assert (taken["degree"], taken["step_s"], taken["chunks"], taken["share"]) == (2, 0.25, 3, 1.0)


def test_a_writer_that_fails_leaves_the_file_as_it_was(store: RunStore):
    before = contents(store)
    with pytest.raises(ZeroDivisionError), store.database.writing():
        raise ZeroDivisionError
    assert contents(store) == before
    store.add_event("old", "note", "the next one does it")
    assert contents(store)[0] == SCHEMA_VERSION


def test_it_has_the_tables_of_a_fresh_file(store: RunStore, tmp_path: Path):
    fresh = RunStore(Home(tmp_path / "fresh"))
    for one in (store, fresh):
        with one.database.writing():
            pass
    shapes = []
    for one in (store, fresh):
        with duckdb.connect(str(one.home.database), read_only=True) as file:
            shapes.append(file.execute("SELECT sql FROM duckdb_tables() ORDER BY table_name").fetchall())
    assert shapes[0] == shapes[1]


def test_a_later_version_is_refused_as_ever(store: RunStore):
    with duckdb.connect(str(store.home.database)) as file:
        file.execute("UPDATE schema_version SET version = ?", [SCHEMA_VERSION + 1])
    for attempt in (store.runs, lambda: store.add_event("old", "a", "b")):
        with pytest.raises(StorageError, match=rf"version {SCHEMA_VERSION + 1}.*move the file away"):
            attempt()
