"""A run whose cluster is gone: Prefect, the database and the caller are told the same."""

from __future__ import annotations

from typing import Any

import pytest

import flows.post_train
from storage.config.loading import load_config
from storage.database.run_store import RunStore
from storage.errors import ClusterLostError, RuntimeFailure
from storage.home import Home

pytestmark = pytest.mark.xdist_group("prefect")


@pytest.mark.takes(30)
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
