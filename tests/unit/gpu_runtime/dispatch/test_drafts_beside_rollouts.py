"""A rollout with drafts beside it: who does what when, and that nothing is lost, done twice or different."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.diffusion.samples import GeneratedImage, SampleState
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.drafts import DraftLimits, DraftPhase, DraftTask, TrainingWindow
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.exploration.draft_planner import Draft
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.scheduling.history import HistoryLine, check_history
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.history import read_history
from storage.errors import RuntimeFailure
from tests.fake_generators import FakeGenerator, FakeGeneratorFleet
from tests.scripted import NOTICE, Script
from tests.tiny_run import request, tiny_config
from tests.unit.gpu_runtime.dispatch.test_generation import (
    BATCH,
    LEASE_S,
    ONE,
    REQUESTS,
    SAMPLER,
    STEPS,
    TRAINER,
    TWO,
    assert_all_there,
)


class Listed:
    """A planner whose drafts are all known."""

    can_plan = True

    def __init__(self, count: int) -> None:
        self.left = [Draft(5, seed, "full") for seed in range(count)]
        self.round_of = dict.fromkeys(self.left, 0)

    def next_round(self) -> list[Draft]:
        taken, self.left = self.left[:BATCH], self.left[BATCH:]
        return taken

    def observe(self, draft: Draft, score: float | None) -> None:
        assert draft not in self.left and score is not None


def task(round_: int, draft: Draft) -> DraftTask:
    return DraftTask(request(5, draft.seed_index, RequestKind.EXPLORE, iteration=2), "full", round_)


class Stage:
    """A rollout of four batches, and drafts beside it."""

    def __init__(
        self,
        script: Script | None = None,
        names: Sequence[str] = (TRAINER, ONE, TWO),
        drafts: int = 3 * BATCH,
        folder: Path | None = None,
    ) -> None:
        self.script = script or Script()
        self.fleet = FakeGeneratorFleet(names, self.script, SAMPLER)
        log = None if folder is None else self.fleet.keep_history(folder, SAMPLER)
        config = tiny_config(runtime={"commit_steps": 1, "lease_s": LEASE_S})
        ended: Any = self.script
        self.loop = Dispatcher(
            config.runtime, config.sampling.batch_size, self.script.clock, log, ended=ended
        )
        self.rollout = SamplePhase(REQUESTS, config.sampling)
        self.planner: Any = Listed(drafts)
        self.window = TrainingWindow(SeedPlan(1, {}), WeightsVersion(0))
        limits = DraftLimits(
            BATCH, {"full": STEPS}, {"full": 1.0}, self.window,
            drafts_on=lambda device: device.name != TRAINER, stops_with_training=False,
        )  # fmt: skip
        version = WeightsVersion(0)
        self.drafts = DraftPhase(
            (), self.planner, lambda candidate: candidate.value, task, self.judge, version, limits,
            self.script.clock,
        )  # fmt: skip

    def judge(self, images: Sequence[GeneratedImage]) -> list[Future[Score]]:
        """A scorer that is one more name in the script."""
        values = [int(image.image_HWC.sum()) % 97 / 97 for image in images]
        return [self.script.start("scorer", lambda value=value: Score(value, False, "")) for value in values]

    def roll_out(self) -> None:
        self.loop.run(self.fleet, self.rollout, self.drafts)
        assert_all_there(self.rollout.delivered)

    def go_on(self) -> None:
        """What the task of exploring does after the rollout."""
        self.loop.run(self.fleet, self.drafts)
        self.drafts.end()

    def actor(self, name: str) -> FakeGenerator:
        return self.fleet.actors[name]

    def begun(self, name: str) -> list[tuple[RequestKind, int]]:
        """What a device's leases were of, and the step that each went on from."""
        first = [work[0] for work in self.actor(name).begun]
        return [(item.request.kind, item.step) if isinstance(item, SampleState) else (item.kind, 0)
                for item in first]  # fmt: skip

    @property
    def values(self) -> dict[int, float]:
        """Each draft's score, by seed."""
        judged = self.drafts.candidates
        assert len({draft.seed_index for draft in judged}) == len(judged)
        return {draft.seed_index: draft.value for draft in judged}


