"""A question to `spotlight what-if`, and the process that answers it: this room imports no simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import ConfigurationError, RuntimeFailure
from storage.home import HOME_VARIABLE
from storage.processes import python_command

GPUS = ("H100", "H200", "A100", "RTX4090")
"""GPUs whose times the command counts."""

_ROOT = Path(__file__).resolve().parents[3]
_TRACES = _ROOT / "benchmarks" / "traces"
_LIMIT_S = 300.0
_REFUSED = 2  # exit code of a command whose input was refused
_STEP = re.compile(r"simulated (\d+) of (\d+)")

OnStep = Callable[[int, int], None]
"""The callback after each simulated run: number done, and total."""


@dataclass(frozen=True)
class Question:
    """The question of the form; the command chooses for None and empty texts, and explains its options.

    Attributes:
        reserved_usd, spot_usd: dollars per hour and device: its option `--price`.
        trace: name of a recorded trace of `trace_names`; empty for drawn traces.
        own_trace: the visitor's trace in place of that: a CSV file's content.
        prices: prices over time: a CSV file's content.
        notice_s: its option `--notice`.
        futures: its option `--windows`.
    """

    preset: str
    reserved: int | None = None
    spot: int | None = None
    trainers: int | None = None
    iterations: int | None = None
    hours: float | None = None
    reserved_usd: float | None = None
    spot_usd: float | None = None
    trace: str = ""
    loss_rate: float | None = None
    joint: float | None = None
    notice_s: float | None = None
    profile: str = ""
    spot_profile: str = ""
    futures: int | None = None
    seed: int | None = None
    degree: str = ""
    per_instance: int | None = None
    own_trace: bytes | None = None
    prices: bytes | None = None
    zone: str = ""
    serving: str = ""

    def arguments(self, folder: Path, futures: int | None = None) -> list[str]:
        """Return the question as options of the command.

        Args:
            futures: number that replaces its own; None for its own.
        """
        trace = str(_TRACES / f"{self.trace}.csv") if self.trace else None
        prices = (self.reserved_usd, self.spot_usd)
        named = {
            "preset": self.preset, "reserved": self.reserved, "spot": self.spot, "trainers": self.trainers,
            "iterations": self.iterations, "hours": self.hours,
            "price": None if prices == (None, None) else ",".join(_plain(price) for price in prices),
            "trace": trace if self.own_trace is None else _written(folder / "trace.csv", self.own_trace),
            "loss-rate": self.loss_rate, "joint": self.joint, "notice": self.notice_s,
            "profile": self.profile or None, "spot-profile": self.spot_profile or None,
            "windows": futures or self.futures, "seed": self.seed,
            "degree": self.degree or None, "per-instance": self.per_instance,
            "prices": None if self.prices is None else _written(folder / "prices.csv", self.prices),
            "zone": self.zone or None, "serving": self.serving or None,
        }  # fmt: skip
        # One argument each: a value that begins with a dash stays a value.
        return [f"--{name}={_plain(value)}" for name, value in named.items() if value is not None]


def trace_names() -> list[str]:
    """Return the names of the recorded traces that ship with the project."""
    return sorted(path.stem for path in _TRACES.glob("*.csv"))


def ask(question: Question, home: Path, on_step: OnStep, policy: str = "") -> tuple[dict[str, Any], str]:
    """Return the command's JSON object, and a policy's run in the first future as a Chrome trace.

    A goal in hours has no such run: the text is empty.

    Args:
        on_step: callback after each simulated run.
        policy: policy of that run, with which one future is simulated; empty for the best one.

    Raises:
        ConfigurationError: the question was refused, in the command's words.
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


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _run(options: list[str], home: Path, on_step: OnStep) -> dict[str, Any]:
    """Return the JSON object with which a process of the command answers; its last arguments as for `ask`."""
    command = python_command("-m", "flows.cli.command_line", "what-if", *options, "--json", "--progress")
    with tempfile.TemporaryFile() as answered:
        process = subprocess.Popen(
            command, cwd=_ROOT, env=os.environ | {HOME_VARIABLE: str(home)},
            stdin=subprocess.DEVNULL, stdout=answered, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        limit = threading.Timer(_LIMIT_S, end)
        limit.start()
        try:
            assert process.stderr is not None, "it is a pipe"
            said = _follow(process.stderr, on_step)
            code = process.wait()
        finally:  # even if the visitor went to another page
            limit.cancel()
            process.kill()
            process.wait()
        if code == 0:
            answered.seek(0)
            return json.load(answered)
    if late.is_set():
        raise RuntimeFailure(
            f"the answer took longer than {_LIMIT_S:g} s and was ended; ask for fewer iterations or futures"
        )
    if code == _REFUSED:
        raise ConfigurationError(said.removeprefix("error: "))
    raise RuntimeFailure(f"`spotlight what-if` ended with code {code}; it said last: {said[-1000:]}")


def _follow(lines: Iterable[str], on_step: OnStep) -> str:
    """Call back for each simulated run; return all other output.

    Args:
        on_step: callback after each simulated run.
    """
    said = []
    for line in lines:
        step = _STEP.fullmatch(line.strip())
        if step is None:
            said.append(line.rstrip())
        else:
            on_step(int(step[1]), int(step[2]))
    return "\n".join(said).strip()


def _plain(value: object) -> str:
    """Return a value as the command line takes it; empty for None."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return "" if value is None else str(value)
