"""The devices that train, as the driver sees them: called at the same time, ended together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from gpu_runtime.dispatch.devices import Device, Weights
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.protocol import Worker
from storage.errors import GroupBrokenError, RuntimeFailure, WorkerLostError

P = ParamSpec("P")
R = TypeVar("R")

_GRACE_S = 10.0
"""Seconds after the first failure for the others to end, or for Ray to report which one is gone."""

LOOK_EVERY_S = 0.5
"""Seconds between two calls of `look` while a call is waited for."""


@dataclass(frozen=True)
class Asked(Generic[R]):
    """A call that devices execute together.

    Attributes:
        method: name of the method.
        devices: devices that execute it.
        calls: one future per device.
    """

    method: str
    devices: Sequence[Device]
    calls: Sequence[Future[R]]


class Trainers:
    """One training device, or several that divide each training step and wait for each other within a call.

    If one of them fails, the others may wait for it forever. So all are ended, unless every one has answered,
    for instance with the same refusal.

    Args:
        devices: training devices; the first one answers for all.
        limit_s: seconds that a call may take.
        share: function that puts a value into the object store once, for all that receive it.
        look: function called repeatedly while a call is waited for, in the same thread; None for none.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        limit_s: float,
        share: Callable[[Any], Any],
        look: Callable[[], None] | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self._limit_s = limit_s
        self._share = share
        self._look = look
        self._asking = threading.Lock()

    @property
    def leader(self) -> Device:
        """The device that answers for all."""
        return self.devices[0]

    def __contains__(self, device: object) -> bool:
        return any(device is one for one in self.devices)

    def holds(self, version: WeightsVersion) -> bool:
        """Return True if all hold these weights."""
        return all(device.holds == version for device in self.devices)

    def use_training_weights(self, version: WeightsVersion) -> str:
        """Make all use the trained weights, which have this version.

        Returns:
            The digest of the weights.

        Raises:
            RuntimeFailure: if one is gone or hangs, or they hold different weights.
        """
        digests = self._answers(self._begin(self.devices, Worker.use_training_weights, version))
        if len(set(digests)) > 1:
            held = ", ".join(f"{d.name} {digest}" for d, digest in zip(self.devices, digests, strict=True))
            raise RuntimeFailure(f"the training devices hold different weights: {held}")
        for device in self.devices:
            device.holds = version
        return digests[0]

    def publish(self, version: WeightsVersion) -> Weights:
        """Make the trained weights, which have this version, available to the workers.

        Raises:
            RuntimeFailure: see `use_training_weights`.
        """
        digest = self.use_training_weights(version)
        return Weights(version, digest, self._share(self.ask_leader(Worker.weights)))

    def publish_average(self, version: WeightsVersion) -> Weights:
        """Make the moving average of the trained weights available to the workers.

        Args:
            version: version of the average.

        Raises:
            RuntimeFailure: if a device is gone or hangs.
        """
        state = self.ask(Worker.average_weights)
        return Weights(version, weights_digest(state), self._share(state))

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
        """Call a method that needs no other device on the first one alone, and wait.

        Raises:
            RuntimeFailure: if it is gone or hangs.
        """
        return self.wait_for(self._begin(self.devices[:1], method, *args, **kwargs))

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

    def _answers(self, asked: Asked[R]) -> list[R]:
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
            cause = min(errors, key=_consequence)
            if isinstance(cause, (WorkerLostError, GroupBrokenError)):
                raise trainer_gone(cause) from cause
            raise cause
        silent = [device.name for device, call in zip(devices, calls, strict=True) if call in waiting]
        named = "it" if len(self.devices) == 1 else ", ".join(silent)
        reason = f"{named} did not answer {asked.method!r} in {self._limit_s:g} s and was ended"
        raise trainer_gone(WorkerLostError(f"{reason}; for more, raise runtime.lease_s"))

    def _wait(self, calls: Sequence[Future[Any]]) -> set[Future[Any]]:
        """Wait until all have ended, one has failed, or time is up; return those that have not ended."""
        deadline_s = time.monotonic() + self._limit_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            part_s = left_s if self._look is None else min(left_s, LOOK_EVERY_S)
            _, waiting = wait(calls, timeout=part_s, return_when=FIRST_EXCEPTION)
            if not waiting or _errors(calls) or part_s == left_s:
                return waiting
            if self._look is not None:
                self._look()


def trainer_gone(error: WorkerLostError | GroupBrokenError) -> RuntimeFailure:
    """Return the error that ends a run which has lost a training device."""
    return RuntimeFailure(f"the trainer's process is gone ({error}); nothing committed is lost")


def _consequence(error: BaseException) -> int:
    """Return a rank that is higher, the more likely the error follows from another device's failure."""
    if isinstance(error, WorkerLostError):
        return 0
    return 2 if isinstance(error, GroupBrokenError) else 1


def _errors(calls: Sequence[Future[Any]]) -> list[BaseException]:
    """Return the errors of failed calls, in the order of the devices."""
    ended = (call.exception() for call in calls if call.done())
    return [error for error in ended if error is not None]
