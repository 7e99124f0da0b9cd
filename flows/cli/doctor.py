"""`spotlight doctor`: the state of this machine, and the obstacles to a run on it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable

from rich.text import Text

from flows.terminal import console
from storage.config.run_config import RunConfig
from storage.errors import SpotlightError, StorageError
from storage.home import Home
from storage.record.run_store import RunStore, bare_folders

_PACKAGES = ("torch", "diffusers", "peft", "ray", "prefect", "duckdb", "mlflow", "streamlit", "rapidocr")
_FREE_GIB = 2.0


def examine(config: RunConfig | None = None) -> bool:
    """Print one line per check; return True if nothing keeps a run from working.

    Args:
        config: configuration whose model and scorer are checked; None for the defaults, an embedded model.
    """
    screen = console()
    config = config or RunConfig()
    healthy = True
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("cores", _cores),
        ("device", _device),
        ("home", _home),
        ("records", _records),
        ("model and scorer", lambda: _model_and_scorer(config)),
        ("model's numbers", lambda: _numbers(config)),
        ("devices", lambda: _devices(config)),
        ("prefect", _prefect),
    )
    for name, check in checks:
        try:
            screen.print(Text.assemble(("ok   ", "green"), f" {name}: {check()}"))
        except (SpotlightError, ImportError, OSError) as error:
            healthy = False
            screen.print(Text.assemble(("wrong", "red"), f" {name}: {error}"))
    return healthy


def _python() -> str:
    return sys.version.split()[0]


def _packages() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)


def _cores() -> str:
    return f"{os.cpu_count()} cores, {_memory_gib():.0f} GiB memory"


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU: models run on the CPU"
    return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def _home() -> str:
    home = Home.from_environment().ensure()
    free = shutil.disk_usage(home.path).free / 2**30
    if free < _FREE_GIB:
        raise OSError(
            f"{home.path} has {free:.1f} GiB free; checkpoints need room: free some, or set SPOTLIGHT_HOME"
        )
    return f"{home.path}, {free:.0f} GiB free"


def _records() -> str:
    home = Home.from_environment()
    store = RunStore(home)
    rows = store.runs()
    if bare := bare_folders(home):
        raise StorageError(bare)
    damaged = [path for row in rows for path in store.folder(row.run_id).damaged()]
    if damaged:
        raise StorageError(
            f"{len(damaged)} files of runs are damaged, the first is {damaged[0]}; copy it again from a "
            "mirror, or let `spotlight resume` move it aside"
        )
    return f"{len(rows)} runs, all files whole"


def _devices(config: RunConfig) -> str:
    """Describe the placement of a run; the hosts of a joined cluster are asked."""
    from tasks.checks.placement import describe_placement

    return describe_placement(config)


def _numbers(config: RunConfig) -> str:
    """Read every tensor of the model: for a large one it takes minutes, so a run does not do it."""
    from tasks.checks.preflight import read_weights

    return f"{read_weights(config):,} in the files of {config.model.path}, all finite"


def _model_and_scorer(config: RunConfig) -> str:
    from tasks.checks.preflight import check

    warnings = check(config)
    return f"{config.model.path} loads, {config.reward.scorer} judges" + "".join(f" ({w})" for w in warnings)


def _prefect() -> str:
    from flows.server.prefect_server import is_healthy

    configured = os.environ.get("PREFECT_API_URL")
    if not configured:
        return "PREFECT_API_URL is not set: each run starts a local server"
    if not is_healthy(configured):
        raise OSError(f"no server answers at PREFECT_API_URL={configured}; start it or unset the variable")
    return configured
