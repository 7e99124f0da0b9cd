"""Devices that train together, and the prompt groups on their way to them; their processes are played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Timer
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet import trainers as module
from gpu_runtime.fleet.trainers import Trainers, TrainingFeed
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.protocol import Worker
from storage.errors import GroupBrokenError, RuntimeFailure, TrainingError, WorkerLostError
from tests.tiny_run import tiny_config
from tests.unit.gpu_runtime.dispatch.test_generation import EXPECTED, REQUESTS

R = TypeVar("R")

SAMPLES: list[Any] = ["sample"]
REPORT = SimpleNamespace(training_steps=1)


class Actor(RemoteActor[Worker]):
    """Keeps its calls; each ends with the next one of `ahead`, or else when the test says so."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []
        self.ahead: list[Any] = []
        self.killed = False

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """See `RemoteActor`."""
        answer: Future[Any] = Future()
        self.calls.append((method.__name__, args, answer))
        if self.ahead:
            given = self.ahead.pop(0)
            if isinstance(given, Exception):
                answer.set_exception(given)
            elif isinstance(given, tuple):  # an error, after so many seconds
                Timer(given[0], answer.set_exception, [given[1]]).start()
            else:
                answer.set_result(given)
        return answer

    @property
    def asked(self) -> list[tuple[Any, ...]]:
        return [(name, *args) for name, args, _ in self.calls]

    def kill(self) -> None:
        """See `RemoteActor`."""
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
    assert [actor.asked for actor in stage.actors] == [[("train", "reference")]] * 2
    assert stage.shared == [["sample"]]
    assert stage.killed == [False, False]


def test_one_alone_is_given_the_samples_themselves():
    stage = Stage("report")
    assert stage.trainers.ask(Worker.train, SAMPLES) == "report"
    assert stage.actors[0].asked == [("train", ["sample"])] and not stage.shared


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


class Feeding:
    """A feed of some trainers, and an iteration of four groups of four."""

    def __init__(self, trainers: int = 1, **algorithm: Any) -> None:
        self.config = tiny_config(algorithm={"prompts_per_iteration": 4, "group_size": 4, **algorithm})
        self.actors = [Actor(f"reserved-{number}") for number in range(trainers)]
        self.devices = [Device(actor, "reserved", WeightsVersion(0)) for actor in self.actors]
        self.booked: list[tuple[str, str]] = []
        trained = Trainers(self.devices, 60.0, lambda value: value)
        self.feed = TrainingFeed(
            self.config.algorithm, "graded", trained, lambda *entered: self.booked.append(entered)
        )
        self.scores: list[Future[Score]] = [Future() for _ in EXPECTED]
        self.feed.expect(REQUESTS, 0)

    def deliver(self, *numbers: int) -> None:
        for number in numbers:
            self.feed.note(EXPECTED[number], self.scores[number])

    def judge(self, *numbers: int, value: float | None = None, error: str | None = None) -> None:
        for number in numbers:
            self.scores[number].set_result(
                Score(number / 16 if value is None else value, False, "", error=error)
            )

    def take(self) -> Mapping[str, Future[Any]]:
        return self.feed.take(self.devices)

    def given(self, actor: int = 0) -> list[tuple[str, list[int], bool]]:
        """Calls: their names, the prompts of their samples, and whether they begin an iteration."""
        return [
            (name, sorted({sample.request.prompt_id for sample in args[0]}), args[1])
            for name, args, _ in self.actors[actor].calls
        ]

    def trained(self) -> list[Any]:
        """The samples that the whole iteration is trained on."""
        scores = [score.result() for score in self.scores]
        return training_samples(EXPECTED, scores, self.config.algorithm, "graded", 0)[1]

    def end(self) -> None:
        """End all calls of the trainers."""
        for actor in self.actors:
            for _, _, call in actor.calls:
                if not call.done():
                    call.set_result(None)


def test_groups_are_given_in_the_order_of_their_prompts_once_all_their_samples_are_judged():
    stage = Feeding()
    stage.deliver(*range(16))
    stage.judge(*range(4, 16))
    stage.feed.give()
    assert stage.given() == [], "the first one is not judged"
    stage.judge(*range(4))
    stage.feed.give()
    assert stage.given() == [("add_to_training", [prompt], prompt == 0) for prompt in range(4)]


def test_what_is_not_trained_on_is_left_out():
    stage = Feeding()
    stage.deliver(*range(16))
    stage.judge(*range(4), value=0.5)
    stage.judge(*range(4, 7))
    stage.judge(7, error="no answer")
    stage.judge(*range(8, 12))
    stage.scores[12].set_exception(RuntimeFailure("scorers die"))
    stage.judge(*range(13, 16))
    stage.feed.give()
    assert stage.given() == [("add_to_training", [2], True)]


def test_advantages_that_depend_on_all_rewards_wait_for_them():
    stage = Feeding(advantage_std="batch")
    stage.deliver(*range(16))
    stage.judge(*range(16))
    stage.feed.give()
    assert stage.given() == []
    assert stage.take() == {}


def test_free_trainers_take_a_group_at_a_time_and_only_all_together():
    stage = Feeding(trainers=2)
    stage.deliver(*range(8))
    stage.judge(*range(8))
    assert stage.feed.take(stage.devices[:1]) == {}
    taken = stage.take()
    assert list(taken) == ["reserved-0", "reserved-1"]
    assert stage.given(0) == stage.given(1) == [("add_to_training", [0], True)]
    assert stage.actors[0].calls[0][1][2], "they may have to generate again"
    stage.take()
    assert stage.take() == {}, "the third group is not there"
    assert stage.given(1)[-1] == ("add_to_training", [1], False)


