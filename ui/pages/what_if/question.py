"""A question to `spotlight what-if`, and the process that answers it, since `ui` imports no simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field

from storage.config.what_if import WhatIfQuestion
from storage.errors import ConfigurationError, RuntimeFailure
from storage.home import HOME_VARIABLE, Home
from storage.processes import python_command

GPUS = ("H100", "H200", "A100", "RTX4090")  # GPUs whose times the command counts
_ROOT = Path(__file__).resolve().parents[3]
_TRACES = _ROOT / "benchmarks" / "traces"
_LIMIT_S = 300.0
_REFUSED = 2  # exit code of a command whose input was refused
_STEP = re.compile(r"simulated (\d+) of (\d+)")

OnStep = Callable[[int, int], None]  # callback after each simulated run: number done, and total


class Question(WhatIfQuestion):
    """The form's question; the command fills in missing values."""

    preset: str
    """The workload: samples, batches, denoising steps, evaluations, exploration."""

    hours: float | None = Field(default=None, ge=0.01, title="Goal: finish within (hours)")
    """Finds the fewest spot devices, without exploration, whose median finishes in time."""

    reserved_usd: float | None = Field(default=None, title="Reserved, $ an hour")
    """Of a device."""

    spot_usd: float | None = Field(default=None, title="Spot, $ an hour")
    """Of a device."""

    own_trace: bytes | None = Field(default=None, title="Trace (CSV)")
    """Spot instances to replace the trace above: each line has milliseconds, add or remove, and a name."""

    own_prices: bytes | None = Field(default=None, title="Prices (CSV)")
    """Prices over time: time, market (on_demand or spot), usd_per_hour and, optionally, zone."""

    def arguments(self, folder: Path, windows: int | None = None) -> list[str]:
        """Return the question as options of the command; the visitor's files are written into the folder."""
        given = {name: self.given(name) for name in ("preset", *WhatIfQuestion.model_fields, "hours")}
        if self.trace:
            given["trace"] = _TRACES / f"{self.trace}.csv"
        for name, content in {"trace": self.own_trace, "prices": self.own_prices}.items():
            if content is not None:
                given[name] = folder / f"{name}.csv"
                given[name].write_bytes(content)
        prices = self.reserved_usd, self.spot_usd
        given["price"] = None if prices == (None, None) else ",".join(map(_plain, prices))
        given["windows"] = windows or given["windows"]
        # One argument each: a value that begins with a dash stays a value.
        return [
            f"--{name.replace('_', '-')}={_plain(value)}"
            for name, value in given.items()
            if value is not None
        ]


def trace_names() -> list[str]:
    """Return the names of the recorded traces that ship with the project."""
    return sorted(path.stem for path in _TRACES.glob("*.csv"))


def ask(question: Question, home: Home, on_step: OnStep, policy: str = "") -> tuple[dict[str, Any], str]:
    """Return the command's JSON object, and a policy's run in the first future as a Chrome trace.

    A goal in hours has no such run: the text is empty.

    Args:
        on_step: callback after each simulated run.
        policy: policy of that run, simulated in one future; empty for the best one.

    Raises:
        ConfigurationError: the question was refused, with the command's message.
        RuntimeFailure: the command failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "time-line.json"
        options = question.arguments(Path(folder), 1 if policy else None)
        options += [] if question.hours is not None else [f"--timeline={drawn}"]
        options += [f"--policy={policy}"] if policy else []
        try:
            answer = _run(options, home, on_step)
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace(f"{folder}/", "")) from error
        return answer, drawn.read_text("utf-8") if drawn.exists() else ""


def _run(options: list[str], home: Home, on_step: OnStep) -> dict[str, Any]:
    """Return the JSON object that the command's process prints; the last arguments as for `ask`."""
    command = python_command("-m", "flows.cli.command_line", "what-if", *options, "--json", "--progress")
    said, ends_at_s = [], time.monotonic() + _LIMIT_S
    with (
        tempfile.TemporaryFile() as answered,
        subprocess.Popen(
            command, cwd=_ROOT, env=os.environ | {HOME_VARIABLE: str(home.path)},
            stdin=subprocess.DEVNULL, stdout=answered, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace",
        ) as process,
    ):  # fmt: skip
        limit = threading.Timer(_LIMIT_S, process.kill)
        limit.start()
        try:
            for line in process.stderr or ():
                if step := _STEP.fullmatch(line.strip()):
                    on_step(int(step[1]), int(step[2]))
                else:
                    said.append(line.rstrip())
            code = process.wait()
        finally:  # even if the visitor went to another page
            limit.cancel()
            process.kill()
        if code == 0:
            answered.seek(0)
            return json.load(answered)
    if time.monotonic() >= ends_at_s:
        raise RuntimeFailure(
            f"the answer took longer than {_LIMIT_S:g} s and was stopped; ask for fewer iterations or futures"
        )
    last = "\n".join(said).strip()
    if code == _REFUSED:
        raise ConfigurationError(last.removeprefix("error: "))
    raise RuntimeFailure(f"`spotlight what-if` ended with code {code}; its last output: {last[-1000:]}")


def _plain(value: object) -> str:
    """Return a value as the command line takes it; empty for None."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return "" if value is None else str(value)
