"""Devices that train together, and the prompt groups on their way to them; their processes are played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from threading import Timer
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.dispatch.devices import Device, Weights
from gpu_runtime.fleet import trainers as module
from gpu_runtime.fleet import training_feed
from gpu_runtime.fleet.trainers import Asked, Trainers
from gpu_runtime.fleet.training_feed import TrainingFeed
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.learning.gradient_shards import ShardSum
from gpu_runtime.learning.objectives.protocol import BatchTerms
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.protocol import Worker
from storage.errors import GroupBrokenError, RuntimeFailure, TrainingError, WorkerLostError
from tests.tiny_run import tiny_config
from tests.unit.gpu_runtime.dispatch.test_generation import EXPECTED, REQUESTS

R = TypeVar("R")

SAMPLES: list[Any] = ["sample"]
REPORT = SimpleNamespace(training_steps=1)


class Actor(RemoteActor[Worker]):
    """Keeps its calls; each ends with the next one of `ahead`, or else when the test says so.

    That an iteration begins is answered at once.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []
        self.ahead: list[Any] = []
        self.killed = False

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """See `RemoteActor`."""
        answer: Future[Any] = Future()
        self.calls.append((method.__name__, args, answer))
        if method is Worker.begin_training:
            answer.set_result(None)
        elif self.ahead:
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
    alone = Stage("report")
    assert alone.trainers.ask(Worker.train, SAMPLES) == "report"
    assert alone.actors[0].asked == [("train", ["sample"])] and not alone.shared
    first = Stage("weights", "weights")
    assert first.trainers.ask_leader(Worker.weights) == "weights" and first.actors[1].calls == []


def test_the_cause_is_named_and_not_what_it_led_to():
    broken = GroupBrokenError("training device 0 of 2 lost another one")
    stage = Stage(broken, (0.05, WorkerLostError("reserved-1 is gone")))
    with pytest.raises(RuntimeFailure, match="reserved-1 is gone"):
        stage.trainers.ask(Worker.train, SAMPLES)
    memory = Stage(broken, (0.05, MemoryError("no memory for the gradients")))
    with pytest.raises(MemoryError, match="gradients"):
        memory.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == memory.killed == [True, True]


@pytest.mark.parametrize(
    ("answers", "error", "says", "ended"),
    [
        ([TrainingError("ratio"), TrainingError("ratio")], TrainingError, "ratio", False),
        (
            [None, WorkerLostError("two is gone")],
            RuntimeFailure,
            "two is gone.*nothing committed is lost",
            True,
        ),
        ([GroupBrokenError("lost two")] * 2, RuntimeFailure, "lost two.*nothing committed is lost", True),
        ([None, MemoryError("no memory")], MemoryError, "no memory", True),
        ([None, "report"], RuntimeFailure, "reserved-0 did not answer 'train' within", True),
    ],
)
def test_what_all_refuse_ends_no_process_and_what_one_fails_at_ends_those_that_wait_for_it(
    answers: list[Any], error: type[Exception], says: str, ended: bool
):
    stage = Stage(*answers, limit_s=0.05 if "report" in answers else 300.0)
    with pytest.raises(error, match=says):
        stage.trainers.ask(Worker.train, SAMPLES)
    assert stage.killed == [ended, ended]


def test_devices_that_hold_different_weights_end_the_run():
    stage = Stage("digest a", "digest b")
    with pytest.raises(RuntimeFailure, match=r"reserved-0 digest a, reserved-1 digest b$"):
        stage.trainers.use_training_weights(WeightsVersion(1))
    assert not stage.trainers.holds(WeightsVersion(1))
    same = Stage("digest a", "digest a")
    assert same.trainers.use_training_weights(WeightsVersion(1)) == "digest a"
    assert same.trainers.holds(WeightsVersion(1)) and not same.trainers.holds(WeightsVersion(0))


