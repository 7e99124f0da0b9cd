"""kill -9 in a live run: it survives or resumes, and ends with the state of a run never killed.

The benchmark `benchmarks.resume` does the same at every phase; four kills stand for them here.
"""

from __future__ import annotations

import pytest

from benchmarks.resume import Kill, disturb, state_of
from storage.home import Home
from storage.run_store import RunStore
from tests.killed_run import undisturbed_state


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def undisturbed(home):
    return undisturbed_state(home)


@pytest.mark.parametrize(
    ("kill", "how"),
    [
        (Kill("driver", "commit", 2), "resumed"),
        (Kill("trainer", "train", 2, 0.05), "resumed"),
        (Kill("spot", "rollout", 2, 0.05), "survived"),
        (Kill("server", "train", 2), "survived"),
    ],
    ids=["driver-at-commit", "trainer-at-train", "spot-at-rollout", "server-at-train"],
)
def test_the_final_state_is_that_of_a_run_never_killed(home, undisturbed, kill, how):
    assert set(undisturbed) == {"weights.safetensors", "average.safetensors", "optimizer.safetensors"}
    run_id = f"killed-{kill.victim}"
    outcome = disturb(home, kill, run_id)
    assert (outcome.how, outcome.lost) == (how, 0)
    assert outcome.redone <= 1
    assert state_of(home, run_id) == undisturbed
    store = RunStore(Home(home))
    assert store.run(run_id).status == "finished"
    assert store.run(run_id).summary["score_after"] == store.run("undisturbed").summary["score_after"]
