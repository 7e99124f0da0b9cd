"""A run is taken over although its driver still lives: the record is the taker's, and the driver ends.

The driver sleeps meanwhile, like that of a machine that was paused, and then goes on beside the taker. It
believes that it is on another machine.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.commands import SHORT, final_state, sets
from benchmarks.fleet.resume import start
from storage.home import HOME_VARIABLE, Home
from storage.record.files import locked
from storage.record.run_store import RunStore
from tests.killed_run import WITHOUT_RAY, lines_until
from tests.running_up import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("killed")]

ELSEWHERE = """
import runpy, socket
from flows.server import note
here = socket.gethostname()
note.note_file = lambda home: home.prefect / f"server-{here}.json"  # it uses the server of the test
socket.gethostname = lambda: "elsewhere"
runpy.run_module("benchmarks.announced_run", run_name="__main__", alter_sys=True)
"""


def started_elsewhere(home: Path, run_id: str) -> subprocess.Popen[str]:
    """The run of the fixture `undisturbed`, driven by a process with another host name."""
    settings = (
        *SHORT, "iterations=4", "evaluation.every=2", "prompts.evaluate=builtin:smoke-evaluate",
        "runtime.spot_workers=1", "checkpoint.every=1", *WITHOUT_RAY,
    )  # fmt: skip
    given = ("train", "--preset", "glyphs", "--run-id", run_id, *sets(settings))
    return subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, *given], env=os.environ | {HOME_VARIABLE: str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def put_to_sleep(child: subprocess.Popen[str], run: Path) -> None:
    """Stop a driver at a moment at which it does not hold the lock of its run."""

    def sleeps() -> bool:
        child.send_signal(signal.SIGSTOP)
        with locked(run / ".lock", wait=False) as is_free:
            if not is_free:
                child.send_signal(signal.SIGCONT)
            return is_free

    wait_until("the driver sleeps and holds no lock", sleeps)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_stopped", [False, True], ids=["goes on", "is stopped by a signal"])
def test_a_driver_whose_run_was_taken_over_ends_itself_and_leaves_the_record_alone(
    shared_home: Path, undisturbed: dict[str, bytes], is_stopped: bool
):
    run_id = f"taken-{is_stopped}"
    driver = started_elsewhere(shared_home, run_id)
    lines_until(driver, "ITERATION 2\n")
    put_to_sleep(driver, Home(shared_home).run(run_id))
    family = psutil.Process(driver.pid).children(recursive=True)
    taker = start(shared_home, run_id, "resume", options=("--take-over",), errors=subprocess.STDOUT)
    lines_until(taker, "ITERATION 3\n")
    if is_stopped:
        driver.send_signal(signal.SIGTERM)
    driver.send_signal(signal.SIGCONT)
    output, errors = driver.communicate(timeout=400)
    said, _ = taker.communicate(timeout=400)

    assert driver.returncode == 2, errors
    [error] = [line for line in errors.splitlines() if line.startswith("error: ")]
    here = f"(process {taker.pid} on {socket.gethostname()}, since "
    assert error.startswith(f"error: another process has taken over run '{run_id}' {here}")
    assert error.endswith("this one stops, and nothing of it is kept after iteration 2")
    assert "nothing is kept" not in output + errors and "Continue:" not in output + errors
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process.cmdline() for process in alive] == []

    assert taker.returncode == 0, said
    assert final_state(shared_home, run_id) == undisturbed
    store = RunStore(Home(shared_home))
    row, reference = store.run(run_id), store.run("undisturbed")
    assert (row.status, row.pid, row.host) == ("finished", taker.pid, socket.gethostname())
    assert row.summary["score_after"] == reference.summary["score_after"]
    kinds = [event["kind"] for event in store.folder(run_id).events()]
    assert kinds.count("taken_over") == 1 and "failed" not in kinds
    with store.reading(run_id) as connection:
        found = connection.execute("SELECT iteration, count(*) FROM iterations GROUP BY ALL ORDER BY 1")
        assert found.fetchall() == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert not list(Home(shared_home).run(run_id).glob(".saving-*"))
