"""A run under faults: resumed when it was killed, started again when it did not begin, or given up."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from flows import disturbed_run
from flows.disturbed_run import disturb
from gpu_runtime.cluster.ray.local_instances import LocalInstances
from gpu_runtime.cluster.ray.trace_replay import TraceReplay
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import TraceEvent
from gpu_runtime.worker.history import HistoryLog, new_life
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure
from storage.home import Home
from storage.record.run_store import RunStore
from tests.spot_traces import trace_of


class Runs:
    """Plays the processes of a run: how each ends, and whether the run is in the database by then."""

    def __init__(self, home: Home, *endings: tuple[int, bool]) -> None:
        self.home, self.endings = home, list(endings)
        self.commands: list[str] = []

    def start(self, home: Home, *arguments: str) -> subprocess.Popen[bytes]:
        self.commands.append(arguments[0])
        code, begins = self.endings.pop(0)
        if begins and not RunStore(home).runs():
            RunStore(home).create_run("r", RunConfig(), {}, 1)
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).ensure()


@pytest.mark.parametrize(
    ("endings", "commands"),
    [
        ([(1, True), (0, True)], ["train", "resume"]),  # it ended early
        ([(2, False), (0, True)], ["train", "train"]),  # it did not begin
        ([(1, True)] * 3, ["train", "resume", "resume"]),  # it fails by itself
        ([(2, False)] * 3, None),
    ],
)
def test_a_run_is_resumed_started_again_or_given_up(
    home: Home, monkeypatch: pytest.MonkeyPatch, endings: list[tuple[int, bool]], commands: list[str] | None
):
    runs = Runs(home, *endings)
    monkeypatch.setattr(disturbed_run, "start", runs.start)
    if commands is None:
        with pytest.raises(RuntimeFailure, match="run r did not begin, 3 times"):
            disturb(home, "r", ["--preset", "smoke"], [])
        return
    ran = disturb(home, "r", ["--preset", "smoke"], [])
    assert runs.commands == commands and ran.restarts == len(commands) - 1 and not ran.hung


class Instances:
    """Writes down what comes and goes; the run ends with the first removal."""

    address = "here:1"

    def __init__(self, ended: Path) -> None:
        self.ended = ended
        self.seen: list[tuple[str, str]] = []

    def add(self, name: str) -> None:
        self.seen.append(("add", name))

    def remove(self, name: str) -> None:
        self.seen.append(("remove", name))
        self.ended.touch()


WAIT = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)"


@pytest.mark.parametrize("begun", [True, False])
def test_a_trace_begins_with_the_first_phase(home: Home, monkeypatch, tmp_path: Path, begun: bool):
    instances = Instances(tmp_path / "ended")
    trace = trace_of([TraceEvent(0.0, "add", "a"), TraceEvent(0.01, "remove", "a")])
    replay = TraceReplay(Replay(trace), cast(LocalInstances, instances))

    def start(home: Home, *arguments: str) -> subprocess.Popen[bytes]:
        assert not any("runtime.notices" in argument for argument in arguments), "the trace says it all"
        RunStore(home).create_run("r", RunConfig(), {}, 1)
        driver = HistoryLog(new_life(home.history("r")), "driver")
        if begun:
            driver.note("phase", phase="rollout", iteration=1)
        else:
            threading.Timer(2.5, instances.ended.touch).start()
        return subprocess.Popen([sys.executable, "-c", WAIT, str(instances.ended)])

    monkeypatch.setattr(disturbed_run, "start", start)
    disturb(home, "r", ["--preset", "smoke"], (), replay)
    replay.stop()
    assert instances.seen == ([("add", "a"), ("remove", "a")] if begun else [])
    assert (replay.count("add"), replay.count("remove")) == (int(begun), int(begun))
