"""Injection of a schedule's faults into the processes of a live run.

The processes are those that the run's history names. The faults are real: SIGKILL, SIGSTOP and SIGCONT, and
notices of a simulated metadata service. A fault without a victim waits until there is one.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gpu_runtime.chaos.fault_schedule import Fault, FaultKind, FaultPhase, take_due
from gpu_runtime.chaos.run_processes import TRAINER, RunProcess, RunProcesses, process_of
from gpu_runtime.scheduling.history import DRIVER, HistoryLine
from gpu_runtime.spot.notices.simulated_service import SimulatedNotices
from gpu_runtime.worker.history import HistoryTail
from storage import clock

_POLL_S = 0.05
"""Interval between reads of the whole history."""

_COMMIT_POLL_S = 0.002
"""Interval between reads of the spot workers' lines while a fault waits for a commit."""

_SLOW_PERIOD_S = 0.4
"""Period of a slow worker, which is stopped for a part of each."""

_JOINER_WAIT_S = 10.0
"""Wait for a joining worker, after which a worker is killed so that its replacement joins."""


@dataclass(frozen=True)
class Done:
    """An injected fault.

    Attributes:
        at: time of the injection in unix seconds.
    """

    fault: Fault
    at: float
    victims: tuple[str, ...]


class FaultInjector:
    """A thread that injects a schedule's faults, each once.

    The schedule's clock starts when the context is entered. Leaving the context stops the thread and resumes
    every stopped process.

    Args:
        history: folder of the run's history; need not exist yet.
        notices: the simulated metadata service of the run's workers; needed if a fault is a notice.
        server_pid: returns the process id of the run's Prefect server; None if it has none now.
    """

    def __init__(
        self,
        history: Path,
        faults: Sequence[Fault],
        notices: SimulatedNotices | None = None,
        server_pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._tail = HistoryTail(history)
        self.processes = RunProcesses()
        """Processes of the run, as of the last look at its history."""
        self._pending = list(faults)
        self._notices = notices
        self._server_pid = server_pid
        self._waiting: list[tuple[float, Fault]] = []
        self._planned: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._stopped: list[RunProcess] = []
        self._joins_made: list[Fault] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        self._began = 0.0
        self.done: list[Done] = []
        """Faults injected so far."""
        self.last_line_s = time.monotonic()
        """Monotonic seconds at which new lines were last found in the run's history."""
        self.trouble: BaseException | None = None
        """Error that ended the thread early; None without one."""

    def __enter__(self) -> FaultInjector:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopping.set()
        self._thread.join()
        for process in self._stopped:
            process.send(signal.SIGCONT)

    @property
    def left(self) -> int:
        """Number of faults that are not injected, or not over yet."""
        return len(self._pending) + len(self._waiting) + len(self._planned)

    def undone(self, elapsed_s: float) -> tuple[Fault, ...]:
        """Return the faults that are not injected yet, for a run that begins after so many seconds."""
        return tuple(
            one if one.at_s is None else one.model_copy(update={"at_s": max(0.0, one.at_s - elapsed_s)})
            for one in (*self._pending, *(fault for _, fault in self._waiting))
        )

    def done_of(self, kind: FaultKind) -> int:
        """Return the number of injected faults of a kind."""
        return sum(done.fault.kind == kind for done in self.done)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._poll()
                self._stopping.wait(_POLL_S)
        except BaseException as error:  # noqa: BLE001 - kept for the owner of the thread
            self.trouble = error

    def _poll(self) -> None:
        """Read new history lines, and inject the faults that are due."""
        self._read_lines(self._tail.new())
        now = time.monotonic() - self._began
        due = take_due(self._pending, now)
        for iteration, phase in self.processes.entered:
            # Schedules count iterations from 0, runs from 1.
            due += take_due(self._pending, now, (iteration - 1, cast(FaultPhase, phase)))
        self.processes.entered.clear()
        self._waiting += [(now, fault) for fault in due]
        while self._planned and self._planned[0][0] <= now:
            self._planned[0][2]()  # actions that it plans come later, so it is still the first
            heapq.heappop(self._planned)  # `left` counts it until it is done
        for since, fault in list(self._waiting):
            if self._stopping.is_set():
                return
            if victims := self._victims(fault, now - since):
                self._do(fault, victims, now)
                self._waiting.remove((since, fault))
                self.done.append(Done(fault, clock.now(), tuple(process.name for process in victims)))
        self._await_commit()

    def _read_lines(self, lines: Sequence[HistoryLine]) -> None:
        if lines:
            self.last_line_s = time.monotonic()
        for name in self.processes.read(lines):
            self._tail.leave(self.processes.life, name)

    def _victims(self, fault: Fault, waited_s: float) -> list[RunProcess]:
        """Return the current victims of a fault; empty while it has to wait."""
        processes = self.processes
        if fault.kind == "kill_while_committing":
            return []  # `_await_commit` injects it
        if fault.kind in ("coordinator_restart", "stopped_driver"):
            hits_trainer = fault.kind == "coordinator_restart" and fault.victim % 2
            one = processes.one(TRAINER if hits_trainer else DRIVER)
            return [one] if one is not None else []
        if fault.kind == "server_death":
            server = process_of("prefect-server", self._server_pid())
            return [server] if server is not None and processes.under_way else []
        if fault.kind == "agent_death":
            return _rotated(processes.agents(), fault.victim)[:1]
        if fault.kind == "scorer_death":
            return _rotated(processes.untouched("scorer-"), fault.victim)[:1]
        spots = _rotated(processes.spots(), fault.victim)
        if fault.kind == "kill_while_joining":
            joining = processes.joining()
            if not joining and waited_s > _JOINER_WAIT_S and spots and fault not in self._joins_made:
                self._joins_made.append(fault)  # one provoked join for each fault
                spots[0].targeted = True
                spots[0].send(signal.SIGKILL)
            return joining[:1]
        return spots[: (len(spots) + 1) // 2] if fault.kind == "half_at_once" else spots[:1]

    def _do(self, fault: Fault, victims: Sequence[RunProcess], now: float) -> None:
        for process in victims:
            process.targeted = True
        if fault.kind == "notice_then_kill":
            notices, noticed = self._notices, victims[0]
            assert notices is not None and fault.grace_s is not None

            def preempt() -> None:
                noticed.send(signal.SIGKILL)
                notices.withdraw(noticed.name)  # a later worker of that name is not under it

            notices.warn(noticed.name)
            self._plan(now + fault.grace_s, preempt)
        elif fault.kind in ("hung_worker", "stopped_driver"):
            assert fault.duration_s is not None
            self._stop(victims[0])
            self._plan(now + fault.duration_s, lambda: self._release(victims[0]))
        elif fault.kind == "slow_worker":
            assert fault.duration_s is not None and fault.slowdown is not None
            self._slow_down(victims[0], fault.slowdown, now, now + fault.duration_s)
        else:
            for process in victims:
                process.send(signal.SIGKILL)

    def _slow_down(self, process: RunProcess, slowdown: float, now: float, until: float) -> None:
        """Stop a process for a part of each period until the end."""
        if now >= until:
            self._release(process)
            return
        self._stop(process)
        again_at = now + _SLOW_PERIOD_S
        self._plan(now + _SLOW_PERIOD_S * (1 - 1 / slowdown), lambda: process.send(signal.SIGCONT))
        self._plan(again_at, lambda: self._slow_down(process, slowdown, again_at, until))

    def _await_commit(self) -> None:
        """Kill the first spot worker that writes a commit into its history, if a fault waits for one."""
        waiting = next((entry for entry in self._waiting if entry[1].kind == "kill_while_committing"), None)
        spots = {process.name: process for process in self.processes.spots()} if waiting else {}
        until = time.monotonic() + _POLL_S
        while waiting and spots and time.monotonic() < until and not self._stopping.is_set():
            lines = self._tail.new(spots)
            self._read_lines(lines)
            sent = next((line.by for line in lines if line.event == "sent"), None)
            if sent is not None and spots[sent].send(signal.SIGKILL):
                spots[sent].targeted = True
                self._waiting.remove(waiting)
                self.done.append(Done(waiting[1], clock.now(), (sent,)))
                return
            time.sleep(_COMMIT_POLL_S)

    def _stop(self, process: RunProcess) -> None:
        if process.send(signal.SIGSTOP) and process not in self._stopped:
            self._stopped.append(process)

    def _release(self, process: RunProcess) -> None:
        process.send(signal.SIGCONT)
        process.targeted = False
        if process in self._stopped:
            self._stopped.remove(process)

    def _plan(self, at: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._planned, (at, next(self._order), action))


def _rotated(processes: Sequence[RunProcess], first: int) -> list[RunProcess]:
    """Return the processes in cyclic order, starting with number `first`."""
    start = first % len(processes) if processes else 0
    return [*processes[start:], *processes[:start]]
