"""The processes of Ray's actors that a test has started."""

from __future__ import annotations

import psutil


def worker_process(name: str) -> psutil.Process:
    """The process of a worker, such as `spot_0`: Ray titles it by the worker's name."""
    for process in psutil.Process().children(recursive=True):
        if f"ray::{name}" in " ".join(process.cmdline()):
            return process
    raise AssertionError(f"no process of worker {name}")
