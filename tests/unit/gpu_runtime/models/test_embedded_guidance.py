"""Guidance of an embedded model: both passes by hand, its samples and their training, and who takes none."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.embedded_tasks.glyphs import GlyphsTask
from gpu_runtime.models.embedded.model import EmbeddedModel, without_prompts
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.models.registry import family_of
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.model import ModelConfig
from tests.tiny_embedded import assert_resumes, assert_trains, random_model
from tests.tiny_run import tiny_config

PROMPTS = ("a", 'a red sign that says "K7A"', 'one "XY"', 'a blue sign that says "ABC"')
STRENGTH = 3.0


@pytest.fixture(scope="module")
def plain() -> EmbeddedModel:
    return random_model(GlyphsTask(), prompt_dropout=0.5)


def guided(plain: EmbeddedModel, strength: float = STRENGTH) -> EmbeddedModel:
    """A model of the same weights."""
    transformer: Any = deepcopy(plain.transformer)
    return EmbeddedModel(plain.settings, plain.codec, transformer, strength)


def batch(model: EmbeddedModel) -> tuple[torch.Tensor, torch.Tensor, Conditioning]:
    generator = torch.Generator().manual_seed(0)
    latents_BSC = torch.randn(len(PROMPTS), *model.latent_shape, generator=generator)
    return latents_BSC, torch.tensor([1.0, 0.7, 0.4, 0.1]), model.encode_prompts(PROMPTS)


def request(prompt_id: int, seed: int = 0, kind: RequestKind = RequestKind.ROLLOUT) -> SampleRequest:
    return SampleRequest(kind, 5, 1, prompt_id, seed, 0, PROMPTS[prompt_id])


def test_a_dropped_prompt_is_one_token_of_zeros(plain: EmbeddedModel):
    conditioning = batch(plain)[2]
    found = without_prompts(conditioning, torch.tensor([False, True, False, True]))
    for row, dropped in enumerate((False, True, False, True)):
        if dropped:
            assert not found.embeds_BLE[row].any()
            assert found.mask_BL[row].tolist() == [True] + [False] * 7
        else:
            assert torch.equal(found.embeds_BLE[row], conditioning.embeds_BLE[row])
            assert torch.equal(found.mask_BL[row], conditioning.mask_BL[row])


def test_it_leads_away_from_the_pass_without_a_prompt_in_values_and_gradients(plain: EmbeddedModel):
    latents, sigma, conditioning = batch(plain)
    nothing = Conditioning(torch.zeros_like(conditioning.embeds_BLE), torch.zeros(4, 8, dtype=torch.bool))
    nothing.mask_BL[:, 0] = True
    expected = -2.0 * plain.velocity(latents, sigma, nothing) + 3.0 * plain.velocity(
        latents, sigma, conditioning
    )
    model = guided(plain)
    found = model.velocity(latents, sigma, conditioning)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - plain.velocity(latents, sigma, conditioning)).abs().max() > 0.1
    found.square().sum().backward()
    expected.square().sum().backward()
    gradients = [
        [weight.grad for weight in one.transformer.parameters() if weight.grad is not None]
        for one in (model, plain)
    ]
    plain.transformer.zero_grad(set_to_none=True)
    assert len(gradients[0]) == len(gradients[1]) > 0
    for mine, by_hand in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, by_hand, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_strength_of_one_gives_the_bits_of_one_pass(plain: EmbeddedModel):
    assert torch.equal(guided(plain, 1.0).velocity(*batch(plain)), plain.velocity(*batch(plain)))


@torch.no_grad()
def test_a_row_has_its_bits_whatever_its_neighbours(plain: EmbeddedModel):
    model = guided(plain)
    latents, sigma, conditioning = batch(plain)
    whole = model.velocity(latents, sigma, conditioning)
    order = [2, 0, 3, 1]
    assert torch.equal(model.velocity(latents[order], sigma[order], conditioning.rows(order)), whole[order])
    others = model.velocity(latents[[0] * 4], sigma[[0] * 4], conditioning.rows([0] * 4))
    assert all(torch.equal(row, whole[0]) for row in others)


def test_a_sample_is_the_same_resumed_and_among_others(plain: EmbeddedModel):
    wanted = [request(prompt) for prompt in range(4)]
    found = assert_resumes(guided(plain), wanted)
    without = Sampler(plain, tiny_config().sampling).generate(wanted)
    assert not any(
        np.array_equal(one.latents_SC, alone.latents_SC) for one, alone in zip(found, without, strict=True)
    )


@pytest.mark.parametrize("objective", ["grpo", "nft"])
def test_training_has_the_ratio_of_its_rollout(plain: EmbeddedModel, objective: str):
    wanted = [request(prompt, seed) for prompt in range(2) for seed in range(2)]
    assert_trains(guided(plain), objective, wanted)


def test_the_family_guides_a_model_of_another_size_too(plain: EmbeddedModel, tmp_path: Path):
    plain.save(tmp_path / "model")
    settings = ModelConfig(path=str(tmp_path / "model"), guidance=STRENGTH)
    family = family_of(settings)
    family.check(settings)
    loaded = family.load(settings, torch.device("cpu"))
    with torch.no_grad():
        assert torch.equal(loaded.velocity(*batch(plain)), guided(plain).velocity(*batch(plain)))
        larger, unguided = loaded.resized(64, 96), plain.resized(64, 96)
        latents = torch.randn(4, *larger.latent_shape, generator=torch.Generator().manual_seed(0))
        rest = batch(plain)[1:]
        assert (larger.velocity(latents, *rest) - unguided.velocity(latents, *rest)).abs().max() > 0.01


def test_only_a_model_with_prompt_dropout_takes_guidance(plain: EmbeddedModel):
    assert plain.settings.guided
    assert not random_model(GlyphsTask()).settings.guided