class Replica(Actor):
    """A trainer with all weights: the gradient of a shard is ten to the power of its number."""

    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(name)
        self.answers = answers

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """See `RemoteActor`; an answer that is an exception is raised, and None is never given."""
        answer: Future[Any] = Future()
        self.calls.append((method.__name__, args, answer))
        given: Any = self.answers.get(method.__name__, f"{method.__name__} of {self.name}")
        if method is Worker.shard_sums and method.__name__ not in self.answers:
            terms = BatchTerms(1.0, 0.0, 0.0, 0.0)
            given = {(one, one + 1): ShardSum({"w": np.float32(10**one)}, terms) for one in args[1]}
        if isinstance(given, Exception):
            answer.set_exception(given)
        elif given is not None:
            answer.set_result(given)
        return answer

    def all_of(self, method: str) -> list[tuple[Any, ...]]:
        return [args for name, args, _ in self.calls if name == method]


class Replicas:
    """Trainers that compute four shards; each argument is what one of them answers, by method."""

    def __init__(self, *answers: dict[str, Any], limit_s: float = 300.0) -> None:
        self.actors = [Replica(f"reserved-{number}", given) for number, given in enumerate(answers)]
        self.devices = [Device(actor, "reserved") for actor in self.actors]
        self.lost: list[str] = []
        self.trainers = Trainers(
            self.devices,
            limit_s,
            lambda value: value,
            lambda: None,
            4,
            lambda device, _: self.lost.append(device.name),
        )

    def train(self, updates: int = 1) -> Any:
        self.trainers.wait_for(self.trainers.begin_iteration())
        return self.trainers.train(SAMPLES, updates)

    def totals(self, actor: int) -> list[tuple[int, float, float]]:
        """Updates whose step one has taken, with the gradient and the loss."""
        steps = self.actors[actor].all_of("take_training_step")
        return [(update, float(total.gradient["w"]), total.terms.loss) for update, total in steps]


GONE = WorkerLostError("it is gone")


def test_replicas_compute_their_shards_and_all_step_with_the_sum_of_all():
    stage = Replicas({}, {}, {})
    assert stage.train(updates=2) == "end_training of reserved-0"
    for number, shards in enumerate(([0], [1], [2, 3])):
        assert stage.actors[number].all_of("begin_training") == [(shards,)]
        assert stage.actors[number].all_of("add_to_training") == [(SAMPLES,)]
        assert stage.actors[number].all_of("shard_sums") == [(0, shards), (1, shards)]
        assert stage.totals(number) == [(0, 1111.0, 4.0), (1, 1111.0, 4.0)]
    assert not stage.lost


@pytest.mark.parametrize("method", ["begin_training", "add_to_training", "shard_sums", "take_training_step"])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_the_shards_of_a_replica_that_is_lost_are_computed_by_the_others(method: str, gone: int):
    stage = Replicas(*({method: GONE} if number == gone else {} for number in range(3)))
    left = [number for number in range(3) if number != gone]
    assert stage.train(updates=2) == f"end_training of reserved-{left[0]}"
    assert all(stage.totals(number) == [(0, 1111.0, 4.0), (1, 1111.0, 4.0)] for number in left)
    done = [args for number in left for args in stage.actors[number].all_of("shard_sums")]
    assert sorted(one for update, shards in done for one in shards if update == 1) == [0, 1, 2, 3]
    assert stage.lost == [f"reserved-{gone}"]
    assert stage.actors[gone].killed and len(stage.trainers.devices) == 2


def test_a_replica_that_hangs_is_lost_and_the_last_one_ends_the_run():
    stage = Replicas({}, {"shard_sums": None}, limit_s=0.05)
    assert stage.train() == "end_training of reserved-0"
    assert stage.lost == ["reserved-1"] and stage.totals(0) == [(0, 1111.0, 4.0)]
    stage.actors[0].answers["train"] = GONE
    with pytest.raises(RuntimeFailure, match=r"it is gone.*nothing committed is lost"):
        stage.train()


def test_one_that_is_lost_between_two_looks_is_lost_alone(monkeypatch: pytest.MonkeyPatch):
    stage, wait = Replicas({}, *[{"add_to_training": None}] * 2), module.wait
    stage.trainers._look = lambda: None
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)

    def wait_and_lose(calls: Sequence[Future[Any]], **options: Any) -> Any:
        found = wait(calls, **options)
        late, lost = (actor.calls[-1][2] for actor in stage.actors[1:])
        if lost in found.not_done:
            lost.set_exception(GONE)
        elif late in found.not_done:
            late.set_result(None)
        return found

    monkeypatch.setattr(module, "wait", wait_and_lose)
    assert stage.train() == "end_training of reserved-0"
    assert stage.lost == ["reserved-2"] and stage.totals(1) == [(0, 1111.0, 4.0)]


