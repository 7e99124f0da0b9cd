"""Runs the stages of a benchmark, each in a process of its own with a time limit.

A stage reports its figures as it finds them. So one that fails, is killed or takes too long leaves what it
had found, and the next one starts with a fresh device. Stages are forked from a process that has the imports
done and has not touched the device; no process of a stage outlives it.
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
"""Called with figures by name, as often as there are new ones."""

Fault = Literal["kill", "raise", "hang"]
_PR_SET_PDEATHSIG = 1
_ENDING_S = 1.0


@dataclass(frozen=True)
class Setting:
    """What a stage is given.

    Attributes:
        device: `cuda` or `cpu`.
        tiny: at the size of a rehearsal.
        limit_s: after so many seconds it is ended; a stage with several parts begins none shortly before.
        folder: where pictures go; None for none.
    """

    device: str
    tiny: bool
    limit_s: float
    folder: Path | None = None


@dataclass(frozen=True)
class Stage:
    """A part of the benchmark.

    Attributes:
        name: of its figures in the result.
        limit_s: that it may take; what it leaves goes to the next one.
        work: does it.
    """

    name: str
    limit_s: float
    work: Callable[[Setting, Reporter], None]


def run_stage(
    stage: Stage, setting: Setting, flush: Callable[[Figures], None], fault: Fault | None = None
) -> Figures:
    """Run a stage.

    Args:
        stage: to run.
        setting: that it is given.
        flush: given all that is known of the stage so far, whenever it has reported.
        fault: done to the stage after its first report, for tests.

    Returns:
        `status` (`done`, `failed`, `cut`), `seconds`, `figures`, and `error` where it did not end well.
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
    """End the stage and all that it has started; one that is ending anyway has a moment for it."""
    process.join(_ENDING_S)
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not got as far as a group
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

        # One thread, as workers have; on a GPU, the settings that they choose.
        torch.set_num_threads(1)
        if setting.device == "cuda":
            prepare_gpu()
        # A rehearsal traces Qwen-Image's blocks alone: to compile those of all parts on a CPU takes minutes.
        torch._dynamo.config.disable = setting.tiny
        # The rest is for the end of the process itself, and for the next stage's start.
        stage.work(replace(setting, limit_s=0.95 * setting.limit_s), report)
        theirs.send({"status": "done"})
    except BaseException:  # noqa: BLE001 - whatever ends a stage is its result
        theirs.send({"status": "failed", "error": traceback.format_exc()[-4000:]})
