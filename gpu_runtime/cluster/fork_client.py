"""The driver's side of the fork server, which it starts once and then asks for processes."""

from __future__ import annotations

import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from gpu_runtime.cluster.fork_server import PID_BYTES
from storage.errors import RuntimeFailure
from storage.processes import python_command

IMPORTED = (
    "gpu_runtime.cluster.local_worker",
    "gpu_runtime.models.embedded.model",
    "gpu_runtime.worker.worker",
    "gpu_runtime.worker.scoring_worker",
)
_LAUNCHER = "from gpu_runtime.cluster.fork_server import main; main()"
_TAIL_BYTES = 4096
_REQUESTS = 128
_END_S = 10.0


class ForkedProcess:
    """A process forked by the fork server; `handle` is None if it has already ended."""

    def __init__(self, pid: int, handle: int | None, link: Connection, output: int) -> None:
        self.pid = pid
        self.link = link
        self._handle = handle
        self._output = output
        self._begin = os.fstat(output).st_size

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def last_words(self) -> str:
        """Return how it ended, with the last line that it printed."""
        printed = _last_line(self._output, self._begin)
        return f"its process ended; it last printed: {printed}" if printed else "its process ended"

    def close(self) -> None:
        """Release a process that is ending, after waiting for its end."""
        self.link.close()
        os.close(self._output)
        if self._handle is not None:
            select.select([self._handle], [], [], _END_S)  # its socket is closed a moment before it is gone
            os.close(self._handle)
            self._handle = None


class _ForkServer:
    """The fork server's process, from its start; it ends with this one."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._output = os.memfd_create("spotlight-fork-server")
        self._socket, theirs = socket.socketpair()
        self.name = f"spotlight-{os.getpid()}-{secrets.token_hex(8)}"
        requests = socket.socket(socket.AF_UNIX)
        requests.bind(f"\0{self.name}")
        requests.listen(_REQUESTS)
        # One thread in all libraries, as in Ray's workers: a fork has only the thread that forks.
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with theirs, requests:
            sockets = theirs.fileno(), requests.fileno()
            self.process = subprocess.Popen(
                python_command("-c", _LAUNCHER, *map(str, sockets), *IMPORTED, *modules),
                env=environment, pass_fds=sockets, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
            )  # fmt: skip

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self._socket.close()
        self.process.kill()
        self.process.wait()
        os.close(self._output)

    def fork(self, limit_s: float, log: Path | None) -> ForkedProcess:
        """Fork a process, after waiting for the fork server's imports.

        Args:
            log: file to which it appends its output; None keeps that in memory.

        Raises:
            RuntimeFailure: if it does not answer within `limit_s` seconds.
        """
        ours, theirs = socket.socketpair()
        output = _opened(log)
        with self._lock, theirs:
            self._socket.settimeout(limit_s)
            try:
                socket.send_fds(self._socket, [b"f"], [theirs.fileno(), output])
                number, handles, _, _ = socket.recv_fds(self._socket, PID_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except OSError as error:
                number, handles, reason = b"", [], str(error)
            else:
                reason = "it ended"
        if not number:
            ours.close()
            os.close(output)
            self.process.kill()
            raise RuntimeFailure(
                f"the process that workers are forked from does not answer: {reason} "
                f"(runtime.start_timeout_s={limit_s:g}); {_last_line(self._output) or 'it printed nothing'}"
            )
        link = Connection(ours.detach())
        return ForkedProcess(int.from_bytes(number, "little"), handles[0] if handles else None, link, output)


_lock = threading.Lock()
_server: _ForkServer | None = None


def start_fork_server(modules: Sequence[str] = ()) -> _ForkServer:
    """Return this process's fork server; start it if needed, also to import more `modules`."""
    global _server
    with _lock:
        if _server is None or _server.process.poll() is not None:
            _server = _ForkServer(modules)
        return _server


def end_fork_server() -> None:
    """End the fork server of this process, with all workers forked from it; a new one can be started."""
    global _server
    with _lock:
        if _server is not None:
            _server.close()
        _server = None


def requesting_command() -> str:
    """Return a shell command that runs a Python script in a process forked by this process's fork server.

    Append the script and its arguments. It runs as by `python` if the fork server does not answer.
    """
    script = Path(__file__).with_name("fork_request.py")
    return shlex.join([sys.executable, "-I", "-S", str(script), start_fork_server().name])


def _opened(log: Path | None) -> int:
    if log is not None:
        with suppress(OSError):  # a run works without it
            log.parent.mkdir(parents=True, exist_ok=True)
            return os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.memfd_create("spotlight-worker")


def _last_line(output: int, begin: int = 0) -> str:
    """Return the last line that a process printed to its file, after the first `begin` bytes."""
    size = os.fstat(output).st_size
    begin = begin if begin <= size else 0  # it was shortened
    text = os.pread(output, _TAIL_BYTES, max(begin, size - _TAIL_BYTES)).decode(errors="replace")
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