def test_a_replica_alone_trains_in_one_call():
    stage = Replicas({})
    assert stage.train() == "train of reserved-0"
    assert stage.actors[0].all_of("begin_training") == [([0, 1, 2, 3],)]


def test_what_replicas_refuse_is_raised_and_ends_none():
    stage = Replicas(*[{"take_training_step": TrainingError("ratio")}] * 2)
    with pytest.raises(TrainingError, match="ratio"):
        stage.train()
    assert not stage.lost and not stage.actors[0].killed


def test_another_replica_answers_for_a_leader_that_is_gone():
    stage = Replicas({"blobs": GONE}, {})
    assert stage.trainers.state(Worker.blobs) == "blobs of reserved-1"
    assert stage.lost == ["reserved-0"]


def test_a_replacement_gets_the_state_of_another_and_must_hold_the_same_weights():
    weights = Weights(WeightsVersion(3), "digest", {})
    stage = Replicas({}, {})
    stage.trainers.set_kl_weight(0.5)
    newcomer = Replica("reserved-1.1", {"use_training_weights": "digest"})
    device = Device(newcomer, "reserved")
    stage.trainers.register([device], weights)
    assert newcomer.asked == [
        ("restore", "blobs of reserved-0"), ("set_kl_weight", 0.5), ("use_training_weights", weights.version)
    ]  # fmt: skip
    assert device in stage.trainers and device.holds == weights.version
    stage.train()
    assert newcomer.all_of("shard_sums") == [(0, [2, 3])]
    dying = Device(Replica("reserved-0.1", {"restore": GONE, "use_training_weights": GONE}), "reserved")
    stage.trainers.register([dying], weights)
    assert dying not in stage.trainers and stage.lost == ["reserved-0.1"]
    with pytest.raises(RuntimeFailure, match="after loading"):
        odd = Device(Replica("odd", {"use_training_weights": "other"}), "reserved")
        stage.trainers.register([odd], weights)


def test_newcomers_are_no_trainers_before_they_hold_the_weights():
    """Another thread saves a checkpoint while they join."""
    weights, digest = Weights(WeightsVersion(3), "digest", {}), {"use_training_weights": "digest"}
    stage = Replicas(digest)
    (first,) = stage.devices
    first.holds = weights.version

    answers = stage.trainers._answers

    def meanwhile(asked: Asked[Any]) -> list[Any]:
        if asked.devices[0] is new:
            assert stage.trainers.holds(weights.version) and len(stage.trainers.devices) == 1
            stage.trainers.use_training_weights(weights.version)
        if asked.method == "set_kl_weight":
            stage.trainers.drop(gone)  # its instance is gone, and another thread has found out
        return answers(asked)

    new, gone = [Device(Replica(name, digest), "spot") for name in ("spot-0", "spot-1")]
    stage.trainers.set_kl_weight(0.5)
    stage.trainers._answers = meanwhile  # type: ignore[method-assign]
    stage.trainers.register([new, gone], weights)
    assert stage.trainers.devices == (first, new) and new.holds == weights.version


def test_a_trainer_under_notice_stops_before_the_only_update():
    stage = Replicas({}, {}, {})
    stage.trainers._at_boundary = lambda: (
        stage.trainers.drop(stage.devices[2]) if stage.trainers.training else None
    )
    assert stage.train() == "end_training of reserved-0"
    assert not stage.actors[2].all_of("add_to_training")
    assert stage.totals(0) == stage.totals(1) == [(0, 1111.0, 4.0)]


