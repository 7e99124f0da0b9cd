"""Wan's model of two transformers, for high and for low noise, against its own pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.checks.pipeline_outline import PipelineOutline
from gpu_runtime.models.files.lora_file import LORA_FILE, write_lora
from gpu_runtime.models.loading import load_model, outline_model
from gpu_runtime.models.registry import FAMILIES
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, ModelError, TrainingError
from tests.pipeline_reference import (
    EXACT,
    difference,
    family_config,
    load_adapters,
    own_pipeline,
    run_pipeline,
    run_sampler,
    training_samples,
)
from tests.tiny_pipelines import TWO_EXPERTS, save_pipeline
from tests.tiny_run import perturbed

FAMILY = "wan2.2"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pipeline(TWO_EXPERTS, tmp_path_factory.mktemp("experts"))
    file = folder / "vae/config.json"
    vae = json.loads(file.read_text())
    published = {name: value for name, value in vae.items() if not name.startswith("scale_factor")}
    file.write_text(json.dumps(published))
    return folder


def configuration(folder: Path, experts: str = "both", **sections: dict[str, Any]) -> RunConfig:
    model = {"options": {"experts": experts}} | sections.pop("model", {})
    return family_config(FAMILY, folder, model=model, **sections)


def test_both_experts_sample_as_their_pipeline_does(saved: Path):
    config = configuration(saved)
    model = load_model(config.model)
    times = 1000 * model.sigmas(4)[:-1]
    assert (times >= 875).any() and (times < 875).any(), "each has a part"
    found = run_sampler(model, config)
    expected = run_pipeline(own_pipeline(FAMILY, saved), config, model.latent_shape)
    assert difference(found, expected) <= EXACT / 10


def test_a_batch_of_both_ranges_gives_each_sample_its_bits(saved: Path):
    model = load_model(configuration(saved).model)
    rows = model.encode_prompts(["a", "b", "c", "d"])
    latents = torch.randn(4, *model.latent_shape, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.5, 0.95, 0.2, 0.99])
    with torch.no_grad():
        mixed = model.velocity(latents, sigma, rows)
        for place in range(4):
            same = model.velocity(latents, sigma[place].repeat(4), rows)
            assert torch.equal(mixed[place], same[place]), "whatever range its neighbours are in"


def test_the_blocks_of_a_frozen_expert_are_compiled_too(saved: Path):
    model: Any = load_model(configuration(saved, "high", model={"compile": True}).model)
    blocks = [block for expert in model.transformer.experts for block in expert.blocks]
    assert all(block._compiled_call_impl is not None for block in blocks)


def counted_bytes(config: RunConfig) -> int:
    """Bytes of the trained weights, as the check of the memory counts them."""
    outline = outline_model(config.model)
    assert isinstance(outline, PipelineOutline)
    return outline.work_of(config, keeps_reference=False).trained_bytes


@pytest.mark.parametrize("experts", ["both", "high"])
def test_full_training_needs_memory_for_the_gradients_of_the_chosen_experts_alone(saved: Path, experts: str):
    config = configuration(saved, experts, adaptation={"mode": "full"})
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    assert counted_bytes(config) == sum(value.nbytes for value in policy.state().values())


@pytest.mark.parametrize("experts", ["both", "high", "low"])
def test_the_chosen_experts_are_trained_and_their_adapters_load_into_the_pipeline(
    saved: Path, experts: str, tmp_path: Path
):
    config = configuration(saved, experts, adaptation={"gradient_checkpointing": True})
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    sampler = Sampler(policy.model, config.sampling)
    report = Trainer(policy, sampler, config).train(training_samples(sampler, FAMILY))
    assert report.ratio_deviation <= 1e-5
    assert {name.partition(".")[0] for name in policy.state()} == {
        "both": {"transformer", "transformer_2"}, "high": {"transformer"}, "low": {"transformer_2"},
    }[experts]  # fmt: skip
    assert counted_bytes(config) == sum(value.nbytes for value in policy.state().values())
    before = run_sampler(policy.model, config)
    policy.load(perturbed(policy.state(), 0.2))
    found = run_sampler(policy.model, config)
    assert np.abs(found[0] - before[0]).max() > 100 * EXACT
    write_lora(FAMILIES.find(FAMILY).pipeline(), tmp_path, policy.state(), config.adaptation)
    pipeline = own_pipeline(FAMILY, saved)
    load_adapters(pipeline, tmp_path)
    assert (tmp_path / LORA_FILE).is_file() == (experts != "low")
    assert (tmp_path / "transformer_2" / LORA_FILE).is_file() == (experts != "high")
    assert difference(found, run_pipeline(pipeline, config, policy.model.latent_shape)) <= EXACT


def test_a_batch_of_the_frozen_experts_noise_levels_adds_no_gradient(saved: Path):
    # Of a sample's five levels, the first four are below .8, and so is the first batch, of four rows.
    config = configuration(saved, "high", algorithm={"objective": "nft", "options": {"times": 5}})
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    sampler = Sampler(policy.model, config.sampling)
    report = Trainer(policy, sampler, config).train(training_samples(sampler, FAMILY))
    assert report.training_steps == 1 and report.gradient_norm > 0


def test_training_that_reaches_the_frozen_expert_alone_is_refused(saved: Path):
    """Else the run would go on to its end, and be paid for, without a change of any weight."""
    config = configuration(saved, "low", sampling={"window_size": 1, "window_stop": 1})  # the noisiest step
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    sampler = Sampler(policy.model, config.sampling)
    with pytest.raises(TrainingError, match=r"no trained weight had a gradient.*sampling\.window_stop"):
        Trainer(policy, sampler, config).train(training_samples(sampler, FAMILY))


def test_what_does_not_fit_two_experts_is_refused_before_weights_are_loaded(tmp_path: Path):
    folder = save_pipeline(TWO_EXPERTS, tmp_path / "two")
    files = FAMILIES.find(FAMILY).files(configuration(folder).model)
    assert folder / "transformer_2/diffusion_pytorch_model.safetensors" in files
    with pytest.raises(ConfigurationError, match=r"model\.adapter is one LoRA"):
        outline_model(configuration(folder, model={"adapter": str(tmp_path)}).model)
    (folder / "transformer_2/config.json").unlink()
    with pytest.raises(ModelError, match=r"lacks transformer_2/config\.json"):
        outline_model(configuration(folder).model)
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"boundary_ratio": None}))
    with pytest.raises(ModelError, match="only one of transformer_2 and boundary_ratio"):
        outline_model(configuration(folder).model)
    dense = save_pipeline(FAMILY, tmp_path / "dense")
    with pytest.raises(ConfigurationError, match=r"experts is low, but .* has one transformer"):
        outline_model(family_config(FAMILY, dense, model={"options": {"experts": "low"}}).model)
