"""The history of a run: its files, and what the loop and its devices write, checked against its promises."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.scheduling.history import HistoryReport, check_history
from gpu_runtime.worker.history import HistoryLog, HistoryTail, lives, names_of, new_life, read_history
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from storage.errors import StorageError
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
            self.config.runtime,
            self.config.sampling.batch_size,
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


def test_what_is_written_is_read_in_order_and_once(tmp_path):
    log = HistoryLog(new_life(tmp_path), "spot-0")
    tail = HistoryTail(tmp_path)
    log.note("step", lease=1)
    first, step = tail.new()
    assert (first.by, first.event, step.by, step.event) == ("spot-0", "process", "spot-0", "step")
    assert (first.facts["name"], first.facts["pid"]) == ("spot-0", os.getpid()) and first.facts["created"] > 0
    log.note("step", lease=2)
    (line,) = tail.new()
    assert (line.life, line.facts) == (1, {"lease": 2}) and tail.new() == []
    assert [line.event for line in read_history(tmp_path)] == ["process", "step", "step"]


def test_lines_of_several_threads_are_whole(tmp_path):
    log = HistoryLog(new_life(tmp_path), "driver")
    threads = [
        threading.Thread(target=lambda: [log.note("x", text="y" * 5000) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_history(tmp_path)) == 201


def test_what_a_killed_process_wrote_is_there(tmp_path):
    life = new_life(tmp_path)
    code = (
        "import sys; from gpu_runtime.worker.history import HistoryLog\n"
        "log = HistoryLog(sys.argv[1], 'spot-0')\n"
        "for number in range(10**9):\n"
        "    log.note('step', number=number); print(number, flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(life)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = [int(child.stdout.readline()) for _ in range(200)]
    child.send_signal(signal.SIGKILL)
    said += [int(row) for row in child.stdout.read().split()]
    child.wait()
    written = [line.facts["number"] for line in read_history(tmp_path) if line.event == "step"]
    assert written[: len(said)] == said and len(written) <= len(said) + 1


def test_a_line_that_is_not_whole_yet_waits(tmp_path):
    log = HistoryLog(new_life(tmp_path), "spot-0")
    tail = HistoryTail(tmp_path)
    assert len(tail.new()) == 1
    (path,) = lives(tmp_path)[0].iterdir()
    with path.open("ab") as file:
        file.write(b'{"event":"step",')
        file.flush()
        assert tail.new() == []
        file.write(b'"at":1}\n')
    assert [line.event for line in tail.new()] == ["step"]
    log.close()


def test_each_life_has_its_own_folder_and_a_process_that_is_left_is_not_read(tmp_path):
    first, second = new_life(tmp_path), new_life(tmp_path)
    assert [path.name for path in lives(tmp_path)] == ["0001", "0002"]
    logs = [HistoryLog(first, "spot-0"), HistoryLog(second, "spot-0")]
    tail = HistoryTail(tmp_path)
    assert [line.life for line in tail.new()] == [1, 2]
    tail.leave(1, "spot-0")
    for log in logs:
        log.note("step")
    assert [line.life for line in tail.new(["spot-0"])] == [2]
    assert tail.new(["spot-1"]) == []


def test_without_a_folder_nothing_is_written():
    log = HistoryLog(None, "driver")
    log.note("step")
    assert not log.kept and log.path is None and log.place is None


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(StorageError, match=r"runtime\.history=false"):
        HistoryLog(tmp_path / "not there", "driver")
