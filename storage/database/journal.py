"""A run's journal: what was written to the database about it, a line at a time, beside its checkpoints.

The database is one file, and one damaged page of it blocks all runs. From its journal a run's rows are made
again (`rebuilding.py`). Each line has a checksum of its own: damage is found, and the lines after a
damaged or torn one are still read.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from storage.errors import StorageError

EntryKind = Literal["run", "iteration", "evaluation", "event", "discard", "notes", "link"]
"""`run`: the row of `runs` as it is from now on; `notes` and `link`: those of `run_notes` and `run_links`.
`discard`: what came after an iteration was dropped."""


@dataclass(frozen=True)
class JournalEntry:
    """One line: what was written, as JSON values."""

    kind: EntryKind
    values: dict[str, Any]


@dataclass(frozen=True)
class JournalContent:
    """What a journal says.

    Attributes:
        entries: in the order they were written.
        damaged: how many lines fail their checksum.
    """

    entries: list[JournalEntry] = field(default_factory=list)
    damaged: int = 0


class Journal:
    """The journal of one run. Appending needs the database's lock, so that lines are in its order.

    Args:
        path: the file; made by the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def size_bytes(self) -> int:
        """Its length; 0 where there is none."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, line: bytes) -> None:
        """Append a line that `journal_line` made; when this returns it is on disk.

        Raises:
            StorageError: the disk refused (full, read-only).
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                left = memoryview(b"\n" + line if torn else line)
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageError(
                f"cannot write the journal {self.path}: {error.strerror}; free disk space or fix the "
                "folder's rights, then resume the run"
            ) from error

    def read(self, after_bytes: int = 0) -> JournalContent:
        """What was written after the first `after_bytes` bytes.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(after_bytes)
                content = file.read()
        except FileNotFoundError:
            return JournalContent()
        except OSError as error:
            raise StorageError(f"cannot read the journal {self.path}: {error.strerror}") from error
        lines = [line for line in content.split(b"\n") if line]
        entries = [_entry(line) for line in lines]
        whole = [entry for entry in entries if entry is not None]
        return JournalContent(whole, len(lines) - len(whole))


def journal_line(kind: EntryKind, values: Mapping[str, Any]) -> bytes:
    """The line that stands for `values` (JSON values) in a journal; make it before taking the lock."""
    text = json.dumps({"kind": kind, **values}, separators=(",", ":")).encode()
    packed = base64.b85encode(zlib.compress(text, 1))
    return b"%08x %s\n" % (zlib.crc32(packed), packed)


def _entry(line: bytes) -> JournalEntry | None:
    """The inverse of `journal_line`; None where the line is damaged."""
    checksum, _, packed = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(packed):
            return None
        values = json.loads(zlib.decompress(base64.b85decode(packed)))
        return JournalEntry(values.pop("kind"), values)
    except (ValueError, zlib.error, binascii.Error, KeyError):
        return None
