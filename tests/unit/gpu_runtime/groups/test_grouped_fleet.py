"""Groups of devices that share each sequence: of fixed degrees, or chosen by measured times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import Delivered, SamplePhase
from gpu_runtime.groups import grouped_fleet
from gpu_runtime.groups.grouped_fleet import GeneratingGroup, GroupedFleet
from gpu_runtime.groups.sharing import MeasuredFleet
from gpu_runtime.scheduling.degree_choice import StepTimeTable
from gpu_runtime.scheduling.group_layout import GroupRegistry, WorkerGroup
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.history import HistoryLog, new_life, read_history
from gpu_runtime.worker.protocol import SampleChunk, Worker
from storage.errors import RuntimeFailure
from tests.fake_cluster import FakeWorker
from tests.fake_generators import FakeGenerator, FakeGeneratorFleet, FakeRendezvous
from tests.scripted import NOTICE, Script
from tests.tiny_run import tiny_config
from tests.unit.gpu_runtime.dispatch.test_generation import (
    BATCH,
    LEASE_S,
    ONE,
    REQUESTS,
    SAMPLER,
    TRAINER,
    TWO,
    assert_all_there,
)

THREE = "spot-2"
NAMES = (TRAINER, ONE, TWO, THREE)
PAIRS = {1: 1.0, 2: 1 / 4}
FOURS = {1: 1.0, 2: 1 / 4, 4: 1 / 16}
DEGREES = (1, 2, 4)


class ManualTimer:
    """A timer that goes off when the loop waits for nothing else."""

    running: list[ManualTimer]

    def __init__(self, _interval: float, function: Callable[[], None]) -> None:
        self.function = function
        self.daemon = False

    def start(self) -> None:
        self.running.append(self)

    def cancel(self) -> None:
        if self in self.running:
            self.running.remove(self)

    @classmethod
    def go_off(cls) -> None:
        for timer in list(cls.running):
            timer.function()


@pytest.fixture(autouse=True)
def manual_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that a script lets answer have done so when their group is called off."""
    monkeypatch.setattr(grouped_fleet, "_ANSWER_SHARE", 0.0)
    monkeypatch.setattr(ManualTimer, "running", [], raising=False)
    monkeypatch.setattr(grouped_fleet, "Timer", ManualTimer)


class Stage:
    """A phase whose samples are shared."""

    def __init__(
        self,
        script: Script | None = None,
        names: Sequence[str] = NAMES,
        step_s: dict[int, float] = PAIRS,
        commit_steps: int = 1,
        instances: dict[str, str] | None = None,
        history: Path | None = None,
        measured: StepTimeTable | None = None,
    ) -> None:
        self.script = script or Script()
        self.script.idle = ManualTimer.go_off
        self.fleet = FakeGeneratorFleet(names, self.script, SAMPLER)
        self.rendezvous = FakeRendezvous(self.fleet.actors, self.script)
        rest = (
            self.rendezvous, GroupRegistry(), lambda device: (instances or {}).get(device.name, ""), LEASE_S,
        )  # fmt: skip
        if measured is None:
            self.groups = GroupedFleet(self.fleet, WeightsVersion(0), step_s, *rest)
        else:
            self.groups = MeasuredFleet(
                self.fleet, WeightsVersion(0), measured, DEGREES, *rest, self.script.clock
            )
        config = tiny_config(runtime={"commit_steps": commit_steps, "lease_s": LEASE_S})
        driver = HistoryLog(history and new_life(history), "driver")
        ended: Any = self.script
        batch_size = config.sampling.batch_size
        self.loop = Dispatcher(config.runtime, batch_size, self.script.clock, driver, ended=ended)
        self.phase = SamplePhase(REQUESTS, config.sampling)

    def run(self) -> list[Delivered]:
        try:
            self.loop.run(self.groups, self.phase)
            return self.phase.delivered
        finally:
            self.groups.close()

    def actor(self, name: str) -> FakeGenerator:
        return self.fleet.actors[name]

    def when(self, what, do) -> None:
        """Do something once, before the first wait at which a condition holds."""
        done: list[bool] = []

        def look() -> None:
            if not done and what():
                done.append(True)
                do()

        self.script.before = _Always(look)

    def resumed_at(self, *names: str) -> set[int]:
        return {
            item.step
            for name in names or NAMES
            for work in self.actor(name).begun
            for item in work
            if isinstance(item, SampleState)
        }


