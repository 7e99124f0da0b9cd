"""A short run of each objective that has no preset: two trainers, two updates an iteration, a KL."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.post_train import post_train
from gpu_runtime.dispatch.given_pairs import GIVEN
from storage.config.loading import load_config
from storage.home import Home
from storage.record.queries.runs import metric_curves
from storage.record.run_store import RunStore
from tests.given_pairs import pairs_file

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]


def test_a_run_on_pairs_of_a_file_goes_to_its_end(home: Home, tmp_path: Path):
    settings = [
        "algorithm.objective=dpo", "algorithm.group_size=2", f"prompts.train={pairs_file(tmp_path, 6)}",
        "runtime.cluster=local", "runtime.spot_workers=0",
    ]  # fmt: skip
    result = post_train(load_config("smoke", settings, {}), "run-pairs")
    assert result["iterations"] == 2
    with RunStore(home).reading() as connection:
        rows = connection.execute("SELECT seed_index, score, worker FROM samples WHERE run_id = 'run-pairs'")
        assert set(rows.fetchall()) == {(0, 1.0, GIVEN), (1, 0.0, GIVEN)}
        assert "pair_accuracy" in metric_curves(connection, "run-pairs")


@pytest.mark.parametrize("objective", ["grpo-guard", "awm", "dpo"])
def test_a_short_run_goes_to_its_end(home: Home, objective: str):
    settings = [
        f"algorithm.objective={objective}", "algorithm.updates_per_iteration=2", "algorithm.kl_weight=0.01",
        "runtime.cluster=local", "runtime.reserved_workers=2", "runtime.trainer_workers=2",
        "runtime.spot_workers=0", "runtime.scorer_workers=1",
    ]  # fmt: skip
    result = post_train(load_config("smoke", settings, {}), f"run-{objective}")
    assert result["iterations"] == 2
    assert result["max_ratio_deviation"] == 0.0
    with RunStore(home).reading() as connection:
        figures = metric_curves(connection, f"run-{objective}")
    assert ("pair_accuracy" in figures) == ("pair_margin" in figures) == (objective == "dpo")
