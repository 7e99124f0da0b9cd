"""The history of a run: what each process did, a line at a time, in a file of its own.

A line is one write to a file that is only appended to, so what a process has written is there however it
ends; nothing is synced to the disk, so a machine that loses power may lose the last of it. Each life of a
run, from its start or resumption to its end, has a folder of its own; in it each process has a file, whose
first line says who it is. `gpu_runtime/scheduling/history_check.py` checks the promises from it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from gpu_runtime.scheduling.requests import SampleRequest
from storage.errors import StorageError


class HistoryLog:
    """The file of one process; may be written by all its threads.

    Args:
        folder: of the run's life, which exists; None writes nothing.
        name: of the process: `driver`, or that of its worker or scorer.

    Raises:
        StorageError: the file cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, name: str) -> None:
        self.folder = None if folder is None else str(folder)
        self._file: int | None = None
        if folder is None:
            return
        path = Path(folder) / f"{name}.{os.getpid()}.jsonl"
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise StorageError(
                f"the history {path} cannot be written: {error}; set runtime.history=false to do without"
            ) from error
        self.note("process", name=name, pid=os.getpid(), created=psutil.Process().create_time())

    @property
    def kept(self) -> bool:
        """Whether anything is written."""
        return self._file is not None

    def note(self, event: str, **facts: Any) -> None:
        """Append a line.

        Args:
            event: what happened.
            facts: JSON values.
        """
        if self._file is not None:
            line = json.dumps({"event": event, "at": time.time(), **facts}, separators=(",", ":"))
            os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """Write no more."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def new_life(folder: Path) -> Path:
    """Make the folder of a run's next life; they are numbered from 1.

    Args:
        folder: of the run's whole history; made where it is missing.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    life = folder / f"{1 + len(lives(folder)):04}"
    life.mkdir(mode=0o700)
    return life


def lives(folder: Path) -> list[Path]:
    """The folders of a run's lives, in order; none where there is no history."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())


def names_of(requests: Iterable[SampleRequest]) -> list[str]:
    """Requests as the history writes them."""
    return [
        f"{request.kind}-{request.iteration}-{request.prompt_id}-{request.seed_index}-v{request.policy_version}"
        for request in requests
    ]
