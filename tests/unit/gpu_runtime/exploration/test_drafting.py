"""Phases of drafts, with devices and scorers whose calls end in an order of the test's choosing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.drafts import DraftLimits, DraftPhase, DraftTask, TrainingWindow
from gpu_runtime.exploration.draft_planner import Arm, Draft, DraftPlanner, PlannerSettings, ScoreHistory
from gpu_runtime.exploration.fidelity import preview_step
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.scheduling.scores import Score
from storage.config.runtime import RuntimeConfig
from tests.fake_drafters import STEPS, FakeDrafter, FakePool, Judge, fake_devices, fake_prompts
from tests.scripted import FakeFleet, Script

PROMPTS, GROUP, BATCH = 3, 2, 4


def task(draft: Draft, round_: int, iteration: int = 2) -> DraftTask:
    preview = preview_step(draft.fidelity) or 0
    request = SampleRequest(
        RequestKind.EXPLORE, 0, iteration, draft.prompt_id, draft.seed_index, 1, "", preview
    )
    return DraftTask(request, draft.fidelity, round_)


def rare_success(prompt: int, seed: int) -> Score:
    """Every fifth seed is a success, another one for each prompt."""
    good = (seed + prompt) % 5 == 0
    return Score(float(good), good, "")


class Stage:
    """All that a phase needs."""

    def __init__(
        self,
        script: Script,
        devices: int = 2,
        judge: Judge = rare_success,
        stops_with_training: bool = True,
        fits: Callable[[float, float], bool] = lambda elapsed_s, full_drafts: True,
    ) -> None:
        self.script = script
        self.planner = DraftPlanner(
            range(PROMPTS), PlannerSettings(GROUP, PROMPTS, 12, 36), [Arm()],
            ScoreHistory().past(range(PROMPTS), 2), (0, 2),
        )  # fmt: skip
        self.pool = FakePool(2, script, judge)
        self.window = TrainingWindow(SeedPlan(1, {}), WeightsVersion(1))
        self.devices = fake_devices(devices, script)
        self.fleet = FakeFleet(self.devices)
        self.limits = DraftLimits(
            batch_size=BATCH,
            steps={"full": STEPS, "preview-2": 2},
            cost={"full": 1.0, "preview-2": 0.75},
            window=self.window,
            stops_with_training=stops_with_training,
            fits=fits,
        )
        self.dispatcher = Dispatcher(RuntimeConfig(), BATCH, script.clock, ended=script)  # type: ignore[arg-type]

    def run(self, *first: DraftTask) -> DraftPhase:
        phase = self.phase(*first)
        self.dispatcher.run(self.fleet, phase)
        phase.end()
        return phase

    def phase(self, *first: DraftTask) -> DraftPhase:
        judge = partial(self.pool.judge, prompts=fake_prompts(PROMPTS))
        return DraftPhase(
            first, self.planner, lambda candidate: candidate.value, lambda round_, draft: task(draft, round_),
            judge, WeightsVersion(1), self.limits, self.script.clock,
        )  # fmt: skip

    @property
    def returned(self) -> int:
        return self.dispatcher.counters.returned

    def drafter(self, place: int) -> FakeDrafter:
        actor = self.devices[place].actor
        assert isinstance(actor, FakeDrafter)
        return actor


def request_of(item: SampleRequest | SampleState) -> SampleRequest:
    return item.request if isinstance(item, SampleState) else item


def choice(stage: Stage) -> dict[int, tuple[int, ...]]:
    return stage.planner.choose().seeds


def undisturbed() -> Stage:
    stage = Stage(Script())
    stage.run()
    return stage


def test_everything_planned_is_drafted_and_judged_once():
    stage = Stage(Script())
    made = stage.run()
    assert not stage.planner.can_plan
    assert len(made.candidates) == stage.planner.spent
    # A short batch takes as long as a full one.
    begun = [requests for place in (0, 1) for requests in stage.drafter(place).begun]
    assert made.full_drafts == len(begun) * BATCH >= len(made.candidates)
    assert made.lease_s > 0
    assert len({(c.prompt_id, c.seed_index) for c in made.candidates}) == len(made.candidates)
    assert {c.policy_version for c in made.candidates} == {1}
    assert {(states[0], states[-1]) for states in stage.fleet.states.values()} == {("explore", "idle")}
    # Each group has its success, which is one of five seeds.
    assert all(any((seed + p) % 5 == 0 for seed in seeds) for p, seeds in choice(stage).items())


@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_the_order_of_arrival_does_not_change_the_plan(random, devices):
    stage = Stage(Script(random.choice), devices=devices)
    stage.run()
    assert choice(stage) == choice(undisturbed())


def test_the_window_closes_in_the_middle():
    script = Script()
    stage = Stage(script)
    chunks: list[int] = []

    def close() -> None:
        chunks.append(sum(stage.drafter(place).chunks for place in (0, 1)))
        stage.window.close(1.0)

    script.before[9] = close
    made = stage.run()
    assert 0 < len(made.candidates) < 36
    assert script.waits == 10  # it waits for nothing more,
    assert [sum(stage.drafter(place).chunks for place in (0, 1))] == chunks  # and begins nothing more
    assert any(name.startswith("spot") for name in script.under_way)
    assert all(len(seeds) == GROUP for seeds in choice(stage).values())


@pytest.mark.parametrize("ends", ["close", "abandon"])
def test_a_window_that_is_over_leaves_plain_seeds(ends: str):
    stage = Stage(Script())
    stage.window.close(0.0) if ends == "close" else stage.window.abandon()
    assert stage.run().candidates == []
    assert stage.drafter(0).begun == []
    assert choice(stage) == {prompt: (0, 1) for prompt in range(PROMPTS)}


def test_judgements_that_are_there_at_the_end_count():
    script = Script()
    stage = Stage(script)

    def end() -> None:
        for name in [name for name in script.under_way if name.startswith("scorer")]:
            script.end(name)
        stage.window.close(1.0)

    # Devices first: the scorers' calls pile up.
    script.choose = lambda names: next((n for n in names if n.startswith("spot")), names[0])
    script.before[6] = end
    made = stage.run()
    assert len(made.candidates) > 0


def test_without_stopping_the_window_s_end_changes_nothing():
    script = Script()
    stage = Stage(script, stops_with_training=False)
    script.before[3] = lambda: stage.window.close(1.0)
    stage.run()
    assert choice(stage) == choice(undisturbed())


def test_an_abandoned_window_stops_even_that():
    script = Script()
    stage = Stage(script, stops_with_training=False)
    script.before[3] = lambda: stage.window.close(1.0)
    script.before[5] = lambda: stage.window.abandon()
    stage.run()
    assert script.waits == 6


def test_a_device_that_dies_is_reported_and_another_does_its_drafts():
    stage = Stage(Script(dying=["spot-0"]))
    stage.run()
    assert stage.fleet.events == [("spot-0", "lost")]
    assert stage.returned == BATCH
    assert choice(stage) == choice(undisturbed())


def test_a_device_that_hangs_is_given_up_and_another_does_its_drafts():
    stage = Stage(Script(hung=["spot-0"]))
    stage.run()
    assert stage.fleet.events == [("spot-0", "hung"), ("spot-0", "lost")]
    assert stage.returned == BATCH
    # What it sent when it was killed came late, and counts for nothing.
    assert not stage.script.under_way and stage.drafter(0).chunks == 1
    assert choice(stage) == choice(undisturbed())


@pytest.mark.parametrize("chunk", [1, 2, 3, 4])
def test_a_device_under_notice_drafts_no_more_and_another_does_its_drafts(chunk: int):
    stage = Stage(Script())
    stage.drafter(0).notice_from_chunk = chunk
    stage.run()
    # A draft takes two chunks: at an even one its images are there, and count.
    assert stage.returned == (BATCH if chunk % 2 else 0)
    assert stage.drafter(0).chunks == chunk
    assert stage.devices[0].notice is not None and stage.fleet.events == [("spot-0", "notice")]
    assert stage.fleet.states["spot-0"][-1] == "idle"
    assert choice(stage) == choice(undisturbed())


@pytest.mark.parametrize("fate", ["notice", "death"])
def test_a_draft_goes_on_elsewhere_from_its_last_commit(fate: str):
    script = Script()
    stage = Stage(script)
    if fate == "notice":
        stage.drafter(0).notice_from_chunk = 1
    else:
        script.before[2] = lambda: script.dying.add("spot-0")
    made = stage.run()
    gone_on = [item for work in stage.drafter(1).begun for item in work if isinstance(item, SampleState)]
    assert [item.step for item in gone_on] == [2] * BATCH
    assert made.full_drafts == (len(stage.drafter(1).begun) - 0.5) * BATCH, "half of one was done before"
    assert {item.request for item in gone_on} == {request_of(item) for item in stage.drafter(0).begun[0]}
    assert stage.dispatcher.counters.redone_steps == (0 if fate == "notice" else 2 * BATCH)
    assert choice(stage) == choice(undisturbed())


def test_a_device_that_comes_in_the_window_drafts():
    script = Script()
    stage = Stage(script)
    newcomer = stage.fleet.devices.pop()
    loaded: Future[None] = Future()
    stage.fleet.newcomers = [loaded]

    def join() -> None:
        stage.fleet.devices.append(newcomer)
        loaded.set_result(None)

    script.before[3] = join
    stage.run()
    assert stage.drafter(1).begun
    assert choice(stage) == choice(undisturbed())


def test_drafts_wait_for_groups_that_are_being_formed():
    """Devices that are there count, even if they cannot be given anything yet and no training goes on."""
    script = Script()
    stage = Stage(script)
    stage.limits = replace(stage.limits, window=None)
    there, formed = list(stage.fleet.devices), Future[None]()
    stage.fleet.devices.clear()
    stage.fleet.newcomers, stage.fleet.forming = [formed], True

    def form() -> None:
        stage.fleet.devices += there
        stage.fleet.forming = False
        formed.set_result(None)

    script.idle = form
    stage.run()
    assert choice(stage) == choice(undisturbed())


def test_nothing_is_started_once_the_window_is_over():
    """What ends with it may be the whole run: a lost device must not be replaced any more."""
    script = Script()
    stage = Stage(script)
    welcomed: list[int] = []
    add_ready_workers = stage.fleet.add_ready_workers
    stage.fleet.add_ready_workers = lambda: (welcomed.append(script.waits), add_ready_workers())[1]  # type: ignore[method-assign]

    def end() -> None:
        script.dying.add("spot-0")
        script.end("spot-0")
        stage.window.abandon()

    script.before[5] = end
    stage.run()
    assert welcomed == [0] and stage.fleet.events == []


def test_drafts_wait_for_a_newcomer_while_training_goes_on_and_no_longer():
    script = Script()
    stage = Stage(script, devices=1, stops_with_training=False)
    stage.fleet.devices.clear()
    stage.fleet.newcomers = [Future()]
    script.idle = lambda: stage.window.close(1.0)
    assert stage.run().candidates == []
    assert script.waits == 1


def test_what_a_closed_window_has_cut_off_does_not_disturb_the_next_phase():
    script = Script()
    stage = Stage(script)
    script.before[9] = lambda: stage.window.close(1.0)
    stage.run()
    assert any(name.startswith("spot") for name in script.under_way)
    again = Stage(Script())
    again.script, again.dispatcher, again.pool = script, stage.dispatcher, stage.pool
    again.fleet, again.devices = stage.fleet, stage.devices
    made = again.run()
    assert len(made.candidates) == again.planner.spent
    assert (stage.returned, stage.dispatcher.counters.duplicates) == (0, 0)
    assert choice(again) == choice(undisturbed())


def test_when_all_devices_die_what_was_judged_counts():
    script = Script()
    stage = Stage(script, devices=1)
    script.before[8] = lambda: script.dying.add("spot-0")
    made = stage.run()
    assert stage.fleet.events == [("spot-0", "lost")]
    assert 0 < len(made.candidates) < 36
    assert all(len(seeds) == GROUP for seeds in choice(stage).values())


def test_no_device_at_all():
    stage = Stage(Script(), devices=0)
    assert stage.run().candidates == []


def test_half_of_the_drafts_without_a_judgement_stop_nothing():
    def half(prompt: int, seed: int) -> Score:
        return rare_success(prompt, seed) if seed % 2 else Score(0.0, False, "", error="ValueError: no")

    stage = Stage(Script(), judge=half)
    made = stage.run()
    assert not stage.planner.can_plan
    assert {c.seed_index % 2 for c in made.candidates if c.error} == {0}
    assert all(seed % 2 == 1 for seeds in choice(stage).values() for seed in seeds)


def test_no_draft_with_a_judgement_stops_nothing():
    stage = Stage(Script(), judge=lambda prompt, seed: Score(0.0, False, "", error="broken"))
    made = stage.run()
    assert len(made.candidates) > 0
    assert all(len(seeds) == GROUP for seeds in choice(stage).values())


def test_a_scorer_that_dies_is_replaced():
    stage = Stage(Script(dying=["scorer-0", "scorer-1"]))
    stage.run()
    assert {actor.name for actor in stage.pool.actors} == {"scorer-2", "scorer-3"}
    assert choice(stage) == choice(undisturbed())


def test_scorers_that_die_of_everything_cost_scores_and_not_the_run():
    stage = Stage(Script(dying=[f"scorer-{number}" for number in range(40)]))
    made = stage.run()
    assert made.candidates and all("is gone" in (c.error or "") for c in made.candidates)


def test_the_monitor_s_drafts_go_first_and_a_batch_has_one_fidelity():
    stage = Stage(Script(), devices=1)
    again = [task(Draft(0, seed), -1, 1) for seed in range(3)]
    again += [task(Draft(0, seed, "preview-2"), -1, 1) for seed in range(5)]
    made = stage.run(*again)
    begun = stage.drafter(0).begun
    assert [len(requests) for requests in begun[:3]] == [3, 4, 1]
    iterations = [{request_of(item).iteration for item in work} for work in begun]
    assert iterations[:3] == [{1}] * 3 and iterations[3:] == [{2}] * (len(begun) - 3)
    assert [c.round for c in made.candidates[:8]] == [-1] * 8
    assert made.full_drafts == (1 + len(begun[3:]) + 2 * 0.75) * BATCH
    assert choice(stage) == choice(undisturbed())


def test_batches_that_cannot_end_in_the_window_are_not_begun():
    asked: list[float] = []

    def fits(elapsed_s: float, full_drafts: float) -> bool:
        asked.append(full_drafts)
        return False

    stage = Stage(Script(), fits=fits)
    made = stage.run()
    # But for each device's first, without which nobody would learn that windows have become longer.
    assert len(made.candidates) == 2 * BATCH
    assert asked and set(asked) == {BATCH}


def test_devices_are_full_while_the_planner_waits_for_judgements(monkeypatch: pytest.MonkeyPatch):
    """A round is asked for while the one before is still being judged."""
    script = Script(lambda names: next((n for n in names if n.startswith("spot")), names[0]))
    stage = Stage(script, devices=1)
    batches: list[int] = []
    observe = stage.planner.observe

    def note(draft: Draft, score: float | None) -> None:
        batches.append(len(stage.drafter(0).begun))
        observe(draft, score)

    monkeypatch.setattr(stage.planner, "observe", note)
    stage.run()
    first_round = PROMPTS * 2
    assert batches[0] * BATCH > first_round


def test_a_round_is_planned_while_the_device_is_busy_with_the_one_before(monkeypatch: pytest.MonkeyPatch):
    stage = Stage(Script(), devices=1)
    planner, busy = stage.planner, []
    next_round = planner.next_round

    def noted() -> list[Draft]:
        busy.append(stage.dispatcher.busy(stage.devices[0].name))
        return next_round()

    monkeypatch.setattr(planner, "next_round", noted)
    stage.run()
    assert len(busy) > 3 and busy == [False, *[True] * (len(busy) - 1)], "it waits for the first alone"
