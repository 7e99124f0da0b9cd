"""Notes of a home's servers on this machine: where each listens, and locks that no crash outlives.

A server keeps an exclusive lock on its note for as long as it lives: a note counts only while it is locked.
The system releases a lock when its holder ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flows.server.ports import reachable
from storage.errors import ServerError
from storage.home import Home

_POLL_S = 0.02


@dataclass(frozen=True)
class ServerNote:
    """The note of a running server: Prefect's, the dashboard's, or a `spotlight up`.

    Attributes:
        pid: its process on this machine.
        host, port: address and port that it listens on.
        names: further host names that it answers to.
        machine: its machine, where several share a home.
    """

    pid: int
    host: str
    port: int
    names: tuple[str, ...] = ()
    machine: str = field(default_factory=socket.gethostname)

    @property
    def ui_url(self) -> str:
        """The address of its pages, as this machine sees it."""
        return f"http://{reachable(self.host)}:{self.port}"

    @property
    def api_url(self) -> str:
        """The address of Prefect's API, as this machine sees it."""
        return f"{self.ui_url}/api"


class FileLock:
    """A system lock on a file, released when it is closed or the process ends."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)

    def attempt(self, shared: bool = False) -> bool:
        """Take the lock if it is free right now."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self, limit_s: float, holder: str) -> None:
        """Take the lock within a limit of seconds.

        Raises:
            ServerError: the process that `holder` describes did not release it.
        """
        deadline = time.monotonic() + limit_s
        while not self.attempt():
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{holder} did not release its lock within {limit_s:g} s; look for its process (`ps`)"
                )
            time.sleep(_POLL_S)

    def write(self, note: ServerNote | None) -> None:
        """Write the note of the server that holds this lock; None empties the file."""
        os.ftruncate(self.descriptor, 0)
        if note is not None:
            os.pwrite(self.descriptor, json.dumps(asdict(note)).encode(), 0)

    def close(self) -> None:
        """Release the lock."""
        os.close(self.descriptor)


def note_file(home: Home) -> Path:
    """Return the file of the Prefect server's note; a home shared by machines has one server per machine."""
    return home.prefect / f"server-{socket.gethostname()}.json"


def living_server(home: Home) -> ServerNote | None:
    """Return the note of a home's Prefect server on this machine; None if there is none that listens."""
    return living_note(note_file(home))


def living_note(file: Path) -> ServerNote | None:
    """Return a server's note; None if it does not live, or has not written its note yet."""
    if not file.exists():
        return None
    with closing(FileLock(file)) as lock:
        return None if lock.attempt(shared=True) else read_note(file)


def read_note(file: Path) -> ServerNote | None:
    """Return the note of a server that may have ended; None if there is none, or it is being written."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return ServerNote(**values | {"names": tuple(values["names"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
