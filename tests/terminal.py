"""A command on a terminal of its own, as a person starts it: what it shows, and keys that are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
CTRL_C = b"\x03"
PATIENCE_S = 900.0
"""On a busy machine everything takes long."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A `spotlight` command that runs on a terminal; a context that ends it.

    Args:
        arguments: what follows `spotlight`.
        environment: variables beside those of this process.
        columns: the terminal's width.

    Attributes:
        process: the command's.
        began_s: when it was started, by the monotonic clock.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, columns: int = 100
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        self._shown = b""
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli.command_line", *arguments],
            env=inherited | {"TERM": "xterm"} | dict(environment or {}), cwd=ROOT,
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)

    @property
    def shown(self) -> str:
        """All that it has shown, without colours and movements of the cursor."""
        return _ESCAPES.sub("", self._shown.decode(errors="replace")).replace("\r\n", "\n")

    def wait_for(self, pattern: str, patience_s: float = PATIENCE_S) -> float:
        """Read until it has shown what matches; seconds since its start.

        Raises:
            AssertionError: it ended without, or took too long.
        """
        deadline = time.monotonic() + patience_s
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, f"waited in vain for {pattern}: {self.shown}"
            assert self._read(0.5), f"it ended without {pattern}: {self.shown}"
        return time.monotonic() - self.began_s

    def press(self, keys: bytes) -> None:
        """What a person presses; the terminal makes a signal of Ctrl-C."""
        os.write(self._ours, keys)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Read until it ends; its exit code, minus the signal that killed it."""
        deadline = time.monotonic() + patience_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.shown}"
            if not self._read(0.05):
                time.sleep(0.01)
        while self._read(0.0):
            pass
        return self.process.returncode

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)

    def _read(self, wait_s: float) -> bool:
        """Take what it has shown meanwhile; False once its terminal is closed, or nothing came at once."""
        if not select.select([self._ours], [], [], wait_s)[0]:
            return wait_s > 0
        try:
            read = os.read(self._ours, 65_536)
        except OSError:  # nobody holds the other end any more
            return False
        self._shown += read
        return bool(read)
