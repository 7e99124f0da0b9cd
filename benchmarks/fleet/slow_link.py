"""A link with delay, rate and losses, for hosts of `benchmarks.hosts_network`.

A process carries frames between two network interfaces (TAP), because not every kernel has netem.
`Link.start` runs `main` in a separate process.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "from benchmarks.fleet.slow_link import main; main()"
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_LONGEST_FRAME = 65_536
_LONGEST_QUEUE_S = 1.0
"""Longest wait of frames to be sent; others are lost, as in a router's queue."""


@dataclass(frozen=True)
class Link:
    """Delay, rate and losses of a link.

    Attributes:
        delay_s: delay of each frame, in each direction.
        bits_per_s: rate of each direction.
        loss: share of lost frames.
    """

    delay_s: float
    bits_per_s: float
    loss: float

    def start(self, inside: Sequence[str], port: str) -> RunningLink:
        """Start the process that carries frames; both interfaces exist when this returns."""
        far = f"{port}far"
        values = [str(value) for value in (self.delay_s, self.bits_per_s, self.loss)]
        process = subprocess.Popen(
            [*inside, sys.executable, "-c", _PROGRAM, port, far, *values], cwd=_ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the link of {port} did not start; /dev/net/tun must be there")
        return RunningLink(far, process)


@dataclass(frozen=True)
class RunningLink:
    """A link's process.

    Attributes:
        far_end: name of the far interface.
        process: its process, which ends with the pipe that this process holds.
    """

    far_end: str
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """End it, and both interfaces with it."""
        self.process.kill()
        self.process.wait()


class _Direction:
    """Frames from one interface to the other."""

    def __init__(self, source: int, target: int, link: Link) -> None:
        self.source, self._target, self._link = source, target, link
        self._queue: list[tuple[float, int, bytes]] = []
        self._free_at_s = 0.0
        self._count = 0

    @property
    def next_s(self) -> float | None:
        """Return when the next frame arrives; None if none is in flight."""
        return self._queue[0][0] if self._queue else None

    def take(self, now_s: float) -> None:
        """Read a frame: it arrives after all before it and the delay, or is lost."""
        frame = os.read(self.source, _LONGEST_FRAME)
        begins_s = max(now_s, self._free_at_s)
        if begins_s - now_s > _LONGEST_QUEUE_S or random.random() < self._link.loss:
            return
        self._free_at_s = begins_s + 8 * len(frame) / self._link.bits_per_s
        self._count += 1
        heapq.heappush(self._queue, (self._free_at_s + self._link.delay_s, self._count, frame))

    def deliver(self, now_s: float) -> None:
        """Write the frames that are due."""
        while self._queue and self._queue[0][0] <= now_s:
            frame = heapq.heappop(self._queue)[2]
            try:
                os.write(self._target, frame)
            except OSError:  # the interface is down
                continue


def _interface(name: str) -> int:
    """Return the descriptor of a new network interface."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return descriptor


def main() -> None:
    """Carry frames until standard input ends; arguments: both names, then the fields of a `Link`."""
    near, far = (_interface(name) for name in sys.argv[1:3])
    link = Link(*(float(value) for value in sys.argv[3:6]))
    directions = [_Direction(near, far, link), _Direction(far, near, link)]
    print("ready", flush=True)
    sources = {direction.source: direction for direction in directions}
    while True:
        times = [direction.next_s for direction in directions if direction.next_s is not None]
        wait_s = max(0.0, min(times) - time.monotonic()) if times else None
        readable, _, _ = select.select([sys.stdin.fileno(), *sources], [], [], wait_s)
        if sys.stdin.fileno() in readable:
            return
        now_s = time.monotonic()
        for descriptor in readable:
            sources[descriptor].take(now_s)
        for direction in directions:
            direction.deliver(now_s)
