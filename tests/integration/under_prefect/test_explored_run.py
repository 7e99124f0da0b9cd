"""Whole runs that explore seeds, under Prefect: what they record, and how they resume."""

from __future__ import annotations

import pytest

import storage.record.checkpoints
from flows.post_train import post_train
from storage.config.loading import load_config
from storage.record.ledger import read_ledger
from storage.record.run_store import RunStore
from tests.even_drafts import draft_evenly
from tests.whole_runs import cut_off, events, last_checkpoint, metrics, rows

pytestmark = pytest.mark.xdist_group("prefect")

SETTINGS = [
    "iterations=4", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.prompts=4",
    "evaluation.every=0", "exploration.strategy=stale", "exploration.candidates=8", "exploration.drafts=24",
    "exploration.stop_with_training=false", "exploration.min_spearman=-1", "algorithm.objective=nft",
    "algorithm.updates_per_iteration=2", "optimizer.warmup_steps=3", "runtime.cluster=local",
    "tracking.to=[]",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def even_plans():
    with pytest.MonkeyPatch.context() as patch:
        draft_evenly(patch)
        yield


@pytest.fixture(scope="module")
def config():
    return load_config("smoke", SETTINGS, {})


@pytest.fixture(scope="module")
def finished(home, config):
    with pytest.MonkeyPatch.context() as patch:  # every checkpoint stays, to go back to
        patch.setattr(storage.record.checkpoints, "KEPT", 4)
        return post_train(config, "stale")


def last_state(home, run_id):
    """The weights, and what exploration has learned but for how long its drafts took, after iteration 4."""
    checkpoint = last_checkpoint(home, run_id)
    assert checkpoint.iteration == 4
    state = checkpoint.state["explorer_state"]
    assert state["history"] and state["ranks"]
    return checkpoint.blobs, {name: value for name, value in state.items() if name != "forecast"}


def test_every_draft_is_recorded_with_its_fate(home, finished):
    drafts = "FROM candidates WHERE run_id = 'stale' AND round >= 0"
    assert rows(home, f"SELECT iteration, count(*) {drafts} GROUP BY 1 ORDER BY 1") == [
        (2, 24), (3, 24), (4, 24),
    ]  # fmt: skip
    # Drawn by the weights of the rollout before.
    assert rows(home, f"SELECT DISTINCT iteration - policy_version {drafts}") == [(2,)]
    assert rows(home, f"SELECT count(*) {drafts} AND kept") == [(3 * 4 * 4,)]
    assert rows(home, f"SELECT min(rank) {drafts}") == [(0,)]
    again = "FROM candidates WHERE run_id = 'stale' AND round = -1"
    # The last iteration has no window after it that anybody explores in.
    assert rows(home, f"SELECT DISTINCT iteration, iteration - policy_version {again} ORDER BY 1") == [
        (2, 1), (3, 1),
    ]  # fmt: skip
    explored = "SELECT iteration, count(explored_score) FROM samples GROUP BY 1 ORDER BY 1"
    assert rows(home, explored) == [(1, 0), (2, 16), (3, 16), (4, 16)]


def test_metrics_thumbnails_and_states(home, finished):
    assert metrics(home, "stale", "drafts") == {1: 0, 2: 24, 3: 24, 4: 24}
    for name in ("draft_errors", "spread_random", "spread_kept", "draft_error"):
        assert metrics(home, "stale", name).keys() == {2, 3, 4}, name
    assert metrics(home, "stale", "spread_rollout").keys() == {1, 2, 3, 4}
    assert metrics(home, "stale", "spearman").keys() <= {2, 3}
    assert metrics(home, "stale", "explore_wait_s").keys() == {1, 2, 3, 4}
    pictures = "SELECT iteration, count(*) FROM sample_images WHERE run_id = 'stale' GROUP BY 1 ORDER BY 1"
    assert rows(home, pictures) == [(iteration, 4) for iteration in (1, 2, 3, 4)]
    states = "SELECT DISTINCT worker FROM worker_states WHERE run_id = 'stale' AND state = 'explore'"
    assert rows(home, states) == [("spot-0",)]


def account(home, run_id):
    with RunStore(home).reading() as connection:
        return read_ledger(connection, run_id)


def test_all_paid_time_is_in_one_state(home, finished):
    ledger = account(home, "stale")
    assert ledger.is_balanced, (ledger.unaccounted_share, ledger.overlaps)
    assert [(worker.worker, worker.market) for worker in ledger.workers] == [
        ("reserved-0", "reserved"), ("spot-0", "spot"),
    ]  # fmt: skip
    assert ledger.has_device_events
    assert ledger.losses == ()
    assert ledger.samples == 4 * 16
    idle, unexplored = ledger.spot_idle_share, ledger.spot_idle_share_unexplored
    assert idle is not None and unexplored is not None
    assert 0 <= idle < unexplored < 1


def test_a_run_cut_off_after_a_checkpoint_resumes_to_the_same_bits(home, config, finished):
    """As after a kill: the weights that drafted the next seeds are gone, their plan is not."""
    expected = last_state(home, "stale")
    seeds = "SELECT iteration, prompt_id, seed_index FROM samples WHERE run_id = 'stale' ORDER BY ALL"
    chosen = rows(home, seeds)
    cut_off(home, "stale", 2)
    post_train(config, "stale")
    assert last_state(home, "stale") == expected
    assert rows(home, seeds) == chosen
    ledger = account(home, "stale")
    assert ledger.is_balanced, (ledger.unaccounted_share, ledger.overlaps)
    assert ledger.lost.device_s > 0, "iterations that were done again"


@pytest.mark.slow
def test_seeds_drafted_anew_on_the_critical_path_resume_to_the_same_bits(home, config):
    """Ranks that agree by less than always are refused: most plans are drafted again."""
    wary = config.changed(exploration={"min_spearman": 1.0, "monitor_prompts": 4})
    wary = wary.model_copy(update={"name": "wary"})
    post_train(wary, "wary")
    again = metrics(home, "wary", "redraft_s")
    # A plan that was drafted anew is followed by a review too.
    assert again.keys() == {3, 4}
    # The last one too, though no window follows it: what was drafted anew says it.
    assert metrics(home, "wary", "spearman").keys() == {2, 3, 4}
    assert metrics(home, "wary", "drafts_refused") == {3: 24, 4: 24}
    drafts = (
        "FROM candidates WHERE run_id = 'wary' AND iteration > 2 AND round >= 0 GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert rows(home, f"SELECT iteration, iteration - policy_version, count(*), sum(kept::INT) {drafts}") == [
        (3, 1, 24, 16), (3, 2, 24, 0), (4, 1, 24, 16), (4, 2, 24, 0),
    ]  # fmt: skip
    expected = last_state(home, "wary")[0]
    cut_off(home, "wary", min(again) - 1)  # the newest checkpoint left holds a refused plan
    post_train(wary, "wary")
    assert last_state(home, "wary")[0] == expected
    assert "staleness" in {kind for kind, _ in events(home, "wary")}
