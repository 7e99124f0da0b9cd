"""The Streamlit dashboard's server, and the note for finding a home's running dashboard."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.server.children import Child
from flows.server.note import (
    LOOPBACK,
    ServerNote,
    check_address,
    is_free,
    living_note,
    read_note,
    refuse_taken_port,
)
from storage.access.login import read_login
from storage.errors import ConfigurationError, SpotlightError
from storage.home import HOME_VARIABLE, Home
from storage.processes import python_command
from storage.text import is_loopback

DEFAULT_PORT = 8501
_PORTS_TRIED = 20
_SERVER = Path(__file__).resolve().parents[2] / "ui/server/server.py"


def start_dashboard(
    home: Home,
    port: int,
    host: str,
    names: Sequence[str],
    environ: Mapping[str, str],
    log: Path | None = None,
) -> Child:
    """Start the dashboard of a home on an address of this machine, without a person's Streamlit settings.

    Args:
        names: further host names to answer to, such as a proxy's.
        log: as for `Child`.
    """
    command = python_command(
        "-m", "streamlit", "run", str(_SERVER),
        "--server.address", host, "--server.port", str(port), "--server.headless", "true",
        "--server.baseUrlPath", "", "--server.sslCertFile", "", "--server.sslKeyFile", "",
        "--browser.gatherUsageStats", "false", "--client.toolbarMode", "viewer",
        # Our scripts use no magic, and no source of an installed dashboard changes.
        "--runner.magicEnabled", "false", "--server.fileWatcherType", "none",
        "--", *(part for name in names for part in ("--name", name)),
    )  # fmt: skip
    kept = {name: value for name, value in environ.items() if not name.startswith("STREAMLIT_")}
    # SIGKILL: Streamlit's own shutdown hangs if its output has no reader left, and it only reads.
    return Child(
        "dashboard", command, kept | {HOME_VARIABLE: str(home.path)}, log, signal.SIGKILL,
        folder=_SERVER.parent,  # one without a person's `.streamlit/config.toml`
    )  # fmt: skip


def check_login(home: Home, host: str) -> None:
    """Refuse an incomplete login, and an address that others reach without a login.

    Raises:
        ConfigurationError: the login is incomplete or missing; the message names what is missing.
    """
    if read_login(home) is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} would show all runs to everyone who reaches this machine; describe a login in "
            f"{home.path / 'login.toml'} (see docs/reference/dashboard.md), "
            "or stay on 127.0.0.1 and use `ssh -L`"
        )


def serve(home: Home, port: int, host: str = LOOPBACK, names: Sequence[str] = ()) -> int:
    """Serve the dashboard until Ctrl-C; return its exit code.

    Args: those of `start_dashboard`.

    Raises:
        ConfigurationError: an incomplete login, a missing one where others reach the address, or an invalid
            address or name.
        ServerError: the port is in use.
    """
    check_address(host, names)
    check_login(home, host)
    refuse_taken_port(port, "choose another with `spotlight ui --port`", host)
    with noted_dashboard(home, host, port):
        child = start_dashboard(home, port, host, names, os.environ)
        try:
            return child.process.wait()
        except KeyboardInterrupt:
            child.stop()
            return 0


@contextmanager
def noted_dashboard(home: Home, host: str, port: int) -> Iterator[None]:
    """Note the home's dashboard while the context lasts.

    A second one is not noted; one of a read-only home runs without a note.
    """
    file, own = _note_file(home), ServerNote(host, port)
    with suppress(OSError, SpotlightError):
        home.ensure()
        if living_note(file) is None:
            own.write(file)
    try:
        yield
    finally:
        if read_note(file) == own:
            file.unlink(missing_ok=True)


def living_dashboard(home: Home) -> str | None:
    """Return the address of the dashboard that runs on this machine; None without one."""
    note = living_note(_note_file(home))
    return None if note is None else note.ui_url


def way_to_dashboard(home: Home) -> str:
    """Describe how to open the dashboard: its address, or the command that opens it."""
    address = living_dashboard(home)
    if address is not None:
        return address
    port = next(filter(is_free, range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED)), DEFAULT_PORT)
    option = "" if port == DEFAULT_PORT else f" --port {port}"
    return f"`spotlight ui{option}`, then http://{LOOPBACK}:{port}"


def _note_file(home: Home) -> Path:
    """Return the note's file; a home shared by machines has one dashboard per machine."""
    return home.path / f"dashboard-{socket.gethostname()}.json"
