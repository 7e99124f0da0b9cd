"""kill -9 of a writer leaves whole iterations only, and a reader beside it never fails."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.run_store import RunStore

ROOT = Path(__file__).resolve().parents[2]
KILLS = 8
SAMPLES = 64

WRITER = f"""
import sys
from pathlib import Path
from storage.home import Home
from storage.record.run_store import RunStore
from tests.sample_run import iteration_record
store = RunStore(Home(Path(sys.argv[1])))
iteration = int(sys.argv[2])
print("ready", flush=True)
while True:
    store.commit_iteration(iteration_record("r", iteration, iteration * 18.0, samples={SAMPLES}))
    print(iteration, flush=True)
    iteration += 1
"""

READER = """
import json, sys, threading, time
from pathlib import Path
from storage.record.queries import runs as queries
from storage.errors import StorageError
from storage.home import Home
from storage.record.run_store import RunStore
store = RunStore(Home(Path(sys.argv[1])))
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
print("ready", flush=True)
reads, failures, seen = 0, [], 0
while not over.is_set():
    try:
        with store.reading() as connection:
            frame = queries.metric_curves(connection, "r")
        if len(frame) < seen or frame.drop(columns="late", errors="ignore").isna().any(axis=None):
            failures.append(f"{len(frame)} rows after {seen}, or a gap in them")
        seen = len(frame)
        reads += 1
        time.sleep(0.02)  # a busy dashboard; one that never let go would starve any writer
    except StorageError as error:
        failures.append(str(error))
print(json.dumps({"reads": reads, "failures": failures}), flush=True)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def sizes(store: RunStore) -> dict[int, tuple[int, int, int, int]]:
    """Iteration -> how many rows each of its tables has."""
    tables = ("samples", "iteration_metrics", "worker_states", "costs")
    counts = ", ".join(
        f"(SELECT count(*) FROM {t} x WHERE x.run_id = i.run_id AND x.iteration = i.iteration)"
        for t in tables
    )
    with store.reading() as connection:
        rows = connection.execute(
            f"SELECT iteration, {counts} FROM iterations i ORDER BY iteration"
        ).fetchall()
        for table in tables:  # and none that belongs to no iteration
            orphans = connection.execute(
                f"SELECT count(*) FROM {table} ANTI JOIN iterations USING (run_id, iteration)"
            ).fetchone()
            assert orphans == (0,), table
    return {row[0]: row[1:] for row in rows}


@pytest.mark.slow
def test_killed_writers_leave_whole_iterations_and_readers_never_fail(tmp_path: Path):
    dice = random.Random(1)
    store = RunStore(Home(tmp_path))
    store.create_run("r", RunConfig(), {}, os.getpid())
    reader = start(READER, str(tmp_path))
    promised = 0
    for _ in range(KILLS):
        writer = start(WRITER, str(tmp_path), str(promised + 1))
        assert writer.stdout is not None
        # After a number of commits, and then somewhere in the next ones, however slow the machine.
        lines = [writer.stdout.readline() for _ in range(dice.randint(0, 3))]
        time.sleep(dice.uniform(0.0, 0.08))
        writer.kill()
        lines += writer.stdout.readlines()
        writer.wait()
        # The last line may be cut off by the kill: then it was not promised.
        promised = max([promised, *(int(line) for line in lines if line.endswith("\n"))])
        rows = sizes(store)
        assert list(rows) == list(range(1, len(rows) + 1))
        assert promised <= len(rows) <= promised + 1
        assert {row[0] for row in rows.values()} <= {SAMPLES}
        assert len(set(rows.values())) <= 1, "every iteration has the same number of rows"
    outcome = json.loads(reader.communicate("over\n")[0])
    assert outcome["failures"] == []
    assert outcome["reads"] > KILLS
    assert promised >= KILLS // 2
