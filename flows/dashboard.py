"""Starting the Streamlit dashboard."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

from flows.prefect_server import die_with_parent
from storage.errors import ServerError

_APP = Path(__file__).resolve().parents[1] / "ui" / "app.py"


def serve(port: int) -> int:
    """Serve the dashboard on 127.0.0.1 until Ctrl-C; returns its exit code.

    Raises:
        ServerError: if the port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerError(
                f"port {port} on 127.0.0.1 is in use ({error}); choose another with `spotlight ui --port`"
            ) from error
    process = subprocess.Popen(
        [
            sys.executable, "-m", "streamlit", "run", str(_APP),
            "--server.address", "127.0.0.1", "--server.port", str(port), "--server.headless", "true",
            "--browser.gatherUsageStats", "false", "--client.toolbarMode", "viewer",
        ],
        stdin=subprocess.DEVNULL,
        # SIGKILL: Streamlit's own shutdown hangs where its output has no reader left, and it only reads.
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )  # fmt: skip
    try:
        return process.wait()
    except KeyboardInterrupt:
        # Streamlit got the same Ctrl-C from the terminal; it has nothing to lose.
        process.kill()
        process.wait()
        return 0
