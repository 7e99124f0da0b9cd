"""A run's record under kills, full disks and torn logs, beside readers, and the cost of a commit.

    python -m benchmarks.record [--faults 300] [--quick] [--keep]

Each fault forks a process that records a run of twelve iterations (commits, checkpoints, events, compactions,
sweeps) and ends at one call to the file system: by SIGKILL, by a disk that is full from then on, or by
SIGKILL with half a line at the end of `events.jsonl`. The parent then inspects the record and resumes the run
to its end. Acknowledged iterations and checkpoints must be present and complete, and the end must equal an
undisturbed run's.

Readers are processes that query `spotlight.duckdb` while a run commits and compacts.
"""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.report import finish, nearest_rank, options
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import (
    CandidateRecord,
    IterationRecord,
    PaidTime,
    SampleRecord,
    StateInterval,
)
from storage.record.run_folder import COMPACTED_AT, EVENTS_FILE
from storage.record.run_store import RunStore
from storage.record.tables import iteration_rows

RUN = "r"
ITERATIONS = 12
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "open")
"""Audited calls that change the disk, or open a file to do so."""

_TABLES = ("iterations", "iteration_metrics", "samples", "candidates")


def record(iteration: int, samples: int = 128, drafts: int = 450, devices: int = 12) -> IterationRecord:
    """Return an iteration with the rows of a run on 4 reserved and 8 spot devices; the same each time."""
    dice = random.Random(iteration)
    rows = [
        SampleRecord(
            i // 4, f"a sign {i // 4}", i % 4, iteration - 1, dice.random(), False, "read it", None, i % 4,
            dice.random(), dice.gauss(0, 1), f"spot-{i % 8}",
        )
        for i in range(samples)
    ]  # fmt: skip
    candidates = [
        CandidateRecord(
            i // 14, f"a sign {i // 14}", i % 14, "full", iteration - 1, dice.random(), False, None, 0,
            i % 14, i % 14 < 4,
        )
        for i in range(drafts)
    ]  # fmt: skip
    states = [
        StateInterval(f"spot-{i % devices}", "spot", "rollout", iteration + i / 100, iteration + i / 50, 2.5)
        for i in range(6 * devices)
    ]
    paid = [PaidTime(f"spot-{i}", "spot", 1.0) for i in range(devices)]
    metrics = {f"figure_{i}": dice.random() for i in range(30)}
    return IterationRecord(
        RUN, iteration, iteration, float(iteration), iteration + 1.0, metrics, rows, candidates,
        intervals=states, paid_time=paid,
    )  # fmt: skip


def new_store(folder: str) -> RunStore:
    """Return a home with a run that has recorded nothing yet."""
    store = RunStore(Home(Path(folder)).ensure())
    store.create_run(RUN, RunConfig(), {}, os.getpid())
    return store


def drive(store: RunStore, first: int, last: int, done: Callable[[int], object]) -> None:
    """Record iterations as a run does, with events and compactions, every second one with a checkpoint."""
    checkpoints = CheckpointStore(store.folder(RUN).path)
    for iteration in range(first, last + 1):
        written = record(iteration, samples=16, drafts=16, devices=3)
        if iteration % 2:
            store.commit_iteration(written)
        else:
            weights = {"weights": b"%d" % iteration * 1000}
            checkpoints.save(iteration, weights, written.state, iteration_rows(written))
        done(iteration)
        store.add_event(RUN, "note", f"iteration {iteration}")
        store.folder(RUN).compact(before=checkpoints.oldest, at_least=3)
        if iteration % 5 == 0:
            store.folder(RUN).sweep(stay_s=-1)


