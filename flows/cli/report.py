"""The report of a run, written by a separate process: this room does not import the dashboard's."""

from __future__ import annotations

import re
from pathlib import Path

from storage.home import Home
from storage.new_folder import writable_file
from storage.record.run_store import RunStore
from tasks.report import report_process


def write_report(home: Home, run_id: str, out: Path | None) -> int:
    """Write the report of a run and print its path; returns the exit code.

    Args:
        home: home that holds the run.
        run_id: the run.
        out: the file; None for `RUN.html` in this folder.

    Raises:
        RunNotFoundError: the run does not exist.
        ConfigurationError: `out` is a folder, or cannot be written.
        StorageError: a file of the record is damaged.
    """
    RunStore(home).run(run_id)
    # A run made elsewhere may be named like a path: only characters of a plain name are kept.
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id).strip("-.") or "report"
    file = writable_file(f"{name}.html" if out is None else out, "--out")
    return report_process(home, run_id, file).returncode
