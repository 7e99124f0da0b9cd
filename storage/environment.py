"""The environment on which a run's result may depend: versions, commit, machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.errors import ConfigurationError
from storage.text import is_loopback

DRAFTS_ARE_MADE = "drafts are made"
"""Fact stored with a run: one of the next three, or the last two joined by `and`. The strategy's name may
come from a package that the reader of a run does not have."""

NO_DRAFTS, BESIDE_TRAINING, BEFORE_ROLLOUT = "never", "training window", "before the rollout"

CLIPS_RATIO = "objective clips the ratio"
"""Fact stored with a run: `yes` or `no`."""

GIVES_VERDICT = "reward gives a verdict"
"""Fact stored with a run or an evaluation: `yes`, or `no` if its reward calls no image exact."""

REWARD_DIGEST, JUDGE_DIGEST = "digest reward", "digest evaluation.judge"
"""Facts stored with a run or an evaluation: SHA-256 of the files of its reward, and of its second judge. They
are absent for Spotlight's scorers, and earlier versions recorded none: missing ones are equal."""

STRATEGY_DIGEST, OBJECTIVE_DIGEST = "digest exploration.strategy", "digest algorithm.objective"
"""The same for a run's strategy and objective."""

CODE_DIGESTS = frozenset({REWARD_DIGEST, JUDGE_DIGEST, STRATEGY_DIGEST, OBJECTIVE_DIGEST})
"""The facts that identify the version of a run's code."""

PRESET = "preset"
"""Fact stored with a run that was started with a preset: its name, or the path of the TOML file as given."""

PURPOSE = "purpose"
"""Fact stored with a run that is part of a check: `chaos` or `reproduction`."""

DEVICES = "devices"
"""Fact stored with a run once its workers have loaded: their devices, `cpu` or the GPUs' names."""

DECISIONS = "exploration decisions"
"""Fact stored with a run whose strategy decides by measured times: `ITERATION NAME, ...`, as `by_iteration`
writes it. A resumed or reproduced run repeats them."""

EARLIER_ENDS = "earlier ends"
"""Fact stored with a run that was resumed after its end: `ITERATION LIMIT, ...`, the limit being `ITERATIONS`
or `BUDGET`. Such an end has a checkpoint and an evaluation of all held-out prompts; one by `ITERATIONS` has
no drafts for the next iteration. A reproduction repeats it."""

ITERATIONS, BUDGET = "iterations", "budget"

REPEATED = (DECISIONS, EARLIER_ENDS)
"""The facts that a reproduction takes from the run that it reproduces."""

AS_RECORDED = "as recorded"
"""Ending of a repeated decision's message; the original one ends with the reason."""

SIMULATED = "simulated"
"""Fact stored with a simulated run: a description of the simulation."""

CPU = "cpu"
"""The value of `DEVICES` for workers without a GPU."""

_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_PACKAGES = ("torch", "diffusers", "ray", "prefect", "duckdb", "mlflow", "rapidocr", "onnxruntime", "numpy")

MODELLED = "(modelled)"
"""The mark beside a sum that was not paid: no device was rented."""

_THIS_MACHINE = ("ray", "local", "", "auto")
"""Values of `runtime.cluster` that put the run's processes on the driver's machine."""


def environment() -> dict[str, str]:
    """Return the versions of installed packages and of Python, the machine and the commit, as text."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions | {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "processor": _processor(),
        "accelerators": _accelerators(),
        "commit": _commit(),
    }


def by_iteration(names: Mapping[int, str]) -> str:
    """Return names by iteration as the text of one of `REPEATED`, in order."""
    return ", ".join(f"{iteration} {names[iteration]}" for iteration in sorted(names))


def read_decisions(environment: Mapping[str, str]) -> dict[int, str]:
    """Return the decisions among a run's facts; ConfigurationError if they are malformed."""
    return _by_iteration(environment.get(DECISIONS, ""), "decisions", "strategy, such as '2 stale, 5 plain'")


def read_earlier_ends(environment: Mapping[str, str]) -> dict[int, str]:
    """Return the earlier ends among a run's facts; ConfigurationError if they are malformed."""
    form = f"limit, such as '2 {ITERATIONS}, 5 {BUDGET}'"
    return _by_iteration(environment.get(EARLIER_ENDS, ""), "earlier ends", form)


def _by_iteration(recorded: str, what: str, form: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for each in recorded.split(", ") if recorded else ():
        iteration, _, name = each.partition(" ")
        if not (iteration.isdecimal() and name):
            raise ConfigurationError(
                f"recorded {what} are {recorded!r}; they must be pairs of iteration and {form}"
            )
        found[int(iteration)] = name
    return found


def preset_fact(preset: str) -> dict[str, str]:
    """Return `PRESET` as a fact to store; empty if no preset was given."""
    return {PRESET: preset} if preset else {}


def clips_ratio(facts: Mapping[str, str]) -> bool:
    """Return True if the objective of a run with these facts clips the ratio of new to old probabilities."""
    return facts.get(CLIPS_RATIO) != "no"


def gives_verdict(facts: Mapping[str, str]) -> bool:
    """Return True if the reward of the run or evaluation with these facts may call an image exact."""
    return facts.get(GIVES_VERDICT) != "no"


def _processor() -> str:
    """Return the processor's name: kernels depend on it, and so do the last bits."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.processor() or "unknown")


def _accelerators() -> str:
    """Return the GPUs that the drivers of NVIDIA and AMD report, without torch; `none` without GPUs."""
    found: Counter[str] = Counter()
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found.update(line.partition(":")[2].strip() for line in lines if line.startswith("Model"))
    for file in sorted(_AMD_NODES.glob("*/properties")):
        try:
            facts = dict(line.split(None, 1) for line in file.read_text().splitlines() if " " in line)
        except OSError:
            continue
        if int(facts.get("simd_count", "0")) > 0:  # 0: a processor
            found[f"AMD gfx{facts.get('gfx_target_version', '').strip()}"] += 1
    return ", ".join(f"{count} x {name}" for name, count in found.items()) or "none"


def _commit() -> str:
    root = Path(__file__).resolve().parents[1]
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


def is_modelled(settings: Any, environment: Mapping[str, str]) -> bool:
    """Return True if no device was rented: CPU processes, or nothing, stood in for them.

    Workers report their devices. If an old version did not record them, or before the workers have loaded,
    the accelerators of the run's own machine decide (none, if its environment lists none); a cluster that it
    joined on another machine is rented, unless its settings, of any version, switch accelerators off.
    """
    if SIMULATED in environment:
        return True
    if devices := environment.get(DEVICES):
        return devices == CPU
    settings = settings if isinstance(settings, Mapping) else {}
    sections = (settings.get(name) for name in ("model", "runtime"))
    model, runtime = (section if isinstance(section, Mapping) else {} for section in sections)
    if model.get("device") == "cpu":
        return True
    address = str(runtime.get("cluster", "ray"))
    place = address.removeprefix("ray://")
    host = (place.rpartition(":")[0] or place).strip("[]")
    is_here = address in _THIS_MACHINE or is_loopback(host)
    return is_here and environment.get("accelerators", "none") == "none"
