"""Prefect without the files of the current folder: its settings there, and modules that bear our names.

Prefect reads `.env`, `prefect.toml` and `pyproject.toml`, a person's files for other servers, when it is
imported; no setting stops it. To find a flow it imports the flow's module with the current folder first, even
in a process that was started without it. A child may import Prefect first of all: `python -m
flows.process.prefect_settings MODULE ...` does what `python -m MODULE ...` does, without the files.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from storage.processes import python_command

_SELF = "flows.process.prefect_settings"


def command_without_files(module: str, *arguments: str) -> list[str]:
    """Return the command of a child that runs a module and shows Prefect no file of the current folder."""
    return python_command("-m", _SELF, module, *arguments)


@contextmanager
def files_ignored() -> Iterator[None]:
    """Let Prefect's settings come only from the environment and its profiles while the context lasts."""
    from pydantic_settings.sources import ConfigFileSourceMixin, DotEnvSettingsSource

    with ExitStack() as replaced:
        for kind, name in ((DotEnvSettingsSource, "_read_env_files"), (ConfigFileSourceMixin, "_read_files")):
            replaced.enter_context(patch.object(kind, name, _nothing_for_prefect(getattr(kind, name))))
        yield


def _nothing_for_prefect(read: Any) -> Any:
    @wraps(read)
    def read_for_others(source: Any, *arguments: Any, **named: Any) -> Any:
        return {} if type(source).__module__.startswith("prefect.") else read(source, *arguments, **named)

    return read_for_others


def main() -> None:
    """Run the module that the first argument names."""
    del sys.argv[0]
    with files_ignored():
        from prefect.utilities import importtools  # which reads settings

        importtools.load_module = importlib.import_module
        runpy.run_module(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
