"""Starting the Streamlit dashboard."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.server.children import die_with_parent
from flows.server.dashboards import noted_dashboard
from flows.server.ports import LOOPBACK, check_host, check_name, is_loopback, refuse_taken_port
from storage.errors import ConfigurationError
from storage.home import Home
from storage.login import read_login

_SERVER = Path(__file__).resolve().parents[2] / "ui" / "server" / "server.py"


def dashboard_command(port: int, host: str = LOOPBACK, names: Sequence[str] = ()) -> list[str]:
    """The command that serves the dashboard on an address of this machine, also under further names."""
    return [
        sys.executable, "-m", "streamlit", "run", str(_SERVER),
        "--server.address", host, "--server.port", str(port), "--server.headless", "true",
        "--browser.gatherUsageStats", "false", "--client.toolbarMode", "viewer",
        "--", *(part for name in names for part in ("--name", name)),
    ]  # fmt: skip


def check_login(home: Home, host: str) -> None:
    """Refuse half a login, and an address that others reach without one.

    Raises:
        ConfigurationError: saying what is missing.
    """
    if read_login(home) is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} would show all runs to whoever reaches this machine; describe a login in "
            f"{home.path / 'login.toml'} (see docs/dashboard.md), or stay on 127.0.0.1 and use `ssh -L`"
        )


def serve(home: Home, port: int, host: str = LOOPBACK, names: Sequence[str] = ()) -> int:
    """Serve the dashboard until Ctrl-C; returns its exit code.

    Raises:
        ConfigurationError: half a login, none where others reach the address, no address, or no name.
        ServerError: if the port is in use.
    """
    check_host(host)
    for name in names:
        check_name(name)
    check_login(home, host)
    refuse_taken_port(port, "choose another with `spotlight ui --port`", host)
    with noted_dashboard(home, host, port):
        process = subprocess.Popen(
            dashboard_command(port, host, names),
            stdin=subprocess.DEVNULL,
            # SIGKILL: Streamlit's own shutdown hangs where its output has no reader left, and it only reads.
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            # Streamlit got the same Ctrl-C from the terminal; it has nothing to lose.
            process.kill()
            process.wait()
            return 0
