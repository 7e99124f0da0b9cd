"""A run of a few samples on the tiny model: its configuration, its requests, its policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_runtime.diffusion.noise import Purpose, normal, uniform
from gpu_runtime.diffusion.sampler import Sampler, stream_of
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.learning.weights import WeightState
from gpu_runtime.models.families.pipeline_model import dtype_on
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.run_config import RunConfig
from tests.tiny_model import TinyModel

# Prompts of different lengths, so that text masks differ; the last one fills the text.
PROMPTS = ("a", "two words", "three words here", "one two three four five")

OBJECTIVE_NAMES = sorted(OBJECTIVES.names())
"""Names of the objectives that every run can choose from."""


def tiny_config(**sections: dict[str, Any]) -> RunConfig:
    """Four denoising steps, two of them trained, batches of four; `sections` override."""
    base: dict[str, dict[str, Any]] = {
        "sampling": {
            "rollout_steps": 4,
            "evaluate_steps": 3,
            "window_size": 2,
            "window_stop": 3,
            "batch_size": 4,
        },
        "algorithm": {"prompts_per_iteration": 3, "group_size": 2},
        "adaptation": {"mode": "full", "rank": 2, "targets": ["to_q", "to_v", "to_out.0"]},
        "optimizer": {"learning_rate": 1e-3},
    }
    merged = {name: base.get(name, {}) | sections.get(name, {}) for name in base.keys() | sections.keys()}
    return RunConfig.model_validate(merged)


def hurried(config: RunConfig, **limits_s: float) -> RunConfig:
    """The same run with time limits of its runtime below those that a person may set."""
    return config.changed(runtime=limits_s)


def request(
    prompt_id: int, seed_index: int, kind: RequestKind = RequestKind.ROLLOUT, iteration: int = 1
) -> SampleRequest:
    """The request of one sample."""
    prompt = PROMPTS[prompt_id % len(PROMPTS)]
    return SampleRequest(kind, 5, iteration, prompt_id, seed_index, 0, prompt)


class TinyRun:
    """A policy on a tiny model with its sampler and its trainer."""

    def __init__(self, config: RunConfig, model: TinyModel | None = None) -> None:
        self.config = config
        self.model = model or TinyModel(dtype=dtype_on(config.model, torch.device("cpu")))
        self.policy = Policy(self.model, config.adaptation, seed=3)
        self.sampler = Sampler(self.model, config.sampling)
        self.trainer = Trainer(self.policy, self.sampler, config)

    def rollout(self, iteration: int = 1) -> list[TrainingSample]:
        """Two samples of each of three prompts under the weights of now; advantages of both signs."""
        wanted = [request(prompt, seed, iteration=iteration) for prompt in range(3) for seed in range(2)]
        advantages = (1.0, -1.0, 0.5, -0.25, -2.0, 1.5)
        return [
            TrainingSample(sample.request, sample.trajectory, sample.latents_SC, advantage)
            for sample, advantage in zip(self.sampler.generate(wanted), advantages, strict=True)
        ]

    def perturb(self, scale: float = 0.05, seed: int = 0) -> None:
        """Move every trained weight, as training would."""
        self.policy.load(perturbed(self.policy.state(), scale, seed))


def perturbed(state: WeightState, scale: float = 0.05, seed: int = 0) -> WeightState:
    """The weights plus normal noise."""
    generator = np.random.default_rng(seed)
    return {
        name: value + scale * generator.standard_normal(value.shape, dtype=np.float32)
        for name, value in state.items()
    }


def shuffled(samples: Sequence[TrainingSample], seed: int) -> list[TrainingSample]:
    """The samples in another order."""
    order = np.random.default_rng(seed).permutation(len(samples))
    return [samples[place] for place in order]


Gradients = dict[str, torch.Tensor]
"""By the name of the weight."""


def train_and_catch_gradients(run: TinyRun, samples: list[TrainingSample]) -> list[Gradients]:
    """Gradients that each training step of one iteration handed to the optimiser."""
    caught: list[Gradients] = []

    def catch(*_: object) -> None:
        grads = {name: weight.grad for name, weight in run.policy.trained.items()}
        caught.append({name: grad.clone() for name, grad in grads.items() if grad is not None})

    hook = run.trainer.optimizer.register_step_pre_hook(catch)
    run.trainer.train(samples)
    hook.remove()
    return caught


def mean_gradients(run: TinyRun, losses: Sequence[torch.Tensor] | Iterable[torch.Tensor]) -> Gradients:
    """Gradients of the mean of losses, each computed alone and summed in float64."""
    weights = list(run.policy.trained.values())
    sums = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights]
    count = 0
    for loss in losses:
        count += 1
        for total, grad in zip(
            sums, torch.autograd.grad(loss.sum(), weights, allow_unused=True), strict=True
        ):
            if grad is not None:
                total += grad.double()
    return {name: total / count for name, total in zip(run.policy.trained, sums, strict=True)}


def assert_same_gradients(found: Gradients, expected: Gradients) -> None:
    """Each weight's differ by less than 1e-5 of all of them; those without one should have none."""
    scale = math.sqrt(sum(float(total.norm()) ** 2 for total in expected.values()))
    assert scale > 0
    assert not any(total.any() for name, total in expected.items() if name not in found)
    for name, grad in found.items():
        assert float((grad - expected[name]).norm()) < 1e-5 * scale, name


def of_update(samples: Sequence[TrainingSample], place: int, updates: int) -> list[TrainingSample]:
    """The samples of one of an iteration's updates, by the turns that prompt groups take."""
    prompts = sorted({sample.request.prompt_id for sample in samples})
    return [sample for sample in samples if prompts.index(sample.request.prompt_id) % updates == place]


class NoisedRow(NamedTuple):
    """One final image at one noise level: what the model is asked, and the velocity that points at it."""

    latents_BSC: torch.Tensor
    sigma_B: torch.Tensor
    prompt: Conditioning
    target_BSC: torch.Tensor


def noised_row(run: TinyRun, sample: TrainingSample, place: int, times: int, shared: bool) -> NoisedRow:
    """A row of the objectives on noised images, from the identity of its sample, or of its group."""
    model, stream = run.policy.model, stream_of(sample.request)
    streams = [stream.of_group if shared else stream]
    sigma = ((place + uniform(streams, Purpose.TRAIN_TIME, place)) / times).float()
    noise = normal(streams, Purpose.TRAIN_NOISE, place, model.latent_shape)
    image = torch.from_numpy(sample.latents_SC)[None]
    prompt = model.encode_prompts([sample.request.prompt])
    return NoisedRow((1 - sigma) * image + sigma * noise, sigma, prompt, noise - image)
