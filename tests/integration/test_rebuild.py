"""A damaged or lost database is made again from backups, journals, checkpoints and MLflow's curves."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from storage.checkpoints import CheckpointStore
from storage.config.run_config import RunConfig
from storage.database.journal import Journal
from storage.database.rebuilding import rebuild
from storage.database.records import record_to_json
from storage.database.run_store import RunStore
from storage.errors import ConfigurationError, DatabaseDamagedError, RunNotFoundError, StorageError
from storage.home import Home
from tests.damaged_database import overwrite_a_page
from tests.sample_run import evaluation_record, iteration_record

GONE_PID = 2**22 + 7  # above any process


def write_run(store: RunStore, run_id: str, iterations: int = 4, status: str = "finished", pid: int = 0):
    """A run that was resumed once: its third iteration was done twice."""
    store.create_run(run_id, RunConfig(name="glyphs", iterations=4), {"torch": "2.13.0"}, pid or os.getpid())
    store.commit_evaluation(evaluation_record(run_id, 0, 0.0, images=8, gallery=2))
    for iteration in range(1, min(iterations, 3) + 1):
        store.commit_iteration(iteration_record(run_id, iteration, iteration * 18.0, samples=16))
    if iterations >= 3:
        store.discard_after(run_id, 2)
        store.add_event(run_id, "resumed", "goes on after iteration 2")
        for iteration in range(3, iterations + 1):
            store.commit_iteration(iteration_record(run_id, iteration, 1000 + iteration * 18.0, samples=16))
    if status == "finished":
        store.commit_evaluation(evaluation_record(run_id, 4, 2000.0, images=8, gallery=2))
        store.set_summary(run_id, {"score_after": 0.5})
        store.set_status(run_id, "finished")


def forget(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    tables = connection.execute(
        "SELECT table_name FROM duckdb_columns() WHERE column_name = 'run_id'"
    ).fetchall()
    for (table,) in tables:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])


def rows(home: Home) -> dict[str, list[tuple]]:
    with RunStore(home).database.reading() as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        return {
            table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            for (table,) in tables
        }


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("of somebody")


DAMAGES = {
    "page": overwrite_a_page,
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(os.urandom(50_000)),
    "folder": put_a_folder,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A home with two finished runs, and a backup of the time between them."""
    home = Home(tmp_path_factory.mktemp("recorded") / "home").ensure()
    store = RunStore(home)
    write_run(store, "first")
    store.back_up()
    write_run(store, "second")
    return home


@pytest.fixture
def two_runs(recorded, tmp_path):
    shutil.copytree(recorded.path, tmp_path / "home")
    return Home(tmp_path / "home")


@pytest.fixture
def one_run(two_runs):
    """Without the second run and without a backup."""
    shutil.rmtree(two_runs.backups)
    with RunStore(two_runs).database.writing() as connection:
        forget(connection, "second")
    shutil.rmtree(two_runs.checkpoints("second"))
    return two_runs


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "empty").ensure()


@pytest.fixture
def store(home):
    return RunStore(home)


@pytest.mark.parametrize(("damage", "backup"), [*((damage, False) for damage in DAMAGES), ("page", True)])
def test_every_row_of_a_run_is_made_again(two_runs, damage, backup):
    home, store = two_runs, RunStore(two_runs)
    if not backup:
        shutil.rmtree(home.backups)
    before = rows(home)
    DAMAGES[damage](home.database)
    with pytest.raises(DatabaseDamagedError, match="spotlight rebuild") as refused:
        store.database.check()
    assert "\n" not in str(refused.value)
    damaged = None if damage == "folder" else home.database.read_bytes()
    done = rebuild(home)
    assert rows(home) == before
    assert done.runs == {"first": 4, "second": 4}
    assert (done.backup_made_at is not None) == backup
    assert all("only the database held" in loss for loss in done.losses)
    assert done.kept_at is not None
    if damaged is not None:
        assert done.kept_at.read_bytes() == damaged
    else:
        assert (done.kept_at / "something").read_text() == "of somebody"
    store.database.check()
    store.add_event("second", "still", "writable")


