"""What a family's own diffusers pipeline makes of given noise, and what ours does.

Families that edit get an image with each prompt.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from diffusers import DiffusionPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from PIL import Image
from transformers import Qwen2Tokenizer, Qwen2VLProcessor, Qwen3VLProcessor

from gpu_runtime.diffusion.noise import Purpose, normal
from gpu_runtime.diffusion.sampler import Sampler, stream_of
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.models.families.wan import LOW
from gpu_runtime.models.files.lora_file import LORA_FILE
from gpu_runtime.models.protocol import Conditioning, DiffusionModel, EditingModel
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.run_config import RunConfig
from storage.prompts.sources import as_data_uri, read_source
from tests.tiny_pipelines import SIDE, processor_of

PROMPTS = ("a cat", 'a red sign that says "K7B"', "a blue dog on a wall", 'two signs, "A" and "BB"')
"""Of different lengths, one for each row of a batch."""

NEGATIVE = "grey"
STEPS = 4
EDITING = ("qwen-image-edit", "qwen-image-edit-plus", "flux-kontext")
CLIPS = ("hunyuan-video-1.5", "wan2.2")
_NO_NEGATIVE = ("flux", "flux-kontext", "flux2-klein")
"""Families whose pipelines take no negative prompt."""

_PROCESSORS = {
    "qwen-image-2.1": ("processor", Qwen3VLProcessor),
    "qwen-image-edit": ("tokenizer", Qwen2VLProcessor),
    "qwen-image-edit-plus": ("tokenizer", Qwen2VLProcessor),
}
"""Where the tokenizer of a processor is, and its class."""

SOURCES = tuple(
    as_data_uri(blocks.repeat(SIDE // 4, axis=0).repeat(SIDE // 4, axis=1))
    for blocks in np.random.default_rng(1).integers(0, 256, (len(PROMPTS), 4, 4, 3), np.uint8)
)
"""An image for each prompt."""

_GUIDANCE = {
    "qwen-image": 4.0, "qwen-image-2.1": 2.0,
    "qwen-image-edit": 4.0, "qwen-image-edit-plus": 4.0, "sd3.5": 4.5, "flux": 3.5,
    "flux-kontext": 2.5, "z-image": 3.0, "flux2-klein": 4.0, "sana": 4.5, "wan2.2": 5.0,
    "hunyuan-video-1.5": 6.0,
}  # fmt: skip
TEXT_LENGTH = {"qwen-image-edit": 256, "qwen-image-edit-plus": 256, "hunyuan-video-1.5": 512}
"""128 of the others; the tiny tokenizer cuts the longer templates of these into more tokens."""

OPTIONS: dict[str, dict[str, Any]] = {"qwen-image-edit-plus": {"images": 2}}

SIZES: dict[str, dict[str, int]] = {
    "qwen-image-2.1": {"height": 4 * SIDE, "width": 4 * SIDE},  # its VAE has 16 pixels a side
    "sana": {"height": 2 * SIDE, "width": 2 * SIDE},  # its pipeline divides by 32
    "hunyuan-video-1.5": {"height": SIDE, "width": 3 * SIDE // 2, "frames": 5},
    "wan2.2": {"height": 2 * SIDE, "width": 3 * SIDE, "frames": 5},  # two latent frames of 4 x 6
}
"""Sizes of the families that do not make images of `SIDE`."""

EXACT = 1e-4
"""Largest difference of latents, float32."""

LatentsAndImages = tuple[np.ndarray, np.ndarray]
"""float32, (B, S, C), and uint8, (B, H, W, 3) or (B, F, H, W, 3)."""


def family_config(family: str, folder: Path, **sections: dict[str, Any]) -> RunConfig:
    """A run of a few samples on a tiny pipeline, guided; `sections` override."""
    negative = NEGATIVE if family not in _NO_NEGATIVE else ""
    base: dict[str, dict[str, Any]] = {
        "model": {
            "family": family, "path": str(folder), "device": "cpu", "height": SIDE, "width": SIDE,
            "guidance": _GUIDANCE[family], "negative_prompt": negative,
            "text_length": TEXT_LENGTH.get(family, 128), "options": OPTIONS.get(family, {}),
            **SIZES.get(family, {}),
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


def source_of(family: str, number: int) -> str:
    """The image of a prompt, or several; empty for families that edit none."""
    count = OPTIONS.get(family, {}).get("images", 1)
    sources = [SOURCES[(number + place) % len(SOURCES)] for place in range(count)]
    return "\n".join(sources) if family in EDITING else ""


def evaluation_requests(family: str) -> list[SampleRequest]:
    """One sample of each prompt, without noise on the way."""
    return [
        SampleRequest(RequestKind.EVALUATE, 5, 0, number, 0, 0, prompt, source=source_of(family, number))
        for number, prompt in enumerate(PROMPTS)
    ]


def encoded(model: DiffusionModel, numbers: list[int], family: str) -> Conditioning:
    """The prompts of these numbers, with their images where the family edits."""
    prompts = [PROMPTS[number] for number in numbers]
    if family not in EDITING:
        return model.encode_prompts(prompts)
    assert isinstance(model, EditingModel)
    return model.encode_edits(prompts, [read_source(source_of(family, number)) for number in numbers])


def own_pipeline(family: str, folder: Path) -> Any:
    """The pipeline as diffusers loads it, float32."""
    part, kind = _PROCESSORS.get(family, ("", None))
    more = {}
    if part:
        tokenizer = Qwen2Tokenizer.from_pretrained(str(folder / part), local_files_only=True)
        more["processor"] = processor_of(kind, tokenizer)
    pipeline = DiffusionPipeline.from_pretrained(str(folder), local_files_only=True, **more)
    pipeline.set_progress_bar_config(disable=True)
    if family.startswith("qwen-image-edit"):
        pipeline.text_encoder.register_forward_pre_hook(_told_of_images, with_kwargs=True)
    return pipeline


def _told_of_images(encoder: Any, args: Any, given: dict[str, Any]) -> Any:
    """Add what the processor says of the tokens, which the pipelines drop (huggingface/diffusers#14194)."""
    return args, given | {"mm_token_type_ids": (given["input_ids"] == encoder.config.image_token_id).int()}


def load_adapters(pipeline: Any, folder: Path) -> None:
    """Load exported adapters as diffusers does for the pipeline, those of each of two experts."""
    if not hasattr(pipeline, "load_lora_weights"):
        pipeline.transformer.load_lora_adapter(str(folder), use_safetensors=True)
    elif (folder / LORA_FILE).is_file():
        pipeline.load_lora_weights(str(folder))
    if (folder / LOW / LORA_FILE).is_file():
        pipeline.load_lora_weights(str(folder / LOW), load_into_transformer_2=True)


def run_sampler(model: DiffusionModel, config: RunConfig) -> LatentsAndImages:
    """What our sampler makes of the requests."""
    samples = Sampler(model, config.sampling).generate(evaluation_requests(config.model.family))
    return np.stack([s.latents_SC for s in samples]), np.stack([s.image_HWC for s in samples])


def run_pipeline(pipeline: Any, config: RunConfig, shape: tuple[int, int]) -> LatentsAndImages:
    """Run a pipeline on the noise that our sampler begins the same requests with.

    Args:
        pipeline: of `own_pipeline`.
        config: of `family_config`.
        shape: (S, C) of our latents.
    """
    family = config.model.family
    streams = [stream_of(request) for request in evaluation_requests(family)]
    noise = normal(streams, Purpose.EVALUATE_INITIAL, 0, shape)
    side = round(shape[0] ** 0.5)
    if family in CLIPS:
        noise = noise.unflatten(1, (2, 4, 6)).movedim(-1, 1)
    elif family not in ("qwen-image", "qwen-image-2.1", "flux", *EDITING):
        noise = noise.unflatten(1, (side, side)).permute(0, 3, 1, 2)
    every = list(range(len(PROMPTS)))
    # These pipelines take, or decode, one prompt at a time, or give a sample another place beside others.
    alone = family in ("qwen-image-2.1", "qwen-image-edit-plus", "hunyuan-video-1.5")
    batches = [[row] for row in every] if alone else [every]
    made = [_made(pipeline, config, noise[batch], batch) for batch in batches]
    latents, images = (np.concatenate(parts) for parts in zip(*made, strict=True))
    images = images[..., :3]  # without the opacity that one of them adds
    return latents, (images * 255).round().astype(np.uint8)


def _made(pipeline: Any, config: RunConfig, noise: torch.Tensor, rows: list[int]) -> LatentsAndImages:
    """Latents and images in [0, 1] that a pipeline makes of noise for some of the prompts."""
    family, size = config.model.family, {"height": config.model.height, "width": config.model.width}
    arguments: dict[str, Any] = {"guidance_scale": config.model.guidance}
    if family == "qwen-image-2.1":  # it cuts nothing off
        pass
    elif family == "hunyuan-video-1.5":  # its arguments are settings of its parts
        pipeline.guider.guidance_scale = config.model.guidance
        pipeline.tokenizer_max_length = config.model.text_length
        arguments = {}
    else:
        arguments["max_sequence_length"] = config.model.text_length
    if family in CLIPS:
        arguments["num_frames"] = config.model.frames
    if family.startswith("qwen-image"):
        arguments["true_cfg_scale"] = arguments.pop("guidance_scale")
    if family == "sana":  # else it takes one of its own sizes, and scales the image
        arguments["use_resolution_binning"] = False
    if family == "z-image":  # it counts from 0
        arguments["guidance_scale"] -= 1
    if family not in _NO_NEGATIVE:
        arguments["negative_prompt"] = [config.model.negative_prompt] * len(rows)
    if family in EDITING:
        arguments["image"] = [
            Image.fromarray(read_source(source))
            for row in rows
            for source in source_of(family, row).split("\n")
        ]
    if family == "flux-kontext":  # else it scales to a million pixels
        arguments |= {"max_area": size["height"] * size["width"], "_auto_resize": False}
    last: list[torch.Tensor] = []
    step = pipeline.scheduler.step

    def keep(*values: Any, **more: Any) -> Any:
        found = step(*values, **more)
        last[:] = found[:1]
        return found

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(pipeline.scheduler, "step", keep))
        for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus):  # and so would these
            stack.enter_context(mock.patch.object(module, "calculate_dimensions", _own_size(module, size)))
        made = pipeline(
            prompt=[PROMPTS[row] for row in rows], num_inference_steps=STEPS, latents=noise, output_type="np",
            **size, **arguments,
        )  # fmt: skip
    (latents,) = last
    if latents.ndim > 3:
        latents = latents.movedim(1, -1).flatten(1, -2)
    return latents.numpy(), made.frames if family in CLIPS else made.images


