"""`spotlight export`: what it writes can be loaded, and the card tells no tales."""

from __future__ import annotations

import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from gpu_runtime.learning.policy import Policy
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.models.loading import load_model
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.model_card import curve_picture, public
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tasks.export import export_run
from tests.pipeline_reference import EXACT, difference, family_config, own_pipeline, run_pipeline, run_sampler
from tests.sample_run import evaluation_record
from tests.tampering import set_run
from tests.tiny_pipelines import save_pipeline
from tests.tiny_run import perturbed


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").ensure()


def finished_run(home: Home, config: RunConfig, steps: int = 8, result: str = "average") -> Policy:
    """A run with one checkpoint, whose result are a policy's weights, moved as training would."""
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    untouched = policy.state()
    policy.load(perturbed(untouched, 0.1))
    RunStore(home).create_run("a-run", config, {"commit": "abc123", "digest model": "f" * 64}, os.getpid())
    parts = {"average": untouched, "weights": untouched, result: policy.state()}
    parts["optimizer"] = {"training_steps": np.array([steps], np.int64)}
    blobs = {f"{part}.safetensors": save(state) for part, state in parts.items()}
    CheckpointStore(home.run("a-run")).save(2, blobs, {})
    return policy


@pytest.mark.parametrize(
    ("decay", "steps", "result"), [(0.0, 16, "weights"), (0.9, 7, "weights"), (0.9, 8, "average")]
)
def test_the_weights_that_evaluations_scored_are_exported(
    home: Home, tmp_path: Path, decay: float, steps: int, result: str
):
    settings = {"optimizer": {"ema_decay": decay, "ema_interval": 8}}
    policy = finished_run(home, RunConfig.model_validate(settings), steps, result)
    export_run(home, "a-run", tmp_path / "whole")
    assert torch.equal(velocity_of(EmbeddedModel.load(tmp_path / "whole")), velocity_of(policy.model))
    card = (tmp_path / "whole/README.md").read_text("utf-8")
    assert f"; the {'moving average' if result == 'average' else 'weights'} after iteration 2" in card


