"""Prompt groups on their way to the trainers, in which order and when; devices that train meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.fleet import trainers as module
from gpu_runtime.fleet.trainers import Trainers, TrainingFeed
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.requests import WeightsVersion
from storage.errors import RuntimeFailure, WorkerLostError
from tests.fake_generators import FakeGeneratorFleet, Script
from tests.tiny_run import tiny_config
from tests.unit.test_generation import EXPECTED, LEASE_S, ONE, REQUESTS, SAMPLER, TRAINER, assert_all_there


class TrainingActor:
    """A trainer's process; its calls end when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []

    def call(self, method: Callable[..., Any], *args: Any) -> Future[Any]:
        call: Future[Any] = Future()
        self.calls.append((method.__name__, args, call))
        return call

    def kill(self) -> None:
        """As of an actor."""


class Stage:
    """A feed of some trainers, and an iteration of four groups of four."""

    def __init__(self, trainers: int = 1, **algorithm: Any) -> None:
        self.config = tiny_config(algorithm={"prompts_per_iteration": 4, "group_size": 4, **algorithm})
        self.actors = [TrainingActor(f"reserved-{number}") for number in range(trainers)]
        actors: list[Any] = list(self.actors)
        self.devices = [Device(actor, "reserved", WeightsVersion(0)) for actor in actors]
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
        """What the whole iteration is trained on."""
        scores = [score.result() for score in self.scores]
        return training_samples(EXPECTED, scores, self.config.algorithm, policy_version=0)[1]

    def end(self) -> None:
        """The trainers have done what they were given."""
        for actor in self.actors:
            for _, _, call in actor.calls:
                if not call.done():
                    call.set_result(None)


def test_groups_are_given_in_the_order_of_their_prompts_once_all_their_samples_are_judged():
    stage = Stage()
    stage.deliver(*range(16))
    stage.judge(*range(4, 16))
    stage.feed.give()
    assert stage.given() == [], "the first one is not judged"
    stage.judge(*range(4))
    stage.feed.give()
    assert stage.given() == [("add_to_training", [prompt], prompt == 0) for prompt in range(4)]


def test_what_is_not_trained_on_is_left_out():
    stage = Stage()
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
    stage = Stage(advantage_std="batch")
    stage.deliver(*range(16))
    stage.judge(*range(16))
    stage.feed.give()
    assert stage.given() == []
    assert stage.take() == {}


def test_free_trainers_take_a_group_at_a_time_and_only_all_together():
    stage = Stage(trainers=2)
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
    stage, woken = Stage(), []
    stage.feed.begin(lambda: woken.append(True))
    stage.deliver(0)
    assert not woken
    stage.judge(0)
    assert woken


def test_devices_are_booked_as_training_until_all_is_done():
    stage = Stage()
    stage.deliver(*range(8))
    stage.judge(*range(8))
    stage.feed.give()
    assert stage.booked == [("reserved-0", "train")]
    stage.actors[0].calls[0][2].set_result(None)
    assert stage.booked == [("reserved-0", "train")]
    stage.end()
    assert stage.booked == [("reserved-0", "train"), ("reserved-0", "idle")]


def finish(stage: Stage, samples: Sequence[Any]) -> None:
    """The last call ends as soon as it is made."""
    actor = stage.actors[0]
    call = actor.call

    def end(method: Callable[..., Any], *args: Any) -> Future[Any]:
        future = call(method, *args)
        future.set_result(None)
        return future

    stage.end()
    actor.call = end  # type: ignore[method-assign]
    stage.feed.finish(samples)


def test_groups_without_variance_are_trained_on_where_settings_say_so_but_never_alone():
    stage = Stage(zero_variance_groups="train")
    stage.deliver(*range(16))
    stage.judge(*range(16), value=0.5)
    stage.take()
    finish(stage, stage.trained())
    assert stage.given() == [("add_to_training", [0], True), ("train", [], True)]
    stage = Stage(zero_variance_groups="train")
    stage.deliver(*range(16))
    stage.judge(*range(8), value=0.5)
    stage.judge(*range(8, 16))
    stage.take()
    finish(stage, stage.trained())
    assert stage.given() == [("add_to_training", [0], True), ("train", [1, 2, 3], False)]


def test_the_rest_goes_with_the_training_steps():
    stage = Stage()
    stage.deliver(*range(16))
    stage.judge(*range(16))
    stage.take()
    finish(stage, stage.trained())
    assert stage.given() == [("add_to_training", [0], True), ("train", [1, 2, 3], False)]


@pytest.mark.parametrize("given", [0, 4])
def test_other_scores_than_those_given_begin_anew(given: int):
    stage = Stage()
    stage.deliver(*range(16))
    stage.judge(*range(16))
    for _ in range(given):
        stage.take()
    others = [sample for sample in stage.trained() if sample.request.prompt_id != 0]
    finish(stage, others)
    assert stage.given()[-1] == ("train", [1, 2, 3], True)


def test_what_was_given_of_another_iteration_is_not_trained_on():
    stage = Stage()
    stage.deliver(*range(4))
    stage.judge(*range(4))
    stage.take()
    stage.feed.expect(REQUESTS, 1)
    assert stage.devices[0].holds is None, "their weights may be divided"
    assert stage.take() == {}
    finish(stage, [])
    assert stage.given()[-1] == ("train", [], True)


