"""How fast a machine is while something runs on it: processor seconds of one fixed piece of work.

Cores that are shared with other machines, and whose clocks change, do the same work in 1.3 times the time a
minute later, and nothing that the operating system counts says so.
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
"""When it was looked (Unix seconds), and the processor seconds that the work took."""

_EVERY_S = 0.25
_PRODUCTS = 40  # of matrices: five milliseconds of work, so two hundredths of a core


@contextmanager
def watched() -> Iterator[list[Look]]:
    """Watch the machine's speed in a process of its own; the list has all looks once the context is left.

    Raises:
        RuntimeFailure: the process ended before its first look.
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
            # What was cut off by the end is no look.
            whole = [line.split() for line in noted if line.endswith("\n")]
            looks += [(float(at), float(seconds)) for at, seconds in whole]


def watch(out: TextIO) -> None:
    """Do the work four times a second until the process is ended; a line each."""
    import torch

    start = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))

    def work() -> None:
        values = start
        for _ in range(_PRODUCTS):
            values = torch.tanh(values @ start)

    work()  # the first time, much is set up
    while True:
        at, began = time.time(), time.thread_time()
        work()
        out.write(f"{at} {time.thread_time() - began}\n")
        out.flush()
        time.sleep(_EVERY_S)
