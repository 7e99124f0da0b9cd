"""The history that the loop and its devices write, checked: it says what happened, and exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.scheduling.history import HistoryReport, check_history
from gpu_runtime.worker.history_log import HistoryLog, names_of, new_life
from gpu_runtime.worker.history_tail import read_history
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from tests.fake_generators import NOTICE, FakeGeneratorFleet, Script
from tests.tiny_model import TinyModel
from tests.tiny_run import request, tiny_config

STEPS, LEASE_S = 4, 300.0
SAMPLER = Sampler(TinyModel(), tiny_config().sampling)
REQUESTS = [request(prompt, seed) for prompt in range(4) for seed in range(4)]
TRAINER, ONE, TWO = "reserved-0", "spot-0", "spot-1"


class Stage:
    """A fleet whose devices and whose driver keep a history."""

    def __init__(
        self, folder: Path, script: Script, commit_steps: int = 1, names: Sequence[str] = (TRAINER, ONE, TWO)
    ) -> None:
        self.folder, self.script = folder, script
        self.life = new_life(folder)
        self.fleet = FakeGeneratorFleet(names, script, SAMPLER)
        for name, actor in self.fleet.actors.items():
            log = HistoryLog(self.life, name)
            actor._samples = SamplesInFlight(SAMPLER, actor._look, log)
        self.driver = HistoryLog(self.life, "driver")
        settings = {"commit_steps": commit_steps, "lease_s": LEASE_S}
        self.config = tiny_config(runtime=settings)
        self.loop = Dispatcher(
            self.config,
            script.clock,
            self.driver,
            ended=script,  # type: ignore[arg-type]
        )

    def run(self, accepted: dict | None = None) -> Dispatcher:
        phase = SamplePhase(REQUESTS, self.config.sampling)
        if accepted is not None:
            phase._delivered = accepted
        self.loop.run(self.fleet, phase)
        return self.loop

    def report(self) -> HistoryReport:
        return check_history(read_history(self.folder))


@pytest.mark.parametrize("commit_steps", [1, 3, STEPS])
def test_an_undisturbed_phase_does_each_step_once(tmp_path, commit_steps):
    stage = Stage(tmp_path, Script(random.Random(commit_steps).choice), commit_steps)
    stage.run()
    report = stage.report()
    assert report.broken() == [] and report.redone == ()
    assert report.requested == 16 and report.steps_done == report.steps_needed == 16 * STEPS


def test_phases_of_one_life_are_told_apart(tmp_path):
    stage = Stage(tmp_path, Script())
    stage.run()
    stage.run()  # the same requests, as an evaluation asks for them again
    report = stage.report()
    assert report.broken() == [] and report.requested == 32 and report.steps_redone == 0
    leases = [line.facts["lease"] for line in read_history(tmp_path) if line.event == "lease"]
    assert leases == list(range(8))


@pytest.mark.parametrize("seed", range(8))
def test_the_promises_hold_whichever_worker_dies_and_whenever(tmp_path, seed):
    source = random.Random(seed)
    script = Script(source.choice)
    stage = Stage(tmp_path, script, commit_steps=source.choice([1, 2, 3]))
    for name in (ONE, TWO):
        actor = stage.fleet.actors[name]
        script.before[source.randrange(30)] = lambda actor=actor: setattr(actor, "dead", True)
    stage.run()
    assert stage.report().broken() == []


def test_what_a_hung_device_sends_late_was_done_twice_and_is_dropped(tmp_path):
    accepted: dict = {}
    script = Script(lambda names: ONE if ONE in names and len(accepted) == 12 else names[0])
    stage = Stage(tmp_path, script, commit_steps=STEPS, names=[TRAINER, ONE])
    script.hung.add(ONE)
    stage.fleet.actors[ONE].deaf = True
    # The trainer's leases are younger: only the other one expires.
    script.before[0] = lambda: setattr(script, "now", 0.7 * LEASE_S)
    script.before[1] = lambda: setattr(script, "now", 1.1 * LEASE_S)
    loop = stage.run(accepted=accepted)
    report = stage.report()
    assert report.broken() == []
    assert report.dropped == loop.counters.duplicates == 4
    assert report.steps_redone == report.steps_done - report.steps_needed == 4 * STEPS
    assert [(loss.worker, loss.most) for loss in report.redone] == [(ONE, STEPS)]


def test_a_notice_costs_no_step(tmp_path):
    stage = Stage(tmp_path, Script(), commit_steps=4)
    stage.fleet.actors[ONE].notice_at = lambda look: NOTICE if look > 2 else None
    stage.run()
    report = stage.report()
    assert report.broken() == [] and report.steps_redone == 0
    lines = read_history(tmp_path)
    assert [line.by for line in lines if line.event == "notice"] == [ONE]
    assert [line.facts["why"] for line in lines if line.event == "back"] == ["notice"]


def test_names_say_what_a_request_is():
    assert names_of([request(3, 1, iteration=2)]) == ["rollout-2-3-1-v0"]
