"""Who is there: the processes of a live run, as its history tells."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from gpu_runtime.scheduling.history_check import DRIVER, HistoryLine
from storage.clock import process_is_alive, process_start_s

TRAINER = "reserved-0"

_AGENTS = {
    "ray::DashboardAgent": "ray-dashboard-agent",
    "ray::RuntimeEnvAgent": "ray-runtime-env-agent",
    "/dashboard/dashboard.py": "ray-dashboard",
    "/autoscaler/_private/monitor.py": "ray-autoscaler-monitor",
    "/_private/log_monitor.py": "ray-log-monitor",
}
"""Ray's processes beside the workers, by what their command line contains. The death of one of the first two
ends Ray's node, and with it the driver."""


@dataclass(eq=False)
class RunProcess:
    """A process of the run.

    Attributes:
        name: that of its worker or scorer, `driver`, `prefect-server`, or that of an agent of Ray.
        pid: its number.
        started_s: when it began (seconds since the boot): tells it from a later process of that number.
        targeted: a fault has chosen it already.
    """

    name: str
    pid: int
    started_s: float
    targeted: bool = False

    @property
    def is_spot(self) -> bool:
        """A worker that plays a spot device."""
        return self.name.startswith("spot-")

    def alive(self) -> bool:
        """Whether the process is still there."""
        return process_is_alive(self.pid, self.started_s)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; whether the process was there to get it."""
        if not self.alive():
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


def player_of(name: str, pid: int | None) -> RunProcess | None:
    """The process of a number, under a name; None where there is none."""
    with suppress(psutil.NoSuchProcess):
        return None if pid is None else RunProcess(name, pid, process_start_s(pid))
    return None


class RunProcesses:
    """The processes of a run's newest life.

    Attributes:
        life: its number; 0 before the first.
        under_way: the run has begun its first phase, so that its workers may be lost.
        entered: iterations, from 1, and phases in the order in which they were entered, since `take_entered`.
    """

    def __init__(self) -> None:
        self.life = 0
        self.under_way = False
        self._players: dict[str, RunProcess] = {}
        self._joined: set[str] = set()
        self._lost: set[str] = set()
        self._entered: list[tuple[int, str]] = []

    def hear(self, lines: Iterable[HistoryLine]) -> list[str]:
        """Take in what the history says; names of processes that it says are gone."""
        gone: list[str] = []
        for line in lines:
            if line.life > self.life:
                self.life, self.under_way, self._players = line.life, False, {}
                self._joined, self._lost = set(), set()
            if line.life == self.life:
                self._hear(line)
                if line.event == "lost":
                    gone.append(line.facts["worker"])
        return gone

    def take_entered(self) -> list[tuple[int, str]]:
        """Iterations and phases that were entered since the last call."""
        taken, self._entered = self._entered, []
        return taken

    def driver(self) -> RunProcess | None:
        """The process that drives the run."""
        return self._one(DRIVER)

    def trainer(self) -> RunProcess | None:
        """The process that trains."""
        return self._one(TRAINER)

    def spots(self) -> list[RunProcess]:
        """Spot workers that have joined and that no fault has chosen, by name."""
        return self._chosen(lambda player: player.is_spot and player.name in self._joined)

    def joining(self) -> list[RunProcess]:
        """Spot workers that have begun to load since the run is under way, by name."""
        return self._chosen(lambda player: player.is_spot and player.name not in self._joined)

    def scorers(self) -> list[RunProcess]:
        """The processes that judge, by name."""
        return self._chosen(lambda player: player.name.startswith("scorer-"))

    def agents(self) -> list[RunProcess]:
        """Ray's processes beside the workers, by name; none where Ray was not started by the run."""
        driver = self.driver()
        found: list[RunProcess] = []
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(driver.pid).children(recursive=True) if driver is not None else ():
                with suppress(psutil.NoSuchProcess):  # a zombie is no such process either
                    name = _agent_name(process.cmdline())
                    if name is not None:
                        found.append(RunProcess(name, process.pid, process_start_s(process.pid)))
        return sorted(found, key=lambda player: player.name)

    def _chosen(self, which: Callable[[RunProcess], bool]) -> list[RunProcess]:
        if not self.under_way:
            return []
        found = (player for name, player in sorted(self._players.items()) if name not in self._lost)
        return [player for player in found if which(player) and not player.targeted and player.alive()]

    def _one(self, name: str) -> RunProcess | None:
        player = self._players.get(name)
        return player if self.under_way and player is not None and player.alive() else None

    def _hear(self, line: HistoryLine) -> None:
        facts = line.facts
        if line.event == "process":
            self._players[facts["name"]] = RunProcess(facts["name"], facts["pid"], facts["started_s"])
        elif line.event == "phase":
            self.under_way = True
            self._entered.append((facts["iteration"], facts["phase"]))
        # The driver's lines may come before the first one of the worker that they are about.
        elif line.event == "joined":
            self._joined.add(facts["worker"])
        elif line.event == "lost":
            self._lost.add(facts["worker"])


def _agent_name(line: Sequence[str]) -> str | None:
    """Which of Ray's agents has this command line."""
    return next((name for mark, name in _AGENTS.items() if any(mark in part for part in line)), None)
