from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig

from gpu_runtime.embedded_tasks.moving_shapes import MovingShapesTask
from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.models.protocol import Conditioning, DiffusionModel
from storage.errors import ConfigurationError, ModelError
from storage.prompts.files import load_prompts

NAMES = ("edits", "glyphs", "glyphs-sparse", "moving-shapes", "shapes", "shapes-sparse")
SIZE = 16


@pytest.fixture(scope="module", params=("glyphs", "shapes", "moving-shapes"))
def model(request: pytest.FixtureRequest) -> EmbeddedModel:
    torch.set_num_threads(1)
    return EmbeddedModel.load(f"embedded:{request.param}")


def batch(model: EmbeddedModel, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Conditioning]:
    """A batch of SIZE samples whose prompts differ in length."""
    generator = torch.Generator().manual_seed(seed)
    latents_BSC = torch.randn(SIZE, *model.latent_shape, generator=generator)
    sigma_B = torch.rand(SIZE, generator=generator) * 0.98 + 0.02
    records = load_prompts(f"builtin:{model.settings.task}-evaluate")[seed : seed + SIZE - 2]
    prompts = [record.text for record in records] + ["a", 'one "XY"']
    return latents_BSC, sigma_B, model.encode_prompts(prompts)


def test_it_is_a_diffusion_model(model: EmbeddedModel) -> None:
    typed: DiffusionModel = model
    images = typed.decode(torch.zeros(2, *typed.latent_shape))
    frames = (8,) if model.settings.task == "moving-shapes" else ()
    assert images.shape == (2, *frames, model.settings.height, model.settings.width, 3)
    assert images.dtype == torch.uint8
    assert model.transformer.training is False
    assert model.settings.text_length % 4 == 0


def test_sigmas_fall_from_one_to_zero(model: EmbeddedModel) -> None:
    sigmas = model.sigmas(10)
    assert sigmas.dtype == torch.float64
    assert sigmas[[0, 5, 10]].tolist() == [1.0, 0.5, 0.0]
    assert (sigmas.diff() < 0).all()


@torch.no_grad()
def test_a_sample_has_its_bits_whatever_its_neighbours_and_place(model: EmbeddedModel) -> None:
    latents, sigma, conditioning = batch(model)
    expected = model.velocity(latents, sigma, conditioning)
    assert expected.dtype == torch.float32
    order = torch.from_numpy(np.random.default_rng(1).permutation(SIZE))
    moved = model.velocity(latents[order], sigma[order], conditioning.rows(order.tolist()))
    assert torch.equal(moved, expected[order])
    others_latents, others_sigma, others = batch(model, seed=20)
    for place in range(SIZE):
        mixed = (others_latents.clone(), others_sigma.clone(), others.rows(range(SIZE)))
        mixed[0][place], mixed[1][place] = latents[0], sigma[0]
        mixed[2].embeds_BLE[place] = conditioning.embeds_BLE[0]
        mixed[2].mask_BL[place] = conditioning.mask_BL[0]
        assert torch.equal(model.velocity(*mixed)[place], expected[0]), place


@torch.no_grad()
def test_a_short_prompt_has_its_bits_when_all_prompts_are_short(model: EmbeddedModel) -> None:
    """The text is not cut to the longest prompt of the batch."""
    latents, sigma, conditioning = batch(model)
    short = SIZE - 2  # "a", one token
    expected = model.velocity(latents, sigma, conditioning)[short]
    found = model.velocity(latents, sigma, conditioning.rows([short] * SIZE))
    assert torch.equal(found[short], expected)


@torch.no_grad()
def test_padding_is_not_seen(model: EmbeddedModel) -> None:
    latents, sigma, conditioning = batch(model)
    expected = model.velocity(latents, sigma, conditioning)
    embeds = torch.where(conditioning.mask_BL[..., None], conditioning.embeds_BLE, 7.0)
    found = model.velocity(latents, sigma, Conditioning(embeds, conditioning.mask_BL))
    assert torch.equal(found, expected)