def test_only_the_weights_are_copied_and_not_the_moments(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read: list[dict[str, np.ndarray]] = []

    def spied(blob: bytes) -> dict[str, np.ndarray]:
        read.append(load(blob))
        return read[-1]

    monkeypatch.setattr("tasks.export.load", spied)
    policy = finished_run(home, RunConfig())
    export_run(home, "a-run", tmp_path / "whole")
    assert [state.keys() for state in read] == [policy.state().keys()]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_every_file_keeps_the_umask_of_the_caller(home: Home, tmp_path: Path, umask: int):
    finished_run(home, RunConfig())
    before = os.umask(umask)
    try:
        files = export_run(home, "a-run", tmp_path / "whole")["files"]
    finally:
        os.umask(before)
    modes = {(tmp_path / "whole" / name).stat().st_mode & 0o777 for name in files}
    assert modes == {0o666 & ~umask}


def test_a_familys_run_gives_what_its_pipeline_loads(home: Home, tmp_path: Path):
    folder = save_pipeline("sd3.5", tmp_path / "model")
    config = family_config("sd3.5", folder)
    policy = finished_run(home, config)
    store, out = RunStore(home), tmp_path / "lora"
    store.commit_evaluation(evaluation_record("a-run", 0, 1000.0))
    store.commit_evaluation(evaluation_record("a-run", 2, 2000.0))
    answer = export_run(home, "a-run", out)
    assert answer["iteration"] == 2
    assert answer["files"] == ["README.md", "curve.svg", "pytorch_lora_weights.safetensors"]
    pipeline = own_pipeline("sd3.5", folder)
    pipeline.load_lora_weights(str(out))
    expected = run_pipeline(pipeline, config, policy.model.latent_shape)
    assert difference(run_sampler(policy.model, config), expected) <= EXACT
    card = (out / "README.md").read_text(encoding="utf-8")
    for part in (
        "| Base model | `model` (sd3.5) |", 'license: "unknown"',
        "StableDiffusion3Pipeline.from_pretrained('model', ", "`abc123`",
        "`pytorch_lora_weights.safetensors`. `model` is the folder of the base model.",
        "LoRA, rank 4, by Flow-GRPO", "iteration 2 of 40", "| Reward | ocr, graded |", "builtin:glyphs-train",
    ):  # fmt: skip
        assert part in card, part
    assert "Score before → after | 0." in card
    assert str(tmp_path) not in card
    assert "base_model:" not in card, "the hub refuses a folder"
    assert "after iteration 2](curve.svg)" in card and '"family": "sd3.5"' in card
    ET.fromstring((out / "curve.svg").read_text(encoding="utf-8"))


def test_the_curve_is_drawn_to_scale():
    """From iteration 0 at the left, 45, to the last one at 585; a score of 0 is at 175, of 1 at 15."""
    drawn = ET.fromstring(curve_picture([(0, 0.25), (10, 0.5), (40, 1.0)]))
    points = ["45.0,135.0", "180.0,95.0", "585.0,15.0"]
    [line] = drawn.iterfind(".//{*}polyline")
    assert line.get("points") == " ".join(points)
    assert [f"{dot.get('cx')},{dot.get('cy')}" for dot in drawn.iterfind(".//{*}circle")] == points
    grid = ["M45 175.0H585", "M45 95.0H585", "M45 15.0H585"]
    assert [each.get("d") for each in drawn.iterfind(".//{*}path")] == grid
    texts = [(each.get("x"), each.get("y"), each.text) for each in drawn.iterfind(".//{*}text")]
    assert texts == [
        ("8", "179.0", "0.0"), ("8", "99.0", "0.5"), ("8", "19.0", "1.0"), ("45", "198", "iteration 0"),
        ("585", "198", "40"),
    ]  # fmt: skip


def velocity_of(model: Any) -> torch.Tensor:
    latents = torch.randn(4, *model.latent_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model.velocity(latents, torch.full((4,), 0.5), model.encode_prompts(['a "K7B"'] * 4))


def test_an_embedded_models_adapters_and_weights(home: Home, tmp_path: Path):
    config = RunConfig.model_validate({"adaptation": {"mode": "lora", "rank": 2}})
    policy = finished_run(home, config)
    RunStore(home).commit_evaluation(evaluation_record("a-run", 2, 2000.0))
    files = export_run(home, "a-run", tmp_path / "lora")["files"]
    assert "curve.svg" not in files, "one evaluation is no curve"
    model: Any = EmbeddedModel.load(config.model.path)
    model.transformer.load_lora_adapter(str(tmp_path / "lora"), use_safetensors=True)
    torch.testing.assert_close(velocity_of(model), velocity_of(policy.model), atol=1e-5, rtol=1e-5)


def test_a_run_of_all_weights_gives_a_model_to_begin_from(home: Home, tmp_path: Path):
    judges = {"url": "http://user:token@judge:8000/score", "key_variable": "MY_KEY", "timeout_s": 9}
    options = {"parts": [{"scorer": "remote", "weight": 1.0, "options": judges}]}
    policy = finished_run(home, RunConfig.model_validate({"reward": {"scorer": "sum", "options": options}}))
    answer = export_run(home, "a-run", tmp_path / "whole")
    assert "spotlight.json" in answer["files"]
    assert torch.equal(velocity_of(EmbeddedModel.load(tmp_path / "whole")), velocity_of(policy.model))
    card = (tmp_path / "whole/README.md").read_text("utf-8")
    assert "| Score before → after | not evaluated |" in card
    assert "timeout_s" in card and "token" not in card and "judge" not in card and "MY_KEY" not in card
    assert "modelled: no device was rented" in card


def test_the_card_names_no_folder_of_this_machine(home: Home, tmp_path: Path):
    part, judge = tmp_path / "mine.py", tmp_path / "judge.py"
    for file in (part, judge):
        file.write_text("def r(image, prompt):\n    return 1.0\n")
    prompts = {name: str(tmp_path / f"{name}.txt") for name in ("train", "evaluate")}
    parts = {f"{part}:r": 1.0, "jpeg": 2.0}
    sections: dict[str, Any] = {"prompts": prompts, "evaluation": {"judge": f"{judge}:r"}}
    rewards: list[dict[str, Any]] = [{"scorer": "sum", "options": {"parts": parts}}, {"scorer": f"{part}:r"}]
    for reward in rewards:
        shutil.rmtree(home.run("a-run"), ignore_errors=True)
        finished_run(home, RunConfig.model_validate({**sections, "reward": reward}))
        set_run(RunStore(home), "a-run", environment={"digest reward": "e" * 64})
        out = tmp_path / reward["scorer"].rpartition("/")[2]
        export_run(home, "a-run", out)
        card = (out / "README.md").read_text("utf-8")
        assert str(tmp_path) not in card
        assert "mine.py:r" in card and "judge.py:r" in card and "`train.txt` (SHA-256" in card
        assert f"(SHA-256 `{'e' * 12}`)" in card


def test_parts_of_the_same_file_name_all_stay_on_the_card():
    parts = {"/a/m.py:r": 1.0, "jpeg": 2.0, "/b/m.py:r": 3.0, "/c/m.py:r": 4.0}
    assert public({"parts": parts, "url": "http://judge"}) == {
        "parts": {"m.py:r": 1.0, "jpeg": 2.0, "m.py:r (2)": 3.0, "m.py:r (3)": 4.0}
    }


def test_a_gate_on_the_card_names_the_part_that_it_means():
    gated = {"weight": 2.0, "gate": {"/b/m.py:r": 0.8}}
    assert public({"parts": {"/a/m.py:r": 1.0, "/b/m.py:r": 3.0, "jpeg": gated}})["parts"] == {
        "m.py:r": 1.0, "m.py:r (2)": 3.0, "jpeg": {"weight": 2.0, "gate": {"m.py:r (2)": 0.8}}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/x/y/", "y"),
        ("/x/y", "y"),
        ("/", "/"),
        ("black-forest-labs/FLUX.1-dev", "black-forest-labs/FLUX.1-dev"),
    ],
)
def test_a_folder_is_shown_by_its_last_name_alone(value: str, shown: str):
    assert public(value) == shown


def test_a_familys_whole_transformer_can_be_loaded(home: Home, tmp_path: Path):
    folder = save_pipeline("flux", tmp_path / "model")
    config = family_config("flux", folder, adaptation={"mode": "full"})
    policy = finished_run(home, config)
    export_run(home, "a-run", tmp_path / "whole")
    loaded: Any = type(policy.model.transformer)
    transformer = loaded.from_pretrained(str(tmp_path / "whole"), subfolder="transformer")
    for name, weight in transformer.named_parameters():
        assert np.array_equal(weight.detach().numpy(), policy.state()[name]), name
    card = (tmp_path / "whole/README.md").read_text("utf-8")
    assert "FluxPipeline.from_pretrained('model', " in card and str(tmp_path) not in card
    assert "`model` is the folder of the base model." in card
