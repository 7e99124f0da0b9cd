"""kill -9 in a live run: it survives or resumes, and ends with the state of a run never killed.

The benchmark `benchmarks.resume` does the same at every phase; a few kills stand for them here.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import fsspec
import psutil
import pytest

from benchmarks.commands import final_state
from benchmarks.fleet.resume import Kill, disturb, find, start
from flows.server.note import SERVER_PORT
from storage.config.run_config import MIRROR_VARIABLE
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.iteration.budget import spending
from tests.killed_run import LIGHT, WITHOUT_RAY, flow_states, lines_until, undisturbed_state
from tests.own_servers import running_s3
from tests.running_up import port_taken, wait_until
from tests.tampering import damage, row_files

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("killed")]


@pytest.fixture
def home(shared_home):
    return shared_home


@pytest.fixture
def s3(monkeypatch):
    """A server that speaks S3's protocol; processes that the test starts find it."""
    with running_s3("bucket") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield


def test_a_run_whose_trainer_is_killed_ends_with_an_error_and_resumes(home, undisturbed):
    assert set(undisturbed) == {"weights.safetensors", "average.safetensors", "optimizer.safetensors"}
    outcome = disturb(home, [Kill("trainer", "train", 2, 0.05)], "killed", WITHOUT_RAY)
    assert (outcome.how, outcome.lost) == ("resumed", 0)
    assert outcome.redone <= 1
    assert_ended_as(undisturbed, home, home, "killed")
    assert flow_states(home, "killed") == ["FAILED", "COMPLETED"]


@pytest.mark.timeout(900)  # three whole runs
def test_kills_while_seeds_are_explored_change_nothing(home):
    """With `off_policy`, whose drafts are learned from and not only ranked.

    Of `stale`, `tests/integration/test_seed_search.py` tests that a killed drafter costs no draft, and
    `tests/integration/under_prefect/test_explored_run.py` that a plan outlives its driver.
    """
    # Drafts are counted and all of them made; with one spot worker dead, another drafts.
    settings = (
        "runtime.spot_workers=2", "exploration.candidates=12", "exploration.drafts=40",
        "exploration.stop_with_training=false", "exploration.strategy=off_policy", *WITHOUT_RAY,
    )  # fmt: skip
    expected = undisturbed_state(home, settings, "explored")
    assert expected
    # The run survives the first one; after the second it is resumed.
    kills = (Kill("spot", "train", 2, 0.05), Kill("driver", "train", 3, 0.1))
    outcome = disturb(home, kills, "explored-killed", settings)
    assert (outcome.how, outcome.lost) == ("resumed", 0)
    assert outcome.redone <= 1
    assert final_state(home, "explored-killed") == expected
    assert RunStore(Home(home)).run("explored-killed").status == "finished"
    assert flow_states(home, "explored-killed") == ["CRASHED", "COMPLETED"]


def assert_ended_as(undisturbed: dict[str, bytes], reference_home: Path, home: Path, run_id: str) -> None:
    """Its state, score and status are those of the run never killed."""
    assert final_state(home, run_id) == undisturbed
    row, reference = RunStore(Home(home)).run(run_id), RunStore(Home(reference_home)).run("undisturbed")
    assert row.status == "finished"
    assert row.summary["score_after"] == reference.summary["score_after"]


@pytest.mark.timeout(900)  # three lives of a run
def test_a_crash_loop_spends_no_more_than_its_budget(home):
    """Whose iteration dies each time, under a policy that restarts it."""
    store, used = RunStore(Home(home)), [0.0]
    for command in ("train", "resume", "resume"):
        child = start(home, "looping", command, settings=(*WITHOUT_RAY, "iterations=40", "budget.usd=1000"))
        # By then a resumed one has written what the start of its devices cost.
        lines_until(child, "ITERATION 1\n" if command == "train" else "PHASE rollout\n")
        child.kill()
        child.wait()
        # The process beside it finds it dead.
        wait_until("the run is interrupted", lambda: store.run("looping").status == "interrupted")
        used.append(spending(store, "looping").usd)
    assert used == sorted(set(used)), used
    store.set_limits("looping", store.run("looping").config.changed(budget={"usd": used[-1] - 1e-6}))
    done = store.run("looping").last_iteration
    start(home, "looping", "resume").communicate(timeout=400)  # at most for the evaluation at the end
    row = store.run("looping")
    assert row.last_iteration == done and (row.error or "").startswith("budget.usd is")


