"""The environment of all our processes: no usage reports, no proxy to this machine, no stray modules.

Importing `storage` sets the environment, which children inherit: commands, library use, scripts and workers
all pass it before any library that reads these variables.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

NO_REPORTS = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "WANDB_ERROR_REPORTING": "false",
}
"""Variables for libraries that report their use unless told not to. A person who wants reports sets them."""

SAFE_PATH = {"PYTHONSAFEPATH": "spotlight"}
"""The variable for children that start Python without `python_command`; any value counts."""

ARROW_POOL = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Arrow's other allocators keep tens of megabytes of each compaction; the system's returns them."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command in order; SIGHUP is that of a closed terminal."""

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Turn off usage reports, choose Arrow's allocator, and keep traffic within this machine from a proxy.

    Variables already set are kept.
    """
    for name, value in (NO_REPORTS | ARROW_POOL).items():
        environ.setdefault(name, value)
    keep_from_proxy(*_LOOPBACK_NAMES, environ=environ)


def keep_from_proxy(*hosts: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and its children reach hosts (of this machine) directly, even if a proxy is set."""
    # Without a proxy the variable is not set: its mere presence hides a proxy set in macOS.
    if any(name.lower().endswith("_proxy") for name in environ):
        for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
            listed = environ.get(name, environ.get(other, ""))
            direct = [host for host in map(str.strip, listed.split(",")) if host]
            environ[name] = ",".join([*direct, *(host for host in hosts if host not in direct)])


def environment_for_others() -> dict[str, str]:
    """Return this process's environment for a program of the user, whose modules may lie beside it."""
    return {name: value for name, value in os.environ.items() if (name, value) not in SAFE_PATH.items()}


def python_command(*arguments: str) -> list[str]:
    """Return the command of a child that runs this Python without modules from its current folder."""
    return [sys.executable, "-P", *arguments]


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable garbage collection in this context: a worker's imports take a fifth less time.

    Objects created meanwhile count as old afterwards: as young ones, all of a driver's libraries would be
    examined by three collections in a row instead of one.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # a fork's frozen objects must stay so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
