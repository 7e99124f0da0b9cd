"""The command that starts a judge in a separate environment."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import httpx

from storage.errors import ConfigurationError

_RUNNERS = {"uv": ("run", "--script"), "pipx": ("run",)}
"""Programs that create an environment with the dependencies listed in a script (PEP 723)."""

_LAST_PORT = 65535


def judge_command(judge: str, url: str) -> list[str]:
    """Return the command that serves a judge at an address.

    A Python file is started by `uv` or `pipx`, or with `--stub` by this Python, as a stub needs no packages.
    Anything else is a command that is run as it is.

    Args:
        judge: `reward.options.judge`.
        url: address on this machine.

    Raises:
        ConfigurationError: the file or the program is missing, or the address has no port to serve at.
    """
    first, *arguments = shlex.split(judge)
    address = httpx.URL(url)
    if not 1 <= (address.port or 0) <= _LAST_PORT:
        raise ConfigurationError(
            f"reward.options.url = {url!r} names no port for a judge to serve at, from 1 to {_LAST_PORT}"
        )
    served = ["--host", address.host, "--port", str(address.port)]
    if not first.endswith(".py"):
        if (program := shutil.which(first)) is None:
            raise ConfigurationError(f"reward.options.judge: there is no program {first!r}; correct the path")
        return [program, *arguments, *served]
    if not os.path.isfile(first):
        raise ConfigurationError(f"reward.options.judge: there is no file {first!r}; correct the path")
    if "--stub" in arguments:
        return [sys.executable, first, *arguments, *served]
    for name, run in _RUNNERS.items():
        if program := shutil.which(name):
            return [program, *run, first, *arguments, *served]
    raise ConfigurationError(
        f"neither {' nor '.join(_RUNNERS)} is installed, to create the environment of {first}; install one, "
        "or put a Python that has the file's dependencies before it"
    )
