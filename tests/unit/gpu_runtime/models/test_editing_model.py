"""The embedded model that edits: its source's tokens, its decoder, its samples and their training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.embedded_tasks.edits import EditsTask
from gpu_runtime.exploration.plan import SeedPlan, rollout_requests
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.models.embedded.pca_codec import LEAST_CHANGE, LEAST_PATCH_CHANGE
from gpu_runtime.models.protocol import Conditioning, EditingModel
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord
from storage.prompts.sources import read_source
from tests.tiny_embedded import assert_resumes, assert_trains, random_model
from tests.tiny_run import tiny_config

SIZE = 4


@functools.cache
def prompts() -> list[PromptRecord]:
    rng = np.random.default_rng(0)
    return [replace(EditsTask().draw_prompt(rng), prompt_id=number) for number in range(SIZE)]


@pytest.fixture(scope="module")
def model() -> EmbeddedModel:
    return random_model(EditsTask())


def encoded(model: EmbeddedModel, chosen: Sequence[PromptRecord]) -> Conditioning:
    return model.encode_edits([one.text for one in chosen], [read_source(one.source) for one in chosen])


def request(prompt: PromptRecord, kind: RequestKind = RequestKind.ROLLOUT, seed: int = 0) -> SampleRequest:
    return SampleRequest(kind, 5, 1, prompt.prompt_id, seed, 0, prompt.text, source=prompt.source)


def test_it_edits(model: EmbeddedModel):
    typed: EditingModel = model
    assert isinstance(typed, EditingModel)
    assert model.sequence_lengths() == (2 * model.latent_shape[0], 12)
    with pytest.raises(ConfigurationError, match="edits an image, and a prompt has none"):
        model.encode_prompts(["make it red"])
    with pytest.raises(ConfigurationError, match="draws from text alone"):
        EmbeddedModel.load("embedded:shapes").encode_edits(["make it red"], [np.zeros((32, 32, 3), np.uint8)])


def test_a_prompt_and_its_source_have_the_same_bits_in_any_list(model: EmbeddedModel):
    together = encoded(model, prompts())
    assert together.source_BZC is not None and together.source_BZC.shape == (SIZE, 16, 16)
    for row, prompt in enumerate(prompts()):
        alone, chosen = encoded(model, [prompt]), together.rows([row])
        for name in ("embeds_BLE", "mask_BL", "source_BZC", "source_BHWC"):
            assert torch.equal(getattr(alone, name), getattr(chosen, name))
    joined = Conditioning.joined([together.rows([row]) for row in range(SIZE)])
    assert torch.equal(joined.source_BZC, together.source_BZC)  # type: ignore[arg-type]


@torch.no_grad()
def test_the_velocity_is_of_the_samples_own_tokens_and_sees_the_source(model: EmbeddedModel):
    latents = torch.randn(SIZE, *model.latent_shape, generator=torch.Generator().manual_seed(3))
    sigma, conditioning = torch.full((SIZE,), 0.5), encoded(model, prompts())
    velocity = model.velocity(latents, sigma, conditioning)
    assert velocity.shape == latents.shape
    assert conditioning.source_BZC is not None
    both = torch.cat([latents, conditioning.source_BZC], dim=1)
    rows, columns = model.settings.height // 8, model.settings.width // 8
    output = model.transformer(
        hidden_states=both, encoder_hidden_states=conditioning.embeds_BLE,
        encoder_hidden_states_mask=conditioning.mask_BL, timestep=sigma,
        img_shapes=[[(1, rows, columns), (1, rows, columns)]] * SIZE, return_dict=False,
    )[0]  # fmt: skip
    assert torch.equal(velocity, output[:, : latents.shape[1]])
    other = replace(conditioning, source_BZC=conditioning.source_BZC.flip(0))
    assert not torch.allclose(velocity, model.velocity(latents, sigma, other))


def test_what_does_not_change_is_the_source_to_the_bit(model: EmbeddedModel):
    conditioning = encoded(model, prompts())
    assert conditioning.source_BZC is not None and conditioning.source_BHWC is not None
    same = model.decode_edits(conditioning.source_BZC, conditioning)
    assert torch.equal(same, conditioning.source_BHWC)
    assert not torch.equal(model.decode(conditioning.source_BZC), same)  # the components lose something
    moved = conditioning.source_BZC.clone()
    moved[:, 5] += 4.0  # one token of 8 x 8 pixels
    changed_BHW = (model.decode_edits(moved, conditioning) != conditioning.source_BHWC).any(dim=-1)
    assert changed_BHW[:, 8:16, 8:16].any(dim=(1, 2)).all()
    changed_BHW[:, 8:16, 8:16] = False
    assert not changed_BHW.any()


def test_a_pixel_is_decoded_where_it_changes_by_more_than_the_threshold(model: EmbeddedModel):
    codec, source = model.codec, torch.full((1, 32, 32, 3), 100, dtype=torch.uint8)
    latents = codec.encode(source)
    for change, expected in ((0.9, False), (1.1, True)):
        brighter = source.float() + change * LEAST_CHANGE * 255
        patches = (brighter / 255).reshape(1, 4, 8, 4, 8, 3).permute(0, 1, 3, 2, 4, 5).reshape(1, 16, 192)
        level = (patches - codec.mean_D) @ codec.basis_CD.T / codec.scale_C
        image = codec.decode_edits(level, latents, source)
        share = float((image != source).float().mean())
        assert (share > 0.5) == expected, (change, share)


def test_a_patch_is_the_sources_where_too_little_of_it_changes(model: EmbeddedModel):
    source = torch.full((1, 32, 32, 3), 100, dtype=torch.uint8)
    latents = model.codec.encode(source)
    for share, expected in ((0.9, False), (1.1, True)):
        moved = latents.clone()
        # One component alone: its pixel values differ by `length` in the root of the sum of squares.
        length = share * LEAST_PATCH_CHANGE * 192**0.5
        moved[0, 5, 0] += length / model.codec.scale_C[0]
        changed = (model.codec.decode_edits(moved, latents, source) != source).any()
        assert bool(changed) == (
            expected and bool((model.codec.basis_CD[0].abs() * length > LEAST_CHANGE).any())
        )


@pytest.mark.parametrize("kind", RequestKind)
def test_a_sample_is_the_same_resumed_and_among_others(model: EmbeddedModel, kind: RequestKind):
    assert_resumes(model, [request(prompt, kind) for prompt in prompts()])


def test_the_same_instruction_on_two_sources_is_two_prompts(model: EmbeddedModel):
    sampler = Sampler(model, tiny_config().sampling)
    first, second = prompts()[:2]
    rows = sampler.conditioning([request(first), request(replace(first, source=second.source))])
    assert torch.equal(rows.embeds_BLE[0], rows.embeds_BLE[1])
    assert rows.source_BHWC is not None
    assert np.array_equal(rows.source_BHWC[1].numpy(), read_source(second.source))


@pytest.mark.parametrize("objective", ["grpo", "nft"])
def test_training_learns_from_edits(objective: str):
    wanted = [request(prompt, seed=seed) for prompt in prompts()[:2] for seed in range(2)]
    assert_trains(random_model(EditsTask()), objective, wanted)


def test_requests_bring_the_source_of_their_prompt():
    records = {prompt.prompt_id: prompt for prompt in prompts()}
    for made in rollout_requests(SeedPlan(1, {0: (3, 4), 2: (5,)}), records, 7, 0):
        assert made.source == records[made.prompt_id].source != ""
        assert replace(made, source="another") == made  # it follows from the prompt, and is no identity
