"""Runs the inputs of `bad_inputs.jsonl` as commands in one process, and says what came of each.

A line of the list has

- `what` is wrong, and its `kind`;
- `command`: what follows `spotlight`;
- `says`: what the refusal must hold, or a list of it;
- and perhaps `env`: variables; `files`: name -> text, or a list of kind and value (`folder`, `link`, `pipe`,
  `hex`); `runs`: runs that the home holds (see `_HOMES`); `loads`: true where a library has to be asked.

`{x*9}` stands for nine times `x`, `{here}` for the folder of the files, in which the command runs. As a
program, `python -m tests.refusals` reads lines from its standard input and writes a line of JSON for each.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer.main

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import RunStatus
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.tampering import make_earlier_home

LIST = Path(__file__).with_name("bad_inputs.jsonl")
HEAVY = (
    "torch", "diffusers", "ray", "prefect", "mlflow", "transformers", "pandas", "streamlit", "peft", "scipy",
)  # fmt: skip
"""What takes seconds to import."""

HANG_S = 60
_REPEATED = re.compile(r"\{(.)\*(\d+)\}", re.DOTALL)


def entries() -> list[dict[str, Any]]:
    """The lines of the list."""
    return [json.loads(line) for line in LIST.read_text(encoding="utf-8").splitlines()]


def written(text: str, here: Path) -> str:
    """The text with what stands in braces put in."""
    return _REPEATED.sub(lambda found: found[1] * int(found[2]), text).replace("{here}", str(here))


def prepare(entry: Mapping[str, Any], here: Path) -> tuple[list[str], dict[str, str]]:
    """Write an entry's runs and files into a folder; its arguments and environment."""
    for name in entry.get("runs", []):
        _HOMES[name](here / "home")
    for name, content in entry.get("files", {}).items():
        path = here / written(name, here)
        path.parent.mkdir(parents=True, exist_ok=True)
        kind, value = content if isinstance(content, list) else ("text", content)
        if kind == "folder":
            path.mkdir(exist_ok=True)
        elif kind == "link":
            path.symlink_to(written(value, here))
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "hex":
            path.write_bytes(bytes.fromhex(value))
        else:
            path.write_text(written(value, here), encoding="utf-8")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPOTLIGHT_", "PREFECT_"))
    }
    given = {name: written(value, here) for name, value in entry.get("env", {}).items()}
    environment = kept | {"SPOTLIGHT_HOME": str(here / "home"), "COLUMNS": "200"} | given
    return [written(word, here) for word in shlex.split(entry["command"])], environment


def _run(home: Path, status: RunStatus) -> None:
    """A run without iterations, called like its status."""
    store = RunStore(Home(home).ensure())
    store.create_run(status, RunConfig(), {}, os.getpid())
    store.set_status(status, status)


def _checkpoint(home: Path) -> None:
    """A checkpoint of `finished` whose checksums hold, though nothing is in its files."""
    CheckpointStore(Home(home).run("finished")).save(1, {"optimizer.safetensors": b"x"}, {})


def _weights(home: Path) -> None:
    """A checkpoint of `finished` that can be read."""
    import numpy as np
    from safetensors.numpy import save

    counts = {"training_steps": np.ones(1, np.int64)}
    blobs = {
        "average.safetensors": save({"a": np.zeros(1, np.float32)}),
        "optimizer.safetensors": save(counts),
    }
    CheckpointStore(Home(home).run("finished")).save(1, blobs, {})


def _model(home: Path) -> None:
    """A copy of an embedded model in the folder `m`."""
    from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER

    shutil.copytree(WEIGHTS_FOLDER / "glyphs", home.parent / "m")


def _circle(home: Path) -> None:
    folder = Home(home).run("finished")
    (folder / "iteration-000002").mkdir(parents=True)
    (folder / "iteration-000002" / "checkpoint").symlink_to("checkpoint")


def _damaged(home: Path) -> None:
    """A run `damaged` whose description is not JSON."""
    store = RunStore(Home(home).ensure())
    store.create_run("damaged", RunConfig(), {}, os.getpid())
    (store.home.run("damaged") / RUN_FILE).write_bytes(b"\0" * 1000)


_HOMES: Mapping[str, Callable[[Path], None]] = {
    "finished": partial(_run, status="finished"),
    "interrupted": partial(_run, status="interrupted"),
    "checkpoint": _checkpoint,
    "weights": _weights,
    "circle": _circle,
    "model": _model,
    "damaged": _damaged,
    "earlier version": lambda home: make_earlier_home(Home(home)),
}


class Started(BaseException):
    """A process was to be started."""


@contextlib.contextmanager
def _only_checks(_: Home, meanwhile: Callable[[], object]) -> Iterator[str]:
    """In place of a server that starts beside the checks."""
    meanwhile()
    raise Started("a run")
    yield ""


def _check_in_this_process() -> None:
    server: Any = importlib.import_module("flows.server.prefect_server")
    early: Any = importlib.import_module("tasks.checks.early_check")
    server.prefect_server = _only_checks
    early.start_early = lambda reward, evaluation: None
    early.begin_check = lambda config: lambda: early.Checks().check(config)


def _refuse_to_start(*arguments: object, **_: object) -> None:
    raise Started(str(arguments[:1])[:200])


@contextlib.contextmanager
def _limit(limit_s: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError(f"nothing came of it in {limit_s} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _call(arguments: list[str]) -> int:
    """Do what is asked for, as the entry point does; its exit code."""
    from flows.cli.command_line import main

    try:
        sys.argv = ["spotlight", *arguments]
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of one entry: exit code, both outputs, seconds, heavy libraries loaded, files made."""
    out, errors = io.StringIO(), io.StringIO()
    before = dict(os.environ), Path.cwd(), sys.argv
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        arguments, environment = prepare(entry, here)
        started = time.monotonic()
        try:
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(here)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), _limit(HANG_S):
                code = _call(arguments)
        except BaseException:  # noqa: BLE001 - whatever it is, it is no refusal
            code = -1
            errors.write(traceback.format_exc())
        finally:
            os.chdir(before[1])
            os.environ.clear()
            os.environ.update(before[0])
            sys.argv = before[2]
        home = Home(here / "home")
        made = [*home.run_ids(), *([home.database.name] if home.database.exists() else [])]
    seconds = time.monotonic() - started
    loaded = [name for name in HEAVY if name in sys.modules]
    return {
        "code": code,
        "out": out.getvalue(),
        "error": errors.getvalue(),
        "loaded": loaded,
        "made": made,
        "seconds": seconds,
    }


def main() -> None:
    """Run the entries of the standard input."""
    asked = [json.loads(line) for line in sys.stdin]
    if any(entry.get("loads") for entry in asked):
        importlib.import_module("tasks.checks.preflight")  # libraries may start processes then
        importlib.import_module("flows.post_train")
        _check_in_this_process()
    # Typer builds all commands anew for each call, which takes longer than all else.
    typer.main.get_command = functools.cache(typer.main.get_command)
    subprocess.Popen.__init__ = _refuse_to_start  # type: ignore[assignment,method-assign]
    for entry in asked:
        print(json.dumps(run(entry)), flush=True)


if __name__ == "__main__":
    main()
