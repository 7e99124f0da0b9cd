"""A run's report as a file, made in a separate process because `tasks` does not import `ui`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from storage.errors import ServerError
from storage.home import HOME_VARIABLE, Home
from storage.processes import python_command

_ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 50.0


def report_process(home: Home, run_id: str, out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the process that writes a run's report and prints its path, with options of `subprocess.run`."""
    return subprocess.run(
        python_command("-m", "ui.report.__main__", "--out", str(out), "--", run_id),
        cwd=_ROOT, stdin=subprocess.DEVNULL, env=os.environ | {HOME_VARIABLE: str(home.path)}, text=True,
        **options,
    )  # fmt: skip


def report_file(home: Home, run_id: str, out: Path) -> None:
    """Write the report of a run to a file.

    Raises:
        ServerError: the process failed, or took too long.
    """
    try:
        report_process(home, run_id, out, timeout=_LIMIT_S, capture_output=True, check=True)
    except subprocess.TimeoutExpired as error:
        raise ServerError(
            f"the report of {run_id} was not written within {_LIMIT_S:g} s; write it with "
            f"`spotlight report {run_id}`"
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().rpartition("\n")[2]
        raise ServerError(f"the report of {run_id} could not be written: {said}") from error
