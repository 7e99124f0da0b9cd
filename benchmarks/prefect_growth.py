"""How large Prefect's database gets over a long run: rows of a real run, repeated and pruned.

    python -m benchmarks.prefect_growth HOME [--iterations 10000] [--iterations-between 250]

HOME is one in which a run has finished, such as `spotlight train --preset smoke --set iterations=16`. A copy
of its Prefect database gets that run's rows again and again, with new identifiers and later times, and is
pruned in between as the server does it. It prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from flows.server.pruning import prune
from storage.home import Home

_TIMES = {
    "task_run": ("start_time", "end_time", "created", "updated", "expected_start_time", "state_timestamp"),
    "task_run_state": ("timestamp", "created", "updated"),
    "events": ("occurred", "received", "recorded", "created", "updated"),
    "event_resources": ("occurred", "created", "updated"),
}
_IDENTIFIERS = {
    "task_run": ("id", "state_id", "dynamic_key"),
    "task_run_state": ("id", "task_run_id"),
    "events": ("id",),
    "event_resources": ("id", "event_id"),
}


def repeat(database: Path, times: int, first: int, spacing_s: int = 60) -> None:
    """Add the rows of the run that is in the database again.

    Args:
        database: with the run; its rows are those whose identifiers have no suffix.
        times: how often.
        first: number of the first repetition, at least 1.
        spacing_s: how much later each is.
    """
    connection = sqlite3.connect(database, timeout=60)
    for number in range(first, first + times):
        for table, shifted in _TIMES.items():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            values = [_again(table, column, column in shifted) for column in columns]
            original = f"original_{table}"
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [original]).fetchone():
                connection.execute(f"CREATE TABLE {original} AS SELECT * FROM {table}")
            connection.execute(
                f"INSERT INTO {table} SELECT {', '.join(values)} FROM {original}",
                {"suffix": f"{number:08d}", "later": f"+{number * spacing_s} seconds"},
            )
    connection.commit()
    connection.close()


def _again(table: str, column: str, is_time: bool) -> str:
    if is_time:
        return f"strftime('%Y-%m-%d %H:%M:%S', {column}, :later) || substr({column}, 20)"
    return f"substr({column}, 1, 28) || :suffix" if column in _IDENTIFIERS[table] else column


def size_bytes(database: Path) -> int:
    """Of the file and of what is not yet in it."""
    return sum(path.stat().st_size for path in database.parent.glob(f"{database.name}*"))


def grow(original: Path, iterations: int, between: int) -> dict[str, Any]:
    """Repeat a run's rows until there are so many iterations, pruning in between.

    Args:
        original: a Prefect database with one run of five task runs an iteration.
        iterations: in the end.
        between: iterations between two prunings; in a run there is a minute between them.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "prefect.db"
        with sqlite3.connect(original) as source, sqlite3.connect(database) as copy:
            source.backup(copy)
        copy.execute("PRAGMA journal_mode = WAL")
        a_run = max(1, copy.execute("SELECT count(*) FROM task_run").fetchone()[0] // 5)
        copy.close()
        start_bytes, largest, pruning_s, done, number = size_bytes(database), 0, 0.0, a_run, 1
        while done < iterations:
            runs = max(1, min(between, iterations - done) // a_run)
            repeat(database, runs, number)
            done, number = done + runs * a_run, number + runs
            largest = max(largest, size_bytes(database))
            began = time.perf_counter()
            prune(database)
            pruning_s += time.perf_counter() - began
        left = shutil.copy(database, Path(folder) / "left.db")
        return {
            "iterations": done, "start_bytes": start_bytes, "largest_bytes": largest,
            "end_bytes": size_bytes(database), "pruning_s_per_1000_iterations": pruning_s * 1000 / done,
            "task_runs": sqlite3.connect(left).execute("SELECT count(*) FROM task_run").fetchone()[0],
        }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--iterations-between", type=int, default=250)
    arguments = parser.parse_args()
    original = Home(arguments.home.absolute()).prefect / "prefect.db"
    print(json.dumps(grow(original, arguments.iterations, arguments.iterations_between)))


if __name__ == "__main__":
    main()
