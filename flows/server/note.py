"""Addresses of a home's servers: the note of each on this machine, and Prefect's password.

A note counts while its process lives.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from storage.clock import process_is_alive, process_start_s
from storage.errors import ConfigurationError, ServerError
from storage.home import Home
from storage.record.files import locked

LOOPBACK = "127.0.0.1"

SERVER_PORT = 4200
"""The first port that a Prefect server tries."""

_POLL_S = 0.02


@dataclass(frozen=True)
class ServerNote:
    """The note of a server: Prefect's, the dashboard's, or a `spotlight up`.

    Attributes:
        host, port: address and port that it listens on.
        names: further host names that it answers to.
        pid: its process on this machine.
        began_s: its start, from `process_start_s`.
        machine: its machine, as several may share a home.
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
    """Return the note of a home's Prefect server on this machine; None if none listens."""
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


def refuse_taken_port(port: int, advice: str, host: str = LOOPBACK) -> None:
    """Refuse a port on which a process already listens.

    Args:
        advice: remedy for a taken port, such as "choose another with `--port`".

    Raises:
        ServerError: the port is in use, or the address does not belong to this machine.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerError(f"port {port} on {host} is in use ({error}); {advice}") from error


def is_free(port: int) -> bool:
    """Return True if this port is free on this machine's loopback."""
    try:
        refuse_taken_port(port, "")
    except ServerError:
        return False
    return True


def check_address(host: str, names: Sequence[str] = ()) -> None:
    """Refuse a malformed address to listen on, or further name to answer to.

    Raises:
        ConfigurationError: the text is not an address, or no name; the message shows the form.
    """
    try:
        ipaddress.IPv4Address(host)
    except ValueError as error:
        raise ConfigurationError(
            f"--host {host} is not an IPv4 address; 127.0.0.1 is this machine alone, 0.0.0.0 all its networks"
        ) from error
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
            raise ConfigurationError(
                f"--allow-host {name!r} is not a host name; give it as in spot.example.org, without scheme "
                "or port"
            )


def reachable(host: str) -> str:
    """Return the address at which this machine itself reaches a server that listens on `host`."""
    return LOOPBACK if ipaddress.IPv4Address(host).is_unspecified else host


def password_file(home: Home) -> Path:
    """Return the file with the line that a person enters into Prefect's login page."""
    return home.prefect / "password"


def home_password(home: Home) -> str:
    """Return the home's password, `spotlight:` and 256 random bits; it is made at the first call.

    Prefect takes all of it as its auth string, and so does its login page.

    Raises:
        ServerError: the password cannot be made or read, or the file holds something else.
    """
    file = password_file(home)
    try:
        if not file.exists():
            _make_password(file)
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
        password = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(
            f"the password of the Prefect server cannot be made or read ({error}), and no server starts "
            f"without one; make {file} writable, or set SPOTLIGHT_HOME to another folder"
        ) from error
    user, _, secret = password.partition(":")
    if not (user and len(secret) >= 16 and password.isascii()):
        raise ServerError(
            f"{file} does not hold a password of the form user:password with at least 16 characters after "
            "the colon; delete it, and a new one is made"
        )
    return password


def _make_password(file: Path) -> None:
    """Write a new password; if several processes do so at once, one writes it and all use that one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as written:
            written.write(f"spotlight:{secrets.token_hex(32)}\n")
        os.link(beside, file)
    except FileExistsError:
        return
    finally:
        beside.unlink()
