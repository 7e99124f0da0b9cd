"""Devices without processes whose calls take played time, by how many of them share a denoising step."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.protocol import SampleChunk
from tests.fake_generators import FakeGenerator, FakeGeneratorFleet, Script

R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A call of a device that has not ended, and when it was made."""

    method: str
    args: tuple[Any, ...]
    at: float


class VirtualTime(Script):
    """Ends the call that would end first, and lets its time pass.

    Args:
        step_s: degree → seconds of a denoising step.
        join_s: seconds that a group of several devices takes to form once all its members are free.
    """

    def __init__(self, step_s: Mapping[int, float], join_s: float) -> None:
        super().__init__(lambda names: min(names, key=self._done_at))
        self.step_s = step_s
        self.asked: dict[str, deque[_Asked]] = {}
        self.actors: Mapping[str, FakeGenerator] = {}
        self._join_s = join_s
        self._free_at: dict[str, float] = {}
        self._joined_at: dict[str, float] = {}

    def end(self, name: str) -> None:
        """End a device's oldest call, when it is due."""
        self._free_at[name] = self._done_at(name)
        self.now = max(self.now, self._free_at[name])
        self.asked[name].popleft()
        super().end(name)

    def degree_of(self, name: str) -> int:
        """By how many devices a device's steps are shared now."""
        place = self.actors[name].place
        return len(place.members) if place else 1

    def _done_at(self, name: str) -> float:
        return self._after(name, self._free_at.get(name, 0.0), self.asked[name][0])

    def _after(self, name: str, free_at: float, call: _Asked) -> float:
        """When a call is done that a device begins once it is free."""
        begin = max(free_at, call.at)
        if call.method == "leave_group":
            return begin
        if call.method != "join_group":
            return begin + call.args[-1] * self.step_s[self.degree_of(name)]
        place = call.args[0]
        if len(place.members) == 1:
            return begin
        if place.prefix not in self._joined_at:
            there = [self._there_at(member, place.prefix) for member in place.members]
            self._joined_at[place.prefix] = max(there) + self._join_s
        return self._joined_at[place.prefix]

    def _there_at(self, name: str, prefix: str) -> float:
        """When a device comes to the rendezvous of a group."""
        at = self._free_at.get(name, 0.0)
        for call in self.asked[name]:
            if call.method == "join_group" and call.args[0].prefix == prefix:
                return max(at, call.at)
            at = self._after(name, at, call)
        raise AssertionError(f"{name} was not asked to join {prefix}")


class VirtualTimeGenerator(FakeGenerator):
    """A device whose chunks say the played time of their steps."""

    def __init__(self, name: str, script: VirtualTime, sampler: Sampler) -> None:
        super().__init__(name, script, sampler)
        self._time = script

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """See `RemoteActor`."""
        self._time.asked.setdefault(self.name, deque()).append(_Asked(method.__name__, args, self._time.now))
        return super().call(method, *args, **kwargs)

    def _do(self, method: str, *args: Any) -> Any:
        answer = super()._do(method, *args)
        if not isinstance(answer, SampleChunk) or answer.step_s is None:
            return answer
        return dataclasses.replace(answer, step_s=self._time.step_s[self._time.degree_of(self.name)])


class VirtualTimeFleet(FakeGeneratorFleet):
    """Devices that take played time; counts the device-seconds in each state."""

    def __init__(self, names: Sequence[str], script: VirtualTime, sampler: Sampler) -> None:
        super().__init__(names, script, sampler)
        for device in self.workers(WeightsVersion(0)):
            device.actor = self.actors[device.name] = VirtualTimeGenerator(device.name, script, sampler)
        script.actors = self.actors
        self.spent_s: dict[str, float] = {}
        self._script = script
        self._since: dict[str, tuple[str, float]] = {}

    def enter(self, worker: str, state: Any) -> None:
        """See `GeneratingFleet`."""
        before, since = self._since.get(worker, (state, self._script.now))
        self.spent_s[before] = self.spent_s.get(before, 0.0) + self._script.now - since
        self._since[worker] = (state, self._script.now)
        super().enter(worker, state)
