"""Where a home's dashboard is: the one that runs says so in a note.

Whoever serves a dashboard holds a lock on the note for as long as it lives: the system lets go of it, however
the process ends, and the note counts only while it is locked.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from flows.server.note import FileLock
from flows.server.ports import LOOPBACK, is_free, reachable
from storage.errors import SpotlightError
from storage.home import Home

DEFAULT_PORT = 8501
_PORTS_TRIED = 20


@contextmanager
def noted_dashboard(home: Home, host: str, port: int) -> Iterator[None]:
    """While the context lasts, the home's dashboard is known to be here.

    A second one is not noted, and one of a home that cannot be written into is shown all the same.
    """
    with ExitStack() as held:
        with suppress(OSError, SpotlightError):
            home.ensure()
            lock = FileLock(_note_file(home))
            held.callback(lock.close)
            if lock.attempt(exclusive=True):
                lock.rewrite(json.dumps({"host": host, "port": port}))
        yield


def living_dashboard(home: Home) -> str | None:
    """The address of the dashboard that runs on this machine; None without one."""
    file = _note_file(home)
    if not file.exists():
        return None
    lock = FileLock(file)
    try:
        if lock.attempt(exclusive=False):
            return None
        note = json.loads(file.read_text(encoding="utf-8"))
        return f"http://{reachable(note['host'])}:{note['port']}"
    except (OSError, ValueError, TypeError, KeyError):  # it is writing the note
        return None
    finally:
        lock.close()


def way_to_dashboard(home: Home) -> str:
    """How a person gets to the dashboard, in words: its address, or the command that opens it."""
    address = living_dashboard(home)
    if address is not None:
        return address
    tried = range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED)
    port = next((port for port in tried if is_free(port)), DEFAULT_PORT)
    option = "" if port == DEFAULT_PORT else f" --port {port}"
    return f"`spotlight ui{option}`, then http://{LOOPBACK}:{port}"


def _note_file(home: Home) -> Path:
    """A home that machines share has a dashboard a machine."""
    return home.path / f"dashboard-{socket.gethostname()}.json"