def one_after_another(*names: str) -> Callable[[list[str]], str]:
    """The first of these names that has a call under way ends it; others last."""
    return lambda busy: next((name for name in names if name in busy), busy[0])


def drafting_at_the_end(drafts: int) -> Stage:
    """A rollout whose last batch is delivered when the device `TWO` has begun to draft."""
    stage = Stage(drafts=drafts)
    quick = one_after_another(TRAINER, TWO, ONE), one_after_another(TRAINER, ONE)
    stage.script.choose = lambda busy: quick[DRAFT in stage.begun(TWO)](busy)
    stage.roll_out()
    return stage


def alone() -> dict[int, float]:
    """The scores of the drafts of a phase without a rollout."""
    stage = Stage()
    stage.go_on()
    return stage.values


ROLLOUT, DRAFT = (RequestKind.ROLLOUT, 0), (RequestKind.EXPLORE, 0)


def test_a_device_with_nothing_left_to_roll_out_drafts_and_the_trainer_does_not():
    # The first spot device is the quickest: it does the rollout but for one batch each of the others'.
    stage = Stage(Script(one_after_another(ONE, "scorer", TRAINER, TWO)), drafts=BATCH)
    stage.roll_out()
    assert stage.begun(ONE) == [ROLLOUT, ROLLOUT, DRAFT]
    assert stage.begun(TRAINER) == [ROLLOUT] and stage.begun(TWO) == [ROLLOUT]
    assert stage.fleet.states[ONE] == ["rollout", "explore", "idle"]
    assert stage.fleet.states[TRAINER] == ["rollout", "idle"]
    assert len(stage.values) == BATCH  # judged before the rollout has ended
    stage.go_on()
    assert stage.values.items() <= alone().items()


def test_no_draft_is_planned_before_a_device_that_may_make_it_is_there():
    stage = Stage(names=(TRAINER, ONE), drafts=BATCH)
    stage.fleet.withdraw(ONE)
    stage.fleet.newcomers = [Future()]
    stage.roll_out()
    assert len(stage.planner.left) == BATCH


def test_a_draft_under_way_at_the_rollout_s_end_goes_on_where_it_is():
    stage = drafting_at_the_end(drafts=BATCH)
    assert stage.loop.busy(TWO) and stage.values == {}
    assert stage.fleet.states[TWO][-1] == "explore"
    stage.go_on()
    assert stage.begun(TWO) == [ROLLOUT, DRAFT]
    assert stage.loop.counters.returned == 0
    assert stage.values.items() <= alone().items() and len(stage.values) == BATCH


def test_requests_that_come_back_are_rolled_out_before_a_draft_goes_on_from_its_commit(tmp_path):
    script = Script(one_after_another(ONE, TWO))
    stage = Stage(script, drafts=BATCH, folder=tmp_path)

    def lose() -> None:
        if stage.begun(ONE)[-1:] == [DRAFT] and not stage.actor(TWO).dead:
            stage.actor(TWO).dead = True
            script.end(TWO)

    for wait in range(100):
        script.before[wait] = lose
    stage.roll_out()
    assert stage.fleet.events == [(TWO, "lost")]
    assert stage.begun(ONE) == [ROLLOUT, ROLLOUT, DRAFT, ROLLOUT, (RequestKind.EXPLORE, 2)]
    stage.go_on()
    assert stage.values.items() <= alone().items() and len(stage.values) == BATCH
    lines = read_history(tmp_path)
    assert [line.facts["why"] for line in lines if line.event == "back"] == ["lost", "yielded"]
    assert check_history(lines).broken() == []
    assert stage.loop.counters.redone_steps == BATCH  # of the lost device's chunk, none of the draft


