"""Feeds prompt groups to trainers one by one during a rollout, in live and simulated runs."""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import OtherWork

_REMEMBERED = 5
"""Number of past iterations whose training times predict the next one's."""

SampleT = TypeVar("SampleT")


class GroupFeed(OtherWork, Generic[SampleT]):
    """Other work for trainers with nothing left to roll out: the next prompt group, once judged.

    Args:
        updates: weight updates of an iteration; only the training of the first can begin early.
    """

    def __init__(self, updates: int) -> None:
        self._updates = updates
        self._groups: deque[Sequence[SampleT]] = deque()
        self._expected = 0  # groups of the iteration
        self._trained_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._wake: Callable[[], None] = lambda: None

    @property
    @abstractmethod
    def _trainers_that_stay(self) -> Sequence[Device]:
        """Trainers that must all be free before a group is given."""

    @abstractmethod
    def _is_judged(self, sample: SampleT) -> bool:
        """Return True if a sample has arrived and is judged."""

    @abstractmethod
    def _begin_next(self) -> Mapping[str, Future[Any]]:
        """Begin the next group; return a call per trainer, or none if there is nothing to do now."""

    @property
    def left_s(self) -> float | None:
        """See `OtherWork`: the time of the first update, the only one that can begin early."""
        if not (self._trained_s and self._groups):
            return None
        return statistics.median(self._trained_s) / self._updates * len(self._groups) / self._expected

    def begin(self, wake: Callable[[], None]) -> None:
        """See `OtherWork`."""
        self._wake = wake

    def take(self, devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        """See `OtherWork`: the next prompt group, once all staying trainers have nothing else to do."""
        free = {device.name for device in devices}
        if all(device.name in free for device in self._trainers_that_stay):
            while self._is_next_judged():
                if calls := self._begin_next():
                    return {name: call for name, call in calls.items() if name in free}
        return {}

    def _expect(self, groups: Iterable[Sequence[SampleT]]) -> None:
        """Expect an iteration's groups, in this order."""
        self._groups = deque(groups)
        self._expected = len(self._groups)

    def _is_next_judged(self) -> bool:
        """Return True if all samples of the next group are judged."""
        return bool(self._groups) and all(map(self._is_judged, self._groups[0]))
