"""What a family's own diffusers pipeline makes of given noise, and what ours does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_runtime.diffusion.noise import Purpose, normal
from gpu_runtime.diffusion.sampler import Sampler, stream_of
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.models.protocol import DiffusionModel
from gpu_runtime.models.registry import FAMILIES
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.run_config import RunConfig
from tests.tiny_pipelines import SIDE

PROMPTS = ("a cat", 'a red sign that says "K7B"', "a blue dog on a wall", 'two signs, "A" and "BB"')
"""Of different lengths, one for each row of a batch."""

NEGATIVE = "grey"
STEPS = 4
_GUIDANCE = {"qwen-image": 4.0, "sd3.5": 4.5, "flux": 3.5, "z-image": 3.0}
_TEXT_LENGTH = 128

EXACT = 1e-4
"""Largest difference of latents, float32."""

LatentsAndImages = tuple[np.ndarray, np.ndarray]
"""float32, (B, S, C), and uint8, (B, H, W, 3)."""


def family_config(family: str, folder: Path, **sections: dict[str, Any]) -> RunConfig:
    """A run of a few samples on a tiny pipeline, guided; `sections` override."""
    negative = NEGATIVE if family != "flux" else ""
    base: dict[str, dict[str, Any]] = {
        "model": {
            "family": family, "path": str(folder), "device": "cpu", "height": SIDE, "width": SIDE,
            "guidance": _GUIDANCE[family], "negative_prompt": negative, "text_length": _TEXT_LENGTH,
        },
        "sampling": {
            "rollout_steps": STEPS, "evaluate_steps": STEPS, "window_size": 2,
            "window_stop": 3, "batch_size": 4,
        },
        "algorithm": {"prompts_per_iteration": 2, "group_size": 2},
        "adaptation": {"mode": "lora", "rank": 4, "targets": ["to_q", "to_v"]},
        "optimizer": {"learning_rate": 1e-2},
    }  # fmt: skip
    merged = {name: base.get(name, {}) | sections.get(name, {}) for name in base.keys() | sections.keys()}
    return RunConfig.model_validate(merged)


def evaluation_requests() -> list[SampleRequest]:
    """One sample of each prompt, without noise on the way."""
    return [
        SampleRequest(RequestKind.EVALUATE, 5, 0, number, 0, 0, prompt)
        for number, prompt in enumerate(PROMPTS)
    ]


def own_pipeline(family: str, folder: Path) -> Any:
    """The pipeline as diffusers loads it, float32."""
    pipeline = FAMILIES.find(family).pipeline().from_pretrained(str(folder), local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run_sampler(model: DiffusionModel, config: RunConfig) -> LatentsAndImages:
    """What our sampler makes of the requests."""
    samples = Sampler(model, config.sampling).generate(evaluation_requests())
    return np.stack([s.latents_SC for s in samples]), np.stack([s.image_HWC for s in samples])


def run_pipeline(pipeline: Any, config: RunConfig, shape: tuple[int, int]) -> LatentsAndImages:
    """Run a pipeline on the noise that our sampler begins the same requests with.

    Args:
        pipeline: of `own_pipeline`.
        config: of `family_config`.
        shape: (S, C) of our latents.
    """
    family, size = config.model.family, {"height": config.model.height, "width": config.model.width}
    packed = family in ("qwen-image", "flux")
    streams = [stream_of(request) for request in evaluation_requests()]
    noise = normal(streams, Purpose.EVALUATE_INITIAL, 0, shape)
    side = round(shape[0] ** 0.5)
    if not packed:
        noise = noise.unflatten(1, (side, side)).permute(0, 3, 1, 2)
    arguments: dict[str, Any] = {"guidance_scale": config.model.guidance}
    if family == "qwen-image":
        arguments = {"true_cfg_scale": config.model.guidance}
    if family == "z-image":  # it counts from 0
        arguments = {"guidance_scale": config.model.guidance - 1}
    if family != "flux":
        arguments["negative_prompt"] = [config.model.negative_prompt] * len(PROMPTS)
    last: dict[str, torch.Tensor] = {}

    def keep(_: Any, step: int, time: Any, values: dict[str, Any]) -> dict[str, Any]:
        last["latents"] = values["latents"]
        return {}

    images = pipeline(
        prompt=list(PROMPTS), num_inference_steps=STEPS, latents=noise, output_type="np",
        max_sequence_length=config.model.text_length, callback_on_step_end=keep, **size, **arguments,
    ).images  # fmt: skip
    latents = last["latents"]
    if not packed:
        latents = latents.permute(0, 2, 3, 1).flatten(1, 2)
    return latents.numpy(), (images * 255).round().astype(np.uint8)


def difference(found: LatentsAndImages, expected: LatentsAndImages) -> float:
    """Largest difference of the latents; the images must be the same but for rounding."""
    assert found[1].shape == expected[1].shape
    assert np.abs(found[1].astype(int) - expected[1]).max() <= 1
    return float(np.abs(found[0] - expected[0]).max())


def training_samples(sampler: Sampler) -> list[TrainingSample]:
    """Two samples of each of two prompts, drawn with the weights of now; one good and one bad each."""
    wanted = [
        SampleRequest(RequestKind.ROLLOUT, 5, 1, prompt, seed, 0, PROMPTS[prompt])
        for prompt in range(2)
        for seed in range(2)
    ]
    return [
        TrainingSample(sample.request, sample.trajectory, sample.latents_SC, advantage)
        for sample, advantage in zip(sampler.generate(wanted), (1.0, -1.0, -1.0, 1.0), strict=True)
    ]