def test_drafts_that_no_explore_goes_on_with_are_dropped_by_the_next_phase():
    stage = drafting_at_the_end(drafts=3 * BATCH)
    assert stage.loop.busy(TWO)
    evaluation = [request(prompt, 0, RequestKind.EVALUATE) for prompt in range(3)]
    phase = SamplePhase(evaluation, tiny_config().sampling)
    stage.loop.run(stage.fleet, phase)
    assert_all_there(phase.delivered, SAMPLER.generate(evaluation))
    assert stage.values == {} and not stage.loop.busy(TWO)
    assert not stage.loop._scheduler.unfinished() and stage.loop._begun == []


def test_a_rollout_that_fails_leaves_nothing_of_the_drafts():
    script = Script(one_after_another(ONE, TWO))
    stage = Stage(script)

    def die() -> None:
        if DRAFT in stage.begun(ONE):
            stage.actor(TRAINER).dead = True
            script.choose = one_after_another(TRAINER)

    for wait in range(100):
        script.before[wait] = die
    with pytest.raises(RuntimeFailure, match="the trainer's process is gone"):
        stage.roll_out()
    assert not any(stage.loop.busy(name) for name in (TRAINER, ONE, TWO))
    assert stage.loop._begun == [] and not stage.loop._scheduler.unfinished()


def test_a_window_that_is_over_ends_drafts_beside_a_rollout_and_not_the_rollout():
    stage = Stage()
    stage.window.abandon()
    stage.roll_out()
    stage.go_on()
    assert stage.values == {}


def test_the_window_opens_when_the_first_device_can_draft():
    script = Script(one_after_another(ONE, TWO, TRAINER))
    for wait in range(200):
        script.before[wait] = lambda: setattr(script, "now", script.now + 1.0)
    stage = Stage(script, drafts=BATCH)
    stage.roll_out()
    opened_s = script.now - stage.window.open(script.now)
    assert 0 < opened_s < script.now
    stage.window.close(script.now + 5)
    assert stage.window.length_s == script.now + 5 - opened_s


@given(st.integers(0, 2**32 - 1))
def test_faults_change_no_bit_of_a_rollout_and_each_draft_is_judged_once(tmp_path_factory, seed):
    source = random.Random(seed)
    script = Script(source.choice)
    folder = tmp_path_factory.mktemp("history")
    stage = Stage(script, folder=folder)
    fates = [
        lambda actor: setattr(actor, "dead", True),
        lambda actor: setattr(actor, "notice_at", lambda look: NOTICE),
        lambda actor: script.hung.add(actor.name),
        lambda actor: None,
    ]
    victim = stage.actor(source.choice([ONE, TWO]))
    script.before[source.randrange(60)] = lambda: source.choice(fates)(victim)
    stage.roll_out()
    stage.go_on()
    assert stage.values == alone()
    lines = read_history(folder)
    report = check_history(lines)
    assert report.broken() == [] and report.requested == len(REQUESTS)
    assert rollouts_come_first(line for line in lines if line.by == "driver")


def rollouts_come_first(lines: Iterable[HistoryLine]) -> bool:
    """Whether no draft was begun, or gone on with by another device, while a sample waited."""
    waiting: set[str] = set()
    held: dict[int, set[str]] = {}
    for line in lines:
        facts = line.facts
        if line.event == "generate":
            waiting |= set(facts["requests"])
        elif line.event == "lease" and facts["kind"] == "rollout":
            held[facts["lease"]] = set(facts["requests"])
            waiting -= held[facts["lease"]]
        elif line.event == "lease" and waiting:
            return False
        elif line.event == "deliver":
            waiting -= set(facts["accepted"])
            held.get(facts["lease"], set()).difference_update(facts["accepted"])
        elif line.event == "back":
            waiting |= held.pop(facts["lease"], set())
    return True
