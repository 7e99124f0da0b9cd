"""The curves of the exploration benchmark are those of runs of `spotlight train`."""

from __future__ import annotations

import pytest

from benchmarks.exploration.learning_curve import make_curve
from flows.post_train import post_train
from storage.config.loading import load_config
from storage.record.run_store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]

SETTINGS = (
    "iterations=3", "evaluation.every=1", "runtime.cluster=local", "sampling.batch_size=4",
    "exploration.candidates=8", "exploration.drafts=24", "exploration.stop_with_training=false",
    "exploration.strategy=off_policy",
)  # fmt: skip


def test_a_curve_is_that_of_a_run(home):
    config = load_config("smoke", SETTINGS, {})
    curve = make_curve(config, 3, 1)
    post_train(config, "curve")
    with RunStore(home).reading() as connection:
        rows = connection.execute(
            "SELECT iteration, score, exact FROM evaluations WHERE run_id = 'curve' ORDER BY iteration"
        ).fetchall()
    assert rows == [*zip(curve.iterations, curve.score, curve.exact, strict=True)]
    assert sum(curve.drafts) > 0
    # The last iteration has none beside it.
    assert len(curve.beside_s) == 2
    assert all(
        0 < beside_s < driver_s for beside_s, driver_s in zip(curve.beside_s, curve.driver_s[:2], strict=True)
    )
