"""kill -9 while seeds are explored: the run survives or resumes, and ends as if it never happened."""

from __future__ import annotations

import pytest

from benchmarks.resume import Kill, disturb, state_of
from storage.database.run_store import RunStore
from storage.home import Home
from tests.killed_run import served, undisturbed_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # three whole runs a test

# Drafts are counted and all of them made; with one spot worker dead, another drafts.
SETTINGS = (
    "runtime.spot_workers=2", "exploration.candidates=12",
    "exploration.drafts=40", "exploration.stop_with_training=false", "runtime.cluster=local",
)  # fmt: skip

KILLS = (Kill("spot", "train", 2, 0.05), Kill("driver", "train", 3, 0.1))
"""The run survives the first one; after the second it is resumed."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with served(tmp_path_factory.mktemp("killed")) as folder:
        yield folder


@pytest.mark.parametrize("strategy", ["stale", "off_policy"])
def test_the_final_state_is_that_of_a_run_never_killed(home, strategy):
    settings = (*SETTINGS, f"exploration.strategy={strategy}")
    expected = undisturbed_state(home, settings, f"undisturbed-{strategy}")
    assert expected
    run_id = f"killed-{strategy}"
    assert disturb(home, KILLS, run_id, settings).how == "resumed"
    assert state_of(home, run_id) == expected
    assert RunStore(Home(home)).run(run_id).status == "finished"
