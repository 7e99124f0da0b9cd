"""The history of a run: the actions of each process, line by line, in one file per process.

A line is one write to an append-only file, so it survives any end of its process; nothing is synced to disk,
so a power loss may lose the last lines. Each life of a run, from its start or resumption to its end, has a
folder with a file per process, whose first line names the process. `gpu_runtime/scheduling/history.py`
checks the promises against it; `HistoryTail` reads it while it grows.

On a machine without the driver's folder, a process writes into that machine's home
(`HistoryPlace.folder_here`). All processes on the driver's machine use the driver's clock.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpu_runtime.scheduling.history import HistoryLine
from gpu_runtime.scheduling.requests import SampleRequest
from storage.clock import Anchor, now, process_age_s, process_clock, process_start_s
from storage.errors import StorageError
from storage.home import Home


@dataclass(frozen=True)
class HistoryPlace:
    """Where the processes of a run's life write; the driver passes it to its workers and scorers.

    Attributes:
        folder: folder of the life, on the driver's machine: HOME/runs/RUN/history/LIFE.
        anchor: anchor of the driver's clock.
    """

    folder: str
    anchor: Anchor

    def folder_here(self) -> Path:
        """Return the folder to write into: the driver's, or the same life's in this machine's home.

        Raises:
            StorageError: if the driver's does not exist and the other cannot be created.
        """
        folder = Path(self.folder)
        if folder.is_dir():
            return folder
        own = Home.from_environment().history(unquote(folder.parents[1].name)) / folder.name
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the history has no folder on {socket.gethostname()}: the driver's {folder} is missing, and "
                f"{own} cannot be created: {error}; set SPOTLIGHT_HOME there to a writable folder, or "
                "runtime.history=false"
            ) from error
        return own


class HistoryLog:
    """The file of one process; all its threads may write to it.

    Args:
        folder: existing folder of the run's life; None writes nothing.
        name: name of the process: `driver`, or that of its worker or scorer.

    Attributes:
        path: path of the file; None if nothing is written.
        place: place to pass to processes that this one starts, so they write beside it.

    Raises:
        StorageError: if the file cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, name: str) -> None:
        self.path: Path | None = None
        self.place: HistoryPlace | None = None
        self._file: int | None = None
        if folder is None:
            return
        self.path = path = Path(folder) / f"{name}.{os.getpid()}.jsonl"
        self.place = HistoryPlace(str(folder), process_clock().anchor)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise StorageError(
                f"the history {path} cannot be written: {error}; to run without it, set runtime.history=false"
            ) from error
        pid = os.getpid()
        self.note(
            "process",
            name=name,
            pid=pid,
            created=now() - process_age_s(),
            started_s=process_start_s(pid),
            host=socket.gethostname(),
        )

    @classmethod
    def beside(cls, place: HistoryPlace | None, name: str) -> HistoryLog:
        """Open the file of a process that a driver started; None writes nothing.

        From now on the process uses the driver's clock, if both are on one machine.

        Raises:
            StorageError: if the file cannot be made.
        """
        if place is None:
            return cls(None, name)
        process_clock().follow(place.anchor)
        return cls(place.folder_here(), name)

    @property
    def kept(self) -> bool:
        """True if anything is written."""
        return self._file is not None

    def note(self, event: str, **facts: Any) -> None:
        """Append a line with an event and its details, as JSON values."""
        if self._file is not None:
            line = json.dumps({"event": event, "at": now(), **facts}, separators=(",", ":"))
            os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """Stop writing."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def new_life(folder: Path) -> Path:
    """Make the folder of a run's next life, numbered from 1, and the folder of its history."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    life = folder / f"{1 + len(lives(folder)):04}"
    life.mkdir(mode=0o700)
    return life


def lives(folder: Path) -> list[Path]:
    """Return the folders of a run's lives, in order; empty without a history."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())


def names_of(requests: Iterable[SampleRequest]) -> list[str]:
    """Return requests in the history's form."""
    return [
        f"{request.kind}-{request.iteration}-{request.prompt_id}-{request.seed_index}-v{request.policy_version}"
        + (f"-preview-{request.preview_step}" if request.preview_step else "")
        + (f"-steps-{request.schedule_steps}" if request.schedule_steps else "")
        for request in requests
    ]


class HistoryTail:
    """A reader that follows a run's growing history files; their folder need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, int] = {}
        self._left: set[Path] = set()
        self._read: dict[Path, int] = {}
        self._names: dict[Path, str] = {}

    def new(self, only: Collection[str] | None = None) -> list[HistoryLine]:
        """Return complete lines written since the last call: by life, then by file, each in order.

        Args:
            only: names of processes; other and new processes wait for the next call without it.
        """
        if only is None:
            found = ((int(life.name), path) for life in lives(self._folder) for path in life.glob("*.jsonl"))
            self._files |= {path: number for number, path in found if path not in self._files}
        lines: list[HistoryLine] = []
        for life, path in sorted((life, path) for path, life in self._files.items()):
            if path in self._left or (only is not None and self._names.get(path) not in only):
                continue
            begun = self._read.get(path, 0)
            if path.stat().st_size == begun:
                continue
            with path.open("rb") as file:
                file.seek(begun)
                fresh = file.read()
            # A line without its end is being written, or did not fit on a full disk.
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read[path] = begun + len(whole)
            for row in whole.splitlines():
                facts = json.loads(row)
                event, at = facts.pop("event"), facts.pop("at")
                if event == "process":
                    self._names[path] = facts["name"]
                lines.append(HistoryLine(life, self._names[path], at, event, facts))
        return lines

    def leave(self, life: int, name: str) -> None:
        """Stop reading the file of a process that has ended."""
        self._left |= {path for path, of in self._names.items() if of == name and self._files[path] == life}


def read_history(folder: Path) -> list[HistoryLine]:
    """Return a run's whole history, by life, then by file; empty if there is none."""
    return HistoryTail(folder).new()
