"""Time unaffected by clock changes: when things happen, how long they take, and when a process began.

The wall clock of a machine may be set during a run, by hand or by a time service. So a process reads
it once, and counts from there with monotonic time. Differences of `now()` are durations, and later readings
are never smaller. A later move of the wall clock is a `ClockJump`, which a run records as an event.

Two machines have two clocks, and a process that starts after a jump reads another wall clock than the one
that started it. An `Anchor` makes processes of one machine count alike; between machines only durations are
exchanged.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

LEAST_JUMP_S = 1.0
"""Seconds that the wall clock must move from the process's own clock to count as a jump. Time services that
slew the clock move both alike."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Anchor:
    """The start of a clock's count.

    Attributes:
        machine: identifier of the machine since its boot; monotonic time means nothing elsewhere.
        zero_at: Unix seconds at which that machine's monotonic time was 0.
    """

    machine: str
    zero_at: float


@dataclass(frozen=True)
class ClockJump:
    """A jump of the wall clock by `by_s` seconds (below 0: back), at `at` by the process's own clock."""

    at: float
    by_s: float


class Clock:
    """A clock of Unix seconds: one reading of the wall clock, and monotonic time since; for many threads."""

    def __init__(
        self,
        wall: Callable[[], float] = lambda: time.time(),
        monotonic: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._zero_at = wall() - monotonic()
        self._moved_s = 0.0
        self._jumps: list[ClockJump] = []
        self._lock = threading.Lock()

    @property
    def anchor(self) -> Anchor:
        """The start of its count, for other processes on this machine."""
        return Anchor(machine_id(), self._zero_at)

    def now(self) -> float:
        """Return Unix seconds; note a jump of the wall clock since the last call."""
        with self._lock:
            now = self._zero_at + self._monotonic()
            moved_s = self._wall() - now
            if abs(moved_s - self._moved_s) >= LEAST_JUMP_S:
                self._jumps.append(ClockJump(now, moved_s - self._moved_s))
                self._moved_s = moved_s
        return now

    def at(self, monotonic_s: float) -> float:
        """Return the Unix seconds of a moment given in this machine's monotonic time."""
        return self._zero_at + monotonic_s

    def take_jumps(self) -> list[ClockJump]:
        """Return the jumps of the wall clock since the last call, in order."""
        self.now()
        with self._lock:
            taken, self._jumps = self._jumps, []
        return taken

    def follow(self, anchor: Anchor) -> None:
        """Count from the same start as another process, if it is on this machine."""
        if anchor.machine == machine_id():
            self._count_from(anchor.zero_at)

    def go_on_after(self, at: float) -> float:
        """Move the clock forward to `at` (Unix seconds), and return by how many seconds; it never goes back.

        This keeps the records of a resumed run in order even if the wall clock was set back meanwhile.
        """
        ahead_s = max(0.0, at - self.now())
        if ahead_s:
            self._count_from(self._zero_at + ahead_s)
        return ahead_s

    def _count_from(self, zero_at: float) -> None:
        with self._lock:
            self._moved_s += self._zero_at - zero_at
            self._zero_at = zero_at


_process_clock = Clock()


def process_clock() -> Clock:
    """Return the clock of this process."""
    return _process_clock


def now() -> float:
    """Return Unix seconds by the clock of this process."""
    return _process_clock.now()


def machine_id() -> str:
    """Return an identifier of this machine since its boot."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return socket.gethostname()


def process_start_s(pid: int) -> float:
    """Return when a process began, in seconds since the machine's boot, to a hundredth.

    It tells a process from a later one with the same pid (psutil.NoSuchProcess: there is none). Unlike the
    Unix time, which Linux derives from this and the wall clock, it is the same at every reading.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone, or not Linux: psutil knows
        return round(psutil.Process(pid).create_time() - psutil.boot_time(), 2)
    # The name, in brackets, may hold blanks and brackets; the start is the 20th field after it.
    ticks = int(stat.rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def process_is_alive(pid: int, noted_s: float | None) -> bool:
    """Return True if the recorded process still runs; a later one with the same pid does not count."""
    try:
        # A zombie was killed, but its parent has not collected it yet.
        is_zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return not is_zombie and process_start_s(pid) == noted_s
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # the process exists, but we may not inspect it
        return True


def may_be_alive(host: str, pid: int, noted_s: float | None) -> bool:
    """Return True if the recorded process still runs here, or is on another machine, unseen from here.

    Args:
        host: name of its machine.
        noted_s: its recorded start, in seconds since the machine's boot.
    """
    return host != socket.gethostname() or process_is_alive(pid, noted_s)


def process_age_s() -> float:
    """Return the age of this process in seconds."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - process_start_s(os.getpid()))
    return max(0.0, time.time() - psutil.Process().create_time())
