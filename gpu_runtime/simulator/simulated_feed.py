"""Training in a simulated run: on prompt groups beside the rollout, and on the others after it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate
from typing import Any

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.group_feed import GroupFeed
from gpu_runtime.simulator.devices import PhaseWork
from gpu_runtime.simulator.virtual_time import Event, EventLoop
from storage.config.run_config import AlgorithmConfig
from storage.record.records import DeviceState


class SimulatedFeed(GroupFeed[int]):
    """The feed of a run's trainers: its samples are batches, and a group takes all trainers the same time.

    Args:
        length: ticks of training on a group.
        in_order: False to feed all groups in the order they are judged, whatever `algorithm` says.

    Attributes:
        enter: function that records a device's state from now on.
    """

    enter: Callable[[str, DeviceState], None]

    def __init__(
        self,
        loop: EventLoop,
        trainers: Sequence[Device],
        algorithm: AlgorithmConfig,
        length: int,
        in_order: bool = True,
    ) -> None:
        super().__init__(algorithm.updates_per_iteration if in_order else 1)
        self._loop, self._trainers, self._length, self._in_order = loop, trainers, length, in_order
        self._group = algorithm.group_size
        self._waits = in_order and algorithm.advantage_std == "batch"  # for all scores, with all groups
        self._late = 0  # groups that wait for the last score
        self._judged_at: dict[int, int] = {}
        self._begun: list[int] = []
        self._ends = Event(0, lambda: None)
        self._wakes: dict[int, Event] = {}

    def expect(self, work: PhaseWork) -> None:
        """Expect the prompt groups of a rollout."""
        size, group = work.size, self._group
        firsts = range(0, work.images, group)
        groups = [range(first // size, (first + group - 1) // size + 1) for first in firsts]
        self._expect(() if self._waits else groups)
        self._late = len(groups) if self._waits else 0
        self._judged_at, self._begun = {}, []

    def note(self, batch: int, at: int) -> None:
        """Record the tick at which a batch is judged, by its number in the rollout."""
        self._judged_at[batch] = at

    def on_trained(self, seconds: float) -> None:
        """Record the seconds of an iteration's training."""
        self._trained_s.append(seconds)

    def end(self, free: int) -> list[tuple[int, int]]:
        """End with the rollout, and return the intervals of training on all its groups.

        Args:
            free: tick from which trainers no longer roll out.
        """
        for event in (self._ends, *self._wakes.values()):
            event.cancel()
        self._wakes.clear()
        given, last = self._expected - len(self._groups), max(self._judged_at.values())
        judged = [max(map(self._judged_at.__getitem__, group)) for group in self._groups]
        fed = list(accumulate(judged, max)) if self._in_order else sorted(judged)
        first = fed[-given % self._updates :: self._updates]
        others = self._late + self._expected - len(self._begun) - len(first)
        spans: list[tuple[int, int]] = []
        ended = 0
        for at in (*self._begun, *(max(free, at) for at in (*first, *[last] * others))):
            since = max(at, ended)
            ended = since + self._length
            if spans and spans[-1][1] == since:
                since = spans.pop()[0]
            spans.append((since, ended))
        return spans

    @property
    def _trainers_that_stay(self) -> Sequence[Device]:
        return self._trainers

    def _is_next_judged(self) -> bool:
        if not self._in_order:
            judged = next((group for group in self._groups if all(map(self._is_judged, group))), None)
            if judged is not None:
                self._groups.remove(judged)
                self._groups.appendleft(judged)
        return super()._is_next_judged()

    def _is_judged(self, sample: int) -> bool:
        at = self._judged_at.get(sample)
        # Ask the trainers again when the batch that they wait for is judged.
        if at is not None and at > self._loop.now and at not in self._wakes:
            self._wakes[at] = self._loop.at(at, self._wake)
        return at is not None and at <= self._loop.now

    def _begin_next(self) -> Mapping[str, Future[Any]]:
        number, now = self._expected - len(self._groups), self._loop.now
        self._groups.popleft()
        if number % self._updates:
            return {}  # kept for a later update
        call: Future[None] = Future()
        self._begun.append(now)
        self._ends = self._loop.at(now + self._length, partial(call.set_result, None))
        for device in self._trainers:
            self.enter(device.name, "train")
        return {device.name: call for device in self._trainers}
