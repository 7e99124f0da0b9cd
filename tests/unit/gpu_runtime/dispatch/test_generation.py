"""The loop that generates, with devices whose calls end in an order of the test's choosing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import Delivered, SamplePhase
from gpu_runtime.scheduling import pull_scheduler
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.history import read_history
from storage.errors import RuntimeFailure
from tests.fake_generators import FakeGenerator, FakeGeneratorFleet
from tests.scripted import NOTICE, Script
from tests.tiny_model import TinyModel
from tests.tiny_run import request, tiny_config

BATCH, STEPS, LEASE_S = 4, 4, 300.0
SAMPLER = Sampler(TinyModel(), tiny_config().sampling)
REQUESTS = [request(prompt, seed) for prompt in range(4) for seed in range(4)]
EXPECTED = SAMPLER.generate(REQUESTS)
TRAINER, ONE, TWO = "reserved-0", "spot-0", "spot-1"


class Stage:
    """All that a phase needs."""

    def __init__(
        self,
        script: Script | None = None,
        names: Sequence[str] = (TRAINER, ONE, TWO),
        commit_steps: int = 1,
        requests: Sequence[SampleRequest] = REQUESTS,
        folder: Path | None = None,
    ) -> None:
        self.script = script or Script()
        self.fleet = FakeGeneratorFleet(names, self.script, SAMPLER)
        config = tiny_config(runtime={"commit_steps": commit_steps, "lease_s": LEASE_S})
        self.phase = SamplePhase(requests, config.sampling)
        ended: Any = self.script
        log = None if folder is None else self.fleet.keep_history(folder, SAMPLER)
        batch_size = config.sampling.batch_size
        self.loop = Dispatcher(config.runtime, batch_size, self.script.clock, log, ended=ended)

    def run(self) -> list[Delivered]:
        self.loop.run(self.fleet, self.phase)
        return self.phase.delivered

    def actor(self, name: str) -> FakeGenerator:
        return self.fleet.actors[name]

    def resumed_at(self) -> list[int]:
        """The committed steps that leases began from, one a sample."""
        begun = [item for actor in self.fleet.actors.values() for work in actor.begun for item in work]
        return [item.step for item in begun if isinstance(item, SampleState)]


def assert_all_there(delivered: list[Delivered], expected=EXPECTED) -> None:
    assert [d.sample.request for d in delivered] == [sample.request for sample in expected]
    for one, sample in zip(delivered, expected, strict=True):
        assert np.array_equal(one.sample.image_HWC, sample.image_HWC)
        assert np.array_equal(one.sample.trajectory.after_WSC, sample.trajectory.after_WSC)
        assert np.array_equal(one.sample.trajectory.log_prob_W, sample.trajectory.log_prob_W)


def first_but(last: str) -> Callable[[list[str]], str]:
    """That device's calls end only when no other's can."""
    return lambda names: next((name for name in names if name != last), last)


@pytest.mark.parametrize("commit_steps", [1, 3, 4, STEPS + 1])
@pytest.mark.parametrize("seed", range(3))
def test_samples_have_the_order_of_the_requests_and_the_bits_of_one_go(seed: int, commit_steps: int):
    stage = Stage(Script(random.Random(seed).choice), commit_steps=commit_steps)
    assert_all_there(stage.run())
    counters = stage.loop.counters
    assert (counters.returned, counters.duplicates, counters.redone_steps) == (0, 0, 0)
    assert stage.fleet.events == []
    leases = sum(len(actor.begun) for actor in stage.fleet.actors.values())
    calls = sum(actor.calls for actor in stage.fleet.actors.values())
    assert (leases, calls) == (4, 4 * -(-STEPS // commit_steps))


def test_devices_are_only_asked_to_take_part_while_requests_wait():
    asked: list[str] = []
    stage = Stage()
    stage.phase.accepts = lambda device: not asked.append(device.name)
    assert_all_there(stage.run())
    assert len(asked) == 4, "once a batch"


def test_evaluation_has_its_own_number_of_steps():
    wanted = [request(prompt, 0, RequestKind.EVALUATE) for prompt in range(3)]
    stage = Stage(names=[TRAINER], requests=wanted)
    assert_all_there(stage.run(), SAMPLER.generate(wanted))
    assert stage.actor(TRAINER).calls == 3


def test_a_device_has_its_next_chunk_before_the_last_one_is_committed():
    ahead: list[int] = []
    script = Script()
    stage = Stage(script, names=[TRAINER])
    for wait in range(4 * STEPS):
        script.before[wait] = lambda: ahead.append(len(script.under_way[TRAINER]))
    stage.run()
    # Of four chunks of a lease two are there at once, until one is left.
    assert ahead == [2, 2, 2, 1] * 4


def test_where_steps_are_quick_more_of_them_are_done_before_a_commit(monkeypatch):
    monkeypatch.setattr(pull_scheduler, "_COMMIT_STEPS", 1)
    monkeypatch.setattr(pull_scheduler, "_WORTH_A_COMMIT_S", 2.0)
    script = Script()
    stage = Stage(script, names=[TRAINER], commit_steps=0)
    for wait in range(4 * STEPS):
        script.before[wait] = lambda: setattr(script, "now", script.now + 1.0)
    assert_all_there(stage.run())
    # Every call takes a second. Two of one step, then one of two, as a step took a second; then calls of
    # four, as it took half a second.
    assert stage.actor(TRAINER).calls == 3 + 1 + 1 + 1


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_what_a_lost_device_had_goes_on_elsewhere_from_its_last_commit(commits: int):
    script = Script(lambda names: ONE if ONE in names else names[0])
    stage = Stage(script)
    script.before[commits] = lambda: setattr(stage.actor(ONE), "dead", True)
    assert_all_there(stage.run())
    assert stage.resumed_at() == ([commits] * BATCH if commits else [])
    assert stage.fleet.events == [(ONE, "lost")]
    # The chunk under way went with it: a step of each sample.
    assert (stage.loop.counters.returned, stage.loop.counters.redone_steps) == (BATCH, BATCH)
    assert stage.fleet.states[ONE] == ["rollout"]


def test_when_all_spot_is_gone_the_trainer_finishes_alone():
    script = Script(first_but(TRAINER))
    stage = Stage(script)
    script.before[4] = lambda: [setattr(stage.actor(name), "dead", True) for name in (ONE, TWO)]
    delivered = stage.run()
    assert_all_there(delivered)
    assert stage.fleet.events == [(ONE, "lost"), (TWO, "lost")]
    # One spot device had delivered a batch and begun another; the other one's was under way.
    assert {d.worker for d in delivered} <= {TRAINER, ONE}
    assert stage.loop.counters.returned == 2 * BATCH


def test_the_trainer_s_death_or_other_weights_end_the_phase():
    stage = Stage()
    stage.actor(TRAINER).dead = True
    with pytest.raises(RuntimeFailure, match="the trainer's process is gone"):
        stage.run()
    with pytest.raises(RuntimeFailure, match="holds weights v0, but v2 are requested"):
        Stage(requests=[replace(one, policy_version=2) for one in REQUESTS]).run()


def test_a_device_that_hangs_is_killed_when_its_lease_expires():
    script = Script()
    stage = Stage(script)
    script.before[2] = lambda: script.hung.add(ONE)
    script.before[0] = lambda: script.end(ONE)  # one commit
    delivered = stage.run()
    assert_all_there(delivered)
    assert script.now == LEASE_S
    assert stage.fleet.events == [(ONE, "hung"), (ONE, "lost")]
    assert stage.actor(ONE).dead
    assert ONE not in {d.worker for d in delivered}
    assert stage.resumed_at() == [1] * BATCH
    counters = stage.loop.counters
    assert (counters.expired, counters.returned, counters.redone_steps) == (1, BATCH, BATCH)


def test_the_device_that_has_been_silent_longest_is_given_up_first():
    script = Script()
    stage = Stage(script)
    script.hung |= {TRAINER, ONE, TWO}

    def answer_once_and_late() -> None:
        script.now = LEASE_S - 0.5
        script.end(TRAINER)

    script.before[0] = answer_once_and_late
    script.before[3] = lambda: script.hung.discard(TRAINER)
    assert_all_there(stage.run())
    assert script.now == LEASE_S
    assert stage.fleet.events == [(ONE, "hung"), (ONE, "lost"), (TWO, "hung"), (TWO, "lost")]


def test_a_device_that_hangs_under_notice_is_given_up_even_as_the_last_one_at_work():
    script = Script()
    stage = Stage(script, names=[TRAINER, ONE])
    # As a trainer that has left the rollout: it comes back when no other device is there.
    stage.phase.accepts = lambda device: device.name == ONE or len(stage.fleet.devices) == 1
    stage.actor(ONE).notice_at = lambda look: NOTICE
    script.before[1] = lambda: script.hung.add(ONE)  # its second call is under way
    assert_all_there(stage.run())
    assert script.now == LEASE_S
    assert stage.fleet.events == [(ONE, "notice"), (ONE, "hung"), (ONE, "lost")]
    counters = stage.loop.counters
    assert (counters.expired, counters.returned, counters.redone_steps) == (0, BATCH, 0)


def test_a_device_that_is_slow_but_alive_keeps_its_lease():
    script = Script()
    stage = Stage(script, names=[TRAINER])
    for wait in range(4 * STEPS):
        script.before[wait] = lambda: setattr(script, "now", script.now + 0.9 * LEASE_S)
    assert_all_there(stage.run())
    assert stage.fleet.events == []


def test_late_samples_of_a_device_that_was_given_up_are_accepted_where_no_other_was_faster():
    script = Script(lambda names: ONE if ONE in names else names[0])
    stage = Stage(script, commit_steps=STEPS)
    script.hung.add(ONE)
    stage.actor(ONE).deaf = True
    delivered = stage.run()
    assert_all_there(delivered)
    assert [d.worker for d in delivered].count(ONE) == BATCH
    assert stage.fleet.events == [(ONE, "hung"), (ONE, "lost")]
    assert stage.loop.counters.duplicates == 0


def test_late_samples_are_dropped_where_another_was_faster(tmp_path: Path):
    script = Script(lambda names: ONE if ONE in names and len(stage.phase._delivered) == 12 else TRAINER)
    stage = Stage(script, names=[TRAINER, ONE], commit_steps=STEPS, folder=tmp_path)
    script.hung.add(ONE)
    stage.actor(ONE).deaf = True
    # The trainer's leases are younger: only the other one expires.
    script.before[0] = lambda: setattr(script, "now", 0.7 * LEASE_S)
    script.before[1] = lambda: setattr(script, "now", 1.1 * LEASE_S)
    delivered = stage.run()
    assert_all_there(delivered)
    assert {d.worker for d in delivered} == {TRAINER}
    report = check_history(read_history(tmp_path))
    assert report.broken() == [] and report.dropped == stage.loop.counters.duplicates == BATCH
    assert report.steps_redone == report.steps_done - report.steps_needed == BATCH * STEPS
    assert [(loss.worker, loss.most) for loss in report.redone] == [(ONE, STEPS)]


@pytest.mark.parametrize("looks", [1, 2, 3, 4])
def test_a_notice_cuts_the_chunk_and_no_step_is_done_again(tmp_path: Path, looks: int):
    """A device looks before its first step and after each one."""
    stage = Stage(commit_steps=STEPS, folder=tmp_path)

    def notice_at(look: int) -> Notice | None:
        stage.script.now += 1.0
        return NOTICE if look >= looks else None

    stage.actor(ONE).notice_at = notice_at
    delivered = stage.run()
    assert_all_there(delivered)
    assert stage.fleet.events == [(ONE, "notice")]
    assert {device.name: device.step_s for device in stage.fleet.devices}[ONE] is None
    assert stage.resumed_at() == ([looks - 1] * BATCH if looks > 1 else [])
    assert (stage.loop.counters.returned, stage.loop.counters.redone_steps) == (BATCH, 0)
    assert ONE not in {d.worker for d in delivered}
    assert len(stage.actor(ONE).begun) == 1, "it gets nothing more"
    assert stage.fleet.states[ONE] == ["rollout", "idle"]
    lines = read_history(tmp_path)
    assert check_history(lines).steps_redone == 0
    assert [line.by for line in lines if line.event == "notice"] == [ONE]
    assert [line.facts["why"] for line in lines if line.event == "back"] == ["notice"]


def test_samples_that_are_finished_when_the_notice_comes_are_delivered():
    stage = Stage(commit_steps=STEPS)
    stage.actor(ONE).notice_at = lambda look: NOTICE if look > STEPS else None
    delivered = stage.run()
    assert_all_there(delivered)
    assert [d.worker for d in delivered].count(ONE) == BATCH
    assert (stage.fleet.events, stage.loop.counters.returned) == ([(ONE, "notice")], 0)


def test_a_device_that_dies_under_notice_takes_nothing_with_it():
    script = Script(lambda names: ONE if ONE in names else names[0])
    stage = Stage(script)
    stage.actor(ONE).notice_at = lambda look: NOTICE
    script.before[1] = lambda: setattr(stage.actor(ONE), "dead", True)  # a second call is under way
    assert_all_there(stage.run())
    assert stage.fleet.events == [(ONE, "notice"), (ONE, "lost")]
    assert (stage.loop.counters.returned, stage.loop.counters.redone_steps) == (BATCH, 0)


def test_a_device_whose_notice_is_withdrawn_pulls_again():
    script = Script(lambda names: ONE if ONE in names else names[0])
    stage = Stage(script)
    stage.actor(ONE).notice_at = lambda look: NOTICE if look == 2 else None
    delivered = stage.run()
    assert_all_there(delivered)
    assert stage.fleet.events == [(ONE, "notice"), (ONE, "withdrawn")]
    assert ONE in {d.worker for d in delivered}
    assert stage.resumed_at() == [1] * BATCH


def with_newcomer(script: Script) -> Stage:
    """A trainer, and a device that is there once the call for its weights has ended."""
    stage = Stage(script, names=[TRAINER, ONE])
    device = stage.fleet.withdraw(ONE)
    loaded = script.start("its weights", lambda: stage.fleet.devices.append(device))
    stage.fleet.newcomers = [loaded]
    return stage


def test_a_device_that_comes_in_the_midst_of_a_phase_pulls_and_no_bit_changes():
    script = Script(lambda names: TRAINER if TRAINER in names else names[0])
    stage = with_newcomer(script)
    # After two of the trainer's calls the newcomer holds the weights; then it is the faster one.
    script.before[2] = lambda: script.end("its weights")
    script.before[3] = lambda: setattr(script, "choose", lambda names: ONE if ONE in names else names[0])
    script.hung.add("its weights")
    delivered = stage.run()
    assert_all_there(delivered)
    assert [d.worker for d in delivered].count(ONE) == 3 * BATCH
    assert stage.loop.counters.returned == 0


def test_a_newcomer_ends_the_wait_for_a_device_that_hangs():
    """No other device has work under way: the loop wakes for the newcomer, before the lease expires."""
    script = Script()
    stage = with_newcomer(script)
    script.hung.add(TRAINER)
    seen: list[float] = []
    script.before[3] = lambda: (seen.append(script.now), script.hung.discard(TRAINER))
    assert_all_there(stage.run())
    assert seen == [0.0]
    assert ONE in {one.worker for one in stage.phase._delivered.values()}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_bits_are_the_same_and_the_history_keeps_the_promises(tmp_path, seed: int):
    """Deaths, notices and hung devices at random moments; the trainer stays. An evaluation comes again."""
    chance = random.Random(seed)
    script = Script(chance.choice)
    names = [TRAINER, *(f"spot-{number}" for number in range(4))]
    stage = Stage(script, names, commit_steps=chance.choice([1, 2, STEPS]), folder=tmp_path)
    for name in names[1:]:
        actor, wait = stage.actor(name), chance.randrange(12)
        fate = chance.choice(["dies", "hangs", "deaf", "notice", "lives"])
        actor.deaf = fate == "deaf"
        if fate == "dies":
            script.before[wait] = lambda actor=actor: setattr(actor, "dead", True)
        elif fate in ("hangs", "deaf"):
            script.before[wait] = lambda name=name: script.hung.add(name)
        elif fate == "notice":
            since, until = wait, wait + chance.randrange(12)
            actor.notice_at = lambda look, a=since, b=until: NOTICE if a <= look < b else None
    assert_all_there(stage.run())
    stage.phase = SamplePhase(REQUESTS, tiny_config().sampling)
    assert_all_there(stage.run())
    lines = read_history(tmp_path)
    report = check_history(lines)
    if any(actor.deaf for actor in stage.fleet.actors.values()):  # what those do late is done twice
        assert (report.lost, report.duplicated, report.held_twice) == ((), (), ())
    else:
        assert report.broken() == []
    assert report.requested == 2 * len(REQUESTS)
    leases = [line.facts["lease"] for line in lines if line.event == "lease"]
    assert leases == list(range(len(leases)))
