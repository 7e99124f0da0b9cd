"""Starting the Streamlit dashboard."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from flows.ports import LOOPBACK, refuse_taken_port
from flows.prefect_server import die_with_parent

_APP = Path(__file__).resolve().parents[1] / "ui" / "app.py"


def dashboard_command(port: int, host: str = LOOPBACK) -> list[str]:
    """The command that serves the dashboard on an address of this machine."""
    return [
        sys.executable, "-m", "streamlit", "run", str(_APP),
        "--server.address", host, "--server.port", str(port), "--server.headless", "true",
        "--browser.gatherUsageStats", "false", "--client.toolbarMode", "viewer",
    ]  # fmt: skip


def serve(port: int) -> int:
    """Serve the dashboard on 127.0.0.1 until Ctrl-C; returns its exit code.

    Raises:
        ServerError: if the port is in use.
    """
    refuse_taken_port(port, "choose another with `spotlight ui --port`")
    process = subprocess.Popen(
        dashboard_command(port),
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