def _own_size(module: Any, size: dict[str, int]) -> Any:
    """Keep an image's size for the VAE; only the image that an encoder sees is scaled to its area."""
    scaled = module.calculate_dimensions

    def dimensions(area: float, ratio: float) -> Any:
        if module is pipeline_qwenimage_edit:
            return size["width"], size["height"], None
        seen = area == pipeline_qwenimage_edit_plus.CONDITION_IMAGE_SIZE
        return scaled(area, ratio) if seen else (size["width"], size["height"])

    return dimensions


def difference(found: LatentsAndImages, expected: LatentsAndImages) -> float:
    """Largest difference of the latents; the images must be the same but for rounding."""
    assert found[1].shape == expected[1].shape
    assert np.abs(found[1].astype(int) - expected[1]).max() <= 1
    return float(np.abs(found[0] - expected[0]).max())


def training_samples(sampler: Sampler, family: str) -> list[TrainingSample]:
    """Two samples of each of two prompts, drawn with the weights of now; one good and one bad each.

    Args:
        sampler: of the policy.
        family: of its model.
    """
    wanted = [
        SampleRequest(
            RequestKind.ROLLOUT, 5, 1, prompt, seed, 0, PROMPTS[prompt], source=source_of(family, prompt)
        )
        for prompt in range(2)
        for seed in range(2)
    ]
    return [
        TrainingSample(sample.request, sample.trajectory, sample.latents_SC, advantage)
        for sample, advantage in zip(sampler.generate(wanted), (1.0, -1.0, -1.0, 1.0), strict=True)
    ]
