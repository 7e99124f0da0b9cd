"""A run of a model family, of tiny random weights, through the whole road: share, train, export, load."""

from __future__ import annotations

import pytest

from flows.post_train import post_train
from storage.record.queries.devices import sequence_groups
from storage.record.reading import Records
from tasks.export import export_run
from tests.pipeline_reference import family_config, own_pipeline
from tests.tiny_pipelines import save_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]


def test_a_model_family_goes_the_whole_road(home, tmp_path):
    folder = save_pipeline("qwen-image", tmp_path / "model")
    settings = family_config(
        "qwen-image",
        folder,
        reward={"scorer": "jpeg"},
        runtime={"spot_workers": 1, "scorer_workers": 1, "cluster": "local"},
        evaluation={"prompts": 4},
        sequence_parallel={"rollout": 2},
    )
    result = post_train(settings.model_copy(update={"name": "family", "iterations": 2}), "run-family")
    assert result["iterations"] == 2
    assert 0 < result["score_before"] < 1
    assert result["max_ratio_deviation"] <= settings.algorithm.ratio_tolerance
    with Records(home).reading() as connection:
        groups = sequence_groups(connection, "run-family", 1, 2, 100)
    assert set(groups["members"]) == {"reserved-0+spot-0"}
    answer = export_run(home, "run-family", tmp_path / "lora")
    assert answer["files"] == ["README.md", "curve.svg", "pytorch_lora_weights.safetensors"]
    own_pipeline("qwen-image", folder).load_lora_weights(answer["out"])
