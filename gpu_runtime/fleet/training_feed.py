"""Feeds prompt groups to the training devices as soon as they are judged.

Groups go in prompt order, and no weight changes before the whole iteration is known.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import Any, Literal

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.group_feed import GroupFeed
from gpu_runtime.fleet.trainers import Asked, Trainers
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.scheduling.capacity_decision import TrainingTime
from gpu_runtime.scheduling.requests import SampleRequest
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.protocol import Worker
from storage.config.run_config import AlgorithmConfig
from storage.record.records import DeviceState

_Identity = tuple[int, int]
_Judged = tuple[GeneratedSample, Future[Score]]


class TrainingFeed(GroupFeed[_Identity]):
    """A feed of prompt groups to the trainers, which accumulate the first update's gradients meanwhile.

    Groups go in prompt order: during a rollout, to trainers with nothing left to roll out; then during the
    wait for the last scores. None goes early if advantages depend on all rewards
    (`algorithm.advantage_std = "batch"`). No weight changes before `finish`, whose argument decides: if the
    groups given so far are not its first ones, the trainers start over.

    Args:
        enter: records a device's state from now on; callable from any thread.

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
        super().__init__(algorithm.updates_per_iteration)
        self._algorithm = algorithm
        self._signal: Literal["graded", "exact"] = signal
        self._trainers = trainers
        self._enter = enter
        self._policy_version = 0
        self._there: dict[_Identity, _Judged] = {}
        self._given: list[TrainingSample] = []
        self._asked: list[Asked[None]] = []
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()  # calls, by device
        self._since_s = self._busy_s = 0.0
        self.time = TrainingTime()

    def expect(self, requests: Sequence[SampleRequest], policy_version: int) -> None:
        """Expect an iteration's samples; groups given from another iteration are not trained on."""
        self.abandon()
        self._policy_version = policy_version
        early = () if self._algorithm.advantage_std == "batch" else requests
        ordered = sorted((one.prompt_id, one.seed_index) for one in early)
        self._expect(list(group) for _, group in groupby(ordered, lambda one: one[0]))

    def note(self, sample: GeneratedSample, score: Future[Score]) -> None:
        """Add a sample of the iteration that has arrived and is being judged."""
        self._there[sample.request.prompt_id, sample.request.seed_index] = sample, score
        score.add_done_callback(lambda _: self._wake())

    @property
    def _trainers_that_stay(self) -> Sequence[Device]:
        return [device for device in self._trainers.devices if device.stays]

    def _is_judged(self, sample: _Identity) -> bool:
        one = self._there.get(sample)
        return one is not None and one[1].done()

    def _begin_next(self) -> Mapping[str, Future[Any]]:
        asked = self._give_next(generates=True)
        if asked is None:
            return {}
        return {device.name: call for device, call in zip(asked.devices, asked.calls, strict=True)}

    def give(self) -> None:
        """Give the trainers all judged groups, without waiting for them."""
        while self._is_next_judged():
            self._give_next(generates=False)

    def finish(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Give the trainers the remaining groups and let them take the training steps.

        Raises:
            RuntimeFailure: if a trainer is gone or hangs.
            TrainingError: see `Trainer.finish`.
        """
        began_s = time.monotonic()
        with self._lock:
            running_s = time.monotonic() - self._since_s if self._under_way.total() else 0.0
            beside_s = self._busy_s + running_s if self._asked else 0.0
        # Without contrast there is nothing to learn, and no weight should change.
        learned = samples if any(sample.advantage for sample in samples) else ()
        ordered = sorted(learned, key=lambda sample: sample.request)
        given = len(self._given)
        begins = not self._asked or _names(ordered[:given]) != _names(self._given)
        asked_before = self._asked
        left = ordered if begins else ordered[given:]
        self._forget()
        updates = min(self._algorithm.updates_per_iteration, len({one.request.prompt_id for one in ordered}))
        devices = self._trainers.devices
        self._enter_training(devices)
        try:
            for asked in asked_before:
                self._trainers.wait_for(asked)
            if begins:
                self._trainers.wait_for(self._trainers.begin_iteration())
            report = self._trainers.train(left, updates)
        finally:
            for device in devices:
                self._leave_training(device)
        self.time = TrainingTime(beside_s + time.monotonic() - began_s, beside_s)
        if report.training_steps:  # without any, its time does not predict the next one
            self._trained_s.append(self.time.whole_s)
        return report

    def abandon(self) -> None:
        """Discard the groups given so far: they are not trained on after all."""
        if self._asked:
            self._trainers.training = False
            # Their weights may be sharded, so gather them before anything else.
            for device in self._trainers.devices:
                device.holds = None
        self._forget()

    def _forget(self) -> None:
        self._groups.clear()
        self._there.clear()
        self._given, self._asked = [], []

    def _give_next(self, generates: bool) -> Asked[None] | None:
        """Give trainers, which may roll out afterwards, the next group; None if it is not trained on."""
        judged = [self._there[identity] for identity in self._groups.popleft()]
        if any(score.exception() is not None or score.result().error is not None for _, score in judged):
            return None
        samples = [sample for sample, _ in judged]
        scores = [score.result() for _, score in judged]
        _, kept = training_samples(samples, scores, self._algorithm, self._signal, self._policy_version)
        if not kept:
            return None
        if not self._asked:
            with self._lock:
                self._busy_s = 0.0
            self._asked.append(self._trainers.begin_iteration())
        asked: Asked[None] = self._trainers.begin(Worker.add_to_training, kept, generates)
        self._enter_training(asked.devices)
        for device, call in zip(asked.devices, asked.calls, strict=True):
            call.add_done_callback(partial(self._leave_training, device))
        self._asked.append(asked)
        self._given += kept
        return asked

    def _enter_training(self, devices: Sequence[Device]) -> None:
        """Record trainers as training until each has left as often as it entered."""
        names = [device.name for device in devices]
        with self._lock:
            if not self._under_way.total():
                self._since_s = time.monotonic()
            for name in names:
                if not self._under_way[name]:
                    self._enter(name, "train")
            self._under_way.update(names)

    def _leave_training(self, device: Device, _: Future[Any] | None = None) -> None:
        with self._lock:
            self._under_way[device.name] -= 1
            if not self._under_way.total():
                self._busy_s += time.monotonic() - self._since_s
            if not self._under_way[device.name] and device in self._trainers:
                self._enter(device.name, "idle")


def _names(samples: Sequence[TrainingSample]) -> list[tuple[SampleRequest, float]]:
    return [(sample.request, sample.advantage) for sample in samples]
