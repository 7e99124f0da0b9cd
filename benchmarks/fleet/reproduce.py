"""Repeat short runs of one configuration in new processes: same bits, and every planted change named.

A run is recorded, then repeated by `spotlight reproduce`, each time in a new process under one Prefect
server. `identical` counts repetitions whose weights, moving average, optimiser and held-out scores equal the
recorded ones to the bit. Then something is changed each time, and the comparison must name it: another seed;
another version of a package, from a folder at the front of the path, as a moved pin would bring; a different
prompt in the file. The version of a package that computes nothing changes no bit: it is named beside
identical results.

    python -m benchmarks.reproduce [--quick]
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.commands import SHORT, spotlight
from benchmarks.report import ROOT, finish, options
from flows.server.local_server import LocalServer
from storage.home import HOME_VARIABLE, Home

_SETTINGS = (
    *SHORT, "iterations=3", "evaluation.every=0", "prompts.evaluate=builtin:smoke-evaluate",
    "runtime.spot_workers=1",
)  # fmt: skip
_WORDS = ("ACE", "HJK", "LMN", "PRT", "VWX", "FEC", "KLM", "TUV")


@dataclass(frozen=True)
class Change:
    """A planted change.

    Attributes:
        name: name of the change.
        causes: kind and name of each difference that the comparison must name, and no other.
        verdict: expected verdict.
    """

    name: str
    causes: tuple[tuple[str, str], ...]
    verdict: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class RecordedRuns:
    """A home, its server, and commands in separate processes."""

    def __init__(self, folder: Path, server: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = os.environ | {HOME_VARIABLE: str(folder)} | dict(server)
        self._prompts = folder / "train.txt"
        self.write_prompts(_WORDS)

    def write_prompts(self, words: tuple[str, ...]) -> None:
        """Write training prompts, one per word."""
        lines = (f'a red sign that says "{word}"\n' for word in words)
        self._prompts.write_text("".join(lines), encoding="utf-8")

    def record(self, run_id: str) -> None:
        """Record the run that the others are compared with."""
        settings = (*_SETTINGS, f"prompts.train={self._prompts}")
        command = spotlight("train", "--preset", "glyphs", "--run-id", run_id, settings=settings)
        self._run(run_id, command, {}, allowed=(0,))

    def again(self, reference: str, run_id: str, change: Change | None = None) -> dict[str, Any]:
        """Repeat it; return the command's result."""
        command = spotlight("reproduce", reference, "--run-id", run_id, *(change.arguments if change else ()))
        said = self._run(run_id, command, change.environment if change else {}, allowed=(0, 1))
        return json.loads(said.splitlines()[-1])

    def other_version(self, package: str, version: str) -> dict[str, str]:
        """Return an environment in which an installed package claims another version."""
        path = self._folder / "planted"
        facts = path / f"{package}-{version}.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        before = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(path), before)))}

    def _run(self, run_id: str, command: list[str], more: Mapping[str, str], allowed: tuple[int, ...]) -> str:
        environment = self._environment | dict(more)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode not in allowed:
            raise SystemExit(f"{run_id} failed; see `spotlight doctor`\n{done.stdout}\n{done.stderr}")
        return done.stdout


def measure(runs: RecordedRuns, reruns: int) -> dict[str, Any]:
    """Record, repeat, and plant changes."""
    runs.record("recorded")
    identical = 0
    for number in range(reruns):
        said = runs.again("recorded", f"again-{number}")
        identical += said["verdict"] == "identical" and not said["differences"]
        print(f"again {number}: {said['message']}", flush=True)
    version = runs.other_version("rapidocr", "99.1.0")
    prompt = (("data", "training prompt 1"), ("data", "SHA-256 of prompts.train"))
    changes = [
        Change("seed", (("configuration", "seed"),), "drifted", ("--set", "seed=1")),
        Change("version", (("versions", "rapidocr"),), "identical", environment=version),
        Change("prompt", prompt, "drifted"),
    ]
    named: list[str] = []
    for change in changes:
        if change.name == "prompt":
            runs.write_prompts(("ECA", *_WORDS[1:]))
        said = runs.again("recorded", f"other-{change.name}", change)
        causes = {(one["kind"], one["what"]) for one in said["differences"] if one["kind"] != "result"}
        if said["verdict"] == change.verdict and causes == set(change.causes):
            named.append(change.name)
        print(f"other {change.name}: {said['verdict']}: {said['message']}", flush=True)
    return {"reruns": reruns, "identical": identical, "planted": len(changes), "named": named}


def main() -> None:
    """Print a line per run, and one JSON line last."""
    arguments = options(__doc__, "one repetition instead of three").parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        server = LocalServer(Home(Path(folder)), first_port=4250)
        try:
            server.wait_ready()
            runs = RecordedRuns(Path(folder), server.client_environment)
            figures = measure(runs, 1 if arguments.quick else 3)
        finally:
            server.stop()
    finish("reproduce", figures | {"wall_s": round(time.monotonic() - started, 1)}, arguments)


if __name__ == "__main__":
    main()
