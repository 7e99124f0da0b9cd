"""Reading of a run's history: all of it, or what has been written since the last call."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpu_runtime.scheduling.history import HistoryLine
from gpu_runtime.worker.history_log import lives


class HistoryTail:
    """A reader that follows the files of a run's history while they grow.

    Args:
        folder: folder of the run's whole history; need not exist yet.
    """

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
        chosen = [
            (number, path)
            for path, number in self._files.items()
            if path not in self._left and (only is None or self._names.get(path) in only)
        ]
        return [line for number, path in sorted(chosen) for line in self._new_of(number, path)]

    def leave(self, life: int, name: str) -> None:
        """Stop reading the file of a process that has ended."""
        self._left |= {path for path, of in self._names.items() if of == name and self._files[path] == life}

    def _new_of(self, life: int, path: Path) -> list[HistoryLine]:
        begun = self._read.get(path, 0)
        if path.stat().st_size == begun:
            return []
        with path.open("rb") as file:
            file.seek(begun)
            fresh = file.read()
        # A line without its end is being written, or is all that fitted on a full disk.
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read[path] = begun + len(whole)
        return [self._line(life, path, json.loads(row)) for row in whole.splitlines()]

    def _line(self, life: int, path: Path, facts: dict[str, Any]) -> HistoryLine:
        event, at = facts.pop("event"), facts.pop("at")
        if event == "process":
            self._names[path] = facts["name"]
        return HistoryLine(life, self._names[path], at, event, facts)


def read_history(folder: Path) -> list[HistoryLine]:
    """Return a run's whole history, by life, then by file; empty if there is none."""
    return HistoryTail(folder).new()
