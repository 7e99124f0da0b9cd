"""Who serves a home on this machine, and who uses the server: notes and locks that no crash leaves behind.

The server keeps an exclusive lock on `prefect/server-MACHINE.json` for as long as it lives, and notes in it
where it listens: a note counts only while it is locked. A process that uses the server holds a shared lock on
`users-MACHINE.lock`. The system lets go of a lock when its holder ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.server.ports import reachable
from storage.errors import ServerError
from storage.home import Home

_POLL_S = 0.02


@dataclass(frozen=True)
class ServerNote:
    """What a living server says of itself.

    Attributes:
        pid: its process on this machine.
        host, port: where it listens.
        names: further names that it answers to.
    """

    pid: int
    host: str
    port: int
    names: tuple[str, ...] = ()

    @property
    def ui_url(self) -> str:
        """The address of its pages, as this machine sees it."""
        return f"http://{reachable(self.host)}:{self.port}"

    @property
    def api_url(self) -> str:
        """The address of its API, as this machine sees it."""
        return f"{self.ui_url}/api"


class FileLock:
    """A lock of the system on a file; closing it, or the end of the process, lets go of it."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)

    @property
    def descriptor(self) -> int:
        """A child process that inherits it holds the lock too."""
        return self._descriptor

    def attempt(self, exclusive: bool) -> bool:
        """Take the lock if that is possible at once; a shared one that is held is let go of if not."""
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self, exclusive: bool, limit_s: float, holder: str) -> None:
        """Take the lock within a limit.

        Args:
            exclusive: whether another holder, shared or not, is to be waited for.
            limit_s: so long at most.
            holder: for the error, in words: who holds it.

        Raises:
            ServerError: the process that `holder` names did not let go of it.
        """
        deadline = time.monotonic() + limit_s
        while not self.attempt(exclusive):
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{holder} did not let go of its lock within {limit_s:g} s; look for its process (`ps`)"
                )
            time.sleep(_POLL_S)

    def rewrite(self, text: str) -> None:
        """Replace what the file holds."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def note_file(home: Home) -> Path:
    """Where a home's server notes itself; a home that machines share has a server a machine."""
    return home.prefect / f"server-{socket.gethostname()}.json"


def users_file(home: Home) -> Path:
    """Locked, shared, by all that use the server."""
    return home.prefect / f"users-{socket.gethostname()}.lock"


@contextmanager
def changing_server(home: Home) -> Iterator[None]:
    """While the context lasts, no other process starts or ends the home's server."""
    lock = FileLock(home.prefect / f"start-{socket.gethostname()}.lock")
    try:
        lock.acquire(exclusive=True, limit_s=120.0, holder=f"the start of the Prefect server of {home.path}")
        yield
    finally:
        lock.close()


def write_note(lock: FileLock, note: ServerNote) -> None:
    """Note a server, by the lock that it holds on the file."""
    lock.rewrite(json.dumps(asdict(note)))


def living_server(home: Home) -> ServerNote | None:
    """The server of a home on this machine; None where there is none, or it does not listen yet."""
    file = note_file(home)
    if not file.exists():
        return None
    lock = FileLock(file)
    try:
        if lock.attempt(exclusive=False):
            return None
        values = json.loads(file.read_text(encoding="utf-8"))
        return ServerNote(**values | {"names": tuple(values["names"])})
    except (ValueError, TypeError, KeyError):  # it is writing the note
        return None
    finally:
        lock.close()
