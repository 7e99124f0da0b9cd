"""The devices that train, called at the same time and ended together, and the prompt groups fed to them.

- Joint calls reach all trainers in the same order, whichever threads make them.
- Groups are given in the order of their prompts, and no weight changes before the whole iteration is known.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.devices import Device, Weights
from gpu_runtime.fleet.capacity_decision import TrainingTime
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
from gpu_runtime.worker.protocol import Worker
from storage.config.run_config import AlgorithmConfig
from storage.errors import GroupBrokenError, RuntimeFailure, WorkerLostError
from storage.record.records import DeviceState

P = ParamSpec("P")
R = TypeVar("R")

_GRACE_S = 10.0
"""Seconds after the first failure for the others to end, or for Ray to report which one is gone."""

LOOK_EVERY_S = 0.5
"""Seconds between two calls of `look` while a call is waited for."""

_REMEMBERED = 5
"""Number of past iterations whose training times predict the next one's."""

_Identity = tuple[int, int]
_Judged = tuple[GeneratedSample, Future[Score]]


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
        """Make the moving average of the trained weights, which has this version, available to the workers.

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


class TrainingFeed:
    """A feed of prompt groups to the trainers, which accumulate the first update's gradients meanwhile.

    Groups are given in the order of their prompts: during a rollout to trainers that find nothing more to
    roll out, then while the last scores are awaited. None is given early if advantages depend on all rewards
    (`algorithm.advantage_std = "batch"`). No weight changes before `finish`, and its argument decides: if the
    groups given so far are not its first ones, the trainers start over.

    Implements `gpu_runtime.dispatch.phase.OtherWork`.

    Args:
        algorithm: section of the settings.
        signal: `reward.signal`.
        trainers: training devices.
        enter: function that records a device's state from now on; callable from any thread.

    Attributes:
        time: training time of the last iteration; `beside_s` is the part before `finish`.
    """

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        signal: Literal["graded", "exact"],
        trainers: Trainers,
        enter: Callable[[str, DeviceState], None],
    ) -> None:
        self._algorithm = algorithm
        self._signal: Literal["graded", "exact"] = signal
        self._trainers = trainers
        self._enter = enter
        self._wake: Callable[[], None] = lambda: None
        self._policy_version = 0
        self._groups: deque[list[_Identity]] = deque()
        self._expected = 0  # groups of the iteration
        self._trained_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._there: dict[_Identity, _Judged] = {}
        self._given: list[TrainingSample] = []
        self._asked: list[Asked[None]] = []
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()  # calls, by device
        self._since_s = self._busy_s = 0.0
        self.time = TrainingTime()

    def expect(self, requests: Sequence[SampleRequest], policy_version: int) -> None:
        """Expect the samples of an iteration; groups given from another one are not trained on.

        Args:
            requests: requests of the iteration.
            policy_version: version of the weights that training starts from.
        """
        self.abandon()
        self._policy_version = policy_version
        if self._algorithm.advantage_std != "batch":
            ordered = sorted((one.prompt_id, one.seed_index) for one in requests)
            self._groups.extend(list(group) for _, group in groupby(ordered, lambda one: one[0]))
        self._expected = len(self._groups)

    @property
    def left_s(self) -> float | None:
        """See `OtherWork`: the time of the first update, the only one that can begin early."""
        if not (self._trained_s and self._groups):
            return None
        update_s = statistics.median(self._trained_s) / self._algorithm.updates_per_iteration
        return update_s * len(self._groups) / self._expected

    def note(self, sample: GeneratedSample, score: Future[Score]) -> None:
        """Add a sample of the iteration that has arrived and is being judged."""
        self._there[sample.request.prompt_id, sample.request.seed_index] = sample, score
        score.add_done_callback(lambda _: self._wake())

    def begin(self, wake: Callable[[], None]) -> None:
        """See `OtherWork`."""
        self._wake = wake

    def take(self, devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        """See `OtherWork`: the next prompt group, once all trainers find nothing else to do."""
        if all(device in devices for device in self._trainers.devices):
            while self._is_next_judged():
                if (asked := self._give_next(generates=True)) is not None:
                    return dict(zip((one.name for one in asked.devices), asked.calls, strict=True))
        return {}

    def give(self) -> None:
        """Give the trainers all judged groups, without waiting for them."""
        while self._is_next_judged():
            self._give_next(generates=False)

    def finish(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Give the trainers the remaining groups, and let them take the training steps.

        Args:
            samples: samples of the whole iteration.

        Raises:
            RuntimeFailure: if a trainer is gone or hangs.
            TrainingError: see `Trainer.finish`.
        """
        began_s = time.monotonic()
        with self._lock:
            running_s = time.monotonic() - self._since_s if self._under_way.total() else 0.0
            beside_s = self._busy_s + running_s if self._asked else 0.0
        # Without any contrast nothing is learned, and no weight should change.
        learned = samples if any(sample.advantage for sample in samples) else ()
        ordered = sorted(learned, key=lambda sample: sample.request)
        given = len(self._given)
        begins = not self._asked or _names(ordered[:given]) != _names(self._given)
        for asked in self._asked:
            self._trainers.wait_for(asked)
        left = ordered if begins else ordered[given:]
        self._forget()
        report = self._trainers.wait_for(self._ask(lambda: self._trainers.begin(Worker.train, left, begins)))
        self.time = TrainingTime(beside_s + time.monotonic() - began_s, beside_s)
        if report.training_steps:  # without any, it says nothing of the next one
            self._trained_s.append(self.time.whole_s)
        return report

    def abandon(self) -> None:
        """Discard what was given: it is not trained on after all."""
        if self._asked:
            # Their weights may be sharded: they must be asked for them before anything else.
            for device in self._trainers.devices:
                device.holds = None
        self._forget()

    def _forget(self) -> None:
        self._groups.clear()
        self._there.clear()
        self._given, self._asked = [], []

    def _is_next_judged(self) -> bool:
        """Return True if all samples of the next group have arrived and are judged."""
        if not self._groups:
            return False
        there = [self._there.get(identity) for identity in self._groups[0]]
        return all(one is not None and one[1].done() for one in there)

    def _give_next(self, generates: bool) -> Asked[None] | None:
        """Give the next group to the trainers; return None if it is not trained on.

        Args:
            generates: True if the trainers may have to roll out again before the next group.
        """
        judged = [self._there[identity] for identity in self._groups.popleft()]
        if any(score.exception() is not None or score.result().error is not None for _, score in judged):
            return None
        samples = [sample for sample, _ in judged]
        scores = [score.result() for _, score in judged]
        _, kept = training_samples(samples, scores, self._algorithm, self._signal, self._policy_version)
        if not kept:
            return None
        begins = not self._asked
        if begins:
            with self._lock:
                self._busy_s = 0.0
        asked: Asked[None] = self._ask(
            lambda: self._trainers.begin(Worker.add_to_training, kept, begins, generates)
        )
        self._asked.append(asked)
        self._given += kept
        return asked

    def _ask(self, begin: Callable[[], Asked[Any]]) -> Asked[Any]:
        """Call the trainers, and record each as training until it has finished all calls."""
        names = [device.name for device in self._trainers.devices]
        with self._lock:
            if not self._under_way.total():
                self._since_s = time.monotonic()
            for name in names:
                if not self._under_way[name]:
                    self._enter(name, "train")
            self._under_way.update(names)
        asked = begin()
        for name, call in zip(names, asked.calls, strict=True):
            call.add_done_callback(partial(self._on_done, name))
        return asked

    def _on_done(self, name: str, _: Future[Any]) -> None:
        with self._lock:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                self._enter(name, "idle")
            if not self._under_way.total():
                self._busy_s += time.monotonic() - self._since_s


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


def _names(samples: Sequence[TrainingSample]) -> list[tuple[SampleRequest, float]]:
    return [(sample.request, sample.advantage) for sample in samples]
