"""The processes of workers that a test has started, on whatever cluster."""

from __future__ import annotations

import re
from contextlib import suppress

import psutil


def worker_process(name: str) -> psutil.Process:
    """Return the process of a worker such as `spot-0`, whose name Ray has in its title."""
    titled = "ray::" + re.sub(r"\W", "_", name)
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            named = process.name() == name or titled in " ".join(process.cmdline())
            if named and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    assert found, f"no process of worker {name}"
    return max(found, key=psutil.Process.create_time)  # others of its name may be about to end
