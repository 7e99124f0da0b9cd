"""The model families against their own pipelines, on tiny random weights loaded from disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.models.attention_dispatch import attention_backend

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.lora_layer import LoraLinear
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.files.lora_file import write_lora
from gpu_runtime.models.loading import load_model, outline_model
from gpu_runtime.models.registry import FAMILIES
from storage.errors import ConfigurationError, ModelError
from tests.pipeline_reference import (
    EXACT,
    PROMPTS,
    difference,
    encoded,
    family_config,
    load_adapters,
    own_pipeline,
    run_pipeline,
    run_sampler,
    training_samples,
)
from tests.tiny_pipelines import PIPELINES, Saved
from tests.tiny_run import perturbed


@pytest.mark.parametrize("family", PIPELINES)
def test_sampling_is_that_of_the_familys_own_pipeline(saved: Saved, family: str):
    config = family_config(family, saved(family))
    model = load_model(config.model)
    found = run_sampler(model, config)
    assert (
        difference(found, run_pipeline(own_pipeline(family, saved(family)), config, model.latent_shape))
        <= EXACT
    )
    assert len({image.tobytes() for image in found[1]}) == len(PROMPTS)  # the comparison is not of nothing


@pytest.mark.parametrize("family", PIPELINES)
def test_without_guidance_too(saved: Saved, family: str):
    config = family_config(family, saved(family), model={"guidance": 1.0, "negative_prompt": ""})
    model = load_model(config.model)
    expected = run_pipeline(own_pipeline(family, saved(family)), config, model.latent_shape)
    assert difference(run_sampler(model, config), expected) <= EXACT


@pytest.mark.parametrize("family", PIPELINES)
def test_the_files_of_all_its_parts_are_listed(saved: Saved, family: str):
    config = family_config(family, saved(family)).model
    outline: Any = outline_model(config)
    files = {file for part in outline.folder.parts for file in (outline.folder.path / part).iterdir()}
    read = {file for file in files if file.name != "generation_config.json"}
    assert read <= set(FAMILIES.find(family).files(config))


@pytest.mark.parametrize("family", PIPELINES)
def test_a_row_does_not_depend_on_its_neighbours(saved: Saved, family: str):
    model = load_model(family_config(family, saved(family)).model)
    together = encoded(model, [0, 1, 2, 3], family)
    for row in range(4):
        alone = encoded(model, [row], family)
        assert torch.equal(alone.embeds_BLE[0], together.embeds_BLE[row])
        assert torch.equal(alone.mask_BL[0], together.mask_BL[row])
    latents = torch.randn(4, *model.latent_shape, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([1.0, 0.8, 0.5, 0.2])
    with torch.no_grad():
        expected = model.velocity(latents, sigma, together)
        order = [2, 1, 1, 3]
        found = model.velocity(latents[order], sigma[order], together.rows(order))
    assert torch.equal(found, expected[order])
    assert torch.equal(model.decode(latents)[order], model.decode(latents[order]))


@pytest.mark.parametrize("family", PIPELINES)
def test_images_are_encoded_to_the_latents_that_decode_to_what_the_vae_makes_of_them(
    saved: Saved, family: str
):
    settings = family_config(family, saved(family)).model
    model: Any = load_model(settings)
    height, width = FAMILIES.find(family).size(settings)
    shape = (2, height, width, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    if FAMILIES.find(family).frames(settings) is not None:
        with pytest.raises(ConfigurationError, match="makes clips and encodes no images"):
            model.encode_images(images)
        return
    latents_BSC = model.encode_images(images)
    assert latents_BSC.shape == (2, *model.latent_shape) and latents_BSC.dtype == torch.float32
    assert torch.equal(model.encode_images(images[1:]), latents_BSC[1:])
    vae = model.vae
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    opaque = pixels[:, :0] if family != "qwen-image-2.1" else torch.ones_like(pixels[:, :1])
    given = torch.cat([pixels, opaque], dim=1)
    video = given[:, :, None] if "temperal_downsample" in vae.config else given
    with torch.no_grad():
        encoded = vae.encode(video)
        expected = vae.decode(encoded.latent if "latent" in encoded else encoded.latent_dist.mode()).sample
    expected = (expected.reshape(given.shape)[:, :3] / 2 + 0.5).clamp(0, 1) * 255
    found = model.decode(latents_BSC).permute(0, 3, 1, 2).float()
    assert (found - expected).abs().max() <= 1
    assert expected.std() > 1  # the comparison is not of nothing


@pytest.mark.parametrize("family", PIPELINES)
def test_exported_adapters_give_the_pipeline_our_policy(saved: Saved, family: str, tmp_path: Path):
    config = family_config(family, saved(family))
    model = load_model(config.model)
    before = run_sampler(model, config)
    policy = Policy(model, config.adaptation, config.seed)
    policy.load(perturbed(policy.state(), 0.2))
    found = run_sampler(model, config)
    assert np.abs(found[0] - before[0]).max() > 100 * EXACT  # the adapters do something
    with policy.reference():
        assert difference(run_sampler(model, config), before) == 0
    kind = FAMILIES.find(family).pipeline()
    assert write_lora(kind, tmp_path, policy.state(), config.adaptation).is_file()
    pipeline = own_pipeline(family, saved(family))
    load_adapters(pipeline, tmp_path)
    assert difference(found, run_pipeline(pipeline, config, model.latent_shape)) <= EXACT


@pytest.mark.parametrize("family", PIPELINES)
def test_a_training_step_begins_at_the_policy_that_drew_the_samples(saved: Saved, family: str):
    config = family_config(family, saved(family), adaptation={"gradient_checkpointing": True})
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    sampler = Sampler(policy.model, config.sampling)
    trainer = Trainer(policy, sampler, config)
    before = policy.state()
    report = trainer.train(training_samples(sampler, family))
    assert report.ratio_deviation <= 1e-5
    assert report.gradient_norm > 0
    assert any(not np.array_equal(before[name], value) for name, value in policy.state().items())


def test_adapters_of_a_bfloat16_model_train_from_the_policy_that_drew_the_samples(saved: Saved):
    config = family_config(
        "qwen-image", saved("qwen-image"), model={"dtype": "bfloat16"},
        adaptation={"gradient_checkpointing": True},
    )  # fmt: skip
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    assert any(isinstance(layer, LoraLinear) for layer in policy.model.transformer.modules())
    policy.load(perturbed(policy.state(), 0.2))
    sampler = Sampler(policy.model, config.sampling)
    report = Trainer(policy, sampler, config).train(training_samples(sampler, "qwen-image"))
    assert report.ratio_deviation == 0
    assert report.gradient_norm > 0


def test_adapters_are_float32_on_a_bfloat16_model_and_full_training_is_refused(saved: Saved):
    config = family_config("sd3.5", saved("sd3.5"), model={"dtype": "bfloat16"})
    model = load_model(config.model)
    assert next(model.transformer.parameters()).dtype == torch.bfloat16
    with pytest.raises(ModelError, match=r"set model\.dtype=float32"):
        Policy(model, config.adaptation.model_copy(update={"mode": "full"}), 0)
    policy = Policy(model, config.adaptation, 0)
    assert {weight.dtype for weight in policy.trained.values()} == {torch.float32}
    latents, images = run_sampler(model, config)
    assert latents.dtype == np.float32
    assert np.isfinite(latents).all()
    assert len({image.tobytes() for image in images}) > 1


def test_a_folder_as_qwen_image_2512_is_published_gives_the_same_samples(saved: Saved, tmp_path: Path):
    """Weights in several files with an index, and settings that the classes no longer have."""
    folder = shutil.copytree(saved("qwen-image"), tmp_path / "Qwen-Image-2512")
    whole = own_pipeline("qwen-image", folder)
    for part in ("transformer", "text_encoder"):
        shutil.rmtree(folder / part)
        getattr(whole, part).save_pretrained(folder / part, max_shard_size="100KB")
        assert len(list((folder / part).glob("*-of-*.safetensors"))) > 1
    file = folder / "transformer/config.json"
    published = {"guidance_embeds": False, "pooled_projection_dim": 768, "zero_cond_t": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | published))
    found, expected = (family_config("qwen-image", each) for each in (folder, saved("qwen-image")))
    outline = outline_model(found.model)
    assert outline.sequence_lengths() == outline_model(expected.model).sequence_lengths()
    samples = run_sampler(load_model(found.model), found)
    assert difference(samples, run_sampler(load_model(expected.model), expected)) == 0


def test_offloaded_encoders_and_a_named_kernel_change_nothing(saved: Saved):
    config = family_config("flux", saved("flux"))
    one = load_model(config.model)
    other = load_model(config.model.model_copy(update={"encoders": "offload", "attention": "native"}))
    assert difference(run_sampler(other, config), run_sampler(one, config)) == 0
    assert torch.equal(one.encode_prompts(PROMPTS).embeds_BLE, other.encode_prompts(PROMPTS).embeds_BLE)


def test_attention_of_hunyuan_video_takes_kernels_that_know_no_mask(saved: Saved):
    config = family_config("hunyuan-video-1.5", saved("hunyuan-video-1.5"))
    expected = run_sampler(load_model(config.model), config)
    with attention_backend("native"):  # afterwards again: diffusers changes the kernel of the whole process
        model = load_model(config.model.model_copy(update={"attention": "_native_flash"}))
        assert difference(run_sampler(model, config), expected) <= EXACT
