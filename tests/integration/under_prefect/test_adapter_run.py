"""A run that starts from another run's export begins where that one ended, and trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.post_train import post_train
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.export import export_run
from tasks.inputs import refuse_changed_inputs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]


def config_of(*changes: str) -> RunConfig:
    settings = [
        "runtime.cluster=local", "runtime.spot_workers=1", "runtime.scorer_workers=1", "adaptation.mode=lora",
        "adaptation.rank=4", "optimizer.learning_rate=0.02", *changes,
    ]  # fmt: skip
    return load_config("smoke", settings, {})


def evaluation(home: Home, run_id: str, iteration: int) -> list[Any]:
    with RunStore(home).reading() as connection:
        return connection.execute(
            "SELECT prompt_id, seed_index, score, png FROM evaluation_images "
            "WHERE run_id = ? AND iteration = ? ORDER BY prompt_id, seed_index",
            [run_id, iteration],
        ).fetchall()


def test_it_begins_with_the_very_policy(home: Home, tmp_path: Path):
    post_train(config_of(), "first")
    lora = tmp_path / "lora"
    export_run(home, "first", lora)
    again = config_of(f"model.adapter={lora}", "model.reference=adapter", "algorithm.kl_weight=0.01")
    post_train(again, "second")
    ended, began = evaluation(home, "first", 2), evaluation(home, "second", 0)
    assert len(began) == 8 and began == ended
    assert began != evaluation(home, "first", 0)
    assert evaluation(home, "second", 2) != began
    export_run(home, "second", tmp_path / "next")
    assert "| Started from | " in (tmp_path / "next" / "README.md").read_text("utf-8")
    facts = RunStore(home).run("second").environment
    (lora / "pytorch_lora_weights.safetensors").write_bytes(
        (tmp_path / "next" / "pytorch_lora_weights.safetensors").read_bytes()
    )
    with pytest.raises(ConfigurationError, match=r"model\.adapter = .*lora' \(SHA-256 .*, was "):
        refuse_changed_inputs(facts, again.model, again.prompts)
