"""Child processes of a command: they die with it, write a log, and are ended in order."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from storage.processes import python_command

ENDING_S = 45.0
"""Seconds for runs to save their state and end."""

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES, _TAIL_LINES = 16_384, 12

# A launcher asks for the signal, not `preexec_fn`: forking Python between threads can deadlock. A parent
# that died before that sends no signal.
_LAUNCHER = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, int(sys.argv[2]))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[3], sys.argv[3:])
"""


class Child:
    """A child process in a separate session, so that Ctrl-C on the terminal goes to the parent alone.

    Args:
        command: command to run; the first part is an absolute path.
        environment: its whole environment.
        log: file to which its output is appended, and which may be removed; None for that of this process.
        parting: signal that ends it in order, also sent when the parent dies.
        patience_s: seconds it may take to end before it is killed.
        folder: its current folder; None for that of this process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None,
        parting: signal.Signals = signal.SIGTERM,
        patience_s: float = 15.0,
        folder: Path | None = None,
    ) -> None:
        self.name, self.log = name, log
        self._parting, self._patience_s = parting, patience_s
        self._log_begins = log.stat().st_size if log is not None and log.exists() else 0
        with nullcontext() if log is None else log.open("ab") as output:
            self.process = launch(command, environment, output, parting, folder)

    @property
    def ended(self) -> str | None:
        """How it ended, with the last lines of its output; None while it lives."""
        if (code := self.process.poll()) is None:
            return None
        lines: list[str] = []
        with suppress(FileNotFoundError), open(self.log or os.devnull, "rb") as written:
            size = written.seek(0, os.SEEK_END)
            written.seek(max(self._log_begins, size - _TAIL_BYTES))
            lines = written.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        ended = f"the {self.name} ended with code {code} (log: {self.log})"
        return "\n".join([f"{ended}; its last output:", *lines]) if lines else ended

    def stop(self) -> None:
        """End it in order, or by SIGKILL if that takes too long."""
        for number, patience_s in ((self._parting, self._patience_s), (signal.SIGKILL, 10.0)):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience_s)


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[Any] | None,
    at_death: signal.Signals = signal.SIGTERM,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a separate session; it receives a signal when the thread that started it ends.

    Args:
        output: open file for its output; None for that of this process.
        at_death: signal sent at the thread's end.
    """
    return subprocess.Popen(
        python_command("-c", _LAUNCHER, str(os.getpid()), str(int(at_death)), *command),
        env=dict(environment), stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        start_new_session=True, cwd=folder,
    )  # fmt: skip


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """Send SIGTERM, wait, send SIGKILL; psutil checks the start time again, so a reused pid is safe."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=ENDING_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=10)
