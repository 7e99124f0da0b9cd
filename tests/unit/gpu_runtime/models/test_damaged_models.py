"""Damaged folders of models are refused in one line, before memory is spent on what they might mean."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_runtime.models.embedded.folder import FILES, WEIGHTS_FOLDER
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.models.loading import outline_model
from storage.errors import ModelError
from tests.pipeline_reference import family_config
from tests.tiny_pipelines import PIPELINES, Saved

Damage = Callable[[Path], None]
CONFIG, WEIGHTS = "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors"


def writes(file: str, content: str | bytes) -> Damage:
    data = content if isinstance(content, bytes) else content.encode()

    def damage(folder: Path) -> None:
        (folder / file).write_bytes(data)

    return damage


def cut(file: str, keep: float) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[: int(len(data) * keep)])

    return damage


def sets(file: str, **changes: Any) -> Damage:
    """Change settings of a JSON file; None takes one away."""

    def damage(folder: Path) -> None:
        values = json.loads((folder / file).read_text()) | changes
        kept = {name: value for name, value in values.items() if value is not None}
        (folder / file).write_text(json.dumps(kept))

    return damage


def tensors(file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        held = load_file(folder / file)
        change(held)
        save_file(held, folder / file)

    return damage


def reshape_first(held: dict[str, torch.Tensor]) -> None:
    name = sorted(held)[0]
    held[name] = torch.zeros(3, 7)


HEADER = b'{"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 999999999]}}'
GARBAGE = {
    "cut off": (cut(WEIGHTS, 0.5), "it is cut off"),
    "cut in the header": (cut(WEIGHTS, 0.001), "is not a safetensors file"),
    "empty": (writes(WEIGHTS, b""), "is not a safetensors file"),
    "noise": (writes(WEIGHTS, bytes(range(256)) * 40), "is not a safetensors file"),
    "deep header": (
        writes(WEIGHTS, struct.pack("<Q", 200_000) + b"[" * 200_000),
        "is not a safetensors file",
    ),
    "wrong offsets": (writes(WEIGHTS, struct.pack("<Q", len(HEADER)) + HEADER + b"\0" * 16), "it is cut off"),
    "wrong sizes": (
        writes(
            WEIGHTS, struct.pack("<Q", len(HEADER) - 7) + HEADER.replace(b"999999999", b"16") + b"\0" * 16
        ),
        "is not a safetensors file|but the weight files have 1 tensors",
    ),
    "config of nothing": (writes(CONFIG, "{}"), "its config.json names no model"),
    "config without sizes": (
        writes(CONFIG, '{"_class_name": "CLASS"}'),
        "parameters, but the weight files hold|by config.json; one of the two",
    ),
    "config that is a list": (writes(CONFIG, "[1, 2]"), "is not a JSON object"),
    "config that is not JSON": (writes(CONFIG, "\xff\xfe{"), "is not JSON"),
    "config without an end": (writes(CONFIG, "[" * 100_000), "is not JSON"),
    "another class": (sets(CONFIG, _class_name="UNet2DModel"), "describes a UNet2DModel"),
    "a million layers": (sets(CONFIG, num_layers=10**6), "num_layers = 1000000, but the weight files"),
    "layers below none": (sets(CONFIG, num_layers=-1), "num_layers = -1, but the weight files"),
    "another layer": (
        sets(CONFIG, num_layers=1),
        "by config.json; one of the two|tensors that its config.json does not describe",
    ),
    "wider": (sets(CONFIG, attention_head_dim=64), "by config.json; one of the two belongs to"),
    "heads beyond memory": (sets(CONFIG, num_attention_heads=10**9), "is not a valid .*Storage size"),
    "no number": (sets(CONFIG, num_attention_heads="many"), "is not a valid "),
    "no heads": (sets(CONFIG, num_attention_heads=0), "is not a valid |by config.json"),
    "weights lost": (
        tensors(WEIGHTS, lambda held: held.pop(sorted(held)[-1])),
        "lacks 1 weights of a |parameters, but the weight files hold",
    ),
    "another shape": (tensors(WEIGHTS, reshape_first), "has shape \\[3, 7\\] in the file"),
}
OF_EMBEDDED = {
    "not finite": (
        tensors(WEIGHTS, lambda held: held["proj_out.weight"].fill_(float("nan"))),
        "values of proj_out.weight are not finite",
    ),
    "codec cut off": (cut("codec.safetensors", 0.5), "cannot read the codec"),
    "codec of another shape": (
        tensors("codec.safetensors", lambda held: held.update(mean_D=torch.zeros(5))),
        "mean_D is torch.float32 of shape",
    ),
    "codec not finite": (
        tensors("codec.safetensors", lambda held: held["basis_CD"].fill_(float("inf"))),
        "basis_CD is not finite",
    ),
    "settings of nothing": (writes("spotlight.json", "{}"), "not the settings of an embedded model"),
    "settings that are no text": (writes("spotlight.json", b"\xff\xfe"), "is not JSON"),
    "an image without end": (
        sets("spotlight.json", height=2**40),
        "height = 1099511627776: must be at most 4096",
    ),
    "an odd image": (sets("spotlight.json", width=13), "width = 13: input should be a multiple of 8"),
    "text in words": (
        sets("spotlight.json", text_length="eight"),
        "text_length = 'eight': must be a whole number",
    ),
    "guidance in words": (sets("spotlight.json", guided="yes"), "guided = 'yes': must be true or false"),
    "other text": (sets("spotlight.json", text_width=16), "takes text of width 64|takes text of width"),
}
OF_FAMILY = {
    "encoder of nothing": (writes("text_encoder_3/config.json", "{}"), "config.json names no model"),
    "encoder without sizes": (
        writes("text_encoder_3/config.json", '{"model_type": "t5"}'),
        "by config.json; one of the two|parameters, but the weight files hold",
    ),
    "encoder without end": (
        sets("text_encoder_3/config.json", num_layers=10**7), "num_layers = 10000000, but the weight files",
    ),
    "encoder cut off": (cut("text_encoder/model.safetensors", 0.9), "it is cut off"),
    "vae of nothing": (writes("vae/config.json", "{}"), "config.json names no model"),
    "vae without sizes": (
        sets("vae/config.json", block_out_channels=None), "is not a valid AutoencoderKL|by config.json",
    ),
    "vae of a number": (sets("vae/config.json", block_out_channels=5), "is not a valid AutoencoderKL"),
    "scheduler of words": (
        sets("scheduler/scheduler_config.json", num_train_timesteps="all"), "is not a valid FlowMatchEuler",
    ),
    "scheduler beyond memory": (
        sets("scheduler/scheduler_config.json", num_train_timesteps=10**15), "is not a valid FlowMatchEuler",
    ),
    "tokenizer": (writes("tokenizer_3/tokenizer.json", '{"version": '), r"tokenizer.json is not JSON"),
    "index of nothing": (
        writes(f"{WEIGHTS}.index.json", "{}"), "index.json names no weight files",
    ),
    "index of numbers": (
        writes(f"{WEIGHTS}.index.json", '{"weight_map": {"a": 1}}'), "index.json names no weight files",
    ),
}  # fmt: skip


def for_class(damage: Damage, name: str) -> Damage:
    """The damage, with the class in its place."""

    def damaged(folder: Path) -> None:
        damage(folder)
        text = (folder / CONFIG).read_bytes()
        (folder / CONFIG).write_bytes(text.replace(b'"CLASS"', f'"{name}"'.encode()))

    return damaged


@pytest.mark.parametrize("name", [*GARBAGE, *OF_EMBEDDED])
def test_an_embedded_model(name: str, tmp_path: Path):
    damage, says = (GARBAGE | OF_EMBEDDED)[name]
    folder = tmp_path / "model"
    for file in FILES:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(WEIGHTS_FOLDER / "glyphs" / file, folder / file)
    EmbeddedModel.load(folder)
    for_class(damage, "QwenImageTransformer2DModel")(folder)
    with pytest.raises(ModelError, match=says) as refused:
        EmbeddedModel.load(folder)
    assert str(folder) in str(refused.value) or "spotlight.json" in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("name", [*GARBAGE, *OF_FAMILY])
def test_a_family(name: str, saved: Saved, tmp_path: Path):
    damage, says = (GARBAGE | OF_FAMILY)[name]
    folder = shutil.copytree(saved("sd3.5"), tmp_path / "model")
    for_class(damage, "SD3Transformer2DModel")(folder)
    with pytest.raises(ModelError, match=says):
        outline_model(family_config("sd3.5", folder).model)


@pytest.mark.parametrize("family", list(PIPELINES))
def test_whole_families_pass(family: str, saved: Saved):
    model = family_config(family, saved(family)).model
    assert all(weight.is_meta for weight in outline_model(model).transformer.parameters())
