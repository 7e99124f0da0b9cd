"""A machine's speed while something runs on it: CPU seconds of a fixed piece of work.

Cores shared with other machines, with changing clocks, may take 1.3 times as long for the same work a minute
later, without any trace in the operating system's counters.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import TextIO

from storage.errors import RuntimeFailure

Look = tuple[float, float]
"""Time of a measurement (Unix seconds), and CPU seconds of the work."""

_EVERY_S = 0.25
_PRODUCTS = 40  # matrix products: five milliseconds of work, two hundredths of a core


@contextmanager
def watched() -> Iterator[list[Look]]:
    """Measure the machine's speed in a separate process; the list is complete after the context.

    Raises:
        RuntimeFailure: the process ended before its first measurement.
    """
    looks: list[Look] = []
    call = f"import sys; from {__name__} import watch; watch(sys.stdout)"
    with TemporaryFile("w+", encoding="ascii") as noted:
        process = subprocess.Popen(
            [sys.executable, "-c", call], stdin=subprocess.DEVNULL, stdout=noted,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            while not os.fstat(noted.fileno()).st_size:
                if process.poll() is not None:
                    raise RuntimeFailure(
                        f"nothing watches the machine: its process ended with {process.returncode}"
                    )
                time.sleep(_EVERY_S)
            yield looks
        finally:
            process.terminate()
            process.wait()
            noted.seek(0)
            # A line cut off by the end does not count.
            whole = [line.split() for line in noted if line.endswith("\n")]
            looks += [(float(at), float(seconds)) for at, seconds in whole]


def watch(out: TextIO) -> None:
    """Do the work four times a second until the process is ended; print a line each time."""
    import torch

    start = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))

    def work() -> None:
        values = start
        for _ in range(_PRODUCTS):
            values = torch.tanh(values @ start)

    work()  # warm up
    while True:
        at, began = time.time(), time.thread_time()
        work()
        out.write(f"{at} {time.thread_time() - began}\n")
        out.flush()
        time.sleep(_EVERY_S)
