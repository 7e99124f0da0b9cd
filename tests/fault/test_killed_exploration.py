"""kill -9 while seeds are explored: the run survives or resumes, and ends as if it never happened."""

from __future__ import annotations

import pytest

from benchmarks.resume import Kill, disturb, state_of
from storage.database.run_store import RunStore
from storage.home import Home
from tests.killed_run import served, undisturbed_state

pytestmark = pytest.mark.slow

# Drafts are counted and all of them made; with one spot worker dead, another drafts.
SETTINGS = (
    "runtime.spot_workers=2", "exploration.candidates=12",
    "exploration.drafts=40", "exploration.stop_with_training=false", "runtime.cluster=local",
)  # fmt: skip


@pytest.fixture(scope="module", params=["stale", "off_policy"])
def settings(request):
    return (*SETTINGS, f"exploration.strategy={request.param}")


@pytest.fixture(scope="module")
def home(tmp_path_factory, settings):
    with served(tmp_path_factory.mktemp("killed")) as folder:
        yield folder


@pytest.fixture(scope="module")
def undisturbed(home, settings):
    return undisturbed_state(home, settings)


@pytest.mark.parametrize(
    ("kill", "how"),
    [(Kill("driver", "train", 3, 0.1), "resumed"), (Kill("spot", "train", 2, 0.05), "survived")],
    ids=["driver-while-drafting", "spot-while-drafting"],
)
def test_the_final_state_is_that_of_a_run_never_killed(home, settings, undisturbed, kill, how):
    assert undisturbed
    run_id = f"killed-{kill.victim}"
    assert disturb(home, kill, run_id, settings).how == how
    assert state_of(home, run_id) == undisturbed
    assert RunStore(Home(home)).run(run_id).status == "finished"
