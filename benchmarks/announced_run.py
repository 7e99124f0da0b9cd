"""The `spotlight` command with every phase announced on standard output, for fault benchmarks.

python -m benchmarks.announced_run train --preset smoke
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flows.command_line as command_line
import flows.progress as progress
from storage.records import IterationRecord
from tasks.session import Session


def _announce() -> None:
    timed = Session.timed
    begin, iteration = progress.Reporter.begin, progress.Reporter.iteration

    @contextmanager
    def announced(self: Session, phase: str) -> Iterator[None]:
        print(f"PHASE {phase}", flush=True)
        with timed(self, phase):
            yield

    def begun(self: progress.Reporter, run_id: str, total: int, done: int) -> None:
        print(f"BEGIN {done}", flush=True)
        begin(self, run_id, total, done)

    def finished(self: progress.Reporter, record: IterationRecord) -> None:
        print(f"ITERATION {record.iteration}", flush=True)
        iteration(self, record)

    patched: Any = Session
    patched.timed = announced
    progress.Reporter.begin = begun
    progress.Reporter.iteration = finished


if __name__ == "__main__":
    _announce()
    command_line.main()
