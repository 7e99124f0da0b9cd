"""The flow `evaluate`: what it tells the person who waits, what it keeps, and what it refuses first."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import flows.evaluate
import tasks.evaluation
from flows.cli.looking import evaluation_facts, show_evaluation, show_evaluations
from flows.start import evaluate, evaluated_configuration
from gpu_runtime.diffusion.samples import GeneratedSample, Trajectory
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import RewardConfig, RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, StorageError
from storage.evaluations.separate import EvaluationStore
from storage.home import Home
from storage.prompts.files import draw_subset, load_prompts
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tasks.evaluation import Evaluated, tracked_metrics
from tests.sample_run import write_sample_run

NOTHING = np.empty(0, np.float32)
CONFIG = RunConfig.model_validate(
    {
        "name": "base",
        "prompts": {"train": "builtin:shapes-train", "evaluate": "builtin:shapes-evaluate"},
        "reward": {"scorer": "shapes"},
        "evaluation": {"prompts": 6, "images_per_prompt": 2},
        "tracking": {"to": []},
    }
)


def evaluated(run_id: str | None, scores: list[float]) -> Evaluated:
    """Six prompts with two images each."""
    prompts = draw_subset(load_prompts("builtin:shapes-evaluate"), 6)
    samples = [
        GeneratedSample(
            SampleRequest(RequestKind.EVALUATE, 0, 0, prompt.prompt_id, seed, 4, prompt.text),
            np.zeros((4, 4, 3), np.uint8), Trajectory(NOTHING, NOTHING, NOTHING, NOTHING), NOTHING,
        )
        for prompt in prompts
        for seed in range(2)
    ]  # fmt: skip
    judged = [Score(value, value == 1, "two of them") for value in scores]
    evaluation = Evaluation(samples, judged, 4, [{"grain": 0.5}] * len(samples))
    return Evaluated(run_id, 4 if run_id else 0, evaluation, prompts, 10.0, 20.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(flows.evaluate, "record_separately", tasks.evaluation.record_separately.fn)
    return Home(tmp_path / "home")


def scored(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    monkeypatch.setattr(
        flows.evaluate, "evaluate_weights", lambda home, config, run_id: evaluated(run_id, scores)
    )


def test_it_names_what_is_evaluated(home: Home, monkeypatch: pytest.MonkeyPatch):
    notes: list[str] = []
    monkeypatch.setattr(flows.evaluate, "reporter", lambda: SimpleNamespace(note=notes.append))
    scored(monkeypatch, [1.0] * 12)
    flows.evaluate.evaluate_model.fn(CONFIG, "mine-1")
    flows.evaluate.evaluate_model.fn(CONFIG)
    part = "on 6 of 144 held-out prompts, every tag in its share"
    assert notes == [f"evaluating mine-1 {part}", f"evaluating embedded:glyphs {part}"]


def test_scores_are_kept_with_their_tags_and_images_in_their_folder(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    scores = [0.0, 1.0] * 6
    scored(monkeypatch, scores)
    (tmp_path / "images").mkdir()
    result = flows.evaluate.evaluate_model.fn(CONFIG, "mine", tmp_path / "images", preset="shapes")
    store = EvaluationStore(home)
    row = store.find(result["evaluation_id"])
    assert (row.run_id, row.iteration, row.policy_version, row.images) == ("mine", 4, 4, 12)
    assert row.folder == str(tmp_path / "images")
    assert {"digest prompts.evaluate", "digest model", "commit"} <= row.environment.keys()
    assert row.environment["preset"] == "shapes"
    images = store.images(row.evaluation_id)
    assert [image.score for image in images] == scores
    tags = [prompt.tag for prompt in draw_subset(load_prompts("builtin:shapes-evaluate"), 6)]
    assert [image.tag for image in images[::2]] == tags
    assert set(result["by_tag"]) == set(tags)
    assert result["score"] == 0.5
    assert len(list((tmp_path / "images").glob("*/samples/*.png"))) == 12


def test_clips_are_recorded_also_where_ffmpeg_fails(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\necho no codec >&2\nexit 1\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = evaluated("mine", [0.0, 1.0] * 6)
    clip_FHWC = np.zeros((2, 4, 4, 3), np.uint8)
    clips = [replace(sample, image_HWC=clip_FHWC) for sample in found.evaluation.samples]
    found = replace(found, evaluation=replace(found.evaluation, samples=clips))
    monkeypatch.setattr(flows.evaluate, "evaluate_weights", lambda home, config, run_id: found)
    (tmp_path / "clips").mkdir()
    result = flows.evaluate.evaluate_model.fn(CONFIG, "mine", tmp_path / "clips")
    assert result["without_mp4"] == "ffmpeg: no codec"
    assert EvaluationStore(home).find(result["evaluation_id"]).images == 12
    assert len(list((tmp_path / "clips").glob("*/samples/*.webp"))) == 12


def test_it_compares_with_an_earlier_one(home: Home, monkeypatch: pytest.MonkeyPatch):
    scored(monkeypatch, [0.0, 1.0] * 6)
    earlier = flows.evaluate.evaluate_model.fn(CONFIG)
    scored(monkeypatch, [0.5, 1.0] * 6)
    later = flows.evaluate.evaluate_model.fn(CONFIG, "mine", None, earlier["evaluation_id"])
    difference = later["difference"]
    assert difference["score"] == pytest.approx(0.25)
    assert (difference["pairs"], difference["same_noise"]) == (12, True)


def test_nothing_of_exact_images_is_said_of_a_reward_without_a_verdict(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    graded = CONFIG.model_copy(update={"reward": RewardConfig(scorer="jpeg")})
    scored(monkeypatch, [0.0, 1.0] * 6)
    earlier = flows.evaluate.evaluate_model.fn(graded)["evaluation_id"]
    result = flows.evaluate.evaluate_model.fn(graded, "mine", None, earlier)
    assert result["by_tag"] and result["difference"]["by_tag"]
    assert "exact" not in json.dumps(result)
    show_evaluation(result)
    rows = EvaluationStore(home).all()
    show_evaluations(rows)
    assert "exact" not in json.dumps(evaluation_facts(rows[0]))
    assert "exact" not in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused_before_the_work(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flows.start.look_at_inputs", lambda config: None)
    monkeypatch.setattr("flows.server.prefect_server.prefect_server", None)
    with pytest.raises(RunNotFoundError, match="no evaluation 'nothing'"):
        evaluate(preset="smoke", compare="nothing")


def test_the_names_for_readers_begin_like_those_of_a_run():
    values = {"score": 0.5, "score_interval": [0.4, 0.6], "exact": 0.25, "exact_interval": [0.2, 0.3]}
    found = tracked_metrics(
        values | {"by_tag": {"counting": values}, "over_tags": values, "parts": {"ocr": 1.0}}
    )
    assert found["evaluation_score"] == 0.5
    assert found["evaluation_exact_low.counting"] == 0.2
    assert found["evaluation_score_high.over_tags"] == 0.6
    assert found["evaluation_part_ocr"] == 1.0
    assert len(found) == 19


def test_images_that_cannot_be_written_leave_no_evaluation(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    scored(monkeypatch, [0.0, 1.0] * 6)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises((StorageError, OSError)):
        flows.evaluate.evaluate_model.fn(CONFIG, "mine", tmp_path / "file")
    assert EvaluationStore(home).all() == []


@pytest.mark.parametrize("setting", ["optimizer.ema_decay=0", "optimizer.ema_interval=7"])
def test_a_run_is_scored_with_the_average_that_is_exported(home: Home, setting: str):
    store = RunStore(home)
    write_sample_run(store, "mine", iterations=1)
    CheckpointStore(home.run("mine")).save(1, {"x": b""}, {})
    changed, _ = evaluated_configuration(home, "mine", None, ["sampling.evaluate_steps=3"])
    assert changed.sampling.evaluate_steps == 3
    with pytest.raises(
        ConfigurationError, match=r"optimizer\.ema_\w+ differs from [\d.]+, with which run 'mine'"
    ):
        evaluated_configuration(home, "mine", None, [setting])
    assert evaluated_configuration(home, None, "glyphs", [setting])[1] == "glyphs", "of no run"


@pytest.mark.parametrize("way", ["variable", "table", "key", "none"])
def test_prompts_are_limited_by_any_given_setting(home: Home, monkeypatch: pytest.MonkeyPatch, way: str):
    if way == "variable":
        monkeypatch.setenv("SPOTLIGHT_EVALUATION__PROMPTS", "8")
    sets = {"table": ["evaluation={prompts=8}"], "key": ["evaluation.prompts=8"]}.get(way, [])
    config, preset = evaluated_configuration(home, None, "glyphs", sets)
    assert preset == "glyphs"
    every = len(load_prompts(config.prompts.evaluate))
    assert config.evaluation.prompts == (every if way == "none" else 8)
