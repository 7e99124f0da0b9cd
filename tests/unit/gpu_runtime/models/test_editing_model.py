"""The embedded model that edits: its source's tokens, its decoder, its samples and their training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.embedded_tasks.edits import EditsTask
from gpu_runtime.exploration.plan import SeedPlan, rollout_requests
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.models.embedded.pca_codec import LEAST_CHANGE, LEAST_PATCH_CHANGE
from gpu_runtime.models.protocol import Conditioning, EditingModel
from gpu_runtime.pretraining.flow_matching import Pretraining, Recipe
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord
from storage.prompts.sources import read_source
from tests.tiny_run import tiny_config

RECIPE = Recipe(
    training_steps=2, components=16, layers=1, heads=2, head_width=16, rope_axes=(4, 6, 6), text_width=32,
    batch_size=4, codec_images=64,
)  # fmt: skip
SIZE = 4


@functools.cache
def prompts() -> list[PromptRecord]:
    rng = np.random.default_rng(0)
    return [replace(EditsTask().draw_prompt(rng), prompt_id=number) for number in range(SIZE)]


def new_model() -> EmbeddedModel:
    """Small and random; an untrained model's output would be zero."""
    model = Pretraining(EditsTask(), RECIPE, seed=1).averaged_model()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.transformer.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def model() -> EmbeddedModel:
    torch.set_num_threads(1)
    return new_model()


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


def test_a_sample_is_the_same_resumed_and_among_others(model: EmbeddedModel):
    sampler = Sampler(model, tiny_config().sampling)
    for kind in RequestKind:
        wanted = [request(prompt, kind) for prompt in prompts()]
        whole = sampler.generate(wanted)
        again = Sampler(model, tiny_config().sampling)
        parts = again.finish(again.advance(again.advance(again.begin(wanted[::-1]), steps=2)))[::-1]
        for one, other in zip(whole, parts, strict=True):
            assert np.array_equal(one.image_HWC, other.image_HWC)
            assert np.array_equal(one.latents_SC, other.latents_SC)


def test_the_same_instruction_on_two_sources_is_two_prompts(model: EmbeddedModel):
    sampler = Sampler(model, tiny_config().sampling)
    first, second = prompts()[:2]
    rows = sampler.conditioning([request(first), request(replace(first, source=second.source))])
    assert torch.equal(rows.embeds_BLE[0], rows.embeds_BLE[1])
    assert rows.source_BHWC is not None
    assert np.array_equal(rows.source_BHWC[1].numpy(), read_source(second.source))


@pytest.mark.parametrize("objective", ["grpo", "nft"])
def test_training_learns_from_edits(objective: str):
    config = tiny_config(algorithm={"objective": objective})
    model = new_model()
    policy = Policy(model, config.adaptation, seed=3)
    sampler = Sampler(model, config.sampling)
    samples = sampler.generate([request(prompt, seed=seed) for prompt in prompts()[:2] for seed in range(2)])
    before = policy.state()
    report = Trainer(policy, sampler, config).train(
        [
            TrainingSample(one.request, one.trajectory, one.latents_SC, advantage)
            for one, advantage in zip(samples, (1.0, -1.0, 0.5, -0.5), strict=True)
        ]
    )
    assert report.ratio_deviation == 0
    assert any(not np.array_equal(before[name], value) for name, value in policy.state().items())


def test_requests_bring_the_source_of_their_prompt():
    records = {prompt.prompt_id: prompt for prompt in prompts()}
    for made in rollout_requests(SeedPlan(1, {0: (3, 4), 2: (5,)}), records, 7, 0):
        assert made.source == records[made.prompt_id].source != ""
        assert replace(made, source="another") == made  # it follows from the prompt, and is no identity


def test_a_request_of_an_earlier_version_has_no_source():
    facts = asdict(request(prompts()[0]))
    assert SampleRequest(**facts).source == prompts()[0].source
    del facts["source"]
    assert SampleRequest(**facts).source == ""
