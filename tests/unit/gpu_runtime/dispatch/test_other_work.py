"""Trainers that find nothing to generate do something else, while the dispatcher goes on with the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.phase import OtherWork
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.scheduling.requests import WeightsVersion
from storage.errors import RuntimeFailure, WorkerLostError
from tests.fake_generators import FakeGeneratorFleet
from tests.scripted import Script
from tests.tiny_run import tiny_config
from tests.unit.gpu_runtime.dispatch.test_generation import (
    LEASE_S,
    ONE,
    REQUESTS,
    SAMPLER,
    TRAINER,
    assert_all_there,
)


class Parts(OtherWork):
    """Other work of a trainer: a number of calls, which end as all calls do."""

    def __init__(
        self, script: Script, parts: int, work: Callable[[], object] = lambda: None, trainer: str = TRAINER
    ) -> None:
        self._script, self.left, self._work, self._trainer = script, parts, work, trainer
        self.others_busy: list[bool] = []

    @property
    def left_s(self) -> None:
        """See `OtherWork`."""

    def begin(self, wake: Callable[[], None]) -> None:
        """See `OtherWork`."""

    def take(self, devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        if not self.left or self._trainer not in [device.name for device in devices]:
            return {}
        self.left -= 1
        self.others_busy.append(bool(self._script.under_way.get(ONE)))
        return {self._trainer: self._script.start(self._trainer, self._work)}


def dispatcher(script: Script) -> SimpleNamespace:
    config = tiny_config(runtime={"commit_steps": 1, "lease_s": LEASE_S})
    fleet = FakeGeneratorFleet([TRAINER, ONE], script, SAMPLER)
    loop = Dispatcher(config.runtime, config.sampling.batch_size, script.clock, ended=script)  # type: ignore[arg-type]
    return SimpleNamespace(fleet=fleet, phase=SamplePhase(REQUESTS, config.sampling), loop=loop)


def trainer_first(names: list[str]) -> str:
    return TRAINER if TRAINER in names else names[0]


def test_a_trainer_that_finds_nothing_to_roll_out_does_something_else_while_others_go_on():
    script = Script(trainer_first)
    stage = dispatcher(script)
    parts, looks = Parts(script, 2), []
    stage.fleet.regroups = lambda left, freed: looks.append(freed)
    stage.loop.run(stage.fleet, stage.phase, None, parts)
    assert_all_there(stage.phase.delivered)
    assert parts.others_busy == [True, True]
    assert sum(looks) == 3, "after each of the four leases but the last, and not after other work"


def test_it_goes_on_rolling_out_what_another_device_has_lost():
    script = Script(trainer_first)
    stage = dispatcher(script)
    parts = Parts(script, 1, lambda: setattr(stage.fleet.actors[ONE], "dead", True))
    stage.loop.run(stage.fleet, stage.phase, None, parts)
    assert parts.left == 0 and stage.fleet.events == [(ONE, "lost")]
    assert_all_there(stage.phase.delivered)


@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_is_lost_then_is_replaced_at_once(hangs: bool):
    def die() -> None:
        raise WorkerLostError("killed")

    script = Script(lambda names: ONE if ONE in names else TRAINER, hung=[ONE] if hangs else [])
    stage = dispatcher(script)
    add, asked = stage.fleet.add_ready_workers, []

    def add_noted() -> list[Future[Any]]:
        asked.append(list(stage.fleet.events))
        return add()

    script.before[2] = lambda: setattr(script, "now", 1e6 if hangs else 0.0)
    stage.fleet.add_ready_workers = add_noted
    stage.phase = SamplePhase(REQUESTS, tiny_config().sampling, accepts=lambda one: one.name == TRAINER)
    stage.loop.run(stage.fleet, stage.phase, None, Parts(script, 1, die, trainer=ONE))
    assert_all_there(stage.phase.delivered)
    assert asked[0] == [] and asked[1][-1] == (ONE, "lost")


def test_a_trainer_that_leaves_rolls_out_again_once_the_others_are_lost():
    script = Script(lambda names: ONE if ONE in names else TRAINER)
    stage = dispatcher(script)

    def leaves(device: Device) -> bool:
        others = [one.name for one in stage.fleet.workers(WeightsVersion(0))]
        return device.name != TRAINER or others == [TRAINER]

    def lose() -> None:
        assert stage.fleet.actors[TRAINER].calls == 0 and stage.phase.lease_s
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
    script.end(TRAINER)
    assert not stage.loop.busy(TRAINER), "it can be ended and replaced"


@pytest.mark.parametrize("while_others_are_dispatched", [False, True])
def test_its_loss_ends_the_run(while_others_are_dispatched: bool):
    script = Script(trainer_first)
    stage = dispatcher(script)
    workers, lost = stage.fleet.workers, []

    def die() -> None:
        if not lost:
            lost.append(TRAINER)
            raise WorkerLostError("killed")

    def workers_while_it_dies(version: WeightsVersion) -> list[Device]:
        if parts.left == 1 and not lost:
            script.end(TRAINER)
        return workers(version)

    if while_others_are_dispatched:
        stage.fleet.workers = workers_while_it_dies
    parts = Parts(script, 2, die)
    with pytest.raises(RuntimeFailure, match="trainer's process is gone"):
        stage.loop.run(stage.fleet, stage.phase, None, parts)


def test_one_that_hangs_is_killed_where_nothing_else_is_left_to_wait_for():
    script = Script(trainer_first)
    stage = dispatcher(script)
    hangs = Parts(script, 1)
    take, kill, killed = hangs.take, stage.fleet.kill_hung_worker, []

    def kill_noted(device: Device, reason: str) -> None:
        killed.append((device.name, script.now))
        kill(device, reason)

    def take_and_hang(devices: Sequence[Device]) -> Mapping[str, Future[Any]]:
        taken = take(devices)
        if taken:
            script.hung |= {TRAINER, ONE}
        return taken

    hangs.take = take_and_hang  # type: ignore[method-assign]
    stage.fleet.kill_hung_worker = kill_noted
    with pytest.raises(RuntimeFailure, match="trainer's process is gone"):
        stage.loop.run(stage.fleet, stage.phase, None, hangs)
    limit_s = tiny_config(runtime={"lease_s": LEASE_S}).runtime.trainer_limit_s
    assert killed == [(ONE, LEASE_S), (TRAINER, limit_s)]


def test_one_whose_process_outlives_its_kill_is_killed_once_and_the_loop_goes_on_waiting():
    script = Script(hung=[ONE])
    stage = dispatcher(script)
    get, kill, killed, waits = script.get, stage.fleet.kill_hung_worker, [], []

    def get_noted(timeout: float | None) -> Future[Any] | None:
        if killed:
            waits.append(timeout)
        return get(timeout)

    def kill_noted(device: Device, reason: str) -> None:
        killed.append(device.name)
        kill(device, reason)

    script.get = get_noted  # type: ignore[method-assign]
    script.before[2] = lambda: setattr(script, "now", 1e6)
    stage.fleet.kill_hung_worker = kill_noted
    stage.fleet.actors[ONE].kill = lambda: None  # type: ignore[method-assign]
    stage.phase = SamplePhase(REQUESTS, tiny_config().sampling, accepts=lambda one: one.name == TRAINER)
    stage.loop.run(stage.fleet, stage.phase, None, Parts(script, 1, trainer=ONE))
    assert_all_there(stage.phase.delivered)
    assert killed == [ONE] and waits and None not in waits and min(waits) > 0
