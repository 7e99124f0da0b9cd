"""The parts of the benchmark of faults: runs of `spotlight train` under some of them, and what is kept."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flows.disturbed_run import disturb, start
from flows.run_identity import new_run_id
from gpu_runtime.chaos.fault_schedule import Fault, FaultKind, draw_faults
from gpu_runtime.scheduling.history import DRIVER
from gpu_runtime.worker.history_tail import read_history
from storage.config.loading import load_config
from storage.environment import environment
from storage.errors import RuntimeFailure
from storage.home import Home
from tasks.chaos.faults import digests, judge

PRESET = "glyphs"

STRETCH = 1.5
"""Faults' times spread over so many times as long as the undisturbed run takes; a part takes still longer."""

_OFTEN: dict[FaultKind, int] = {
    "kill": 6, "notice_then_kill": 6, "half_at_once": 4, "kill_while_joining": 4, "kill_while_committing": 5,
    "hung_worker": 8, "slow_worker": 8, "scorer_death": 3, "stopped_driver": 3, "server_death": 1,
    "agent_death": 1, "coordinator_restart": 1,
}  # fmt: skip

PACK = sum(_OFTEN.values())
"""Faults of a part. A resumption takes as long as six other faults, so there are few that need one."""

CLUSTERS = {"ray": 1, "local": 6}
"""What the workers of parts are processes of, and how many parts each gets in turn. With Ray a replacement
takes ten times as long to start; without, there are no agents to kill."""

_GRACES_S = (3.0, 4.0, 6.0)
"""A worker asks for notices once a second; without grace a notice would be none."""

_DURATIONS_S = (0.5, 13.0)
"""Some hung workers recover before their lease expires, some do not."""


@dataclass(frozen=True)
class Reference:
    """The undisturbed run.

    Attributes:
        commit: that it ran on.
        iterations: that it did.
        began_s: from its start to its first phase.
        wall_s: from its first phase to its end.
        digests: of weights, moving average and optimiser, by iteration and file.
    """

    commit: str
    iterations: int
    began_s: float
    wall_s: float
    digests: dict[int, dict[str, str]]


@dataclass(frozen=True)
class Part:
    """What is kept of a disturbed run.

    Attributes:
        number: from 1; the seed of its schedule is derived from it.
        commit, date, device: what it ran on, and when.
        wall_s: from its start to its end.
        iterations: that it did.
        faults: done, by kind.
        left: faults that found no victim before it ended.
        restarts: resumptions.
        hung: it wrote nothing for minutes and was ended.
        identical: weights, moving average and optimiser are the undisturbed run's.
        balanced: its ledger adds up.
        broken: promises that it broke, in words.
        counts: of samples, denoising steps and losses.
    """

    number: int
    commit: str
    date: str
    device: str
    wall_s: float
    iterations: int
    faults: dict[str, int]
    left: int
    restarts: int
    hung: bool
    identical: bool
    balanced: bool
    broken: tuple[str, ...]
    counts: dict[str, int]


