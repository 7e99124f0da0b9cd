"""The faults, done to processes that only sleep: who is met, by which signal, and when it waits."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from gpu_runtime.chaos.fault_injector import FaultInjector
from gpu_runtime.chaos.fault_schedule import Fault
from gpu_runtime.spot.notices.gcp import PREEMPTED_PATH
from gpu_runtime.spot.notices.simulated_service import SimulatedNotices
from gpu_runtime.worker.history import HistoryLog, new_life
from storage.clock import process_start_s

SLEEPER = (
    "import sys, time; from gpu_runtime.worker.history import HistoryLog\n"
    "log = HistoryLog(sys.argv[1], sys.argv[2]); print('there', flush=True)\n"
    "for row in sys.stdin: log.note(row.strip(), lease=0, step=1)"
)


class Stage:
    """A run of sleeping processes; this one writes the driver's history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.life = new_life(folder)
        self.driver = HistoryLog(self.life, "driver")
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, *names: str, joined: bool = True) -> None:
        for name in names:
            command = [sys.executable, "-c", SLEEPER, str(self.life), name]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.processes[name] = child
            assert child.stdout is not None
            # A fault that waits for it may kill it as soon as its history begins, before it can say so.
            assert child.stdout.readline() == "there\n" or child.wait(60) == -signal.SIGKILL
            if joined:
                self.driver.note("joined", worker=name)

    def enter(self, phase: str, iteration: int) -> None:
        self.driver.note("phase", phase=phase, iteration=iteration)

    def say(self, name: str, event: str) -> None:
        child = self.processes[name]
        assert child.stdin is not None
        child.stdin.write(f"{event}\n")
        child.stdin.flush()

    def killed(self, name: str) -> bool:
        return self.processes[name].poll() == -signal.SIGKILL

    def dead(self) -> set[str]:
        return {name for name in self.processes if self.killed(name)}

    def stopped(self, name: str) -> bool:
        return psutil.Process(self.processes[name].pid).status() == psutil.STATUS_STOPPED


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for child in stage.processes.values():
        child.kill()
        child.communicate()


def until(true: Callable[[], object], what: str) -> None:
    """Wait for it; the limit is only there so that a failure ends."""
    limit = time.monotonic() + 60
    while not true():
        assert time.monotonic() < limit, f"never: {what}"
        time.sleep(0.02)


def victims(injector: FaultInjector) -> list[tuple[str, ...]]:
    assert injector.trouble is None
    return [done.victims for done in injector.done]


def test_a_kill_meets_a_spot_worker_that_has_joined(stage):
    stage.start("reserved-0", "spot-0", "spot-1")
    stage.start("spot-2", joined=False)
    stage.enter("rollout", 1)
    with FaultInjector(stage.folder, [Fault(kind="kill", at_s=0.0, victim=3)]) as injector:
        until(lambda: injector.left == 0, "the kill")
        until(stage.dead, "its death")
    assert stage.dead() == {"spot-1"} and victims(injector) == [("spot-1",)]


def test_nothing_happens_before_the_first_phase_nor_without_a_victim(stage):
    stage.start("reserved-0", "spot-0")
    with FaultInjector(
        stage.folder, [Fault(kind="kill", at_s=0.0), Fault(kind="scorer_death", at_s=0.0)]
    ) as injector:
        time.sleep(0.3)
        assert injector.done == [] and injector.left == 2
        stage.enter("rollout", 1)
        until(lambda: stage.killed("spot-0"), "the kill")
        assert injector.undone(0.0) == (Fault(kind="scorer_death", at_s=0.0),)
        stage.start("scorer-1")
        until(lambda: stage.killed("scorer-1"), "the scorer's death")


def test_a_triggered_fault_waits_for_its_iteration_and_phase(stage):
    stage.start("spot-0")
    stage.enter("rollout", 1)
    with FaultInjector(stage.folder, [Fault(kind="kill", iteration=1, phase="train")]) as injector:
        for phase, iteration in (("train", 1), ("rollout", 2)):
            stage.enter(phase, iteration)
        time.sleep(0.3)
        assert injector.done == []
        stage.enter("train", 2)  # schedules count iterations from 0
        until(lambda: stage.killed("spot-0"), "the kill")


def test_half_at_once_rounds_up(stage):
    stage.start("spot-0", "spot-1", "spot-2")
    stage.enter("rollout", 1)
    with FaultInjector(stage.folder, [Fault(kind="half_at_once", at_s=0.0, victim=2)]) as injector:
        until(lambda: len(stage.dead()) == 2, "two deaths")
    assert victims(injector) == [("spot-2", "spot-0")] and stage.dead() == {"spot-0", "spot-2"}


def test_the_notice_is_played_for_its_worker_alone_and_comes_true(stage):
    stage.start("spot-0", "spot-1")
    stage.enter("rollout", 1)
    with SimulatedNotices("{worker}") as notices:

        def flag(worker: str) -> str:
            return httpx.get(notices.url.replace("{worker}", worker) + PREEMPTED_PATH).text

        fault = Fault(kind="notice_then_kill", at_s=0.0, victim=1, grace_s=1.0)
        with FaultInjector(stage.folder, [fault], notices) as injector:
            until(lambda: injector.done, "the notice")
            assert (flag("spot-0"), flag("spot-1")) == ("FALSE", "TRUE")
            assert not stage.killed("spot-1") and injector.left == 1
            until(lambda: stage.killed("spot-1"), "the kill")
            until(lambda: injector.left == 0, "the end")
        assert flag("spot-1") == "FALSE"
    assert stage.dead() == {"spot-1"}


