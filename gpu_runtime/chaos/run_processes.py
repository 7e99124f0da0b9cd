"""The processes of a live run, read from its history."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from gpu_runtime.scheduling.history import DRIVER, HistoryLine
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
        """A worker on a spot device."""
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


def process_of(name: str, pid: int | None) -> RunProcess | None:
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
        self._by_name: dict[str, RunProcess] = {}
        self._joined: set[str] = set()
        self._lost: set[str] = set()
        self._entered: list[tuple[int, str]] = []

    def read(self, lines: Iterable[HistoryLine]) -> list[str]:
        """Take in lines of the history; names of the processes that are gone by them."""
        gone: list[str] = []
        for line in lines:
            if line.life > self.life:
                self.life, self.under_way, self._by_name = line.life, False, {}
                self._joined, self._lost = set(), set()
            if line.life == self.life:
                self._read(line)
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
        return self._chosen(lambda process: process.is_spot and process.name in self._joined)

    def joining(self) -> list[RunProcess]:
        """Spot workers that have begun to load since the run is under way, by name."""
        return self._chosen(lambda process: process.is_spot and process.name not in self._joined)

    def scorers(self) -> list[RunProcess]:
        """The processes that judge, by name."""
        return self._chosen(lambda process: process.name.startswith("scorer-"))

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
        return sorted(found, key=lambda process: process.name)

    def _chosen(self, which: Callable[[RunProcess], bool]) -> list[RunProcess]:
        if not self.under_way:
            return []
        found = (process for name, process in sorted(self._by_name.items()) if name not in self._lost)
        return [process for process in found if which(process) and not process.targeted and process.alive()]

    def _one(self, name: str) -> RunProcess | None:
        process = self._by_name.get(name)
        return process if self.under_way and process is not None and process.alive() else None

    def _read(self, line: HistoryLine) -> None:
        facts = line.facts
        if line.event == "process":
            self._by_name[facts["name"]] = RunProcess(facts["name"], facts["pid"], facts["started_s"])
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