def test_spot_trainers_come_after_reserved_ones_which_answer_and_are_never_all_lost():
    weights, lost, boundaries = Weights(WeightsVersion(3), "digest", {}), [], []
    actors = {
        name: Replica(name, {"use_training_weights": "digest"}) for name in ("reserved-0", "spot-0", "spot-1")
    }
    first, *spot = [Device(actor, "spot" if "spot" in name else "reserved") for name, actor in actors.items()]
    trainers = Trainers(
        [first], 300.0, lambda value: value, lambda: None, 4,
        lambda device, _: lost.append(device.name), lambda: boundaries.append(trainers.training),
    )  # fmt: skip
    trainers.register(spot, weights)
    assert actors["reserved-0"].all_of("blobs") == [()], "the state is asked for once"
    later = Device(Replica("reserved-1.1", {"use_training_weights": "digest"}), "reserved")
    trainers.register([later], weights)
    assert [one.name for one in trainers.devices] == ["reserved-0", "reserved-1.1", "spot-0", "spot-1"]
    trainers.wait_for(trainers.begin_iteration())
    assert trainers.training and boundaries == [False]
    trainers.drop(spot[0])
    assert trainers.spot == [spot[1]]
    assert trainers.train(SAMPLES, 2) == "end_training of reserved-0"
    assert not trainers.training and boundaries == [False, True, True], "before each update"
    assert not actors["spot-0"].all_of("shard_sums") and not actors["spot-0"].killed
    trainers.on_worker_lost(first, GONE)
    assert trainers.ask_leader(Worker.weights) == "weights of reserved-1.1" and lost == ["reserved-0"]
    with pytest.raises(RuntimeFailure, match="nothing committed is lost"):
        trainers.on_worker_lost(later, GONE)
    assert actors["spot-1"].killed


