"""Notes of a home's servers on this machine: where each listens. A note counts while its process lives."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flows.server.ports import reachable
from storage.clock import process_is_alive, process_start_s
from storage.errors import ServerError
from storage.home import Home
from storage.record.files import locked

_POLL_S = 0.02


@dataclass(frozen=True)
class ServerNote:
    """The note of a server: Prefect's, the dashboard's, or a `spotlight up`.

    Attributes:
        host, port: address and port that it listens on.
        names: further host names that it answers to.
        pid: its process on this machine.
        began_s: when that began, as `process_start_s` says.
        machine: its machine, where several share a home.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()
    pid: int = field(default_factory=os.getpid)
    began_s: float = field(default_factory=lambda: process_start_s(os.getpid()))
    machine: str = field(default_factory=socket.gethostname)

    @property
    def ui_url(self) -> str:
        """The address of its pages, as this machine sees it."""
        return f"http://{reachable(self.host)}:{self.port}"

    @property
    def api_url(self) -> str:
        """The address of Prefect's API, as this machine sees it."""
        return f"{self.ui_url}/api"

    def listens_like(self, other: ServerNote) -> bool:
        """Return True if both listen at one address and answer to the same names."""
        return (self.host, self.port, self.names) == (other.host, other.port, other.names)

    def write(self, file: Path) -> None:
        """Write it; only its owner may read the file."""
        file.touch(0o600)
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_note(file: Path) -> ServerNote | None:
    """Return the note of a server that may have ended; None if there is none, or it is being written."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return ServerNote(**values | {"names": tuple(values["names"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def living_note(file: Path) -> ServerNote | None:
    """Return the note of a server that lives; None without one."""
    note = read_note(file)
    return note if note is not None and process_is_alive(note.pid, note.began_s) else None


def note_file(home: Home) -> Path:
    """Return the file of the Prefect server's note; a home shared by machines has one server per machine."""
    return home.prefect / f"server-{socket.gethostname()}.json"


def living_server(home: Home) -> ServerNote | None:
    """Return the note of a home's Prefect server on this machine; None if there is none that listens."""
    return living_note(note_file(home))


@contextmanager
def sole_holder(file: Path, limit_s: float, holder: str) -> Iterator[None]:
    """Hold the lock on a file, which the system releases however this process ends.

    Args:
        limit_s: seconds to wait for the process that `holder` describes.

    Raises:
        ServerError: that process did not release it.
    """
    deadline = time.monotonic() + limit_s
    while True:
        with locked(file, wait=False) as is_ours:
            if is_ours:
                yield
                return
        if time.monotonic() > deadline:
            raise ServerError(
                f"{holder} did not release its lock within {limit_s:g} s; look for its process (`ps`)"
            )
        time.sleep(_POLL_S)
