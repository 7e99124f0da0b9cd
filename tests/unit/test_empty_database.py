"""The database of a new Prefect server: made once, then copied."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from flows.server.empty_database import provide_database


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


def test_a_database_that_is_there_is_left_alone(tmp_path: Path):
    database = tmp_path / "prefect.db"
    database.write_bytes(b"a user's")
    provide_database(database, tmp_path / "kept.db", Migrations(database))
    assert database.read_bytes() == b"a user's"
    assert not (tmp_path / "kept.db").exists()


def test_the_log_of_a_deleted_database_is_not_replayed_into_a_copy(tmp_path: Path):
    kept = tmp_path / "kept.db"
    first = Migrations(tmp_path / "first.db")
    provide_database(first.database, kept, first)
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
