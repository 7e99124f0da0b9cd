"""Run the stages of a benchmark, each in a separate process with a time limit.

A stage reports its figures as it finds them, so one that fails, is killed or takes too long keeps them, and
the next one starts with a fresh device. Stages are forked from a process that has done the imports but not
touched the device; no process of a stage outlives it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

Figures = dict[str, Any]
Reporter = Callable[..., None]
"""Called with figures by name, whenever there are new ones."""

Fault = Literal["kill", "raise", "hang"]
_PR_SET_PDEATHSIG = 1
_ENDING_S = 1.0


@dataclass(frozen=True)
class Setting:
    """The inputs of a stage.

    Attributes:
        device: `cuda` or `cpu`.
        tiny: True for the size of a rehearsal.
        limit_s: seconds after which it is ended; a stage with several parts begins none shortly before.
        folder: folder for pictures; None for none.
    """

    device: str
    tiny: bool
    limit_s: float
    folder: Path | None = None


@dataclass(frozen=True)
class Stage:
    """A part of the benchmark.

    Attributes:
        name: name of its figures in the result.
        limit_s: seconds that it may take; time left goes to the next one.
        work: its function.
    """

    name: str
    limit_s: float
    work: Callable[[Setting, Reporter], None]


def run_stage(
    stage: Stage, setting: Setting, flush: Callable[[Figures], None], fault: Fault | None = None
) -> Figures:
    """Run a stage.

    Args:
        stage: the stage.
        setting: its inputs.
        flush: called with all its results so far after each report.
        fault: fault injected after its first report, for tests.

    Returns:
        `status` (`done`, `failed`, `cut`), `seconds`, `figures`, and `error` if it did not end well.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(stage, setting, theirs, fault), name=stage.name)
    began = time.monotonic()
    found: Figures = {"status": "cut", "seconds": 0.0, "figures": {}}
    process.start()
    theirs.close()
    try:
        while (left_s := began + setting.limit_s - time.monotonic()) > 0:
            wait([ours], left_s)
            if not ours.poll():
                continue
            try:
                message = ours.recv()
            except (EOFError, OSError):  # the process is gone
                break
            found["figures"].update(message.get("figures", {}))
            found.update({name: message[name] for name in ("status", "error") if name in message})
            found["seconds"] = round(time.monotonic() - began, 1)
            flush(found)
            if found["status"] != "cut":
                break
        else:
            found["error"] = f"ended by its limit of {setting.limit_s:.0f} s"
    finally:
        _end(process)
    found["seconds"] = round(time.monotonic() - began, 1)
    if found["status"] == "cut" and "error" not in found:
        found |= {"status": "failed", "error": f"ended by signal or exit {process.exitcode}"}
    flush(found)
    return found


def _end(process: Any) -> None:
    """End the stage and everything it started; one that is already ending gets a moment."""
    process.join(_ENDING_S)
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no process group yet
            process.kill()
    process.join()


def _in_child(stage: Stage, setting: Setting, theirs: Connection, fault: Fault | None) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    reported = 0

    def report(**figures: Any) -> None:
        nonlocal reported
        theirs.send({"figures": figures})
        reported += 1
        if fault is None or reported != 1:
            return
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(3600)
        raise RuntimeError("a planted fault")

    try:
        import torch
        import torch._dynamo

        from gpu_runtime.models.loading import prepare_gpu

        # One thread, as in workers; on a GPU, their settings.
        torch.set_num_threads(1)
        if setting.device == "cuda":
            prepare_gpu()
        # A rehearsal only traces Qwen-Image's blocks: compiling them all on a CPU takes minutes.
        torch._dynamo.config.disable = setting.tiny
        # The rest is for the process's end and the next stage's start.
        stage.work(replace(setting, limit_s=0.95 * setting.limit_s), report)
        theirs.send({"status": "done"})
    except BaseException:  # noqa: BLE001 - any failure is the stage's result
        theirs.send({"status": "failed", "error": traceback.format_exc()[-4000:]})
