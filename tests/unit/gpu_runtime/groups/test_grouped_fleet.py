"""Groups of devices that share each sequence: of fixed degrees, or chosen by measured times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import Delivered, SamplePhase
from gpu_runtime.groups import grouped_fleet, sharing
from gpu_runtime.groups.grouped_fleet import GroupedFleet
from gpu_runtime.groups.sharing import MeasuredFleet
from gpu_runtime.scheduling.degree_choice import StepTimeTable, choose_layout
from gpu_runtime.scheduling.group_layout import GroupRegistry
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
from gpu_runtime.worker.history import HistoryLog, new_life, read_history
from storage.errors import RuntimeFailure
from storage.record.records import GroupRecord
from tests.fake_generators import NOTICE, FakeGenerator, FakeGeneratorFleet, FakeRendezvous, Script
from tests.tiny_run import request, tiny_config
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
from tests.virtual_time import VirtualTime, VirtualTimeFleet

THREE = "spot-2"
NAMES = (TRAINER, ONE, TWO, THREE)
PAIRS = {1: 1.0, 2: 1 / 4}
FOURS = {1: 1.0, 2: 1 / 4, 4: 1 / 16}
DEGREES = (1, 2, 4)
JOIN_S = 0.1
COSTLY = {1: 1.0, 2: 0.8, 4: 0.6}
"""Sharing shortens an image, but costs throughput."""
USELESS = {1: 1.0, 2: 1.1, 4: 1.2}
SUPERLINEAR = {1: 1.0, 2: 0.4, 4: 0.15}
"""One device is too small: sharing wins throughput too."""


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
    def go_off(cls) -> bool:
        due = list(cls.running)
        for timer in due:
            timer.function()
        return bool(due)


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
        self.script.overdue = ManualTimer.go_off
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


def test_a_newcomer_makes_groups_grow_between_chunks(tmp_path: Path):
    script = Script()
    stage = Stage(script, step_s=FOURS, history=tmp_path)
    newcomer = stage.fleet.withdraw(THREE)
    loaded = script.start("its weights", lambda: stage.fleet.admit(newcomer))
    stage.fleet.newcomers = lambda: [] if loaded.done() else [loaded]
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


def test_groups_that_break_again_and_again_end_the_phase(monkeypatch: pytest.MonkeyPatch):
    stage = Stage()
    stage.rendezvous.dead = lambda place: ["an unknown worker"]  # type: ignore[method-assign]
    with pytest.raises(RuntimeFailure, match=r"although all members live.*all degrees of"):
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


def requests(batches: int) -> list[SampleRequest]:
    return [request(prompt, seed) for prompt in range(4) for seed in range(batches * BATCH // 4)]


class Phase:
    """One phase of a run of four devices that take played time."""

    def __init__(
        self, step_s: dict[int, float], batches: int, step_times: StepTimeTable | None = None,
        fixed: dict | None = None,
    ) -> None:  # fmt: skip
        time = self.time = VirtualTime(step_s, JOIN_S)
        self.fleet = VirtualTimeFleet(NAMES, time, SAMPLER)
        rendezvous = FakeRendezvous(self.fleet.actors, time)
        rest = (rendezvous, GroupRegistry(), lambda device: "", LEASE_S)
        self.step_times = step_times or StepTimeTable()
        if fixed:
            self.groups = GroupedFleet(self.fleet, WeightsVersion(0), fixed, *rest)
        else:
            self.groups = MeasuredFleet(
                self.fleet, WeightsVersion(0), self.step_times, DEGREES, *rest, time.clock
            )
        self.requests = requests(batches)
        config = tiny_config(runtime={"commit_steps": 1, "lease_s": LEASE_S})
        self.loop = Dispatcher(config.runtime, config.sampling.batch_size, time.clock, ended=time)  # type: ignore[arg-type]
        self.phase = SamplePhase(self.requests, config.sampling)
        self.loop.run(self.groups, self.phase)
        delivered = self.phase.delivered
        self.took_s = time.now
        self.groups.close()
        assert_all_there(delivered, SAMPLER.generate(self.requests))
        assert self.loop.counters.redone_steps == self.loop.counters.duplicates == 0

    @property
    def records(self) -> list[GroupRecord]:
        return self.groups.records

    @property
    def degrees(self) -> list[int]:
        """Numbers of devices that shared the leases, in the order of their deliveries."""
        return [len(one.worker.split("+")) for one in self.phase._delivered.values()][::BATCH]

    def idle_share(self) -> float:
        return self.fleet.spent_s.get("idle", 0.0) / (4 * self.took_s)


def test_where_sharing_is_superlinear_all_devices_share_from_the_second_phase_on():
    first = Phase(SUPERLINEAR, 16)
    assert dict(first.step_times.known) == SUPERLINEAR
    assert [len(record.members) for record in first.records] == [1, 1, 1, 1, 2, 2, 4]
    second = Phase(SUPERLINEAR, 16, first.step_times)
    assert set(second.degrees) == {4}
    assert len(second.records) == 1, "it begins with the groups that it ends with"
    best = Phase(SUPERLINEAR, 16, fixed=FOURS)
    assert second.took_s == pytest.approx(best.took_s, abs=JOIN_S)
    assert first.took_s < Phase(SUPERLINEAR, 16, fixed={1: 1.0}).took_s


def test_where_sharing_costs_throughput_devices_work_alone_until_the_tail():
    first = Phase(COSTLY, 17)
    second = Phase(COSTLY, 17, first.step_times)
    assert second.degrees[:16] == [1] * 16
    assert second.degrees[16:] == [4], "the last batch is shared by all"
    alone = Phase(COSTLY, 17, fixed={1: 1.0})
    # 16 batches in four rounds of four steps; then four steps by four devices, not by one.
    assert alone.took_s == pytest.approx(20)
    assert second.took_s == pytest.approx(16 + JOIN_S + 4 * COSTLY[4], abs=JOIN_S)
    assert second.took_s < alone.took_s - 1
    assert second.idle_share() < alone.idle_share() / 2


def test_a_phase_with_fewer_batches_than_devices_leaves_no_device_idle():
    known = Phase(COSTLY, 17).step_times
    shared = Phase(COSTLY, 1, known)
    assert shared.degrees == [4]
    assert shared.took_s == pytest.approx(JOIN_S + 4 * COSTLY[4])
    assert shared.idle_share() == 0
    assert Phase(COSTLY, 2, known).degrees == [2, 2]


def test_of_three_batches_four_devices_share_one():
    step_s = {1: 1.0, 2: 0.6, 4: 0.5}
    three, alone = Phase(step_s, 3, Phase(step_s, 17).step_times), Phase(step_s, 3, fixed={1: 1.0})
    assert sorted(len(record.members) for record in three.records)[:3] == [1, 1, 2]
    assert three.took_s <= alone.took_s
    assert three.idle_share() < alone.idle_share()


def test_where_sharing_only_costs_one_trial_shows_it_and_sharing_ends():
    first = Phase(USELESS, 17)
    assert set(first.step_times.known) == {1, 2}, "four are not tried where two are no faster"
    assert max(first.degrees[-4:]) == 1
    alone = Phase(USELESS, 17, fixed={1: 1.0})
    assert first.took_s < 1.25 * alone.took_s
    second = Phase(USELESS, 17, first.step_times)
    assert {len(record.members) for record in second.records} == {1}
    assert second.took_s == alone.took_s


def test_a_choice_is_made_again_only_once_something_that_it_depends_on_has_changed(monkeypatch):
    made: list[tuple[object, ...]] = []

    def choose(places, standing, left, times, degrees):
        made.append((places, standing, left, times.known, times.regroup_s))
        return choose_layout(places, standing, left, times, degrees)

    monkeypatch.setattr(sharing, "choose_layout", choose)
    Phase(COSTLY, 17)
    assert len(made) > 1 and all(one != two for one, two in pairwise(made))


def test_a_phase_too_short_for_a_trial_makes_none():
    short = Phase({1: 0.1, 2: 0.05, 4: 0.02}, 4)
    assert {len(record.members) for record in short.records} == {1}
