"""A small embedded model with random weights, and what samples and training of any such model must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.embedded_tasks.protocol import EmbeddedTask
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.pretraining.flow_matching import Pretraining, Recipe
from gpu_runtime.scheduling.requests import SampleRequest
from tests.tiny_run import tiny_config


def random_model(task: EmbeddedTask, **recipe: Any) -> EmbeddedModel:
    """A model of a task; an untrained one's output would be zero."""
    small = Recipe(
        training_steps=2, components=16, layers=1, heads=2, head_width=16, rope_axes=(4, 6, 6), text_width=32,
        batch_size=4, codec_images=64, **recipe,
    )  # fmt: skip
    torch.set_num_threads(1)
    model = Pretraining(task, small, seed=1).averaged_model()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.transformer.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return model


def assert_resumes(model: EmbeddedModel, wanted: Sequence[SampleRequest]) -> list[GeneratedSample]:
    """Samples are the same in one go and, in another order, resumed by another sampler; return them."""
    whole = Sampler(model, tiny_config().sampling).generate(wanted)
    again = Sampler(model, tiny_config().sampling)
    parts = again.finish(again.advance(again.advance(again.begin(wanted[::-1]), steps=2)))[::-1]
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one.image_HWC, other.image_HWC)
        assert np.array_equal(one.latents_SC, other.latents_SC)
    return whole


def assert_trains(model: EmbeddedModel, objective: str, wanted: Sequence[SampleRequest]) -> None:
    """Training on two groups of two begins at the policy that drew them, and changes it."""
    config = tiny_config(algorithm={"objective": objective})
    policy = Policy(model, config.adaptation, seed=3)
    sampler = Sampler(model, config.sampling)
    samples = [
        TrainingSample(one.request, one.trajectory, one.latents_SC, advantage)
        for one, advantage in zip(sampler.generate(wanted), (1.0, -1.0, 0.5, -0.5), strict=True)
    ]
    before = policy.state()
    assert Trainer(policy, sampler, config).train(samples).ratio_deviation == 0
    assert any(not np.array_equal(before[name], value) for name, value in policy.state().items())
