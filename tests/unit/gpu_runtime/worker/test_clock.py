"""The process's clock: what setting the wall clock does to it, and to nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gpu_runtime.worker.history import HistoryLog, HistoryPlace, new_life, read_history
from storage.clock import Anchor, Clock, machine_id, process_age_s, process_is_alive, process_start_s

HOUR_S, DAY_S = 3600.0, 86_400.0


class Times:
    """A wall clock that can be set, and monotonic time."""

    def __init__(self) -> None:
        self.wall_s, self.monotonic_s = 1.7e9, 50.0
        self.clock = Clock(lambda: self.wall_s, lambda: self.monotonic_s)

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def jumps(self) -> list[tuple[float, float]]:
        return [(jump.at, jump.by_s) for jump in self.clock.take_jumps()]


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, DAY_S, -DAY_S])
def test_setting_the_wall_clock_changes_no_duration_and_is_noted_once(by_s: float):
    times = Times()
    begun_at = times.clock.now()
    times.passes(10)
    times.wall_s += by_s
    times.passes(5)
    assert times.clock.now() - begun_at == 15
    times.wall_s -= by_s
    times.passes(5)
    assert times.jumps() == [(1.7e9 + 15, by_s), (1.7e9 + 20, -by_s)]
    times.passes(5)
    assert times.jumps() == []


def test_a_wall_clock_that_is_corrected_a_little_has_not_jumped():
    times = Times()
    times.wall_s += 0.9
    assert times.jumps() == []
    times.wall_s += 0.2
    assert [by_s for _, by_s in times.jumps()] == [pytest.approx(1.1)], "but the sum of many counts"
    times = Times()
    times.wall_s += 1.0
    assert times.jumps() == [(1.7e9, 1.0)]
    assert times.clock.at(60.0) == 1.7e9 + 10


def test_a_process_that_begins_after_a_jump_counts_like_the_one_that_started_it():
    times = Times()
    times.passes(10)
    times.wall_s -= DAY_S
    later = Clock(lambda: times.wall_s, lambda: times.monotonic_s)
    assert later.now() - times.clock.now() == -DAY_S
    later.follow(times.clock.anchor)
    assert later.now() == times.clock.now()
    assert later.take_jumps() == [], "that it follows is no jump"
    later.follow(Anchor("another machine", 5.0))
    assert later.now() == times.clock.now()


def test_the_times_of_a_resumed_run_go_on_after_its_records():
    times = Times()
    last_at = times.clock.now() + HOUR_S
    assert times.clock.go_on_after(last_at) == HOUR_S
    assert times.clock.now() == last_at
    times.passes(1)
    assert times.clock.go_on_after(last_at) == 0
    assert times.clock.now() == last_at + 1 and times.jumps() == []


def test_when_a_process_began_does_not_depend_on_the_wall_clock(monkeypatch: pytest.MonkeyPatch):
    created_at = psutil.Process().create_time()
    youngest_s = time.time() - created_at
    began_s, age_s = process_start_s(os.getpid()), process_age_s()
    assert max(0.0, youngest_s - 2.5) < age_s < time.time() - created_at + 2.5
    assert began_s == pytest.approx(created_at - psutil.boot_time(), abs=1.5)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + DAY_S)
    assert process_start_s(os.getpid()) == began_s
    assert 0 <= process_age_s() - age_s < 60
    with pytest.raises(psutil.NoSuchProcess):
        process_start_s(2**22 + 1)


def test_a_process_that_has_ended_is_not_alive_though_its_parent_has_not_looked():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started_s = process_start_s(child.pid)
        assert process_is_alive(child.pid, started_s)
        assert not process_is_alive(child.pid, started_s - 0.01), "a later one of its number"
        assert not process_is_alive(child.pid, None)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
        assert not process_is_alive(child.pid, started_s)
    assert not process_is_alive(child.pid, started_s)


def test_the_history_of_a_process_on_the_driver_s_machine_has_the_driver_s_times(tmp_path: Path):
    """Its own wall clock would say another day."""
    driver = HistoryLog(new_life(tmp_path), "driver")
    assert driver.place is not None
    code = (
        "import sys, time; real = time.time; time.time = lambda: real() + 86400\n"
        "from gpu_runtime.worker.history import HistoryLog, HistoryPlace\n"
        "from storage.clock import Anchor\n"
        "place = HistoryPlace(sys.argv[1], Anchor(sys.argv[2], float(sys.argv[3])))\n"
        "HistoryLog.beside(place, 'spot-0').note('step')"
    )
    anchor = driver.place.anchor
    assert anchor.machine == machine_id()
    told = [driver.place.folder, anchor.machine, repr(anchor.zero_at)]
    subprocess.run([sys.executable, "-c", code, *told], check=True)
    driver.note("closed")
    begun, *heard, closed = sorted(read_history(tmp_path), key=lambda line: line.at)
    assert (begun.by, closed.event) == ("driver", "closed")
    assert [line.by for line in heard] == ["spot-0", "spot-0"]
    assert closed.at - begun.at < HOUR_S


def test_a_process_on_a_machine_without_the_driver_s_home_writes_into_that_machine_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "here"))
    place = HistoryPlace(
        str(tmp_path / "driver" / "runs" / "r" / "history" / "0002"), Anchor("another machine", 0.0)
    )
    log = HistoryLog.beside(place, "spot-0")
    log.note("step", lease=1)
    assert log.path is not None and log.path.parent == tmp_path / "here" / "runs" / "r" / "history" / "0002"
    assert not (tmp_path / "driver").exists()
    assert [line.event for line in read_history(tmp_path / "here" / "runs" / "r" / "history")] == [
        "process",
        "step",
    ]