class _Always(dict):
    """Before every wait."""

    def __init__(self, look) -> None:
        super().__init__()
        self._look = look

    def get(self, _key, _default=None):  # type: ignore[override]
        return self._look


def test_pairs_share_all_samples_and_the_leader_alone_delivers():
    stage = Stage()
    delivered = stage.run()
    assert_all_there(delivered)
    assert {one.worker for one in delivered} <= {f"{TRAINER}+{ONE}", f"{TWO}+{THREE}"}
    assert stage.actor(TRAINER).begun == stage.actor(ONE).begun != []
    counters = stage.loop.counters
    assert (counters.returned, counters.duplicates, counters.redone_steps) == (0, 0, 0)
    assert {len(record.members) for record in stage.groups.records} == {2}
    assert stage.fleet.states[ONE][0] == "regroup" and stage.fleet.states[ONE][1] == "rollout"


def test_groups_never_cross_instances_and_a_device_too_many_works_alone():
    script = Script(random.Random(1).choice)
    stage = Stage(script, instances={TRAINER: "a", ONE: "a", TWO: "a", THREE: "b"})
    delivered = stage.run()
    assert_all_there(delivered)
    assert {record.members for record in stage.groups.records} == {(TRAINER, ONE), (TWO,), (THREE,)}


@pytest.mark.parametrize("victim", [ONE, THREE])
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_the_loss_of_a_member_costs_the_chunk_under_way_and_the_others_go_on(victim: str, commits: int):
    stage = Stage(Script(random.Random(commits).choice), step_s=FOURS)
    stage.when(
        lambda: bool(stage.loop._flights) and stage.loop.counters.commits >= commits,
        lambda: setattr(stage.actor(victim), "dead", True),
    )
    delivered = stage.run()
    assert_all_there(delivered)
    assert stage.fleet.events == [(victim, "lost")]
    assert stage.loop.counters.returned == BATCH
    assert stage.loop.counters.redone_steps <= 2 * BATCH
    left = [name for name in NAMES if name != victim]
    assert {len(record.members) for record in stage.groups.records if victim not in record.members} == {1, 2}
    assert all("regroup" in stage.fleet.states[name][1:] for name in left)
    assert all(stage.actor(name).joined for name in left)


def test_a_chunk_that_the_leader_has_answered_counts_though_another_member_died_in_it():
    struck: list[str] = []

    def choose(names: list[str]) -> str:
        if stage.loop._flights and not struck:
            if len(stage.script.under_way[TRAINER]) == 2:
                return TRAINER
            struck.append(ONE)
            stage.actor(ONE).dead = True
        return ONE if ONE in names else names[0]

    stage = Stage(Script(choose), names=(TRAINER, ONE))
    assert_all_there(stage.run())
    assert struck and stage.fleet.events == [(ONE, "lost")]
    assert stage.resumed_at(TRAINER) == {1}
    assert stage.loop.counters.redone_steps <= BATCH


def test_a_member_that_hangs_is_killed_and_the_others_are_not():
    stage = Stage(step_s=FOURS)
    stage.when(lambda: stage.loop.counters.commits >= 1, lambda: stage.script.hung.add(TWO))
    assert_all_there(stage.run())
    assert stage.fleet.events == [(TWO, "hung"), (TWO, "lost")]
    assert stage.loop.counters.expired == 1
    assert stage.resumed_at() <= {1, 2, 3} and stage.resumed_at()


def test_a_notice_stops_all_members_at_one_step_and_nothing_is_done_again():
    stage = Stage(step_s=FOURS, commit_steps=4)
    stage.actor(TWO).notice_at = lambda look: NOTICE if look >= 3 else None
    assert_all_there(stage.run())
    assert (TWO, "notice") in stage.fleet.events
    assert stage.loop.counters.redone_steps == 0
    assert stage.loop.counters.returned == BATCH
    assert len(stage.actor(TWO).joined) == 1, "it is in no other group"