def test_a_trainer_that_has_died_ends_the_training():
    stage = Stage()
    stage.deliver(*range(4))
    stage.judge(*range(4))
    stage.take()
    stage.actors[0].calls[0][2].set_exception(WorkerLostError("gone"))
    with pytest.raises(RuntimeFailure, match="trainer's process is gone"):
        stage.feed.finish([])


def test_what_can_be_trained_before_the_end_takes_as_long_as_before(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stage = Stage(updates_per_iteration=2)
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
    call.set_result(None)
    return call


class Parts:
    """Something else for the trainer: so many calls, which end as others do."""

    left_s = None

    def __init__(self, script: Script, parts: int, work: Callable[[], object] = lambda: None) -> None:
        self._script, self.left, self._work = script, parts, work
        self.others_busy: list[bool] = []

    def begin(self, wake: Callable[[], None]) -> None:
        """See `OtherWork`."""

    def take(self, devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        if not self.left or TRAINER not in [device.name for device in devices]:
            return {}
        self.left -= 1
        self.others_busy.append(bool(self._script.under_way.get(ONE)))
        return {TRAINER: self._script.start(TRAINER, self._work)}


def dispatcher(script: Script, names: Sequence[str] = (TRAINER, ONE)) -> SimpleNamespace:
    config = tiny_config(runtime={"commit_steps": 1, "lease_s": LEASE_S})
    fleet = FakeGeneratorFleet(names, script, SAMPLER)
    loop = Dispatcher(config, script.clock, ended=script)  # type: ignore[arg-type]
    return SimpleNamespace(fleet=fleet, phase=SamplePhase(REQUESTS, config.sampling), loop=loop)


def trainer_first(names: list[str]) -> str:
    return TRAINER if TRAINER in names else names[0]


def test_a_trainer_that_finds_nothing_to_roll_out_does_something_else_while_others_go_on():
    script = Script(trainer_first)
    stage = dispatcher(script)
    parts = Parts(script, 2)
    stage.loop.run(stage.fleet, stage.phase, None, parts)
    assert_all_there(stage.phase.delivered)
    assert parts.others_busy == [True, True]


def test_it_goes_on_rolling_out_what_another_device_has_lost():
    script = Script(trainer_first)
    stage = dispatcher(script)

    def lose() -> None:
        stage.fleet.actors[ONE].dead = True

    parts = Parts(script, 1, lose)
    stage.loop.run(stage.fleet, stage.phase, None, parts)
    assert parts.left == 0 and stage.fleet.events == [(ONE, "lost")]
    assert_all_there(stage.phase.delivered)


def test_a_trainer_that_leaves_rolls_out_again_once_the_others_are_lost():
    script = Script(lambda names: ONE if ONE in names else TRAINER)
    stage = dispatcher(script)

    def leaves(device: Device) -> bool:
        others = [one.name for one in stage.fleet.workers(WeightsVersion(0))]
        return device.name != TRAINER or others == [TRAINER]

    def lose() -> None:
        assert stage.fleet.actors[TRAINER].calls == 0 and stage.phase.done > 0
        stage.fleet.actors[ONE].dead = True

    script.before[12] = lose
    stage.phase = SamplePhase(REQUESTS, tiny_config().sampling, accepts=leaves)
    parts = Parts(script, 1)
    stage.loop.run(stage.fleet, stage.phase, None, parts)
    assert parts.left == 0 and stage.fleet.events == [(ONE, "lost")]
    assert_all_there(stage.phase.delivered)


def test_what_it_still_does_at_the_end_is_not_waited_for():
    script = Script(lambda names: ONE if ONE in names and not parts.left else trainer_first(names))
    stage = dispatcher(script)
    parts = Parts(script, 1)
    stage.loop.run(stage.fleet, stage.phase, None, parts)
    assert_all_there(stage.phase.delivered)
    assert len(script.under_way[TRAINER]) == 1
    assert stage.loop.busy(TRAINER), "it is not idle"


def test_its_loss_ends_the_run():
    script = Script(trainer_first)
    stage = dispatcher(script)

    def die() -> None:
        raise WorkerLostError("killed")

    with pytest.raises(RuntimeFailure, match="trainer's process is gone"):
        stage.loop.run(stage.fleet, stage.phase, None, Parts(script, 1, die))


def test_one_that_hangs_is_killed_where_nothing_else_is_left_to_wait_for():
    script = Script(trainer_first)
    stage = dispatcher(script)
    hangs = Parts(script, 1)
    take = hangs.take

    def take_and_hang(devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        taken = take(devices)
        if taken:
            script.hung.add(TRAINER)
            stage.fleet.actors[ONE].dead = True
        return taken

    hangs.take = take_and_hang  # type: ignore[method-assign]
    with pytest.raises(RuntimeFailure, match="trainer's process is gone"):
        stage.loop.run(stage.fleet, stage.phase, None, hangs)
    assert stage.fleet.events == [(ONE, "lost"), (TRAINER, "hung"), (TRAINER, "lost")]