def test_a_run_goes_on_in_its_journal_after_the_backup(home, store):
    write_run(store, "r", iterations=2, status="", pid=GONE_PID)
    store.back_up()
    store.reconcile()
    store.resume_run("r", os.getpid())
    store.discard_after("r", 1)
    store.commit_iteration(iteration_record("r", 2, 500.0, samples=16))
    store.commit_iteration(iteration_record("r", 3, 600.0, samples=16))
    store.set_status("r", "failed", "why")
    before = rows(home)
    truncate(home.database)
    rebuild(home)
    assert rows(home) == before


def test_a_lost_database_is_made_again_and_a_sound_one_gets_what_it_lacks(one_run):
    home, store = one_run, RunStore(one_run)
    before = rows(home)
    home.database.unlink()
    with pytest.raises(RunNotFoundError, match="spotlight rebuild"):
        store.run("first")
    assert rebuild(home).kept_at is None
    assert rows(home) == before
    home.database.unlink()
    write_run(store, "second", iterations=1, status="", pid=os.getpid())  # goes on meanwhile
    alone = rows(home)
    assert rebuild(home, only="first").runs == {"first": 4}
    both = rows(home)
    assert {name: set(alone[name]) <= set(both[name]) for name in both} == dict.fromkeys(both, True)
    assert {row.run_id for row in store.runs()} == {"first", "second"}
    assert rebuild(home).runs == {}


def test_a_log_left_behind_is_put_aside_too(one_run):
    home = one_run
    before = rows(home)
    log = home.database.with_name("spotlight.duckdb.wal")
    log.write_bytes(os.urandom(3000))
    truncate(home.database)
    kept = rebuild(home).kept_at
    assert kept is not None
    assert kept.with_name(f"{kept.name}.wal").exists()
    assert not log.exists()
    assert rows(home) == before


def test_damaged_lines_cost_their_iterations_alone_and_are_named(one_run):
    home, store = one_run, RunStore(one_run)
    journal = home.journal("first")
    lines = journal.read_bytes().split(b"\n")
    place = 3  # after the run, evaluation 0 and iteration 1
    assert Journal(journal).read().entries[place].values["iteration"] == 2
    lines[place] = lines[place][:-20] + b"x" * 20
    journal.write_bytes(b"\n".join(lines) + b"torn")
    store.add_event("first", "after", "the torn line")
    home.database.unlink()
    done = rebuild(home)
    assert any("damaged lines of its journal (2)" in loss for loss in done.losses)
    assert any(loss == "run first: iterations 2" for loss in done.losses)
    with store.database.reading() as connection:
        kinds = connection.execute("SELECT kind FROM events ORDER BY event_id").fetchall()
    assert kinds == [("resumed",), ("after",)]


def test_a_run_without_a_journal_comes_from_checkpoints_and_curves(home, store):
    config = RunConfig(name="glyphs", iterations=4)
    checkpoints = CheckpointStore(home.checkpoints("old"), keep=2)
    for iteration in (2, 3):
        record = iteration_record("old", iteration, iteration * 18.0, samples=16)
        checkpoints.save(iteration, {"weights": b"w"}, record_to_json(record), config.model_dump(mode="json"))
    write_mlflow(home, "old", {1: 0.25, 2: 0.5, 3: 0.5})
    done = rebuild(home)
    assert done.runs == {"old": 3}
    assert any("samples" in loss and "(1)" in loss for loss in done.losses)
    row = store.run("old")
    assert (row.status, row.last_iteration, row.config) == ("interrupted", 3, config)
    assert row.created_at == 100.0
    with store.database.reading() as connection:
        curve = connection.execute(
            "SELECT iteration, value FROM iteration_metrics WHERE name = 'reward_mean' AND iteration = 1"
        ).fetchall()
        samples = connection.execute(
            "SELECT iteration, count(*) FROM samples GROUP BY 1 ORDER BY 1"
        ).fetchall()
        evaluations = connection.execute("SELECT iteration, score FROM evaluations").fetchall()
    assert curve == [(1, 0.25)]
    assert samples == [(2, 16), (3, 16)]
    assert evaluations == [(0, 0.125)]


