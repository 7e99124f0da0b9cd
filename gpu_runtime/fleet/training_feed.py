"""An iteration's prompt groups on their way to the devices that train, given as soon as they are judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from gpu_runtime.fleet.trainers import Asked, Trainers
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.trainer import TrainingReport
from gpu_runtime.worker.protocol import Worker
from storage.database.records import DeviceState


class TrainingFeed:
    """Gives prompt groups to the trainers, which add up the first update's gradients meanwhile.

    No weight changes before `finish`, and what `finish` is called with decides: where the groups that were
    given are not its first ones, the trainers begin anew.

    Args:
        trainers: the devices that train.
        enter: books what a device does from now on; may be called from any thread.

    Attributes:
        beside_s: seconds for which they trained before the last `finish`, while scores were awaited.
    """

    def __init__(self, trainers: Trainers, enter: Callable[[str, DeviceState], None]) -> None:
        self._trainers = trainers
        self._enter = enter
        self._given: list[TrainingSample] = []
        self._asked: list[Asked[None]] = []
        self._lock = threading.Lock()
        self._under_way = 0
        self._since_s = 0.0
        self._busy_s = 0.0
        self.beside_s = 0.0

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Give the trainers a prompt group; does not wait for them.

        Args:
            samples: of a prompt after all those before.
        """
        begins = not self._asked
        if begins:
            with self._lock:
                self._busy_s = 0.0
        self._asked.append(self._ask(lambda: self._trainers.begin(Worker.add_to_training, samples, begins)))
        self._given += samples

    def finish(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Give the trainers the groups that are left, and let them take the training steps.

        Args:
            samples: of the whole iteration.

        Raises:
            RuntimeFailure: if a trainer is gone or hangs.
            TrainingError: see `Trainer.finish`.
        """
        with self._lock:
            running_s = time.monotonic() - self._since_s if self._under_way else 0.0
            self.beside_s = self._busy_s + running_s if self._asked else 0.0
        ordered = sorted(samples, key=lambda sample: sample.request)
        given = len(self._given)
        begins = not self._asked or _names(ordered[:given]) != _names(self._given)
        for asked in self._asked:
            self._trainers.wait_for(asked)
        left = ordered if begins else ordered[given:]
        self._given, self._asked = [], []
        return self._trainers.wait_for(self._ask(lambda: self._trainers.begin(Worker.train, left, begins)))

    def abandon(self) -> None:
        """What was given is not trained on after all."""
        if self._asked:
            # Their weights may be divided: they are to be asked for them before anything else.
            for device in self._trainers.devices:
                device.holds = None
        self._given, self._asked = [], []

    def _ask(self, begin: Callable[[], Asked[Any]]) -> Any:
        """Ask the trainers for something, and book them as training until they have done all of it."""
        with self._lock:
            if not self._under_way:
                self._since_s = time.monotonic()
                self._book("train")
            self._under_way += len(self._trainers.devices)
        asked = begin()
        for call in asked.calls:
            call.add_done_callback(self._on_done)
        return asked

    def _on_done(self, _: Future[Any]) -> None:
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                self._busy_s += time.monotonic() - self._since_s
                self._book("idle")

    def _book(self, state: DeviceState) -> None:
        for device in self._trainers.devices:
            self._enter(device.name, state)


def _names(samples: Sequence[TrainingSample]) -> list[tuple[Any, float]]:
    return [(sample.request, sample.advantage) for sample in samples]
