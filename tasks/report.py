"""A run's report as a file, made in a process of its own: this room does not import the dashboard's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from storage.errors import ServerError
from storage.home import HOME_VARIABLE, Home

_ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 50.0


def report_file(home: Home, run_id: str, out: Path) -> None:
    """Write the report of a run to a file.

    Args:
        home: where the run is.
        run_id: the run.
        out: the HTML file to write.

    Raises:
        ServerError: the process failed, or took too long.
    """
    command = [sys.executable, "-m", "ui.report", "--out", str(out), "--", run_id]
    try:
        subprocess.run(
            command, cwd=_ROOT, env=os.environ | {HOME_VARIABLE: str(home.path)}, timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ServerError(
            f"the report of {run_id} was not written within {_LIMIT_S:g} s; write it with "
            f"`spotlight report {run_id}`"
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().rpartition("\n")[2]
        raise ServerError(f"the report of {run_id} could not be written: {said}") from error