def test_a_chunk_is_under_notice_if_any_member_is_even_before_its_answer_is_recorded():
    class Other(FakeWorker):
        def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
            call = super().call(method, *args, **kwargs)
            # Before the group's own callback: the leader answers between this answer and its record.
            call.add_done_callback(lambda _: leader.open_calls["in_group"].set_result(SampleChunk()))
            return call

    leader, other = FakeWorker(ONE, watches=True), Other(TWO, watches=True)
    leader.silent = other.silent = {"in_group"}
    devices = [Device(leader, "spot"), Device(other, "spot")]
    group = GeneratingGroup(WorkerGroup(0, 0, (ONE, TWO)), devices, lambda place: None)
    answer, known = group.call(Worker.advance_samples, 0, 1), []
    answer.add_done_callback(lambda _: known.append(dict(group.notices)))
    other.open_calls["in_group"].set_result(SampleChunk(notice=NOTICE))
    assert answer.result(timeout=0).notice == NOTICE
    assert known == [{ONE: None, TWO: NOTICE}], "its members' too, or the group would pull again"


def test_a_newcomer_makes_groups_grow_between_chunks(tmp_path: Path):
    script = Script()
    stage = Stage(script, step_s=FOURS, history=tmp_path)
    newcomer = stage.fleet.withdraw(THREE)
    loaded = script.start("its weights", lambda: stage.fleet.devices.append(newcomer))
    stage.fleet.newcomers = [loaded]
    script.hung.add("its weights")
    stage.when(lambda: stage.loop.counters.commits >= 1, lambda: script.end("its weights"))
    delivered = stage.run()
    assert_all_there(delivered)
    assert stage.loop.counters.redone_steps == 0
    assert {len(record.members) for record in stage.groups.records} >= {4}
    assert "+".join(NAMES) in {one.worker for one in delivered}
    lines = read_history(tmp_path)
    assert "retired" in {line.facts["why"] for line in lines if line.event == "back"}
    assert check_history(lines).held_twice == ()


def test_a_trial_gets_the_only_batch_of_a_phase_though_other_devices_are_ready_first():
    measured = StepTimeTable()
    for _ in range(2):
        measured.note(1, 100.0, first=False)
    script = Script(lambda names: next((name for name in (TWO, THREE) if name in names), names[0]))
    stage = Stage(script, measured=measured)
    stage.phase = SamplePhase(REQUESTS[:BATCH], tiny_config().sampling)
    assert_all_there(stage.run(), SAMPLER.generate(REQUESTS[:BATCH]))
    assert sorted(measured.known) == [1, 2]


def test_groups_that_break_again_and_again_end_the_phase(monkeypatch: pytest.MonkeyPatch):
    stage = Stage()
    stage.rendezvous.dead = lambda place: ["an unknown worker"]  # type: ignore[method-assign]
    with pytest.raises(RuntimeFailure, match=r"although all members are alive.*all degrees of"):
        stage.run()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_measured", [False, True])
def test_whatever_happens_every_sample_is_there_once(tmp_path: Path, seed: int, is_measured: bool):
    """Deaths, notices and hung members at random moments; the trainer stays."""
    chance = random.Random(seed)
    script = Script(chance.choice)
    names = [TRAINER, *(f"spot-{number}" for number in range(5))]
    step_times = StepTimeTable()
    for degree in DEGREES[: chance.randrange(4)]:
        for _ in range(2):
            step_times.note(degree, chance.choice([0.1, 0.4, 1.0, 1.5]), first=False)
    step_s, commit_steps = chance.choice([PAIRS, FOURS]), chance.choice([1, 2, 200])
    stage = Stage(
        script, names, step_s, commit_steps, history=tmp_path, measured=step_times if is_measured else None
    )
    for name in names[1:]:
        actor, waits = stage.actor(name), chance.randrange(40)
        fate = chance.choice(["dies", "hangs", "notice", "lives"])
        if fate == "dies":
            script.before[waits] = lambda actor=actor: setattr(actor, "dead", True)
        elif fate == "hangs":
            script.before[waits] = lambda name=name: script.hung.add(name)  # while it joins a group, perhaps
        elif fate == "notice":
            since, until = waits, waits + chance.randrange(12)
            actor.notice_at = lambda look, a=since, b=until: NOTICE if a <= look < b else None
    assert_all_there(stage.run())
    assert stage.loop.counters.duplicates <= stage.loop.counters.returned
    report = check_history(read_history(tmp_path))
    assert (report.held_twice, report.lost, report.duplicated) == ((), (), ())