def fault(kind: str, at: int, undisturbed: dict[str, Any]) -> Counter[str]:
    """Record a run until the fault, inspect it, and resume it to its end.

    Args:
        kind: `kill`, `full` or `torn`.
        at: number of calls that change the disk before the fault.
        undisturbed: contents of the undisturbed run's tables.

    Returns:
        The figures of `faults`; empty if the run ended before the fault.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(folder)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _fail_at(kind, at)
            try:
                drive(store, 1, ITERATIONS, lambda i: os.write(writing, bytes([i])))
            except BaseException:  # noqa: BLE001 - a full disk ends the process, whatever it raises
                os._exit(1)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as acknowledged:
            promised = max(acknowledged.read(), default=0)
        if os.waitpid(child, 0)[1] == 0:
            return Counter()
        if kind == "torn":
            with (store.folder(RUN).path / EVENTS_FILE).open("ab") as events:
                events.write(b'{"happened_at": 1.0, "ki')
        there, halves = inspect_record(store)
        newest = CheckpointStore(store.folder(RUN).path).load_latest()
        resumed_after = 0 if newest is None else newest.iteration
        lost = len(set(range(1, promised + 1)) - there) + (resumed_after < promised - promised % 2)
        halves += 0 if newest is None else len(newest.rejected)
        store.discard_after(RUN, resumed_after)
        drive(store, resumed_after + 1, ITERATIONS, lambda i: None)
        identical = contents(store) == undisturbed
        return Counter(faults=1, iterations_lost=lost, halves_visible=halves, resumed=1, identical=identical)


def inspect_record(store: RunStore) -> tuple[set[int], int]:
    """Return the recorded iterations, and the number of incomplete ones."""
    with store.reading(RUN) as connection:
        rows = {
            table: dict(
                connection.execute(f"SELECT iteration, count(*) FROM {table} GROUP BY ALL").fetchall()
            )
            for table in _TABLES
        }
    there = set().union(*rows.values())
    whole = {"iterations": 1, "iteration_metrics": 30, "samples": 16, "candidates": 16}
    return there, sum(any(rows[t].get(i) != n for t, n in whole.items()) for i in there)


def contents(store: RunStore) -> dict[str, Any]:
    """Return all rows that count, except the cost of repeated work."""
    with store.reading(RUN) as connection:
        found = {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall() for table in _TABLES
        }
        states = "SELECT * FROM worker_states WHERE phase <> 'discarded' ORDER BY ALL"
        return found | {"worker_states": connection.execute(states).fetchall()}


def _fail_at(kind: str, at: int) -> None:
    """Make this process fail after so many calls that change the disk."""
    left = at

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in _CHANGES or (
            event == "open" and not int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        left -= 1
        if left < 0:
            if kind == "full" and event in ("open", "os.mkdir"):
                raise OSError(errno.ENOSPC, "No space left on device")
            if kind != "full":
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def faults(count: int) -> dict[str, int]:
    """Inject faults of all kinds at random calls.

    Returns:
        Numbers of: faults; missing acknowledged iterations and checkpoints; iterations with missing or
        duplicate rows in a table, and incomplete checkpoints; resumed runs; and those of them that ended like
        an undisturbed one.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(folder)
        drive(store, 1, ITERATIONS, lambda i: None)
        undisturbed = contents(store)
    dice, kinds = random.Random(1), itertools.cycle(("kill", "full", "torn"))
    names = ("faults", "iterations_lost", "halves_visible", "resumed", "identical")
    found: Counter[str] = Counter(dict.fromkeys(names, 0))
    while found["faults"] < count:
        found.update(fault(next(kinds), dice.randint(1, 420), undisturbed))
    return dict(found)


def _read(path: str, queries: int, found: Any) -> None:
    """Query a home's views while it is written."""
    errors: list[str] = []
    seen = 0
    views = duckdb.connect(path, read_only=True)
    for place in range(queries):
        try:
            if place % 20 == 0:
                views.close()
                views = duckdb.connect(path, read_only=True)
            rows = views.execute(
                "SELECT iteration, count(*) FROM samples WHERE run_id = ? GROUP BY ALL", [RUN]
            ).fetchall()
            if len(rows) < seen or any(n != 128 for _, n in rows):
                errors.append(f"query {place}: {len(rows)} iterations after {seen}, or one by halves")
            seen = len(rows)
        except duckdb.Error as error:
            errors.append(str(error).splitlines()[0])
    found.put(errors)


def readers(queries: int, processes: int = 4) -> dict[str, Any]:
    """Query the views in several processes while a run commits and compacts."""
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(folder)
        store.commit_iteration(record(1))
        context = multiprocessing.get_context("spawn")
        found = context.Queue()
        arguments = (str(store.home.database), queries // processes, found)
        children = [context.Process(target=_read, args=arguments) for _ in range(processes)]
        for child in children:
            child.start()
        iteration = 1
        while any(child.is_alive() for child in children):
            iteration += 1
            store.commit_iteration(record(iteration))
            store.compact(RUN, before=iteration - 1)
            time.sleep(0.2)  # far more often than any run
        errors = [error for _ in children for error in found.get()]
        for child in children:
            child.join()
    return {
        "queries": queries // processes * processes,
        "reader_errors": len(errors),
        "reader_error_samples": errors[:3],
        "lock_waits": sum("lock" in error for error in errors),
        "iterations_beside_readers": iteration,
    }


def costs(iterations: int) -> dict[str, Any]:
    """Time commits without weights, and measure the growth of the driver's memory."""
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(folder)
        took: list[float] = []
        at_begin = 0
        for iteration in range(1, iterations + 1):
            written = record(iteration)
            begin = time.perf_counter()
            store.commit_iteration(written)
            took.append(time.perf_counter() - begin)
            store.compact(RUN, before=iteration - 1)
            if iteration % COMPACTED_AT == 0:
                # Replaced folders stay for ten minutes; at this rate thousands would pile up.
                store.folder(RUN).sweep(stay_s=-1)
            if iteration == min(200, iterations // 2):
                at_begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - at_begin
        store.set_status(RUN, "finished")
        store.compact(RUN)
        store.folder(RUN).sweep(stay_s=-1)
        files = sum(path.is_file() for path in store.folder(RUN).path.rglob("*"))
    return {
        "commits": iterations,
        "commit_p50_ms": round(1000 * nearest_rank(took, 0.5), 1),
        "commit_p99_ms": round(1000 * nearest_rank(took, 0.99), 1),
        "memory_growth_mb": round(grown / 1024, 1),
        "files_of_a_run": files,
    }


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__, "a tenth of everything")
    parser.add_argument("--faults", type=int, default=300, help="number of faults (default: %(default)s)")
    arguments = parser.parse_args()
    share = 10 if arguments.quick else 1
    figures = faults(arguments.faults // share) | readers(10_000 // share) | costs(10_000 // share)
    print(json.dumps(figures, indent=2), file=sys.stderr)
    finish("record", figures, arguments)


if __name__ == "__main__":
    main()
