"""Trials of regrouping on the path of a run: Ray workers that share samples are killed and replaced.

A thread kills a spot worker while its group is in the middle of a chunk, waits until a group of all devices
is at work again, and does so again. All times come from the run's history: the moment of the kill, the first
denoising step of the survivors' group, and the first one of the group that the replacement has joined.
Where a phase ended or began meanwhile, that step had to wait for it: such a time says nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet.worker_killer import WorkerKiller
from gpu_runtime.chaos.run_processes import RunProcess
from gpu_runtime.scheduling.history import DRIVER, MEMBERS_JOINED_BY, HistoryLine
from gpu_runtime.worker.history import HistoryLog
from storage.record.records import StateInterval

HANG_S = 10.0
"""A group without a step for so long after a kill counts as a hang."""

KILLER = "killer"
"""Name under which the kills are in the history."""

_REPLACED_WITHIN_S = 120.0


@dataclass(frozen=True)
class Kill:
    """What followed a kill, in seconds.

    Attributes:
        regroup_s: until the first denoising step of a group of at least two survivors; None where none came.
        in_chunk: whether the worker had begun a chunk that it did not end.
        in_phase: whether that step was one of the same phase.
    """

    worker: str
    regroup_s: float | None
    in_chunk: bool
    in_phase: bool


@dataclass
class Trials:
    """All that was measured.

    Attributes:
        kills: one each.
        planned_s: from a replacement that holds the weights to its group's first denoising step, in a phase.
        between_phases: losses and planned changes during which a phase ended, or had not begun.
        replaced_s: from a kill to the first denoising step of the replacement.
    """

    kills: list[Kill] = field(default_factory=list)
    planned_s: list[float] = field(default_factory=list)
    between_phases: int = 0
    replaced_s: list[float] = field(default_factory=list)

    @property
    def killed_s(self) -> list[float]:
        """From a kill to the survivors' first step in the same phase."""
        return [kill.regroup_s for kill in self.kills if kill.regroup_s is not None and kill.in_phase]

    @property
    def hangs(self) -> int:
        """Kills after which no group came to a step in time."""
        return sum(kill.regroup_s is None or kill.regroup_s > HANG_S for kill in self.kills)


class GroupKiller(WorkerKiller):
    """Kills each victim when all `devices` share a sample, and notes it in the run's history.

    Args:
        history: of the run.
        kills: how many.
        devices: of the whole group.
    """

    most_wait_s = 0.3  # any moment of a chunk: most of it, members wait for each other in a collective

    def __init__(self, history: Path, kills: int, devices: int) -> None:
        super().__init__(history, kills)
        self._history, self._devices = history, devices
        self._log: HistoryLog | None = None
        self._leases: dict[int, frozenset[str]] = {}
        self._in_step: frozenset[str] = frozenset()
        self._waiting_since = time.monotonic()

    def victim(self, lines: Sequence[HistoryLine]) -> RunProcess | None:
        """A spot worker of the whole group, once that has done a step."""
        for line in lines:
            if line.by == DRIVER and line.event == "lease":
                members = frozenset(line.facts["worker"].split(MEMBERS_JOINED_BY))
                self._leases[line.facts["lease"]] = members
            elif line.event == "step":
                members = self._leases.get(line.facts["lease"], frozenset())
                if len(members) == self._devices:
                    self._in_step = members
        spots = [process for process in self.processes.spots() if process.name in self._in_step]
        if len(spots) == self._devices - 1:
            return self.random.choice(spots)
        # After a kill its group's last lines may still come in: all members must live.
        if time.monotonic() - self._waiting_since > _REPLACED_WITHIN_S:
            self.trouble = f"no group of {self._devices} within {_REPLACED_WITHIN_S:g} s"
        return None

    def before_kill(self, victim: RunProcess) -> None:
        """Note the kill."""
        if self._log is None:
            self._log = HistoryLog(self._history / f"{self.processes.life:04}", KILLER)
        self._log.note("kill", worker=victim.name)
        self._in_step, self._waiting_since = frozenset(), time.monotonic()
        print(f"killing {victim.name}, {self.left} left", file=sys.stderr, flush=True)


def evaluate(lines: Iterable[HistoryLine], intervals: Iterable[StateInterval]) -> Trials:
    """What a history and the ledger say of the kills."""
    ordered = sorted(lines, key=lambda line: line.at)
    leases = {line.facts["lease"]: line for line in ordered if line.by == DRIVER and line.event == "lease"}
    steps = [line for line in ordered if line.event == "step"]
    bounds = [line.at for line in ordered if line.by == DRIVER and line.event in ("generate", "generated")]
    loaded_at: dict[str, float] = {}
    for part in intervals:
        if part.state == "load":
            loaded_at[part.worker] = max(part.ended_at, loaded_at.get(part.worker, 0.0))
    trials = Trials()
    for line in ordered:
        if line.by == KILLER and line.event == "kill":
            kill = _kill(line, ordered, steps, leases, bounds)
            trials.kills.append(kill)
            trials.between_phases += kill.regroup_s is not None and not kill.in_phase
            victim = line.facts["worker"]
            slot = victim.split(".")[0]
            # The victim may end one more step between the note of its kill and the signal.
            after = [step for step in steps if step.at > line.at and step.by != victim]
            own = [step for step in after if step.by.split(".")[0] == slot]
            if own:
                trials.replaced_s.append(own[0].at - line.at)
                since, until = loaded_at.get(own[0].by), own[0].at
                if since is not None and _any_within(bounds, since, until):
                    trials.between_phases += 1
                elif since is not None:
                    trials.planned_s.append(until - since)
    return trials


def _any_within(moments: Iterable[float], since: float, until: float) -> bool:
    return any(since <= moment <= until for moment in moments)


def _kill(
    kill: HistoryLine,
    ordered: list[HistoryLine],
    steps: list[HistoryLine],
    leases: dict[int, HistoryLine],
    bounds: list[float],
) -> Kill:
    victim = kill.facts["worker"]
    last = [line.event for line in ordered if line.by == victim and line.at <= kill.at]
    in_chunk = bool(last) and last[-1] in ("chunk", "step", "begin")
    for step in steps:
        lease = leases[step.facts["lease"]]
        members = lease.facts["worker"].split(MEMBERS_JOINED_BY)
        if lease.at > kill.at and len(members) > 1 and victim not in members:
            return Kill(victim, step.at - kill.at, in_chunk, not _any_within(bounds, kill.at, step.at))
    return Kill(victim, None, in_chunk, False)