def test_the_dispatcher_is_woken_when_a_sample_is_judged():
    stage, woken = Feeding(), []
    stage.feed.begin(lambda: woken.append(True))
    stage.deliver(0)
    assert not woken
    stage.judge(0)
    assert woken


def test_devices_are_booked_as_training_until_all_is_done():
    stage = Feeding()
    stage.deliver(*range(8))
    stage.judge(*range(8))
    stage.feed.give()
    assert stage.booked == [("reserved-0", "train")]
    stage.actors[0].calls[0][2].set_result(None)
    assert stage.booked == [("reserved-0", "train")]
    stage.end()
    assert stage.booked == [("reserved-0", "train"), ("reserved-0", "idle")]


def test_a_trainer_that_rolls_out_again_is_not_booked_as_idle_when_another_ends_its_call():
    stage = Feeding(trainers=2)
    stage.deliver(*range(4))
    stage.judge(*range(4))
    stage.take()
    stage.actors[0].calls[0][2].set_result(None)
    assert stage.booked[-1] == ("reserved-0", "idle")
    stage.booked.clear()  # the dispatcher gives it a lease
    stage.actors[1].calls[0][2].set_result(None)
    assert stage.booked == [("reserved-1", "idle")]


def test_an_iteration_without_training_steps_does_not_tell_how_long_training_takes():
    stage = Feeding()
    stage.actors[0].ahead = [SimpleNamespace(training_steps=0)]
    stage.feed.finish([])
    stage.feed.expect(REQUESTS, 1)
    assert stage.feed.left_s is None


def finish(stage: Feeding, samples: Sequence[Any]) -> None:
    """The last call ends as soon as it is made."""
    stage.end()
    stage.actors[0].ahead = [REPORT]
    stage.feed.finish(samples)


def test_groups_without_variance_are_trained_on_where_settings_say_so_but_never_alone():
    stage = Feeding(zero_variance_groups="train")
    stage.deliver(*range(16))
    stage.judge(*range(16), value=0.5)
    stage.take()
    finish(stage, stage.trained())
    assert stage.given() == [("add_to_training", [0], True), ("train", [], True)]
    stage = Feeding(zero_variance_groups="train")
    stage.deliver(*range(16))
    stage.judge(*range(8), value=0.5)
    stage.judge(*range(8, 16))
    stage.take()
    finish(stage, stage.trained())
    assert stage.given() == [("add_to_training", [0], True), ("train", [1, 2, 3], False)]


def test_the_rest_goes_with_the_training_steps():
    stage = Feeding()
    stage.deliver(*range(16))
    stage.judge(*range(16))
    stage.take()
    finish(stage, stage.trained())
    assert stage.given() == [("add_to_training", [0], True), ("train", [1, 2, 3], False)]


@pytest.mark.parametrize("given", [0, 4])
def test_other_scores_than_those_given_begin_anew(given: int):
    stage = Feeding()
    stage.deliver(*range(16))
    stage.judge(*range(16))
    for _ in range(given):
        stage.take()
    others = [sample for sample in stage.trained() if sample.request.prompt_id != 0]
    finish(stage, others)
    assert stage.given()[-1] == ("train", [1, 2, 3], True)


def test_what_was_given_of_another_iteration_is_not_trained_on():
    stage = Feeding()
    stage.deliver(*range(4))
    stage.judge(*range(4))
    stage.take()
    stage.feed.expect(REQUESTS, 1)
    assert stage.devices[0].holds is None, "their weights may be divided"
    assert stage.take() == {}
    finish(stage, [])
    assert stage.given()[-1] == ("train", [], True)


def test_a_trainer_that_has_died_ends_the_training():
    stage = Feeding()
    stage.deliver(*range(4))
    stage.judge(*range(4))
    stage.take()
    stage.actors[0].calls[0][2].set_exception(WorkerLostError("gone"))
    with pytest.raises(RuntimeFailure, match="trainer's process is gone"):
        stage.feed.finish([])


def test_what_can_be_trained_before_the_end_takes_as_long_as_before(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stage = Feeding(updates_per_iteration=2)
    assert stage.feed.left_s is None, "nothing has been trained yet"
    stage.deliver(*range(16))
    stage.judge(*range(4))
    stage.take()
    now[0] = 3.0
    stage.end()
    now[0] = 5.0
    actor = stage.actors[0]
    actor.call = lambda *args: takes_two_seconds(now)  # type: ignore[assignment]
    stage.feed.finish([])
    # 3 s beside the rollout and 2 s after it, of which the first of two updates is half.
    stage.feed.expect(REQUESTS, 1)
    assert stage.feed.left_s == 2.5
    stage.deliver(*range(16))
    actor.call = lambda *args: Future()  # type: ignore[assignment]
    assert stage.take()
    assert stage.feed.left_s == 2.5 * 3 / 4
    stage.feed.abandon()
    assert stage.feed.left_s is None


def takes_two_seconds(now: list[float]) -> Future[Any]:
    call: Future[Any] = Future()
    now[0] += 2.0
    call.set_result(REPORT)
    return call
