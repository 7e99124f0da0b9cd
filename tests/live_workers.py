"""The processes of workers that a test has started, on whatever cluster."""

from __future__ import annotations

import re
from contextlib import suppress

import psutil


def worker_process(name: str) -> psutil.Process:
    """Return the process of a worker such as `spot-0`, whose name Ray has in its title."""
    titled = "ray::" + re.sub(r"\W", "_", name)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended, or nobody has waited for it yet
            if process.name() == name or titled in " ".join(process.cmdline()):
                return process
    raise AssertionError(f"no process of worker {name}")