def test_a_home_of_an_older_schema_is_kept_by_its_backup(home, store):
    script = (Path(__file__).parent / "schema_version_3.sql").read_text()
    connection = duckdb.connect(str(home.database))
    connection.execute(script)
    connection.execute(
        "INSERT INTO runs VALUES ('old', 'glyphs', 'failed', 1.0, 2.0, 'h', ?, 1.0, ?, '{}', '{}', 'why')",
        [GONE_PID, RunConfig().model_dump_json()],
    )
    connection.execute("INSERT INTO iterations VALUES ('old', 1, 1, 1.0, 2.0)")
    connection.close()
    store.resume_run("old", os.getpid())  # begun without a journal: its rows go into a backup first
    store.set_status("old", "failed", "again")
    before = rows(home)
    truncate(home.database)
    rebuild(home)
    assert rows(home) == before


def test_a_full_disk_changes_nothing(one_run, monkeypatch):
    home = one_run
    truncate(home.database)
    damaged = home.database.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("storage.database.rebuilding.os.replace", full)
    with pytest.raises(StorageError, match=r"No space left.*free disk space"):
        rebuild(home)
    monkeypatch.undo()
    assert sorted(path.name for path in home.path.glob("*spotlight.duckdb*")) == ["spotlight.duckdb"]
    assert home.database.read_bytes() == damaged
    monkeypatch.setattr("storage.database.rebuilding.restore_run", full)
    with pytest.raises(StorageError, match="No space left"):
        rebuild(home)
    assert home.database.read_bytes() == damaged
    monkeypatch.undo()
    assert rebuild(home).runs == {"first": 4}


def test_a_full_disk_keeps_the_older_backup(one_run, monkeypatch):
    home, store = one_run, RunStore(one_run)
    store.back_up()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("storage.checkpoints._write_durably", full)
    with pytest.raises(StorageError, match=r"no new backup.*No space left"):
        store.back_up()
    monkeypatch.undo()
    home.database.unlink()
    assert rebuild(home).backup_made_at is not None


def test_backups_are_bounded_private_and_sound(one_run):
    home, store = one_run, RunStore(one_run)
    for _ in range(5):
        store.back_up()
    made = sorted(home.backups.iterdir())
    assert len(made) == 3
    assert stat.S_IMODE(home.backups.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.journal("first").stat().st_mode) == 0o600
    overwrite_a_page(home.database)
    with pytest.raises(DatabaseDamagedError):
        store.back_up()
    assert sorted(home.backups.iterdir()) == made
    (made[-1] / "spotlight.duckdb").write_bytes(b"damaged too")
    assert rebuild(home).backup_made_at is not None


def test_of_two_rebuilds_at_once_the_second_is_refused(one_run):
    home = one_run
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'w'); "
         "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()",
         str(home.path / "rebuild.lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ConfigurationError, match="another process rebuilds"):
            rebuild(home)
    finally:
        holder.communicate("")
    assert rebuild(home).runs == {}


def test_beside_a_live_run_it_is_refused(home, store):
    write_run(store, "live", iterations=2, status="", pid=os.getpid())
    truncate(home.database)
    damaged = home.database.read_bytes()
    with pytest.raises(ConfigurationError, match=r"'live' is going on in process"):
        rebuild(home)
    assert home.database.read_bytes() == damaged
    assert not list(home.path.glob(".rebuilding*"))


def test_a_journal_lies_in_the_home_whatever_the_run_is_called(home):
    checkpoints = home.path / "checkpoints"
    for run_id in ("../../secret", "..", "/etc/passwd", ".", "a/b"):
        journal = home.journal(run_id)
        assert journal.resolve().parent.parent == checkpoints.resolve(), run_id
    assert home.journal("glyphs-2026_a.b").parent == home.checkpoints("glyphs-2026_a.b")


def write_mlflow(home: Home, run_id: str, rewards: dict[int, float]) -> None:
    connection = sqlite3.connect(home.path / "mlflow.db")
    connection.executescript(
        "CREATE TABLE runs (run_uuid TEXT, start_time INTEGER); CREATE TABLE tags (key TEXT, value TEXT, "
        "run_uuid TEXT); CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, "
        "step INTEGER, is_nan INTEGER);"
    )
    connection.execute("INSERT INTO runs VALUES ('u', 100000)")
    connection.execute("INSERT INTO tags VALUES ('spotlight.run_id', ?, 'u')", [run_id])
    figures = [("reward_mean", value, 1000 * step, "u", step, 0) for step, value in rewards.items()]
    figures += [("evaluation_score", 0.125, 5, "u", 0, 0), ("evaluation_exact", 0.0, 5, "u", 0, 0)]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", figures)
    connection.commit()
    connection.close()
