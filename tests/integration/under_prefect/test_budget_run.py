"""A live run that ends at its budget, with a checkpoint and an evaluation, and goes on to the same bits."""

from __future__ import annotations

import pytest

from flows import start
from flows.post_train import post_train
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import EvaluationRecord
from storage.record.results import held_out_curve
from storage.record.run_store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]


COMMIT_EVALUATION = RunStore.commit_evaluation


def blobs(home: Home, run_id: str) -> tuple[int, dict[str, bytes]]:
    checkpoint = CheckpointStore(home.run(run_id)).load_latest()
    assert checkpoint is not None
    return checkpoint.iteration, checkpoint.blobs


def killed_in_its_last_evaluation(store: RunStore, config: RunConfig) -> None:
    """A run at its budget that loses its last evaluation, and is resumed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunStore, "commit_evaluation", commit_of_the_first)
        with pytest.raises(RuntimeError, match="killed"):
            post_train(config, "killed")
    assert dict(held_out_curve(store, "killed")).keys() == {0}
    post_train(start.resumed_configuration(store.home, "killed"), "killed")


def commit_of_the_first(store: RunStore, record: EvaluationRecord) -> None:
    """Commits the evaluation before training; a later one is lost, as by a kill."""
    if record.iteration:
        raise RuntimeError("killed")
    COMMIT_EVALUATION(store, record)


def test_a_run_ends_at_its_budget_and_goes_on_to_the_same_bits(home: Home):
    settings = ["iterations=2", "runtime.cluster=local", "runtime.spot_workers=1", "checkpoint.every=5"]
    post_train(load_config("smoke", settings, {}), "whole")
    small = load_config("smoke", [*settings, "budget.hours=1e-6"], {})
    result = post_train(small, "small")
    store = RunStore(home)
    row = store.run("small")
    assert result["iterations"] == 1 and result["score_after"] is not None
    assert (
        row.status == "finished" and row.error is not None and row.error.startswith("budget.hours is 1e-06")
    )
    assert blobs(home, "small")[0] == 1, "though a checkpoint is due every 5 iterations"
    assert dict(held_out_curve(store, "small")).keys() == {0, 1}
    with pytest.raises(ConfigurationError, match=r"ended early: budget\.hours"):
        start.resumed_configuration(home, "small")
    killed_in_its_last_evaluation(store, small)
    assert blobs(home, "killed") == blobs(home, "small")
    assert store.run("killed").status == "finished"
    assert dict(held_out_curve(store, "killed")).keys() == {0, 1}
    raised = start.resumed_configuration(home, "small", limits=["budget.hours=5"])
    store.set_limits("small", raised)
    post_train(raised, "small")
    assert store.run("small").error is None
    assert blobs(home, "small") == blobs(home, "whole")
