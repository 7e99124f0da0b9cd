"""The files of the history of a run; `test_generation.py` checks what the loop and its devices write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from gpu_runtime.worker.history import HistoryLog, HistoryTail, lives, names_of, new_life, read_history
from storage.errors import StorageError
from tests.tiny_run import request


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
