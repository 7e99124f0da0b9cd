"""`spotlight doctor`: the state of this machine, and the obstacles to a run on it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import psutil
import typer
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from flows.cli.options import Preset, RayAddress, Sets
from flows.configuration import cluster_setting, given_configuration
from flows.output import console
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, SpotlightError, StorageError
from storage.home import Home
from storage.prompts.files import load_run_prompts
from storage.record.run_folder import bare_folders
from storage.record.run_store import RunStore

if TYPE_CHECKING:  # it imports torch
    from tasks.sizing import DeviceMemory

_PACKAGES = ("torch", "diffusers", "peft", "ray", "prefect", "duckdb", "mlflow", "streamlit", "rapidocr")
_FREE_GIB = 2.0


def doctor(
    preset: Preset = None,
    set_: Sets = None,
    model: Annotated[str | None, typer.Option(help="Folder of the model's weights (model.path).")] = None,
    ray_address: RayAddress = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Size the run on an RTX4090, A100, H100 or H200 instead, without model or GPU."),
    ] = None,
) -> None:
    """Check this machine, its home and runs, a model with its scorer, and what would run where."""
    changes = [*(set_ or []), *([] if model is None else [f"model.path={model}"])]
    changes += cluster_setting(None, ray_address)
    config = given_configuration(preset, changes, needs_task=gpu is None)
    raise typer.Exit(0 if (examine(config) if gpu is None else size_up(config, gpu)) else 1)


def examine(config: RunConfig) -> bool:
    """Print one line per check of a run; return True if all pass."""
    screen = console()
    wrong: dict[str, str] = {}
    started = ExitStack()
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("python", lambda: sys.version.split()[0]),
        ("packages", lambda: ", ".join(f"{n} {importlib.metadata.version(n)}" for n in _PACKAGES)),
        ("cores", lambda: f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB memory"),
        ("device", lambda: _device(config)),
        ("home", _home),
        ("records", _records),
        ("prompts", lambda: "{:,} to train on, {:,} held out".format(*map(len, load_run_prompts(config)))),
        ("judge", lambda: _judge(config, started)),
        ("model and scorer", lambda: _model_and_scorer(config)),
        ("model's numbers", lambda: _numbers(config)),
        ("devices", lambda: _devices(config)),
        ("prefect", _prefect),
    )
    with started:
        for name, check in checks:
            try:
                screen.print(Text.assemble(("ok   ", "green"), f" {name}: {check()}"))
            except (SpotlightError, ImportError, OSError) as error:
                # Later checks also read the prompts.
                first = wrong.setdefault(str(error), name)
                is_known = first == "prompts" and name != "prompts"
                text = "not checked: see prompts" if is_known else str(error)
                screen.print(Text.assemble(("wrong", "red"), f" {name}: {text}"))
    return not wrong


def _device(config: RunConfig) -> str:
    import torch

    from tasks.sizing import needs_gpu

    if not torch.cuda.is_available():
        if needs_gpu(config.model, config.runtime):
            raise ConfigurationError(
                f"no GPU, and {config.name or config.model.family} needs one: {config.model.path} is too "
                "large for a CPU; use a machine with a GPU, or size the run from here: `spotlight "
                "doctor --gpu H100` with the same settings"
            )
        return "no GPU: models run on the CPU"
    return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def size_up(config: RunConfig, gpu: str) -> bool:
    """Print a device's memory by term, and the run's hours and dollars, measured or counted.

    Returns:
        False if a training device certainly lacks memory.

    Raises:
        ConfigurationError: the GPU or the model is not counted.
    """
    from tasks.gpu_profile import named_gpu
    from tasks.profiles import stand_in_in_words
    from tasks.sizing import size_run
    from tasks.what_if_answer import dollars, hours_in_words, train_together

    size = size_run(Home.from_environment(), config, named_gpu(gpu))
    screen, kind = console(), size.gpu.name
    screen.print(
        f"{config.name or config.model.key} on {kind} ({size.gpu.memory_gib:g} GiB), memory counted and "
        f"not measured: it {size.verdict(trains=True)} on a device that trains, and "
        f"{size.verdict(trains=False)} on one that only generates",
        soft_wrap=True,
    )
    screen.print(_memory_table(size.memory))
    instead, assumed = size.memory.instead, ", ".join(size.profile.evidence.get("modelled", ()))
    most, times = size.times[-1][0], []
    flags = train_together(config, most) if most > 1 else ""
    for devices, hours, usd in size.times:
        cost = "" if usd is None else f", {dollars(usd.median)} ({dollars(usd.low)} to {dollars(usd.high)})"
        times.append(f"  {devices} x {kind}: {hours_in_words(hours)}{cost}")
    lines = [
        f"{instead.name}: {_gib(instead.low, instead.high)} GiB instead",
        f"{config.iterations} iterations, all devices on demand and training, "
        f"{size.profile.runs_in_words(shared=False)} (low to high):",
        *times,
        *([f"for all to train: {flags}"] if flags else []),
        *([size.no_price] if size.no_price else []),
        f"a denoising step: {size.profile.step.source}; assumed: {assumed}",
        *([] if config.reward.scorer else [stand_in_in_words(size.profile)]),
    ]
    for line in lines:
        screen.print(line, soft_wrap=True)
    return size.fits


def _memory_table(memory: DeviceMemory) -> Table:
    """Return a device's memory by term, and in total with and without training."""
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("GiB of a device", no_wrap=True)
    for name in ("trains", "generates"):
        table.add_column(name, justify="right", no_wrap=True)
    for terms in (memory.held, memory.in_turn):
        if terms is memory.in_turn:
            table.add_row("and the largest of these:", style="italic")
        for term in terms:
            size = _gib(term.low, term.high)
            table.add_row(term.name, size, "" if term.trains else size)
    table.add_row("in all", *(_gib(*memory.total(trains)) for trains in (True, False)), style="bold")
    return table


def _gib(low: float, high: float) -> str:
    ends = [f"{size / 2**30:.1f}" for size in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


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
            f"{len(damaged)} files of runs are damaged, the first one {damaged[0]}; copy it again from a "
            "mirror, or let `spotlight resume` move it aside"
        )
    return f"{len(rows)} runs, all files whole"


def _devices(config: RunConfig) -> str:
    from tasks.checks.placement import describe_placement

    return describe_placement(config)


def _numbers(config: RunConfig) -> str:
    """Read every tensor of the model, which a run skips, as it takes minutes for a large one."""
    from tasks.checks.preflight import read_weights

    return f"{read_weights(config.model):,} in the files of {config.model.path}, all finite"


def _judge(config: RunConfig, started: ExitStack) -> str:
    """Start the judges that a run would start, until the last check, and ask each judge behind a server."""
    from flows.judges import judges_beside
    from tasks.checks.judges import ask_judges

    started.enter_context(judges_beside(config))
    return ask_judges(config)


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
