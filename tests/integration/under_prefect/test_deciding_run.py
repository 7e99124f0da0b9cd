"""A run whose measured times decide how it explores: reproduced and resumed under other times."""

from __future__ import annotations

import pytest

import storage.record.checkpoints
import tasks.iteration.phases
from flows.deployed.forms import ReproductionForm
from flows.post_train import post_train
from flows.reproduce import reproduce
from gpu_runtime.exploration.measured_iterations import IterationTimes
from storage.config.loading import load_config
from storage.environment import DECISIONS
from storage.errors import ConfigurationError
from storage.record.ledger import read_ledger
from storage.record.run_store import RunStore
from tasks.chaos.faults import digests
from tests.whole_runs import cut_off, events, last_checkpoint, metrics, rows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]

SETTINGS = [
    "iterations=7", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.prompts=4",
    "evaluation.every=0", "runtime.cluster=local", "exploration.strategy=auto", "exploration.candidates=8",
    "exploration.drafts=24", "exploration.stop_with_training=false", "exploration.min_spearman=-1",
    "algorithm.objective=nft", "algorithm.updates_per_iteration=2", "tracking.to=[]", "reward.scorer=jpeg",
]  # fmt: skip

PAYS = IterationTimes(
    rollout_s=100.0, judging_s=0.0, train_s=400.0, draft_wait_s=0.0, whole_s=500.0, trained=16, rollers=1
)
"""Drafts beside a long training that save a rollout."""

NEVER = IterationTimes(
    rollout_s=400.0, judging_s=0.0, train_s=1.0, draft_wait_s=400.0, whole_s=801.0, trained=16, rollers=4
)
"""Drafts that training would have to wait for."""


def measure(patch: pytest.MonkeyPatch, until: int) -> None:
    """Let exploring pay in iterations up to a number, and not after it."""
    patch.setattr(
        tasks.iteration.phases,
        "_times",
        lambda session, rolled, trained, whole_s: PAYS if rolled.plan.iteration <= until else NEVER,
    )


@pytest.fixture(scope="module")
def finished(home):
    with pytest.MonkeyPatch.context() as patch:
        # Every checkpoint stays, to go back to.
        patch.setattr(storage.record.checkpoints, "KEPT", 7)
        measure(patch, until=2)
        post_train(load_config("smoke", SETTINGS, {}), "decided", repeats={DECISIONS: "0 plain"})
    return RunStore(home)


def trained_on_drafts(home, run_id):
    return {iteration: count for iteration, count in metrics(home, run_id, "drafts_trained").items() if count}


def weights(home, run_id):
    checkpoint = last_checkpoint(home, run_id)
    assert checkpoint.iteration == 7
    return checkpoint.blobs


def messages(home, run_id):
    return [message for kind, message in events(home, run_id) if kind == "strategy"]


def test_a_run_records_what_it_decides_and_why(home, finished):
    assert finished.run("decided").environment[DECISIONS] == "0 plain, 1 off_policy, 2 off_policy, 5 plain"
    assert trained_on_drafts(home, "decided").keys() == {2, 3, 4, 5, 6}, (
        "they are made at once where drafting is decided, and used where they are under way when it ends"
    )
    explored, checked, ended = messages(home, "decided")
    assert explored.startswith("iteration 1: off_policy from here on: signal per second")
    assert checked.startswith("iteration 2: still off_policy from here on: signal per second")
    assert ended.startswith("iteration 5: plain from here on: signal per second")


def test_a_new_run_of_a_graded_reward_begins_with_drafts_to_train_on(home):
    post_train(load_config("smoke", [*SETTINGS, "iterations=2", "reward.scorer=ocr"], {}), "begun")
    assert RunStore(home).run("begun").environment[DECISIONS].startswith("0 off_policy, 1 ")
    assert trained_on_drafts(home, "begun").keys() == {2}


def test_it_is_reproduced_to_the_bit_under_other_times(home, finished, monkeypatch):
    measure(monkeypatch, until=0)
    said = reproduce(ReproductionForm(reference="decided"), "again")
    assert (said["verdict"], said["differences"]) == ("identical", [])
    assert trained_on_drafts(home, "again") == trained_on_drafts(home, "decided")
    assert messages(home, "again") == [
        "iteration 1: off_policy from here on, as recorded",
        "iteration 2: off_policy from here on, as recorded",
        "iteration 5: plain from here on, as recorded",
    ]  # fmt: skip


def test_decisions_that_cannot_be_repeated_are_refused_before_a_run_exists(home, finished):
    form = ReproductionForm(reference="decided", settings=['exploration.fidelities=["full", "preview-2"]'])
    with pytest.raises(ConfigurationError, match="a cheaper draft is not a sample of the policy"):
        reproduce(form, "refused")
    with pytest.raises(ConfigurationError, match="recorded decisions are 'x'"):
        post_train(load_config("smoke", SETTINGS, {}), "refused", repeats={DECISIONS: "x"})
    assert "refused" not in {run.run_id for run in finished.runs()}


def test_cut_off_after_a_decision_that_no_checkpoint_holds_it_resumes_to_the_same_bits(
    home, finished, monkeypatch
):
    """The state after a kill in iteration 6, with the newest checkpoint of iteration 3."""
    expected, explored = weights(home, "decided"), trained_on_drafts(home, "decided")
    cut_off(home, "decided", 3)
    measure(monkeypatch, until=7)
    post_train(load_config("smoke", SETTINGS, {}), "decided")
    assert weights(home, "decided") == expected
    assert trained_on_drafts(home, "decided") == explored
    assert finished.run("decided").environment[DECISIONS] == "0 plain, 1 off_policy, 2 off_policy, 5 plain"


def test_spot_devices_train_in_the_windows_that_are_decided_and_change_no_bit(home):
    shared = [
        *SETTINGS, "iterations=4", "runtime.trainer_workers=2", "algorithm.gradient_shards=2",
        "adaptation.mode=lora",
    ]  # fmt: skip
    for run_id, first in (("on_spot", "all_train"), ("on_reserved", "plain")):
        post_train(load_config("smoke", shared, {}), run_id, repeats={DECISIONS: f"1 {first}, 2 stale"})
    trained = rows(
        home,
        "SELECT DISTINCT run_id, iteration FROM worker_states WHERE state = 'train' AND market = 'spot' "
        "AND iteration > 1",  # in the first one spot devices that have joined train in both
    )
    with RunStore(home).reading() as connection:
        assert read_ledger(connection, "on_spot").is_balanced
    assert trained == [("on_spot", 2)], "decided after the first iteration, and again after the second"
    assert messages(home, "on_spot")[0] == "iteration 1: all_train from here on, as recorded"
    assert digests(home, "on_spot")[4] == digests(home, "on_reserved")[4]
