"""A run's log: which phases begin and end, and messages, a line each, readable while the run writes it.

The record holds what a run has finished; this file says what it is doing, also before the run has a row.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from storage.clock import process_is_alive, process_start_s
from storage.home import Home

START = "start"
"""The phase before the first one of an iteration: the server, the devices, the model."""

_TAIL_BYTES = 65_536
_STARTED, _BEGIN, _END, _NOTE = "started", "begin", "end", "note"


class RunLog:
    """Appends to a run's log. No method raises: a full disk does not end a run that can go on without it.

    Args:
        home: where the log lies.
        run_id: the run.
    """

    def __init__(self, home: Home, run_id: str) -> None:
        self.file = home.run_log(run_id)

    def starting(self) -> None:
        """This process works on the run from now on, and starts it; what others began is over."""
        pid = os.getpid()
        self._append(_STARTED, f"{pid} {process_start_s(pid)!r}")
        self._append(_BEGIN, START)

    def ready(self) -> None:
        """All that a run needs has started."""
        self._append(_END, START)

    def note(self, message: str) -> None:
        """A message, on one line."""
        self._append(_NOTE, message)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase, such as `rollout`; it ends with the context, however that ends."""
        self._append(_BEGIN, name)
        try:
            yield
        finally:
            self._append(_END, name)

    @contextmanager
    def with_warnings(self) -> Iterator[None]:
        """While the context lasts, warnings and errors of all libraries are noted too."""
        handler = _Warnings(self)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)

    def _append(self, kind: str, text: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f"{at} {kind} {' '.join(text.split())}\n".encode()
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError:
            return


class _Warnings(logging.Handler):
    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.note(f"{record.levelname.lower()} of {record.name}: {record.getMessage()}")


@dataclass(frozen=True)
class Message:
    """A line of a log for a person: when (Unix seconds), and what."""

    at: float
    text: str


@dataclass(frozen=True)
class Activity:
    """What a run's log says of the process that wrote it last.

    Attributes:
        pid: that process; None where the log says of none.
        process_started_at: seconds since the machine's boot; None where it is not known.
        phases: the phases that have begun and not ended, and when (Unix seconds).
        messages: the latest, in order.
    """

    pid: int | None = None
    process_started_at: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether that process still runs on this machine."""
        return self.pid is not None and process_is_alive(self.pid, self.process_started_at)

    @property
    def is_starting(self) -> bool:
        """Whether the run's first phase has not ended."""
        return START in self.phases


def read_activity(home: Home, run_id: str, messages: int = 100) -> Activity:
    """What a run's log says; nothing where there is none.

    Args:
        home: where the log lies.
        run_id: the run.
        messages: how many of the latest.
    """
    return _activity(home.run_log(run_id), messages)


def _activity(file: Path, messages: int) -> Activity:
    pid: int | None = None
    process_started_at: float | None = None
    phases: dict[str, float] = {}
    found: list[Message] = []
    for at, kind, text in _lines(file):
        match kind:
            case "started":
                first, _, second = text.partition(" ")
                pid, process_started_at, phases = _number(first), _seconds(second), {}
            case "begin":
                phases[text] = at
                found.append(Message(at, f"{text} begins"))
            case "end":
                began_at = phases.pop(text, None)
                took = "" if began_at is None else f" after {at - began_at:.1f} s"
                found.append(Message(at, f"{text} ends{took}"))
            case "note":
                found.append(Message(at, text))
    return Activity(pid, process_started_at, phases, tuple(found[-messages:]))


def _lines(file: Path) -> Iterator[tuple[float, str, str]]:
    """The lines among the file's last bytes: time (Unix seconds), kind, text."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - _TAIL_BYTES))
            content = opened.read().decode(errors="replace")
    except OSError:
        return
    for line in content.splitlines():
        when, _, rest = line.partition(" ")
        kind, _, text = rest.partition(" ")
        try:
            yield datetime.fromisoformat(when).timestamp(), kind, text
        except ValueError:  # torn, or not ours
            continue


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
