"""The databases of a new home: made once, then copied."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import duckdb
import pytest
from mlflow import MlflowClient
from sqlalchemy import make_url

from flows.server.process import server_environment
from storage import empty_database
from storage.config.run_config import RunConfig
from storage.empty_database import provide_database
from storage.home import Home
from storage.readers import mlflow_reader
from storage.readers.mlflow_reader import MlflowReader
from storage.readers.protocol import ReadRun
from storage.record.run_store import RunStore
from tests.odd_names import NO_HOME, ODD_NAMES
from tests.read_runs import mlflow_points
from tests.sample_run import evaluation_record


class Migrations:
    """Makes a database as Prefect does, in its write-ahead log."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.done = 0

    def __call__(self) -> None:
        self.done += 1
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE alembic_version (version_num VARCHAR)")
            connection.execute("INSERT INTO alembic_version VALUES ('head')")
            connection.execute("CREATE TABLE flow_run (id INTEGER)")


def tables(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return sorted(name for (name,) in connection.execute("SELECT name FROM sqlite_master"))


def rows(database: Path, table: str) -> list[tuple]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


def test_the_first_home_is_migrated_and_others_are_copies(tmp_path: Path):
    kept = tmp_path / "share" / "prefect.db"
    first = Migrations(tmp_path / "first.db")
    provide_database(first.database, kept, first)
    assert (first.done, tables(first.database)) == (1, ["alembic_version", "flow_run"])
    second = Migrations(tmp_path / "second.db")
    provide_database(second.database, kept, second)
    assert (second.done, tables(second.database)) == (0, ["alembic_version", "flow_run"])
    assert second.database.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "first.db", "second.db", "prefect.db",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in ODD_NAMES if not set(name) & set(NO_HOME)])
def test_the_databases_of_a_home_are_in_it_whatever_it_is_called(tmp_path: Path, name: str):
    home = Home(tmp_path / name).ensure()
    prefect = server_environment(home, 4200)["PREFECT_API_DATABASE_CONNECTION_URL"]
    assert make_url(prefect).database == str(home.prefect / "prefect.db")
    store = RunStore(home)
    store.create_run("a-run", RunConfig(), {}, os.getpid())
    store.commit_evaluation(evaluation_record("a-run", 0, 0.0, images=1))
    with store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM evaluation_images").fetchone() == (1,)
    reader = MlflowReader(home.mlflow_uri, home.artifacts)
    assert reader.open(ReadRun("a-run", {}, {}, 0.0), -1) == 0
    reader.iteration(1, {"score/reward_mean": 0.5}, 0.0)
    (tmp_path / "weights").write_bytes(b"all")
    reader.artifact(tmp_path / "weights")
    assert mlflow_points(home.mlflow_uri, "a-run") == {"score/reward_mean": [(1, 0.5)]}
    with duckdb.connect(str(home.database), read_only=True) as catalogue:
        assert catalogue.execute("SELECT count(*) FROM evaluation_images").fetchone() == (1,)
    assert [path.read_bytes() for path in home.artifacts.rglob("weights")] == [b"all"]
    assert {path.name for path in tmp_path.iterdir()} == {name, "weights"}, "nothing lies beside it"


def test_events_which_are_most_of_it_are_forgotten_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from prefect.settings.models.root import Settings

    for name, value in server_environment(Home(tmp_path).ensure(), 4200).items():
        monkeypatch.setenv(name, value)
    server = Settings().server
    assert server.events.retention_period == timedelta(hours=1)
    assert server.services.db_vacuum.enabled_vacuum_types >= {"events", "flow_runs"}
    assert server.services.db_vacuum.loop_seconds == 600


def test_a_database_that_is_there_is_left_alone(tmp_path: Path):
    database = tmp_path / "prefect.db"
    database.write_bytes(b"a user's")
    provide_database(database, tmp_path / "kept.db", Migrations(database))
    assert database.read_bytes() == b"a user's"
    assert not (tmp_path / "kept.db").exists()


def test_the_log_of_a_deleted_database_is_not_replayed_into_a_copy(tmp_path: Path, kept: Path):
    database = tmp_path / "prefect.db"
    Migrations(database)()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE of_before (id INTEGER)")
        connection.commit()
        log = database.with_name("prefect.db-wal").read_bytes()
    assert log
    database.unlink()
    database.with_name("prefect.db-wal").write_bytes(log)
    provide_database(database, kept, Migrations(database))
    assert tables(database) == ["alembic_version", "flow_run"]


