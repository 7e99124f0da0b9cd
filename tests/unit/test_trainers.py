"""Devices that train together: asked at once, answered for by the first, ended together; they are played."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Timer
from typing import Any, TypeVar

import pytest

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet import trainers as module
from gpu_runtime.fleet.trainers import Trainers
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.protocol import Worker
from storage.errors import GroupBrokenError, RuntimeFailure, TrainingError, WorkerLostError

R = TypeVar("R")

SAMPLES: list[Any] = ["sample"]


class Actor(RemoteActor[Worker]):
    """Answers when the test says so."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[Any, ...]] = []
        self.ahead: list[Any] = []
        self.killed = False

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """What is in `ahead` is answered or raised; nothing there, nothing answered."""
        self.calls.append((method.__name__, *args))
        answer: Future[Any] = Future()
        if self.ahead:
            given = self.ahead.pop(0)
            if isinstance(given, Exception):
                answer.set_exception(given)
            elif isinstance(given, tuple):  # an error, after so many seconds
                Timer(given[0], answer.set_exception, [given[1]]).start()
            else:
                answer.set_result(given)
        return answer

    def kill(self) -> None:
        """As of an actor."""
        self.killed = True


class Stage:
    """Some trainers; each argument is what one of them answers to the first call."""

    def __init__(self, *answers: Any, limit_s: float = 300.0) -> None:
        self.actors = [Actor(f"reserved-{index}") for index in range(len(answers))]
        for actor, answer in zip(self.actors, answers, strict=True):
            actor.ahead = [] if answer is None else [answer]
        self.shared: list[Any] = []
        devices = [Device(actor, "reserved") for actor in self.actors]
        self.trainers = Trainers(devices, limit_s, self.share)

    def share(self, value: Any) -> Any:
        self.shared.append(value)
        return "reference"

    @property
    def killed(self) -> list[bool]:
        return [actor.killed for actor in self.actors]


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.3)


def test_all_are_asked_the_samples_are_shared_once_and_the_first_answers():
    stage = Stage("report", {})
    assert stage.trainers.ask(Worker.train, SAMPLES) == "report"
    assert [actor.calls for actor in stage.actors] == [[("train", "reference")]] * 2
    assert stage.shared == [["sample"]]
    assert stage.killed == [False, False]


def test_one_alone_is_given_the_samples_themselves():
    stage = Stage("report")
    assert stage.trainers.ask(Worker.train, SAMPLES) == "report"
    assert stage.actors[0].calls == [("train", ["sample"])] and not stage.shared


def test_what_needs_the_first_alone_is_asked_of_it_alone():
    stage = Stage("weights", "weights")
    assert stage.trainers.ask_leader(Worker.weights) == "weights"
    assert stage.actors[1].calls == []


def test_what_all_refuse_is_raised_and_ends_no_process():
    stage = Stage(TrainingError("ratio"), TrainingError("ratio"))
    with pytest.raises(TrainingError, match="ratio"):
        stage.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == [False, False]


def test_the_others_do_not_wait_for_one_that_is_gone():
    stage = Stage(None, WorkerLostError("reserved-1 is gone"))
    with pytest.raises(RuntimeFailure, match=r"reserved-1 is gone.*nothing committed is lost"):
        stage.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == [True, True]


def test_the_cause_is_named_and_not_what_it_led_to():
    broken = GroupBrokenError("training device 0 of 2 lost another one")
    stage = Stage(broken, (0.05, WorkerLostError("reserved-1 is gone")))
    with pytest.raises(RuntimeFailure, match="reserved-1 is gone"):
        stage.trainers.ask(Worker.train, SAMPLES)
    memory = Stage(broken, (0.05, MemoryError("no memory for the gradients")))
    with pytest.raises(MemoryError, match="gradients"):
        memory.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == memory.killed == [True, True]


def test_a_group_that_broke_without_a_known_loss_ends_the_run():
    stage = Stage(GroupBrokenError("device 0 lost another"), GroupBrokenError("device 1 lost another"))
    with pytest.raises(RuntimeFailure, match=r"device 0 lost another.*nothing committed is lost"):
        stage.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == [True, True]


def test_what_one_fails_at_alone_ends_those_that_wait_for_it():
    stage = Stage(None, MemoryError("no memory"))
    with pytest.raises(MemoryError):
        stage.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == [True, True]


def test_no_call_waits_beyond_the_limit():
    stage = Stage(None, "report", limit_s=0.05)
    with pytest.raises(RuntimeFailure, match=r"reserved-0 did not answer 'train' in"):
        stage.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == [True, True]


def test_devices_that_hold_different_weights_end_the_run():
    stage = Stage("digest a", "digest b")
    with pytest.raises(RuntimeFailure, match=r"reserved-0 digest a, reserved-1 digest b$"):
        stage.trainers.use_training_weights(WeightsVersion(1))
    assert not stage.trainers.holds(WeightsVersion(1))
    same = Stage("digest a", "digest a")
    assert same.trainers.use_training_weights(WeightsVersion(1)) == "digest a"
    assert same.trainers.holds(WeightsVersion(1)) and not same.trainers.holds(WeightsVersion(0))
