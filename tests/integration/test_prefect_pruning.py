"""A Prefect database, as its own migrations make it, stays small however long a run goes on."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from flows.server import pruning as prefect_pruning
from flows.server.pruning import Kept, compact, prune

pytestmark = pytest.mark.slow

_MAKE = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""
_TASKS = ("explore", "rollout", "reward", "train", "commit")
_STATES = ("PENDING", "RUNNING", "COMPLETED")
_PAYLOAD = "p" * 800  # bytes, as measured
KEPT = Kept(task_runs=100, events=150, logs=50)  # of 20, 10 and 10 iterations


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefect")
    url = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
    environment = {"PREFECT_API_DATABASE_CONNECTION_URL": url, "PREFECT_HOME": str(folder)}
    subprocess.run([sys.executable, "-c", _MAKE], env=os.environ | environment, check=True)
    return folder / "prefect.db"


@pytest.fixture
def database(empty: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(empty, tmp_path / "prefect.db"))


@contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        yield connection


def _insert(connection: sqlite3.Connection, table: str, **values: object) -> None:
    names = ", ".join(values)
    connection.execute(
        f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", list(values.values())
    )


def _write_iterations(database: Path, first: int, last: int, run: str = "run") -> None:
    """What the server writes of these iterations, a minute each."""
    with _opened(database) as connection:
        if first == 1:
            flow = str(uuid4())
            _insert(connection, "flow", id=flow, name=run)
            _insert(connection, "flow_run", id=run, flow_id=flow, name=run)
        for iteration in range(first, last + 1):
            for number, task in enumerate(_TASKS):
                at = f"2026-01-01 {iteration // 60:02}:{iteration % 60:02}:1{number}"
                name = f"{run}-{iteration}-{task}"
                _insert(
                    connection, "task_run", id=name, name=task, task_key=task, dynamic_key=name,
                    flow_run_id=run, state_type="COMPLETED", end_time=f"{at}.300000",
                )  # fmt: skip
                _insert(connection, "log", name="l", level=20, message=_PAYLOAD, timestamp=f"{at}.000000")
                for moment, state in enumerate(_STATES):
                    stamp = f"{at}.{moment}00000"
                    _insert(
                        connection, "task_run_state", type=state, name=state, task_run_id=name,
                        timestamp=stamp, state_details=_PAYLOAD,
                    )  # fmt: skip
                    event = str(uuid4())
                    _insert(
                        connection, "events", id=event, event=state, resource_id=name, resource=_PAYLOAD,
                        payload=_PAYLOAD, occurred=stamp, received=stamp, recorded=stamp,
                    )  # fmt: skip
                    for role in range(3):
                        _insert(
                            connection, "event_resources", resource_id=f"{name}-{role}", resource_role="r",
                            resource=_PAYLOAD[:100], event_id=event, occurred=stamp,
                        )  # fmt: skip


def _count(database: Path, table: str) -> int:
    with _opened(database) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _size_bytes(database: Path) -> int:
    return sum(path.stat().st_size for path in database.parent.glob("prefect.db*"))


def test_a_long_run_stops_growing(database: Path):
    sizes: list[int] = []
    for first in range(1, 401, 40):
        _write_iterations(database, first, first + 39)
        prune(database, KEPT)
        sizes.append(_size_bytes(database))
    assert max(sizes) <= 1.05 * sizes[2], "pages that were freed are used again"
    assert _count(database, "task_run") == 100
    assert _count(database, "task_run_state") == 300, "the states go with their task runs"
    assert _count(database, "events") == 150
    assert _count(database, "event_resources") == 450, "and what an event is about with it"
    assert _count(database, "log") == 50
    assert _count(database, "flow_run") == 1


def test_the_newest_stay_and_what_is_not_finished(database: Path):
    _write_iterations(database, 1, 30)
    with _opened(database) as connection:
        connection.execute(
            "UPDATE task_run SET end_time = NULL, state_type = 'RUNNING' WHERE id = 'run-2-train'"
        )
    prune(database, KEPT)
    with _opened(database) as connection:
        left = {row[0] for row in connection.execute("SELECT id FROM task_run")}
    newest = {f"run-{iteration}-{task}" for iteration in range(11, 31) for task in _TASKS}
    assert left == newest | {"run-2-train"}
    assert prune(database, KEPT) == 0, "nothing is left to do"


def test_it_waits_for_the_server_to_finish_writing(database: Path):
    _write_iterations(database, 1, 30)
    writing = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    writing.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.5, lambda: writing.execute("COMMIT"))
    done.start()
    assert prune(database, KEPT) > 0
    done.join()
    writing.close()


def test_what_an_earlier_version_let_grow_is_written_anew(database: Path, monkeypatch: pytest.MonkeyPatch):
    _write_iterations(database, 1, 200)
    prune(database, KEPT)
    large = _size_bytes(database)
    compact(database)
    assert _size_bytes(database) == large, "not worth it yet"
    monkeypatch.setattr(prefect_pruning, "_COMPACTED_BYTES", 100_000)
    compact(database)
    assert _size_bytes(database) < large / 2
    assert _count(database, "task_run") == 100
    compact(database.with_name("not-there.db"))
    assert not database.with_name("not-there.db").exists()


def test_no_database_is_made_and_no_other_one_is_changed(tmp_path: Path):
    with pytest.raises(sqlite3.Error):
        prune(tmp_path / "missing.db")
    assert not (tmp_path / "missing.db").exists()