class Feeding:
    """A feed of some trainers, and an iteration of four groups of four."""

    def __init__(self, trainers: int = 1, replicas: Replicas | None = None, **algorithm: Any) -> None:
        self.config = tiny_config(algorithm={"prompts_per_iteration": 4, "group_size": 4, **algorithm})
        self.actors = [Actor(f"reserved-{number}") for number in range(trainers)]
        self.devices = [Device(actor, "reserved", WeightsVersion(0)) for actor in self.actors]
        self.booked: list[tuple[str, str]] = []
        trained = replicas.trainers if replicas else Trainers(self.devices, 60.0, lambda value: value)
        self.feed = TrainingFeed(
            self.config.algorithm, "graded", trained, lambda *entered: self.booked.append(entered)
        )
        self.scores: list[Future[Score]] = [Future() for _ in EXPECTED]
        self.feed.expect(REQUESTS, 0)

    def deliver(self, *numbers: int) -> None:
        for number in numbers:
            self.feed.note(EXPECTED[number], self.scores[number])

    @classmethod
    def judged(cls, count: int, **settings: Any) -> Feeding:
        """A feed that has so many samples with their scores."""
        stage = cls(**settings)
        stage.deliver(*range(count))
        stage.judge(*range(count))
        return stage

    def judge(self, *numbers: int, value: float | None = None, error: str | None = None) -> None:
        for number in numbers:
            self.scores[number].set_result(
                Score(number / 16 if value is None else value, False, "", error=error)
            )

    def take(self) -> Mapping[str, Future[Any]]:
        return self.feed.take(self.devices)

    def given(self, actor: int = 0) -> list[tuple[str, list[int], bool]]:
        """Calls: their names, the prompts of their samples, and whether they begin an iteration."""
        calls = [(name, args[0]) for name, args, _ in self.actors[actor].calls]
        return [
            (name, sorted({sample.request.prompt_id for sample in samples}), before == "begin_training")
            for (before, _), (name, samples) in pairwise([("", []), *calls])
            if name != "begin_training"
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


@pytest.mark.parametrize(("groups", "updates"), [(0, 0), (1, 1), (2, 2), (4, 2)])
def test_replicas_take_no_more_steps_than_there_are_groups(groups: int, updates: int):
    replicas = Replicas(*[{"end_training": REPORT}] * 2)
    stage = Feeding(replicas=replicas, updates_per_iteration=2)
    stage.deliver(*range(16))
    stage.judge(*range(4 * groups))
    stage.judge(*range(4 * groups, 16), value=0.5)
    assert stage.feed.finish(stage.trained()) is REPORT
    for number in range(2):
        assert [update for update, _, _ in replicas.totals(number)] == list(range(updates))


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
    stage = Feeding.judged(16, advantage_std="batch")
    stage.feed.give()
    assert stage.given() == []
    assert stage.take() == {}


def test_free_trainers_take_a_group_at_a_time_and_only_all_together():
    stage = Feeding.judged(8, trainers=2)
    assert stage.feed.take(stage.devices[:1]) == {}
    taken = stage.take()
    assert list(taken) == ["reserved-0", "reserved-1"]
    assert stage.given(0) == stage.given(1) == [("add_to_training", [0], True)]
    assert all(actor.asked[0] == ("begin_training", [0]) for actor in stage.actors), "they divide its batches"
    assert stage.actors[0].calls[1][1][1], "they may have to generate again"
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
    stage = Feeding.judged(8)
    stage.feed.give()
    stage.actors[0].calls[1][2].set_result(None)
    assert stage.booked == [("reserved-0", "train")]
    stage.end()
    assert stage.booked == [("reserved-0", "train"), ("reserved-0", "idle")]


def test_a_trainer_that_rolls_out_again_is_not_booked_as_idle_when_another_ends_its_call():
    stage = Feeding.judged(4, trainers=2)
    stage.take()
    stage.actors[0].calls[1][2].set_result(None)
    assert stage.booked[-1] == ("reserved-0", "idle")
    stage.booked.clear()  # the dispatcher gives it a lease
    stage.actors[1].calls[1][2].set_result(None)
    assert stage.booked == [("reserved-1", "idle")]


def finish(stage: Feeding, samples: Sequence[Any]) -> None:
    """The last call ends as soon as it is made."""
    stage.end()
    stage.actors[0].ahead = [REPORT]
    stage.feed.finish(samples)


@pytest.mark.parametrize(("without", "trained"), [(16, ([], True)), (8, ([1, 2, 3], False))])
def test_groups_without_variance_are_trained_on_where_settings_say_so_but_never_alone(without, trained):
    stage = Feeding(zero_variance_groups="train")
    stage.deliver(*range(16))
    stage.judge(*range(without), value=0.5)
    stage.judge(*range(without, 16))
    stage.take()
    finish(stage, stage.trained())
    assert stage.given() == [("add_to_training", [0], True), ("train", *trained)]


@pytest.mark.parametrize(("given", "left_out", "anew"), [(1, None, False), (0, 0, True), (4, 0, True)])
def test_the_rest_goes_with_the_training_steps_and_other_scores_than_those_given_begin_anew(
    given: int, left_out: int | None, anew: bool
):
    stage = Feeding.judged(16)
    for _ in range(given):
        stage.take()
    finish(stage, [sample for sample in stage.trained() if sample.request.prompt_id != left_out])
    assert stage.given()[-1] == ("train", [1, 2, 3], anew)


def test_what_was_given_of_another_iteration_is_not_trained_on():
    stage = Feeding.judged(4)
    stage.take()
    stage.feed.expect(REQUESTS, 1)
    assert stage.devices[0].holds is None, "their weights may be divided"
    assert stage.take() == {}
    stage.end()
    stage.actors[0].ahead = [SimpleNamespace(training_steps=0)]
    stage.feed.finish([])
    assert stage.given()[-1] == ("train", [], True)
    stage.feed.expect(REQUESTS, 2)
    assert stage.feed.left_s is None, "no step was taken: it does not tell how long training takes"


def test_a_trainer_that_has_died_ends_the_training():
    stage = Feeding.judged(4)
    stage.take()
    stage.actors[0].calls[1][2].set_exception(WorkerLostError("gone"))
    with pytest.raises(RuntimeFailure, match="trainer's process is gone"):
        stage.feed.finish([])


def test_replicas_whose_groups_are_abandoned_do_not_train():
    replicas = Replicas({}, {})
    stage = Feeding.judged(4, replicas=replicas)
    assert stage.feed.take(replicas.devices) and replicas.trainers.training
    stage.feed.abandon()
    assert not replicas.trainers.training, "a spot device that leaves can be given back"


def test_what_can_be_trained_before_the_end_takes_as_long_as_before(monkeypatch):
    now = [0.0]
    for one in (module, training_feed):
        monkeypatch.setattr(one, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stage = Feeding(updates_per_iteration=2)
    assert stage.feed.left_s is None, "nothing has been trained yet"
    stage.deliver(*range(16))
    stage.judge(*range(4))
    stage.take()
    now[0] = 3.0
    stage.end()
    now[0] = 5.0
    actor = stage.actors[0]
    actor.call = partial(takes_two_seconds, now)  # type: ignore[assignment]
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


def takes_two_seconds(now: list[float], method: Callable[..., Any], *_: Any) -> Future[Any]:
    call: Future[Any] = Future()
    now[0] += 2.0 * (method is Worker.train)
    call.set_result(REPORT)
    return call
