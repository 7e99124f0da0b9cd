"""Batches of samples on their way through groups: waiting, at work, finished. Pure bookkeeping."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_runtime.diffusion.sampler import SampleState
from gpu_runtime.sequence_parallel.epochs import NumberedGroup

States = tuple[SampleState, ...]


@dataclass
class Batch:
    """Samples that are denoised together.

    Attributes:
        number: unlike any other's.
        states: as last committed.
        total_steps: denoising steps to the end.
    """

    number: int
    states: States
    total_steps: int

    @property
    def finished(self) -> bool:
        """Whether no step is left."""
        return min(state.step for state in self.states) >= self.total_steps


class Batches:
    """Which batch waits and which group works on which."""

    def __init__(self) -> None:
        self._waiting: deque[Batch] = deque()
        self._working: dict[NumberedGroup, Batch] = {}
        self._count = 0

    def add(self, states: States, total_steps: int) -> int:
        """Queue a batch; returns its number."""
        self._count += 1
        self._waiting.append(Batch(self._count, states, total_steps))
        return self._count

    def working(self) -> frozenset[NumberedGroup]:
        """Groups that have a batch."""
        return frozenset(self._working)

    def give(self, groups: Iterable[NumberedGroup]) -> list[tuple[NumberedGroup, Batch]]:
        """Give waiting batches to groups that have none, the largest groups first."""
        given = []
        for group in sorted(groups, key=lambda group: -len(group.members)):
            if self._waiting and group not in self._working:
                self._working[group] = self._waiting.popleft()
                given.append((group, self._working[group]))
        return given

    def commit(self, group: NumberedGroup, states: States) -> Batch | None:
        """A group's batch has come so far; a finished one leaves. None for a group without a batch."""
        batch = self._working.get(group)
        if batch is not None:
            batch.states = states
            if batch.finished:
                del self._working[group]
        return batch

    def take_back(self, group: NumberedGroup) -> bool:
        """Let a group's batch wait again, before all others; whether it had one."""
        batch = self._working.pop(group, None)
        if batch is not None:
            self._waiting.appendleft(batch)
        return batch is not None
