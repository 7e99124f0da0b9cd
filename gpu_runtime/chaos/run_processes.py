"""The processes of a live run, read from its history."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
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
"""Names of Ray's processes other than workers, by a part of their command line. The death of one of the first
two ends Ray's node, and with it the driver."""


@dataclass(eq=False)
class RunProcess:
    """A process of the run.

    Attributes:
        name: name of its worker or scorer, `driver`, `prefect-server`, or the name of an agent of Ray.
        started_s: its start in seconds since boot, which distinguishes it from a later process of that id.
        targeted: True if a fault has chosen it already.
    """

    name: str
    pid: int
    started_s: float
    targeted: bool = False

    def alive(self) -> bool:
        """Return True if the process still exists."""
        return process_is_alive(self.pid, self.started_s)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return True if the process existed to get it."""
        with suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, number)
                return True
        return False


def process_of(name: str, pid: int | None) -> RunProcess | None:
    """Return the process with a process id, under a name; None if it does not exist."""
    with suppress(psutil.NoSuchProcess):
        return None if pid is None else RunProcess(name, pid, process_start_s(pid))
    return None


class RunProcesses:
    """The processes of a run's newest life.

    Attributes:
        life: number of that life; 0 before the first.
        under_way: True once the run has begun its first phase, so that its workers may be lost.
        entered: iterations, from 1, and phases entered, in order; the reader removes them.
    """

    def __init__(self) -> None:
        self.life = 0
        self.under_way = False
        self._by_name: dict[str, RunProcess] = {}
        self._joined: set[str] = set()
        self._lost: set[str] = set()
        self.entered: list[tuple[int, str]] = []

    def read(self, lines: Iterable[HistoryLine]) -> list[str]:
        """Read lines of the history and return the names of the workers that they report as lost."""
        gone: list[str] = []
        for line in lines:
            if line.life > self.life:
                self.life, self.under_way, self._by_name = line.life, False, {}
                self._joined, self._lost = set(), set()
            if line.life != self.life:
                continue
            facts = line.facts
            if line.event == "process":
                self._by_name[facts["name"]] = RunProcess(facts["name"], facts["pid"], facts["started_s"])
            elif line.event == "phase":
                self.under_way = True
                self.entered.append((facts["iteration"], facts["phase"]))
            # The driver's lines may come before the first line of the worker that they are about.
            elif line.event == "joined":
                self._joined.add(facts["worker"])
            elif line.event == "lost":
                self._lost.add(facts["worker"])
                gone.append(facts["worker"])
        return gone

    def one(self, name: str) -> RunProcess | None:
        """Return the process of this name; None unless the run is under way and it is alive."""
        process = self._by_name.get(name)
        return process if self.under_way and process is not None and process.alive() else None

    def untouched(self, prefix: str) -> list[RunProcess]:
        """Return the living processes, of a run under way, that no fault has chosen, by name."""
        if not self.under_way:
            return []
        found = (self._by_name[name] for name in sorted(self._by_name.keys() - self._lost))
        return [
            process
            for process in found
            if process.name.startswith(prefix) and not process.targeted and process.alive()
        ]

    def spots(self) -> list[RunProcess]:
        """Return the spot workers that have joined and that no fault has chosen, by name."""
        return [worker for worker in self.untouched("spot-") if worker.name in self._joined]

    def joining(self) -> list[RunProcess]:
        """Return the spot workers that are still loading in a run under way, by name."""
        return [worker for worker in self.untouched("spot-") if worker.name not in self._joined]

    def agents(self) -> list[RunProcess]:
        """Return Ray's processes other than workers, by name; empty if the run did not start Ray."""
        driver = self.one(DRIVER)
        found: list[RunProcess] = []
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(driver.pid).children(recursive=True) if driver is not None else ():
                with suppress(psutil.NoSuchProcess):  # also raised for a zombie
                    line = process.cmdline()
                    names = (name for mark, name in _AGENTS.items() if any(mark in part for part in line))
                    if name := next(names, None):
                        found.append(RunProcess(name, process.pid, process_start_s(process.pid)))
        return sorted(found, key=lambda process: process.name)
