"""The processes of workers that a test has started, on whatever cluster."""

from __future__ import annotations

import re

import psutil


def worker_process(name: str) -> psutil.Process:
    """The process of a worker, such as `spot-0`: Ray titles it by the worker's name, local ones have it."""
    titled = "ray::" + re.sub(r"\W", "_", name)
    for process in psutil.Process().children(recursive=True):
        if process.name() == name or titled in " ".join(process.cmdline()):
            return process
    raise AssertionError(f"no process of worker {name}")
