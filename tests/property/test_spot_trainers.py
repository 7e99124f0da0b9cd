"""Any schedule of spot trainers that join, are warned and are lost gives the bits of one trainer alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.dispatch.devices import Device, Weights
from gpu_runtime.fleet.trainers import Trainers
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.protocol import Worker
from storage.errors import WorkerLostError
from storage.record.records import Market
from tests.tiny_run import TinyRun, tiny_config

R = TypeVar("R")

SHARDS, UPDATES, ITERATIONS = 4, 2, 3
CONFIG = tiny_config(
    algorithm={
        "objective": "nft", "kl_weight": 0.5, "updates_per_iteration": UPDATES, "gradient_shards": SHARDS
    },
    adaptation={"mode": "lora"},
)  # fmt: skip

Moment = tuple[str, int]
"""A call in an iteration, and the update that it belongs to."""

MOMENTS: list[Moment] = [
    ("begin_training", 0), ("add_to_training", 0), ("shard_sums", 0), ("take_training_step", 0),
    ("shard_sums", 1), ("take_training_step", 1), ("end_training", 0), ("restore", 0),
]  # fmt: skip


@dataclass(frozen=True)
class Alone:
    """An iteration of one trainer alone: its samples, its report, and the state after it."""

    samples: list[TrainingSample]
    report: TrainingReport
    blobs: dict[str, bytes]


@cache
def alone() -> list[Alone]:
    """The iterations of one trainer."""
    run, done = TinyRun(CONFIG), []
    for iteration in range(1, ITERATIONS + 1):
        samples = run.rollout(iteration)
        done.append(Alone(samples, run.trainer.train(samples), run.trainer.blobs()))
    return done


class Trainer(RemoteActor[Worker]):
    """A trainer in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.run = TinyRun(CONFIG)
        self.dies_at: Moment | None = None
        self.warned_at: Moment | None = None
        self.warned = self.dead = False
        self.gave: list[Moment] = []

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        answer: Future[Any] = Future()
        name = method.__name__
        moment = name, args[0] if name in ("shard_sums", "take_training_step") else 0
        self.dead = self.dead or moment == self.dies_at
        self.warned = self.warned or moment == self.warned_at
        if self.dead:
            answer.set_exception(WorkerLostError(f"{self.name} is gone"))
        else:
            answer.set_result(self._do(name, args))
        return answer

    def kill(self) -> None:
        self.dead = True

    def _do(self, name: str, args: tuple[Any, ...]) -> Any:
        trainer = self.run.trainer
        if name == "shard_sums":
            update, shards = args
            self.gave += [(update, shard) for shard in shards]
            return {span: one.as_arrays() for span, one in trainer.sums(update, shards).items()}
        calls: dict[str, Callable[..., Any]] = {
            "begin_training": trainer.begin,
            "add_to_training": trainer.add,
            "take_training_step": trainer.step,
            "end_training": trainer.end,
            "blobs": trainer.blobs,
            "restore": trainer.restore,
            "use_training_weights": lambda version: weights_digest(self.run.policy.state()),
            "train": lambda samples: (trainer.add(samples), trainer.finish())[1],
        }
        return calls[name](*args)


@dataclass
class Fleet:
    """Some trainers, of which spot ones come and go."""

    reserved: int
    actors: dict[str, Trainer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = [self._device("reserved", number) for number in range(self.reserved)]
        self.trainers = Trainers(
            first, 60.0, lambda value: value, lambda: None, SHARDS, at_boundary=self._drop_warned
        )

    def _device(self, market: Market, number: int) -> Device:
        name = f"{market}-{number}"
        self.actors[name] = Trainer(name)
        return Device(self.actors[name], market)

    def _drop_warned(self) -> None:
        for device in self.trainers.spot:
            if self.actors[device.name].warned:
                self.trainers.drop(device)

    def join(self, count: int, dies: bool, version: int) -> None:
        """Let spot devices train from now on; the last one may be lost on its way."""
        new = [self._device("spot", len(self.actors)) for _ in range(count)]
        if new and dies:
            self.actors[new[-1].name].dies_at = "restore", 0
        if new:
            digest = weights_digest(self.actors[self.trainers.devices[0].name].run.policy.state())
            self.trainers.register(new, Weights(WeightsVersion(version), digest, {}))

    def train(self, samples: list[TrainingSample], early: int) -> TrainingReport:
        """Train; the first samples are given before the others, as while a rollout still goes on."""
        for actor in self.actors.values():
            actor.gave.clear()
        self.trainers.wait_for(self.trainers.begin_iteration())
        if early:
            self.trainers.ask(Worker.add_to_training, samples[:early])
        return self.trainers.train(samples[early:], UPDATES)


Happening = tuple[str, int, Moment]
"""A loss or a notice, the number of the trainer in the order of present ones, and when."""

iterations = st.lists(
    st.tuples(
        st.integers(0, 2),  # spot devices that join before it
        st.booleans(),  # whether the last of these is lost on its way
        st.sampled_from([0, 2, 4]),  # samples given early
        st.lists(
            st.tuples(st.sampled_from(["loss", "notice"]), st.integers(1, 5), st.sampled_from(MOMENTS)),
            max_size=4,
        ),
    ),
    min_size=ITERATIONS,
    max_size=ITERATIONS,
)


@given(st.integers(1, 2), iterations)
def test_any_schedule_gives_the_bits_of_one_trainer_and_each_shard_once(
    reserved: int, schedule: list[tuple[int, bool, int, list[Happening]]]
):
    fleet = Fleet(reserved)
    for number, (joining, dies, early, happenings) in enumerate(schedule):
        fleet.join(joining, dies, number)
        present = fleet.trainers.devices
        for what, victim, moment in happenings:
            # The first reserved one stays: without it the run would end.
            actor = fleet.actors[present[min(victim, len(present) - 1)].name]
            if actor.name != "reserved-0":
                setattr(actor, "dies_at" if what == "loss" else "warned_at", moment)
        expected = alone()[number]
        assert fleet.train(expected.samples, early) == expected.report
        left = [fleet.actors[device.name] for device in fleet.trainers.devices]
        assert left[0].name == "reserved-0"
        assert all(actor.run.trainer.blobs() == expected.blobs for actor in left if not actor.dead)
        given = Counter(one for actor in fleet.actors.values() for one in actor.gave)
        assert set(given.values()) <= {1}, "each shard of an update is given once"
        assert not given or len(given) == SHARDS * UPDATES
        assert not any(
            fleet.actors[device.name].warned_at == ("begin_training", 0) for device in fleet.trainers.spot
        ), "one that was warned is dropped before the second update"
