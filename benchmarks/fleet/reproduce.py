"""Short runs of one configuration in processes of their own: the same bits, and every planted change named.

A run is recorded, then done again by `spotlight reproduce`, each time in a new process under one Prefect
server. `identical` counts repetitions whose weights, moving average, optimiser and held-out scores equal
the recorded ones to the bit. Then something is changed each time, and what the comparison names is looked
for: another seed; another version of a package, which a folder ahead of the others on the path brings
along, as a moved pin would; one other prompt in the file. The version of a package that computes nothing
changes no bit: it is named beside identical results.

    python -m benchmarks.reproduce [--quick]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, finish, options
from flows.server.local_server import LocalServer
from storage.home import Home

_SETTINGS = (
    "iterations=3", "algorithm.prompts_per_iteration=4", "algorithm.group_size=8",
    "sampling.rollout_steps=6", "sampling.window_stop=5", "sampling.window_size=2",
    "sampling.evaluate_steps=4", "evaluation.prompts=8", "evaluation.every=0",
    "prompts.evaluate=builtin:smoke-evaluate", "runtime.spot_workers=1",
    "runtime.scorer_workers=1",
)  # fmt: skip
_WORDS = ("ACE", "HJK", "LMN", "PRT", "VWX", "FEC", "KLM", "TUV")


@dataclass(frozen=True)
class Change:
    """A planted change.

    Attributes:
        name: what is changed.
        kind, what: how the comparison is to name it.
        verdict: what it is to say.
    """

    name: str
    kind: str
    what: str
    verdict: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class RecordedRuns:
    """A home, its server, and commands in processes of their own."""

    def __init__(self, folder: Path, server: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = os.environ | {"SPOTLIGHT_HOME": str(folder)} | dict(server)
        self.prompts = folder / "train.txt"
        self.write_prompts(_WORDS)

    def write_prompts(self, words: tuple[str, ...]) -> None:
        """Training prompts, one a word."""
        lines = (f'a red sign that says "{word}"\n' for word in words)
        self.prompts.write_text("".join(lines), encoding="utf-8")

    def record(self, run_id: str) -> None:
        """The run that the others are compared with."""
        settings = (*_SETTINGS, f"prompts.train={self.prompts}")
        sets = [part for setting in settings for part in ("--set", setting)]
        done = self._run("train", "--preset", "glyphs", "--run-id", run_id, *sets, environment={})
        if done.returncode != 0:
            raise SystemExit(f"the recorded run failed; see `spotlight doctor`\n{done.stdout}\n{done.stderr}")

    def again(self, reference: str, run_id: str, change: Change | None = None) -> dict[str, Any]:
        """Do it again; what the command said."""
        arguments = change.arguments if change else ()
        environment = change.environment if change else {}
        done = self._run(
            "reproduce", reference, "--run-id", run_id, *arguments, environment=environment
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise SystemExit(f"{run_id} failed:\n{done.stdout}\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])

    def other_version(self, package: str, version: str) -> dict[str, str]:
        """An environment in which an installed package says to be of another version."""
        path = self._folder / "planted"
        facts = path / f"{package}-{version}.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        before = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(path), before)))}

    def _run(self, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flows.cli.command_line", *arguments],
            cwd=ROOT, env=self._environment | environment, capture_output=True, text=True,
        )  # fmt: skip


def planted(runs: RecordedRuns) -> list[Change]:
    """What is changed, one thing at a time."""
    return [
        Change("seed", "configuration", "seed", "drifted", ("--set", "seed=1")),
        Change(
            "version", "versions", "rapidocr", "identical",
            environment=runs.other_version("rapidocr", "99.1.0"),
        ),
        Change("prompt", "data", "training prompt 1", "drifted"),
    ]  # fmt: skip


def is_named(change: Change, said: dict[str, Any]) -> bool:
    """Whether the comparison names the change, says what is to be said, and no other cause."""
    causes = {(one["kind"], one["what"]) for one in said["differences"] if one["kind"] != "result"}
    expected = {(change.kind, change.what)}
    if change.name == "prompt":
        expected.add(("data", "SHA-256 of prompts.train"))
    return said["verdict"] == change.verdict and causes == expected


def measure(runs: RecordedRuns, reruns: int) -> dict[str, Any]:
    """Record, repeat, plant."""
    runs.record("recorded")
    identical = 0
    for number in range(reruns):
        said = runs.again("recorded", f"again-{number}")
        identical += said["verdict"] == "identical" and not said["differences"]
        print(f"again {number}: {said['message']}", flush=True)
    named: list[str] = []
    changes = planted(runs)
    for change in changes:
        if change.name == "prompt":
            runs.write_prompts(("ECA", *_WORDS[1:]))
        said = runs.again("recorded", f"other-{change.name}", change)
        if is_named(change, said):
            named.append(change.name)
        print(f"other {change.name}: {said['verdict']}: {said['message']}", flush=True)
    return {"reruns": reruns, "identical": identical, "planted": len(changes), "named": named}


def main() -> None:
    """Print a line a run, and one JSON line last."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition instead of three")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        server = LocalServer(Home(Path(folder)), 4250)
        try:
            server.wait_ready()
            figures = measure(
                RecordedRuns(Path(folder), server.client_environment), 1 if arguments.quick else 3
            )
        finally:
            server.stop()
    finish("reproduce", figures | {"wall_s": round(time.monotonic() - started, 1)}, arguments)


if __name__ == "__main__":
    main()
