"""The server of the Streamlit dashboard, and the note by which a home's running dashboard is found."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.server.children import launch
from flows.server.note import ServerNote, living_note, read_note
from flows.server.ports import LOOPBACK, check_address, is_free, is_loopback, refuse_taken_port
from storage.access.login import read_login
from storage.errors import ConfigurationError, SpotlightError
from storage.home import HOME_VARIABLE, Home
from storage.processes import python_command

DEFAULT_PORT = 8501
_PORTS_TRIED = 20
_SERVER = Path(__file__).resolve().parents[2] / "ui/server/server.py"
DASHBOARD_FOLDER = _SERVER.parent
"""The current folder of a dashboard: one without a person's `.streamlit/config.toml`."""


def dashboard_command(port: int, host: str = LOOPBACK, names: Sequence[str] = ()) -> list[str]:
    """Return the command that serves the dashboard on an address of this machine.

    Args:
        names: further host names to answer to, such as a proxy's.
    """
    return python_command(
        "-m", "streamlit", "run", str(_SERVER),
        "--server.address", host, "--server.port", str(port), "--server.headless", "true",
        "--server.baseUrlPath", "", "--server.sslCertFile", "", "--server.sslKeyFile", "",
        "--browser.gatherUsageStats", "false", "--client.toolbarMode", "viewer",
        # Our scripts use no magic, and no source of an installed dashboard changes.
        "--runner.magicEnabled", "false", "--server.fileWatcherType", "none",
        "--", *(part for name in names for part in ("--name", name)),
    )  # fmt: skip


def dashboard_environment(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a person's environment for a home's dashboard: without settings of Streamlit."""
    kept = {name: value for name, value in environ.items() if not name.startswith("STREAMLIT_")}
    return kept | {HOME_VARIABLE: str(home.path)}


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

    Args: home whose runs are shown, and those of `dashboard_command`.

    Raises:
        ConfigurationError: an incomplete login, a missing one where others reach the address, or an invalid
            address or name.
        ServerError: the port is in use.
    """
    check_address(host, names)
    check_login(home, host)
    refuse_taken_port(port, "choose another with `spotlight ui --port`", host)
    with noted_dashboard(home, host, port):
        # SIGKILL: Streamlit's own shutdown hangs if its output has no reader left, and it only reads.
        process = launch(
            dashboard_command(port, host, names), dashboard_environment(home, os.environ),
            output=None, at_death=signal.SIGKILL, folder=DASHBOARD_FOLDER,
        )  # fmt: skip
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
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
