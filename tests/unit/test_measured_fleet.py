"""Groups whose degree measured times choose; times are simulated, or calls end in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import Delivered, SamplePhase
from gpu_runtime.groups import generating_group, grouped_fleet
from gpu_runtime.groups.grouped_fleet import GroupedFleet
from gpu_runtime.groups.measured_fleet import MeasuredFleet
from gpu_runtime.groups.registry import GroupRegistry
from gpu_runtime.groups.step_times import StepTimeTable
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
from gpu_runtime.worker.history_log import HistoryLog, new_life
from gpu_runtime.worker.history_tail import read_history
from storage.record.records import GroupRecord
from tests.fake_generators import NOTICE, FakeGeneratorFleet, FakeRendezvous, Script
from tests.tiny_run import request, tiny_config
from tests.unit.test_generation import BATCH, LEASE_S, SAMPLER, TRAINER, assert_all_there
from tests.unit.test_grouped_fleet import FOURS, NAMES, ManualTimer
from tests.virtual_time import VirtualTime, VirtualTimeFleet

DEGREES = (1, 2, 4)
JOIN_S = 0.1
COSTLY = {1: 1.0, 2: 0.8, 4: 0.6}
"""Sharing shortens an image, but costs throughput."""
USELESS = {1: 1.0, 2: 1.1, 4: 1.2}
SUPERLINEAR = {1: 1.0, 2: 0.4, 4: 0.15}
"""One device is too small: sharing wins throughput too."""


def requests(batches: int) -> list[SampleRequest]:
    return [request(prompt, seed) for prompt in range(4) for seed in range(batches * BATCH // 4)]


class Phase:
    """One phase of a run of four devices that take played time."""

    def __init__(
        self,
        step_s: dict[int, float],
        batches: int,
        step_times: StepTimeTable | None = None,
        fixed: dict | None = None,
    ) -> None:
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
        settings = {"commit_steps": 1, "lease_s": LEASE_S}
        self.requests = requests(batches)
        config = tiny_config(runtime=settings)
        self.loop = Dispatcher(config, time.clock, ended=time)  # type: ignore[arg-type]
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
        """By how many devices the leases were shared, in the order of their deliveries."""
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


def test_a_phase_too_short_for_a_trial_makes_none():
    short = Phase({1: 0.1, 2: 0.05, 4: 0.02}, 4)
    assert {len(record.members) for record in short.records} == {1}


@pytest.fixture
def manual_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that a script lets answer have done so when their group is called off."""
    monkeypatch.setattr(grouped_fleet, "_ANSWER_SHARE", 0.0)
    monkeypatch.setattr(ManualTimer, "running", [], raising=False)
    monkeypatch.setattr(generating_group, "Timer", ManualTimer)


def in_any_order(
    chance: random.Random, script: Script, names: Sequence[str], history: Path
) -> list[Delivered]:
    """A phase whose devices die, hang or are under notice at random moments; the trainer stays."""
    script.overdue = ManualTimer.go_off
    fleet = FakeGeneratorFleet(names, script, SAMPLER)
    step_times = StepTimeTable()
    for degree in DEGREES[: chance.randrange(4)]:
        for _ in range(2):
            step_times.note(degree, chance.choice([0.1, 0.4, 1.0, 1.5]), first=False)
    groups = MeasuredFleet(
        fleet, WeightsVersion(0), step_times, DEGREES, FakeRendezvous(fleet.actors, script), GroupRegistry(),
        lambda device: "", LEASE_S, script.clock,
    )  # fmt: skip
    settings = {"commit_steps": chance.choice([1, 2, 200]), "lease_s": LEASE_S}
    driver = HistoryLog(new_life(history), "driver")
    config = tiny_config(runtime=settings)
    loop = Dispatcher(config, script.clock, driver, ended=script)  # type: ignore[arg-type]
    phase = SamplePhase(requests(8), config.sampling)
    for name in names[1:]:
        actor, waits = fleet.actors[name], chance.randrange(60)
        fate = chance.choice(["dies", "hangs", "notice", "lives"])
        if fate == "dies":
            script.before[waits] = lambda actor=actor: setattr(actor, "dead", True)
        elif fate == "hangs":
            script.before[waits] = lambda name=name: script.hung.add(name)
        elif fate == "notice":
            since, until = waits, waits + chance.randrange(12)
            actor.notice_at = lambda look, a=since, b=until: NOTICE if a <= look < b else None
    try:
        loop.run(groups, phase)
        return phase.delivered
    finally:
        groups.close()


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.usefixtures("manual_timers")
def test_whatever_happens_every_sample_is_there_once(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    names = [TRAINER, *(f"spot-{number}" for number in range(5))]
    delivered = in_any_order(chance, Script(chance.choice), names, tmp_path)
    assert_all_there(delivered, SAMPLER.generate(requests(8)))
    report = check_history(read_history(tmp_path))
    assert (report.held_twice, report.lost, report.duplicated) == ((), (), ())
