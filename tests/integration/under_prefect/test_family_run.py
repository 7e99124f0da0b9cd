"""Runs of model families, of tiny random weights, through the whole road: share, train, export, load."""

from __future__ import annotations

import pytest

from flows.post_train import post_train
from storage.pictures import read_frames
from storage.record.queries.devices import sequence_groups
from storage.record.run_store import RunStore
from tasks.export import export_run
from tasks.report import report_file
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
    with RunStore(home).reading() as connection:
        groups = sequence_groups(connection, "run-family", 1, 2, 100)
    assert set(groups["members"]) == {"reserved-0+spot-0"}
    answer = export_run(home, "run-family", tmp_path / "lora")
    assert answer["files"] == ["README.md", "curve.svg", "pytorch_lora_weights.safetensors"]
    own_pipeline("qwen-image", folder).load_lora_weights(answer["out"])


def test_clips_are_judged_learned_from_kept_and_shown(home, tmp_path):
    rewards = tmp_path / "mine.py"
    rewards.write_text(
        "def moves(frames, prompt):\n"
        "    first, last = (frame.resize((1, 1)).getpixel((0, 0))[0] for frame in frames)\n"
        "    return 0.5 + (last - first) / 510\n"
    )
    settings = family_config(
        "wan2.2",
        save_pipeline("wan2.2", tmp_path / "model"),
        reward={"scorer": f"{rewards}:moves", "frames": 2},
        runtime={"spot_workers": 1, "scorer_workers": 1, "cluster": "local"},
        evaluation={"prompts": 4},
        sequence_parallel={"rollout": 2},
    )
    result = post_train(settings.model_copy(update={"name": "clips", "iterations": 2}), "run-clips")
    assert result["iterations"] == 2
    assert result["scorer_errors"] == 0
    assert result["max_ratio_deviation"] <= settings.algorithm.ratio_tolerance
    with RunStore(home).reading() as connection:
        assert set(sequence_groups(connection, "run-clips", 1, 2, 100)["members"]) == {"reserved-0+spot-0"}
        for table in ("evaluation_images", "sample_images"):
            query = f"SELECT png FROM {table} WHERE png IS NOT NULL LIMIT 1"
            [(clip,)] = connection.execute(query).fetchall()
            assert read_frames(bytes(clip)).shape == (5, 32, 48, 3)
    report_file(home, "run-clips", tmp_path / "report.html")
    assert "data:image/webp;base64,UklGR" in (tmp_path / "report.html").read_text()