def test_a_joiner_is_killed_before_it_has_joined(stage):
    stage.start("spot-0", "spot-1")
    stage.enter("rollout", 1)
    with FaultInjector(stage.folder, [Fault(kind="kill_while_joining", at_s=0.0)]):
        stage.start("spot-1.1", joined=False)
        until(lambda: stage.killed("spot-1.1"), "the joiner's death")
    assert stage.dead() == {"spot-1.1"}


def test_the_worker_that_commits_first_is_killed(stage):
    stage.start("spot-0", "spot-1")
    stage.enter("rollout", 1)
    with FaultInjector(stage.folder, [Fault(kind="kill_while_committing", at_s=0.0)]) as injector:
        until(lambda: not injector._pending, "the fault is due")
        stage.say("spot-1", "step")
        stage.say("spot-1", "sent")
        until(lambda: stage.killed("spot-1"), "the death")
    assert stage.dead() == {"spot-1"}


def test_a_hung_worker_stops_and_goes_on(stage):
    stage.start("spot-0")
    stage.enter("rollout", 1)
    with FaultInjector(stage.folder, [Fault(kind="hung_worker", at_s=0.0, duration_s=2.0)]) as injector:
        until(lambda: stage.stopped("spot-0"), "it stops")
        assert injector.left == 1
        until(lambda: injector.left == 0, "it is let go on")
        until(lambda: not stage.stopped("spot-0"), "it goes on")


def test_a_slow_worker_stops_again_and_again(stage):
    stage.start("spot-0")
    stage.enter("rollout", 1)
    fault = Fault(kind="slow_worker", at_s=0.0, duration_s=3.0, slowdown=2.0)
    with FaultInjector(stage.folder, [fault]) as injector:
        for _ in range(2):
            until(lambda: stage.stopped("spot-0"), "it stops")
            until(lambda: not stage.stopped("spot-0"), "it goes on")
        until(lambda: injector.left == 0, "the end")
        assert not stage.stopped("spot-0")


def test_whatever_is_stopped_goes_on_when_the_injector_ends(stage):
    stage.start("spot-0")
    stage.enter("rollout", 1)
    with FaultInjector(stage.folder, [Fault(kind="hung_worker", at_s=0.0, duration_s=600.0)]):
        until(lambda: stage.stopped("spot-0"), "it stops")
    assert not stage.stopped("spot-0")


def test_a_restart_meets_driver_or_trainer_and_the_next_life_has_its_own_workers(stage):
    stage.start("reserved-0", "spot-0")
    stage.enter("rollout", 1)
    faults = [
        Fault(kind="coordinator_restart", at_s=0.0, victim=1),
        Fault(kind="kill", iteration=4, phase="rollout"),
    ]
    with FaultInjector(stage.folder, faults) as injector:
        until(lambda: stage.killed("reserved-0"), "the trainer's death")
        old = stage.processes.pop("spot-0")
        stage.life = new_life(stage.folder)
        stage.driver = HistoryLog(stage.life, "driver")
        stage.start("reserved-0", "spot-0")
        stage.enter("rollout", 5)
        until(lambda: stage.killed("spot-0"), "the kill")
        assert old.poll() is None
        old.kill()
        old.communicate()
    assert victims(injector) == [("reserved-0",), ("spot-0",)]


DRIVER_WITH_HELPERS = (
    "import subprocess, sys, time\n"
    "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
    "lines = (['a server'], ['ray::DashboardAgent'], ['ray::RuntimeEnvAgent'])\n"
    "print(*(subprocess.Popen([*sleep, *line]).pid for line in lines), flush=True)\n"
    "time.sleep(600)"
)


@pytest.fixture
def helpers(stage) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A driver that has started a server and two of Ray's agents, as their command lines say."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER_WITH_HELPERS], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    started = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
    stage.driver.note("process", name="driver", pid=driver.pid, started_s=process_start_s(driver.pid))
    stage.enter("rollout", 1)
    yield driver, started
    for process in (*started, psutil.Process(driver.pid)):
        process.kill()
    driver.communicate()


def is_dead(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_the_server_and_the_agents_of_the_driver_are_killed(stage, helpers):
    _, (server, dashboard, runtime_env) = helpers
    fault, there = Fault(kind="server_death", at_s=0.0), threading.Event()
    pid_of = lambda: server.pid if there.is_set() else None  # noqa: E731
    with FaultInjector(stage.folder, [fault], server_pid=pid_of) as injector:
        time.sleep(0.2)
        assert injector.undone(0.0) == (fault,)
        there.set()
        until(lambda: is_dead(server), "the server's death")
        assert not is_dead(dashboard) and not is_dead(runtime_env)
    assert victims(injector) == [("prefect-server",)]
    with FaultInjector(stage.folder, [Fault(kind="agent_death", at_s=0.0, victim=1)]) as injector:
        until(lambda: is_dead(runtime_env), "the agent's death")
        assert not is_dead(dashboard)
    assert victims(injector) == [("ray-runtime-env-agent",)]


def test_a_stopped_driver_goes_on(stage, helpers):
    driver = psutil.Process(helpers[0].pid)
    with FaultInjector(stage.folder, [Fault(kind="stopped_driver", at_s=0.0, duration_s=2.0)]) as injector:
        until(lambda: driver.status() == psutil.STATUS_STOPPED, "it stops")
        until(lambda: injector.left == 0, "it goes on")
        assert driver.status() != psutil.STATUS_STOPPED
    assert victims(injector) == [("driver",)]