def test_a_damaged_copy_is_made_anew(tmp_path: Path):
    kept = tmp_path / "kept.db"
    for damage in (b"", b"SQLite format 3\0 and no more", b"anything"):
        kept.write_bytes(damage)
        migrations = Migrations(tmp_path / f"{len(damage)}.db")
        provide_database(migrations.database, kept, migrations)
        assert migrations.done == 1
        assert tables(kept) == ["alembic_version", "flow_run"]


def test_an_installation_that_cannot_be_written_migrates_each_home(tmp_path: Path):
    (tmp_path / "share").write_text("a file where the folder would be")
    for name in ("first.db", "second.db"):
        migrations = Migrations(tmp_path / name)
        provide_database(migrations.database, tmp_path / "share" / "prefect.db", migrations)
        assert migrations.done == 1
        assert tables(migrations.database) == ["alembic_version", "flow_run"]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The installation's database, made for a first home."""
    provide_database(tmp_path / "first.db", tmp_path / "kept.db", Migrations(tmp_path / "first.db"))
    return tmp_path / "kept.db"


def test_processes_that_start_at_once_share_one_database(tmp_path: Path, kept: Path):
    database = tmp_path / "home.db"

    def begin(row: int) -> None:
        provide_database(database, kept, Migrations(database))
        with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
            connection.execute("INSERT INTO flow_run VALUES (?)", [row])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(begin, range(64)))
    assert sorted(rows(database, "flow_run")) == [(row,) for row in range(64)]
    assert not list(tmp_path.glob("home.db.*"))


def test_one_that_came_meanwhile_is_left_alone(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch):
    database, copy = tmp_path / "home.db", empty_database.shutil.copyfile

    def slow_copy(source: Path, target: str) -> None:
        copy(source, target)
        database.write_bytes(b"another process's")

    monkeypatch.setattr(empty_database.shutil, "copyfile", slow_copy)
    migrations = Migrations(database)
    provide_database(database, kept, migrations)
    assert (migrations.done, database.read_bytes()) == (0, b"another process's")


def test_without_links_each_home_is_migrated(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError("no links here")))
    migrations = Migrations(tmp_path / "home.db")
    provide_database(migrations.database, kept, migrations)
    assert (migrations.done, tables(migrations.database)) == (1, ["alembic_version", "flow_run"])


def test_rows_of_one_home_are_not_kept(tmp_path: Path):
    kept = tmp_path / "kept.db"
    first = Migrations(tmp_path / "first.db")

    def migrate() -> None:
        first()
        with closing(sqlite3.connect(first.database)) as connection, connection:
            connection.execute("INSERT INTO flow_run VALUES (7)")

    provide_database(first.database, kept, migrate, ["flow_run"])
    assert (rows(first.database, "flow_run"), rows(kept, "flow_run")) == ([(7,)], [])
    assert rows(kept, "alembic_version") == [("head",)]


def test_mlflow_takes_a_copy_and_makes_its_own_experiment_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mlflow_reader, "kept_database", lambda package: tmp_path / f"kept-{package}.db")
    make = Mock(wraps=mlflow_reader.make_tables)
    monkeypatch.setattr(mlflow_reader, "make_tables", make)
    stores = [tmp_path / "first.db", tmp_path / "second.db"]
    for store in stores:
        mlflow_reader.provide_tables(store)
    make.assert_called_once_with(stores[0])
    assert tables(stores[0]) == tables(stores[1])
    assert rows(stores[1], "experiments") == []
    client = MlflowClient(tracking_uri=f"sqlite:///{stores[1]}")
    assert [one.name for one in client.search_experiments()] == ["Default"]
    experiment = client.create_experiment("spotlight")
    client.log_metric(client.create_run(experiment).info.run_id, "score", 0.5)
    assert len(client.search_runs([experiment])) == 1
    monkeypatch.setattr(mlflow_reader, "make_tables", lambda database: pytest.fail("it was not copied"))
    reader = MlflowReader(f"sqlite:///{tmp_path / 'third.db'}", tmp_path / "artifacts")
    reader.open(ReadRun("run-1", {}, {}, 0.0), -1)
    reader.end("finished", 1.0)