def test_a_server_of_the_run_s_own_that_is_killed_is_started_again(home, undisturbed, tmp_path):
    with port_taken(SERVER_PORT, 60.0):  # which a test beside this one could take while the server is dead
        child = start(tmp_path, "own", "train", errors=subprocess.STDOUT, settings=WITHOUT_RAY)
        said = lines_until(child, "ITERATION 1\n")
    said += lines_until(child, "PHASE train\n")
    family = psutil.Process(child.pid).children(recursive=True)
    os.kill(find("server", child), signal.SIGKILL)
    output, _ = child.communicate(timeout=400)
    assert child.returncode == 0, output
    assert "the Prefect server ended with code -9" in output
    assert "Traceback" not in "".join([*said, output])
    assert_ended_as(undisturbed, home, tmp_path, "own")
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process.cmdline() for process in alive] == []
    # The new one knows the run, and its end.
    with closing(sqlite3.connect(Home(tmp_path).prefect / "prefect.db")) as prefect:
        assert prefect.execute("SELECT name, state_type FROM flow_run").fetchall() == [("own", "COMPLETED")]


def test_a_run_that_ray_ended_says_so_and_resumes_although_rows_are_damaged(home, undisturbed):
    child = start(home, "ended", "train", errors=subprocess.PIPE, settings=LIGHT)
    assert child.stdout is not None
    assert child.stderr is not None
    trained = 0
    for line in child.stdout:
        trained += line == "PHASE train\n"
        if trained == 2:  # Ray's raylet ends with its agent, and the driver at its next call
            os.kill(find("agent", child), signal.SIGKILL)
            trained += 1
    said = [line for line in child.stderr.read().splitlines() if line.startswith("error: ")]
    assert child.wait() != 0
    assert len(said) == 1
    assert "`spotlight resume ended`" in said[0]
    assert "Ray's dashboard agent" in said[0]
    store = RunStore(Home(home))
    assert store.run("ended").status == "interrupted"
    assert "Ray's dashboard agent" in (store.run("ended").error or "")
    assert flow_states(home, "ended") == ["CRASHED"]
    summary = store.run("undisturbed").summary
    [damaged, *_] = row_files(store, "ended", "samples")
    damage(damaged)
    again = start(home, "ended", "resume", options=("--cluster", "local"))
    output = again.communicate(timeout=900)[0]
    assert again.returncode == 0
    assert f"{damaged} is damaged and was renamed" in output
    assert final_state(home, "ended") == undisturbed
    assert store.run("ended").status == "finished"
    assert store.run("ended").summary["score_after"] == summary["score_after"]
    assert store.run("undisturbed").summary == summary


def test_a_run_whose_machine_is_gone_goes_on_elsewhere_from_its_mirror(
    home, undisturbed, tmp_path, monkeypatch, s3
):
    lost, mirror = tmp_path / "lost", "s3://bucket/runs"
    settings = (*WITHOUT_RAY, f"checkpoint.mirror={mirror}")
    child = start(lost, "moved", "train", settings=settings)
    lines_until(child, "ITERATION 2\n")
    trainer = find("trainer", child)
    os.kill(trainer, signal.SIGSTOP)  # the run comes no further, however long the copy takes
    files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    manifest = f"{mirror}/runs/moved/iteration-000002/checkpoint/manifest.json"
    wait_until("the copy is complete", lambda: files.exists(manifest))
    for pid in (child.pid, trainer):
        os.kill(pid, signal.SIGKILL)
    child.wait()
    shutil.rmtree(lost, ignore_errors=True)  # its server may still be about to end
    monkeypatch.setenv(MIRROR_VARIABLE, mirror)
    again = start(home, "moved", "resume")
    assert again.stdout is not None
    begun = [int(line.split()[1]) for line in again.stdout if line.startswith("BEGIN ")]
    assert again.wait() == 0
    assert begun[0] >= 2, "at most one iteration is done again"
    assert final_state(home, "moved") == undisturbed
