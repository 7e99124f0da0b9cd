"""The `spotlight` command with every phase announced on standard output, for fault benchmarks.

python -m benchmarks.announced_run train --preset smoke
"""

from __future__ import annotations

import sys

import flows.cli.command_line as command_line
import flows.progress as progress
from storage.record.records import IterationRecord


class AnnouncingReporter(progress.Reporter):
    """Prints `BEGIN done`, `PHASE name` and `ITERATION number` lines beside the usual ones."""

    def begin(self, run_id: str, total: int, done: int, gives_verdict: bool = True) -> None:
        """Announce that a run starts, or resumes after `done` iterations."""
        _say(f"BEGIN {done}")
        super().begin(run_id, total, done, gives_verdict)

    def phase(self, name: str) -> None:
        """Announce a phase."""
        _say(f"PHASE {name}")

    def iteration(self, record: IterationRecord) -> None:
        """Announce a finished iteration."""
        _say(f"ITERATION {record.iteration}")
        super().iteration(record)


def _say(line: str) -> None:
    # One write per line: phases begin in several threads, and `print` writes the newline separately.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the command line with this reporter."""
    progress.use(AnnouncingReporter())
    command_line.main()


if __name__ == "__main__":
    main()
