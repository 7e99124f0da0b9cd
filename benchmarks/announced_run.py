"""The `spotlight` command with every phase announced on standard output, for fault benchmarks.

python -m benchmarks.announced_run train --preset smoke
"""

from __future__ import annotations

import flows.command_line as command_line
import flows.progress as progress
from storage.records import IterationRecord


class AnnouncingReporter(progress.Reporter):
    """Prints `BEGIN done`, `PHASE name` and `ITERATION number` lines beside the usual ones."""

    def begin(self, run_id: str, total: int, done: int) -> None:
        """A run starts or goes on after `done` iterations."""
        print(f"BEGIN {done}", flush=True)
        super().begin(run_id, total, done)

    def phase(self, name: str) -> None:
        """A phase has begun."""
        print(f"PHASE {name}", flush=True)

    def iteration(self, record: IterationRecord) -> None:
        """An iteration is done."""
        print(f"ITERATION {record.iteration}", flush=True)
        super().iteration(record)


def main() -> None:
    """Run the command line with this reporter."""
    progress.use(AnnouncingReporter())
    command_line.main()


if __name__ == "__main__":
    main()
