"""The devices that train, called together.

- Joint calls reach all trainers in the same order, whichever threads make them.
- With one shard (`algorithm.gradient_shards`), several trainers divide the weights and end together. With
  more, each has the run's whole state and computes some shards. If one is lost, the others compute its shards
  to the same bits; its replacement gets another trainer's state between two iterations.
- Trainers with the whole state may include spot devices. They come after the reserved ones, the first of
  which answers for all; losing the last reserved one ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from gpu_runtime.dispatch.devices import Device, Weights
from gpu_runtime.learning.gradient_shards import ShardSum, Span, joined, shares
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.protocol import Worker
from storage.errors import GroupBrokenError, RuntimeFailure, WorkerLostError

P = ParamSpec("P")
R = TypeVar("R")

_GRACE_S = 10.0
"""Seconds after the first failure for the others to end or for Ray to report which one is gone."""

LOOK_EVERY_S = 0.5
"""Seconds between two calls of `look` during a wait."""


@dataclass(frozen=True)
class Asked(Generic[R]):
    """A call that devices execute together.

    Attributes:
        calls: one future per device.
    """

    method: str
    devices: Sequence[Device]
    calls: Sequence[Future[R]]


class Trainers:
    """One training device, or several that train together.

    If several divide the weights and one fails, the others may wait for it forever. So all are ended
    unless every one has answered, for instance with the same refusal.

    Args:
        devices: training devices; the first one answers for all.
        limit_s: seconds that a call may take.
        share: puts a value into the object store once, for all recipients.
        look: called repeatedly during a wait, in the same thread.
        shards: `algorithm.gradient_shards`.
        on_lost: called with each trainer that is lost while others continue, and the reason.
        at_boundary: called before an iteration, before its last samples and between two updates, when
            spot trainers may be dropped; others then compute their shards.

    Attributes:
        training: True from the start of an iteration until its training ends.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        limit_s: float,
        share: Callable[[Any], Any],
        look: Callable[[], None] = lambda: None,
        shards: int = 1,
        on_lost: Callable[[Device, WorkerLostError], None] = lambda device, error: None,
        at_boundary: Callable[[], None] = lambda: None,
    ) -> None:
        self.devices = tuple(devices)
        self._limit_s = limit_s
        self._share = share
        self._look = look
        self._count = shards
        self._on_lost = on_lost
        self._at_boundary = at_boundary
        self.training = False
        self._shards: dict[str, list[int]] = {}
        self._kl_weight: float | None = None
        self._joining: tuple[Device, ...] = ()
        self._asking = threading.Lock()

    def __contains__(self, device: object) -> bool:
        return any(device is one for one in self.devices)

    @property
    def spot(self) -> list[Device]:
        """The spot devices among them."""
        return [device for device in self.devices if device.market == "spot"]

    def holds(self, version: WeightsVersion) -> bool:
        """Return True if all hold these weights."""
        return all(device.holds == version for device in self.devices)

    def use_training_weights(self, version: WeightsVersion) -> str:
        """Make all use the trained weights, under this version.

        Returns:
            The digest of the weights.

        Raises:
            RuntimeFailure: if one is gone or hangs, or they hold different weights.
        """
        asked = self._begin(self.devices, Worker.use_training_weights, version)
        digests = self._answers(asked)
        if len(set(digests)) > 1:
            held = ", ".join(f"{d.name} {digest}" for d, digest in zip(self.devices, digests, strict=True))
            raise RuntimeFailure(f"the training devices hold different weights: {held}")
        for device in asked.devices:  # others may have joined meanwhile
            device.holds = version
        return digests[0]

    def publish(self, version: WeightsVersion) -> Weights:
        """Make the trained weights available to the workers (see `use_training_weights`)."""
        digest = self.use_training_weights(version)
        return Weights(version, digest, self._share(self.ask_leader(Worker.weights)))

    def publish_average(self, version: WeightsVersion) -> Weights | None:
        """Make the trained weights' moving average available to the workers, under this version.

        Returns None if the weights themselves are the run's result.

        Raises:
            RuntimeFailure: if a device is gone or hangs.
        """
        state = self.state(Worker.average_weights)
        return None if state is None else Weights(version, weights_digest(state), self._share(state))

    def state(self, method: Callable[[Worker], R]) -> R:
        """Call a method that returns a state that trainers may have divided.

        Raises:
            RuntimeFailure: if a device is gone or hangs.
        """
        return self.ask_leader(method) if self._count > 1 else self.ask(method)

    def set_kl_weight(self, weight: float) -> None:
        """Set the KL weight of all trainers, including later ones."""
        self._kl_weight = weight
        self.ask(Worker.set_kl_weight, weight)

    def begin_iteration(self) -> Asked[None]:
        """Let all begin an iteration, each with its shards; trainers that divide the weights share one."""
        if self._count == 1:
            return self.begin(Worker.begin_training, [0])
        self._at_boundary()
        self.training, self._shards = True, {}
        self._spread()
        return self._begin_each(Worker.begin_training, lambda device: (self._shards[device.name],))

    def train(self, samples: Sequence[TrainingSample], updates: int) -> TrainingReport:
        """Add an iteration's last samples and take its training steps.

        Args:
            samples: samples as in `Trainer.add`.

        Raises:
            RuntimeFailure: if no trainer is left.
            TrainingError: see `Trainer.finish`.
        """
        try:
            if self._count > 1:
                self._at_boundary()
            if len(self.devices) == 1 or self._count == 1:
                return self.ask(Worker.train, samples)
            self.ask(Worker.add_to_training, samples)
            for update in range(updates):
                if update:
                    self._at_boundary()
                self.ask(Worker.take_training_step, update, self._sum(update))
            return self.ask(Worker.end_training)
        finally:
            self.training = False

    def _sum(self, update: int) -> ShardSum:
        """Return the sum of an update's shards; trainers also compute those of any trainer lost meanwhile."""
        parts: dict[Span, ShardSum] = {}
        missing = range(self._count)
        while missing:
            self._spread()
            asked = self._begin_each(Worker.shard_sums, partial(self._work, update, missing))
            for sums in self._answers(asked):
                parts |= sums
            missing = [one for one in missing if not any(one in range(*span) for span in parts)]
        return joined(parts, (0, self._count))

    def _work(self, update: int, missing: Sequence[int], device: Device) -> tuple[int, list[int]]:
        """Return the shards of an update that a trainer must compute."""
        return update, [shard for shard in self._shards[device.name] if shard in missing]

    def _spread(self) -> None:
        """Divide the shards of absent trainers among the present ones."""
        self._shards = {device.name: self._shards.get(device.name, []) for device in self.devices}
        held = set(chain(*self._shards.values()))
        free = [shard for shard in range(self._count) if shard not in held]
        for name, more in zip(self._shards, shares(free, len(self.devices)), strict=True):
            self._shards[name] = [*self._shards[name], *more]

    def register(self, devices: Sequence[Device], weights: Weights) -> None:
        """Let more devices train from the next iteration on, once they have the trainers' state.

        Args:
            devices: devices started to train.
            weights: current weights, which all trainers hold.

        Raises:
            RuntimeFailure: if one then holds different weights.
        """
        blobs = self._share(self.ask_leader(Worker.blobs))
        self._joining = tuple(devices)
        self._answers(self._begin(devices, Worker.restore, blobs))
        if self._kl_weight is not None:
            self._answers(self._begin(devices, Worker.set_kl_weight, self._kl_weight))
        asked = self._begin(devices, Worker.use_training_weights, weights.version)
        self._answers(asked)
        for device, call in zip(devices, asked.calls, strict=True):
            if any(device is one for one in self._joining):
                device.take(weights, call.result())
        with self._asking:
            present = *self.devices, *self._joining
            self.devices = tuple(sorted(present, key=lambda one: one.market == "spot"))
            self._joining = ()

    def drop(self, device: Device) -> None:
        """Continue without a spot device; its part of an unfinished update is recomputed."""
        with self._asking:
            self.devices = _without(device, self.devices)
            self._joining = _without(device, self._joining)

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """Continue without a trainer, or without one that was joining.

        Raises:
            RuntimeFailure: if no other reserved one has the run's whole state.
        """
        with self._asking:
            left, joining = _without(device, self.devices), _without(device, self._joining)
            if (left, joining) == (self.devices, self._joining):
                return
            if self._count == 1 or all(one.market == "spot" for one in left):
                self.end()
                raise trainer_gone(error) from error
            self.devices, self._joining = left, joining
        device.actor.kill()
        self._on_lost(device, error)

    def ask(self, method: Callable[Concatenate[Worker, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method on all together, wait, and return the first one's answer.

        Raises:
            RuntimeFailure: if one is gone or hangs.
        """
        return self.wait_for(self.begin(method, *args, **kwargs))

    def begin(
        self, method: Callable[Concatenate[Worker, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Asked[R]:
        """Call a method on all together, after the calls that they already have."""
        share: Callable[[Any], Any] = self._share if len(self.devices) > 1 else lambda value: value
        shared = {name: share(value) for name, value in kwargs.items()}
        return self._begin(self.devices, method, *map(share, args), **shared)

    def wait_for(self, asked: Asked[R]) -> R:
        """Wait until all have answered, and return the first one's answer.

        Raises:
            RuntimeFailure: if one is gone or hangs.
        """
        return self._answers(asked)[0]

    def ask_leader(self, method: Callable[Concatenate[Worker, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method that needs no other device on the first trainer alone, and wait.

        Raises:
            RuntimeFailure: if it is gone or hangs and no other trainer has the run's whole state.
        """
        while True:
            for answer in self._answers(self._begin(self.devices[:1], method, *args, **kwargs)):
                return answer

    def end(self) -> None:
        """End all processes, whatever they are doing."""
        for device in self.devices:
            device.actor.kill()

    def _begin(
        self, devices: Sequence[Device], method: Callable[..., R], *args: Any, **kwargs: Any
    ) -> Asked[R]:
        # All devices receive joint calls in the same order, whichever threads make them.
        with self._asking:
            calls = [device.actor.call(method, *args, **kwargs) for device in devices]
        return Asked(method.__name__, devices, calls)

    def _begin_each(
        self, method: Callable[..., R], arguments: Callable[[Device], tuple[Any, ...]]
    ) -> Asked[R]:
        """Call a method on all together, each with its own arguments."""
        with self._asking:
            devices = self.devices
            calls = [device.actor.call(method, *arguments(device)) for device in devices]
        return Asked(method.__name__, devices, calls)

    def _answers(self, asked: Asked[R]) -> list[R]:
        """Wait until all have answered; return the answers of those not lost."""
        if self._count > 1:
            return self._answers_of_present(asked)
        devices, calls = asked.devices, asked.calls
        waiting = self._wait(calls)
        if _errors(calls):
            _, waiting = wait(calls, timeout=_GRACE_S)
        errors = _errors(calls)
        if not (errors or waiting):
            return [call.result() for call in calls]
        if waiting or any(isinstance(error, (WorkerLostError, GroupBrokenError)) for error in errors):
            self.end()
        if errors:
            # A lost device is the likeliest cause, and a broken group the likeliest consequence.
            cause = min(
                errors, key=lambda one: isinstance(one, GroupBrokenError) - isinstance(one, WorkerLostError)
            )
            if isinstance(cause, (WorkerLostError, GroupBrokenError)):
                raise trainer_gone(cause) from cause
            raise cause
        silent = [device.name for device, call in zip(devices, calls, strict=True) if call in waiting]
        named = "it" if len(self.devices) == 1 else ", ".join(silent)
        raise trainer_gone(self._silent(named, asked.method))

    def _answers_of_present(self, asked: Asked[R]) -> list[R]:
        """Wait for trainers of which each can go on without the others; the first error of another kind."""
        devices = dict(zip(asked.calls, asked.devices, strict=True))
        waiting = set(asked.calls)
        while waiting:
            left = self._wait(tuple(waiting))
            ended = waiting - left
            for call in asked.calls:
                if call in ended and isinstance(error := call.exception(), WorkerLostError):
                    self.on_worker_lost(devices[call], error)
                elif call in left and not _errors(tuple(ended)):  # time is up
                    self.on_worker_lost(devices[call], self._silent(devices[call].name, asked.method))
                    ended.add(call)
            waiting -= ended
        if others := [error for error in _errors(asked.calls) if not isinstance(error, WorkerLostError)]:
            raise others[0]
        return [call.result() for call in asked.calls if call.done() and call.exception() is None]

    def _silent(self, named: str, method: str) -> WorkerLostError:
        reason = f"{named} did not answer {method!r} within {self._limit_s:g} s and was killed"
        return WorkerLostError(f"{reason}; to allow more time, raise runtime.lease_s")

    def _wait(self, calls: Sequence[Future[Any]]) -> set[Future[Any]]:
        """Wait until all have ended, one has failed, or time is up; return those that have not ended."""
        deadline_s = time.monotonic() + self._limit_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            part_s = min(left_s, LOOK_EVERY_S)
            ended, waiting = wait(calls, timeout=part_s, return_when=FIRST_EXCEPTION)
            if not waiting or _errors(tuple(ended)) or part_s == left_s:
                return waiting
            self._look()


def trainer_gone(error: WorkerLostError | GroupBrokenError) -> RuntimeFailure:
    """Return the error that ends a run after losing a training device."""
    return RuntimeFailure(f"the trainer's process is gone ({error}); nothing committed is lost")


def _without(device: Device, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    return tuple(one for one in devices if one is not device)


def _errors(calls: Sequence[Future[Any]]) -> list[BaseException]:
    """Return the errors of failed calls, in the order of the devices."""
    ended = (call.exception() for call in calls if call.done())
    return [error for error in ended if error is not None]
