"""A run whose cluster is gone ends alike in Prefect, in the database and for its caller."""

from __future__ import annotations

from typing import Any

import pytest

import flows.post_train
from flows.deployed.deployments import post_train_by_form
from flows.deployed.forms import TrainingForm
from storage.config.loading import load_config
from storage.errors import ClusterLostError, RuntimeFailure
from storage.home import Home
from storage.record.run_store import RunStore

pytestmark = pytest.mark.xdist_group("prefect")


@pytest.mark.parametrize(
    ("error", "status", "state"),
    [(ClusterLostError, "interrupted", "CRASHED"), (RuntimeFailure, "failed", "FAILED")],
)
def test_the_run_s_end_is_the_flow_run_s(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: type[RuntimeFailure], status: str, state: str
):
    def lost(*_: Any) -> None:
        raise error("Ray's raylet ended")

    monkeypatch.setattr(flows.post_train, "open_session", lost)
    config = load_config("smoke", [], {})
    run_id = f"lost-{status}"
    ended = flows.post_train.post_train(config, run_id, return_state=True)
    assert ended.type.value == state and "Ray's raylet ended" in (ended.message or "")
    with pytest.raises(error, match="Ray's raylet ended"):
        flows.post_train.post_train(config, run_id)
    row = RunStore(home).run(run_id)
    assert row.status == status and "Ray's raylet ended" in (row.error or "")


def test_a_form_s_flow_run_ends_so_too(home: Home, monkeypatch: pytest.MonkeyPatch):
    def lost(*_: Any) -> None:
        raise ClusterLostError("Ray's raylet ended")

    monkeypatch.setattr(flows.post_train, "open_session", lost)
    form = TrainingForm.model_validate({"preset": "smoke", "settings": ["runtime.cluster=local"]})
    ended = post_train_by_form(form, return_state=True)
    assert ended.type.value == "CRASHED" and "Ray's raylet ended" in (ended.message or "")
    with pytest.raises(ClusterLostError):
        flows.post_train.train_run(load_config("smoke", [], {}), "lost-plain")