def test_round_trip_on_disk(model: EmbeddedModel, tmp_path: Path) -> None:
    model.save(tmp_path / "copy")
    loaded = EmbeddedModel.load(tmp_path / "copy")
    assert loaded.settings == model.settings
    with torch.no_grad():
        assert torch.equal(loaded.velocity(*batch(model)), model.velocity(*batch(model)))
    latents = batch(model)[0]
    assert torch.equal(loaded.decode(latents), model.decode(latents))


def test_lora_through_diffusers(tmp_path: Path) -> None:
    model = EmbeddedModel.load("embedded:glyphs")
    inputs = batch(model)
    with torch.no_grad():
        before = model.velocity(*inputs)
    transformer = model.transformer
    transformer.requires_grad_(False)
    transformer.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_v"]))  # type: ignore[operator]
    after = model.velocity(*inputs)
    assert torch.equal(after.detach(), before)  # a fresh adapter adds nothing
    after.square().mean().backward()
    with_gradient = [name for name, p in transformer.named_parameters() if p.grad is not None]
    assert with_gradient
    assert all("lora" in name for name in with_gradient)


@pytest.mark.parametrize("name", NAMES)
def test_the_project_carries_it(name: str) -> None:
    model = EmbeddedModel.load(f"embedded:{name}")
    assert model.settings.task == name.removesuffix("-sparse")
    parameters = sum(parameter.numel() for parameter in model.transformer.parameters())
    assert (0.4e6 if name == "moving-shapes" else 1e6) < parameters < 3e6
    assert (WEIGHTS_FOLDER / name / "README.md").is_file()


def test_a_clip_s_frames_keep_their_order_through_the_codec() -> None:
    model = EmbeddedModel.load("embedded:moving-shapes")
    prompts, rng = load_prompts("builtin:moving-shapes-evaluate")[:4], np.random.default_rng(0)
    clips = np.stack([MovingShapesTask().render(prompt, rng) for prompt in prompts])
    latents_BSC = model.encode(clips)
    assert latents_BSC.shape == (4, *model.latent_shape) == (4, 8 * 9, model.codec.channels)
    by_frame_BFSC = torch.stack([model.codec.encode(torch.from_numpy(clip)) for clip in clips])
    torch.testing.assert_close(latents_BSC, by_frame_BFSC.flatten(1, 2), rtol=0, atol=1e-5)
    errors = np.abs(model.decode(latents_BSC).numpy().astype(int) - clips)
    assert errors.mean() < 5, "the codec loses fine detail alone"


@torch.no_grad()
def test_the_velocity_of_a_frame_depends_on_its_place_in_the_clip() -> None:
    model = EmbeddedModel.load("embedded:moving-shapes")
    latents, sigma, conditioning = batch(model)
    found = model.velocity(latents, sigma, conditioning).unflatten(1, (8, 9))
    backwards = latents.unflatten(1, (8, 9)).flip(1).flatten(1, 2)
    assert not torch.allclose(
        model.velocity(backwards, sigma, conditioning).unflatten(1, (8, 9)).flip(1), found, atol=1e-2
    )


def test_missing_files_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no spotlight\.json, codec\.safetensors"):
        EmbeddedModel.load(tmp_path)
    with pytest.raises(ModelError, match="spotlight pretrain cats --out FOLDER"):
        EmbeddedModel.load("embedded:cats-sparse")


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(WEIGHTS_FOLDER / "glyphs", folder)
    other = EmbeddedModel.load("embedded:shapes").codec
    if other.channels == EmbeddedModel.load(folder).codec.channels:
        other = replace(other, basis_CD=other.basis_CD[:-1], scale_C=other.scale_C[:-1])
    other.save(folder / "codec.safetensors")
    with pytest.raises(ModelError, match="latent channels"):
        EmbeddedModel.load(folder)
    (folder / "spotlight.json").write_text(json.dumps({"task": "glyphs"}))
    with pytest.raises(ModelError, match="not the settings"):
        EmbeddedModel.load(folder)


def test_a_prompt_that_is_too_long_is_refused(model: EmbeddedModel) -> None:
    with pytest.raises(ConfigurationError, match="tokens; this model takes 1 to"):
        model.encode_prompts(["word " * 13])
