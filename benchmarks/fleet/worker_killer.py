"""Kills spot workers of a live run, one after another, in a thread beside it."""

from __future__ import annotations

import random
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from gpu_runtime.chaos.run_processes import RunProcess, RunProcesses
from gpu_runtime.scheduling.history import HistoryLine
from gpu_runtime.worker.history import HistoryTail
from storage.clock import now

SETTINGS = (
    "runtime.history=true", "runtime.reserved_workers=1", "runtime.scorer_workers=1",
    "runtime.commit_steps=1", "runtime.start_timeout_s=600", "sampling.rollout_steps=20",
    "algorithm.prompts_per_iteration=16", "algorithm.group_size=12",
)  # fmt: skip
"""Settings for rollouts long enough for many kills."""


class WorkerKiller(ABC):
    """Kills while a context lasts; a subclass chooses each victim.

    Attributes:
        left: remaining kills.
        trouble: why it gave up; empty if it did not.
        killed: killed workers and times (Unix seconds by the run's clock).
    """

    look_s: ClassVar[float] = 0.01
    most_wait_s: ClassVar[float]
    """A victim is killed at a random moment within this many seconds of its choice."""

    def __init__(self, history: Path, kills: int, seed: int = 0) -> None:
        self.left = kills
        self.trouble: str | None = None
        self.killed: list[tuple[str, float]] = []
        self.random = random.Random(seed)
        self.processes = RunProcesses()
        self._tail = HistoryTail(history)

    @abstractmethod
    def victim(self, lines: Sequence[HistoryLine]) -> RunProcess | None:
        """Process new lines of the history; return the next victim, or None if there is none yet."""

    @abstractmethod
    def before_kill(self, victim: RunProcess) -> None:
        """Note a kill just before the signal."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Kill while the context lasts, or until all kills are done."""
        over = threading.Event()
        thread = threading.Thread(target=self._work, args=(over,), name="killer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _work(self, over: threading.Event) -> None:
        while self.left and self.trouble is None and not over.wait(self.look_s):
            lines = self._tail.new()
            self.processes.read(lines)
            victim = self.victim(lines)
            if victim is None:
                continue
            over.wait(self.random.uniform(0.0, self.most_wait_s))
            self.before_kill(victim)
            at = now()
            if victim.send(signal.SIGKILL):
                victim.targeted = True
                self.killed.append((victim.name, at))
                self.left -= 1