class Parts:
    """The parts of one series, in a folder of the home; each is kept as soon as it is over.

    A series is what has the same settings, seed, size of a part, machine and versions; commits may differ.

    Args:
        settings: `SECTION.KEY=VALUE`, over the preset.
        cluster: what its workers are processes of, one of `CLUSTERS`.
        seed: of all schedules.
        size: faults in a part.
        iterations: of a part.
    """

    def __init__(self, settings: Sequence[str], cluster: str, seed: int, size: int, iterations: int) -> None:
        self.cluster = cluster
        self._settings = (*settings, f"runtime.cluster={cluster}", f"iterations={iterations}")
        self.config = load_config(PRESET, self._settings, {})
        self._seed, self._size, self._iterations = seed, size, iterations
        facts = {name: value for name, value in environment().items() if name != "commit"}
        named = json.dumps([*self._settings, seed, size, *sorted(facts.items())])
        series = hashlib.sha256(named.encode()).hexdigest()[:8]
        self.folder = Home.from_environment().ensure().path / "benchmarks" / f"preemption-{series}"
        self.home = Home(self.folder / "home").ensure()
        without: set[FaultKind] = set() if cluster == "ray" else {"agent_death"}
        self.kinds: tuple[FaultKind, ...] = tuple(
            kind for kind, times in _OFTEN.items() if kind not in without for _ in range(times)
        )

    def all(self) -> list[Part]:
        """The parts that are there, by number."""
        return [_part_from(json.loads(file.read_text())) for file in sorted(self.folder.glob("part-*.json"))]

    def reference(self) -> Reference:
        """The undisturbed run; made where it is missing.

        Raises:
            RuntimeFailure: if it fails.
        """
        file = self.folder / "reference.json"
        if not file.exists():
            _write(file, asdict(self._undisturbed()))
        kept = json.loads(file.read_text())
        of_iteration = {int(iteration): blobs for iteration, blobs in kept["digests"].items()}
        return Reference(**{**kept, "digests": of_iteration})

    def add(self) -> Part:
        """Do the first part that is missing, and keep it."""
        reference = self.reference()
        there = {part.number for part in self.all()}
        number = next(number for number in range(1, len(there) + 2) if number not in there)
        part = self._disturbed(number, reference)
        _write(self.folder / f"part-{number:04}.json", asdict(part))
        return part

    def forget(self) -> None:
        """Drop all parts; the undisturbed run stays."""
        for file in self.folder.glob("part-*.json"):
            file.unlink()

    def faults(self, number: int, reference: Reference) -> tuple[Fault, ...]:
        """The schedule of a part; times count from its start, as the machine was with the undisturbed run."""
        seed = self._seed * 100_000 + list(CLUSTERS).index(self.cluster) * 1_000 + number
        drawn = draw_faults(
            seed, self._size, STRETCH * reference.wall_s, self._iterations - 1, kinds=self.kinds,
            graces_s=_GRACES_S, durations_s=_DURATIONS_S,
        )  # fmt: skip
        return tuple(
            fault if fault.at_s is None else replace(fault, at_s=fault.at_s + reference.began_s)
            for fault in drawn
        )

    @property
    def _arguments(self) -> list[str]:
        return ["--preset", PRESET, *(item for change in self._settings for item in ("--set", change))]

    def _undisturbed(self) -> Reference:
        run_id = new_run_id("undisturbed")
        if start(self.home, "train", "--run-id", run_id, *self._arguments).wait() != 0:
            raise RuntimeFailure(f"the undisturbed run {run_id} failed; its home is {self.home.path}")
        lines = read_history(self.home.history(run_id))
        driver = [line for line in lines if line.by == DRIVER]
        created = next(line.facts["created"] for line in lines if line.event == "process")
        under_way = next(line.at for line in driver if line.event in ("phase", "generate"))
        found = digests(self.home, run_id)
        self._forget(run_id)
        return Reference(
            commit=environment()["commit"],
            iterations=self._iterations,
            began_s=under_way - created,
            wall_s=driver[-1].at - under_way,
            digests=found,
        )

    def _disturbed(self, number: int, reference: Reference) -> Part:
        run_id, facts = new_run_id(f"part-{number}"), environment()
        ran = disturb(self.home, run_id, self._arguments, self.faults(number, reference))
        verdict = judge(self.home, run_id, reference.digests[self._iterations])
        report = verdict.report
        part = Part(
            number=number,
            commit=facts["commit"],
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            device=facts["machine"],
            wall_s=ran.wall_s,
            iterations=self._iterations,
            faults=dict(Counter(done.fault.kind for done in ran.done)),
            left=len(ran.left),
            restarts=ran.restarts,
            hung=ran.hung,
            identical=verdict.identical,
            balanced=verdict.balanced,
            broken=verdict.broken,
            counts={
                "samples": report.requested,
                "lost": len(report.lost),
                "duplicated_deliveries": len(report.duplicated),
                "late_deliveries_dropped": report.dropped,
                "redone_steps_with_notice_max": report.most_redone(with_notice=True),
                "redone_steps_without_notice_max": report.most_redone(with_notice=False),
                "losses_with_notice": report.losses(with_notice=True),
                "losses_without_notice": report.losses(with_notice=False),
                "steps_needed": report.steps_needed,
                "steps_redone": report.steps_redone,
            },
        )
        if not part.broken:
            self._forget(run_id)
        return part

    def _forget(self, run_id: str) -> None:
        """Drop what is large of a run that kept its promises; its rows stay."""
        for folder in (*self.home.run(run_id).glob("iteration-*/checkpoint"), self.home.history(run_id)):
            shutil.rmtree(folder, ignore_errors=True)


def _part_from(kept: dict[str, Any]) -> Part:
    return Part(**{**kept, "broken": tuple(kept["broken"])})


def _write(file: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    fresh.replace(file)
