"""kill -9 while seeds are explored: the run survives or resumes, and ends as if it never happened.

With `off_policy`, whose drafts are learned from and not only ranked. Of `stale`, that a killed drafter costs
no draft is in `tests/integration/test_seed_search.py`, that a plan outlives its driver in
`tests/integration/under_prefect/test_explored_run.py`.
"""

from __future__ import annotations

import pytest

from benchmarks.fleet.resume import Kill, disturb, state_of
from storage.home import Home
from storage.record.run_store import RunStore
from tests.killed_run import WITHOUT_RAY, flow_states, served, undisturbed_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # three whole runs

# Drafts are counted and all of them made; with one spot worker dead, another drafts.
SETTINGS = (
    "runtime.spot_workers=2", "exploration.candidates=12",
    "exploration.drafts=40", "exploration.stop_with_training=false", "exploration.strategy=off_policy",
    *WITHOUT_RAY,
)  # fmt: skip

KILLS = (Kill("spot", "train", 2, 0.05), Kill("driver", "train", 3, 0.1))
"""The run survives the first one; after the second it is resumed."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with served(tmp_path_factory.mktemp("killed")) as folder:
        yield folder


def test_the_final_state_is_that_of_a_run_never_killed(home):
    expected = undisturbed_state(home, SETTINGS)
    assert expected
    outcome = disturb(home, KILLS, "killed", SETTINGS)
    assert (outcome.how, outcome.lost) == ("resumed", 0)
    assert outcome.redone <= 1
    assert state_of(home, "killed") == expected
    assert RunStore(Home(home)).run("killed").status == "finished"
    assert flow_states(home, "killed") == ["CRASHED", "COMPLETED"]
