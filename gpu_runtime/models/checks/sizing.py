"""The device memory of a published model's run, by term and as a range, without any weights.

Low ends are counted by `memory_need` from the real class's layers. High ends count everything that a block
keeps: 34 bytes per element of a token (Korthikanti et al., 2022, arXiv 2205.05198, with attention that keeps
no matrix), and adapters' inputs again in float32, as peft computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import diffusers
import torch

from gpu_runtime.models.checks.memory_need import GIB, WorkNeed
from gpu_runtime.models.family_options import trained_experts
from gpu_runtime.models.published import PublishedModel
from storage.config.run_config import RunConfig

_BFLOAT16, _FLOAT32 = 2, 4
_KEPT_BYTES = 34
"""Bytes that a block keeps per element of a token, in 16 bits and without the attention matrix."""

_DECODED = (2 * 128, 6 * 256)
"""Fewest and most values per pixel that the VAE's last layers hold at once: input and output of 128
channels; six tensors of 256, including convolutions' workspaces."""

_DECODED_CLIP = (4 * 256, 8 * 256)
"""The same for a clip's latent frame, with the inputs that causal layers keep from earlier frames."""

_LATENTS = (2, 4)
"""Fewest and most copies of a batch's latents in float32."""

_RUNTIME = (0.5 * GIB, 3.0 * GIB)
"""CUDA context, kernel workspaces and fragmentation: assumed."""


@dataclass(frozen=True)
class Term:
    """The bytes of one use of memory.

    Attributes:
        low, high: ends of the range.
        trains: True if only a training device has it.
    """

    name: str
    low: float
    high: float
    trains: bool = False


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one of a run's devices.

    Attributes:
        held: terms that are always there.
        in_turn: terms that follow each other, so that the largest counts.
        instead: a training batch with the other setting of gradient checkpointing.
    """

    held: Sequence[Term]
    in_turn: Sequence[Term]
    instead: Term

    def total(self, trains: bool) -> tuple[float, float]:
        """Return the lowest and highest bytes of a device.

        Args:
            trains: True for a device that also trains.
        """
        held = [term for term in self.held if trains or not term.trains]
        turns = [term for term in self.in_turn if trains or not term.trains]
        low = sum(term.low for term in held) + max(term.low for term in turns)
        return low, sum(term.high for term in held) + max(term.high for term in turns)


def device_memory(config: RunConfig, model: PublishedModel, keeps_reference: bool) -> DeviceMemory:
    """Count the device memory of a run that trains adapters; each device holds all weights, to generate.

    Args:
        keeps_reference: True if training needs the reference policy.
    """
    with torch.device("meta"):
        transformer = getattr(diffusers, model.transformer_class)(**model.transformer)
    torch.nn.Module.to(transformer, torch.bfloat16)  # diffusers' own warns, and keeps nothing in float32 here
    settings = max(config.model, config.evaluated_model, key=lambda one: math.prod(one.size))
    image_tokens, text_tokens = model.tokens(settings)
    batch = config.sampling.batch_size
    at_once = model.frames or 1  # a clip's latent frame, the first of which is one frame
    least, most = _DECODED_CLIP if model.frames else _DECODED
    least, most = least * min(at_once, settings.clip_frames), most * at_once
    pixels = _FLOAT32 * math.prod(settings.size)
    work = WorkNeed.of(transformer, image_tokens, config, keeps_reference, one_by_one=model.cuts_padding)
    weights = model.experts * _BFLOAT16 * sum(weight.numel() for weight in transformer.parameters())
    trained = trained_experts(settings, model.experts) * work.trained_bytes
    encoders = _exactly("text encoders", _BFLOAT16 * model.encoders)
    offloaded = settings.encoders == "offload"
    trainers = work.divided_over(config.runtime.trainer_workers)
    gradients = work.gradients_kept(config.runtime.trainer_workers) * trained / trainers
    low, high = (
        copies * _FLOAT32 * batch * image_tokens * model.architecture.channels for copies in _LATENTS
    )
    kept = _KEPT_BYTES * batch * (image_tokens + text_tokens) * model.architecture.width
    part = (weights + trained) / trainers
    training = _training(config, model, transformer, config.adaptation.gradient_checkpointing)
    return DeviceMemory(
        held=[
            _exactly("transformer", weights),
            _exactly("adapters, float32", trained),
            _exactly("VAE, float32", _FLOAT32 * model.vae),
            *([] if offloaded else [encoders]),
            Term("latents of a batch", low, high),
            Term("CUDA, workspaces, fragmentation", *_RUNTIME),
            _exactly("gradients", gradients, trains=True),
            _exactly("AdamW's moments", 2 * trained / trainers, trains=True),
            *([_exactly("reference", trained / trainers, trains=True)] if work.keeps_reference else []),
            # Between two updates a trainer may hold its part beside all weights.
            *([Term("its part of the weights", 0.0, part, trains=True)] if trainers > 1 else []),
        ],
        in_turn=[
            *([encoders] if offloaded else []),
            Term("activations of a batch", work.generating_bytes, kept),
            Term("decoding an image", pixels * least, pixels * most),
            # While it trains, it holds only its part of the weights.
            replace(training, low=max(0.0, training.low - weights * (1 - 1 / trainers))),
        ],
        instead=_training(config, model, transformer, not config.adaptation.gradient_checkpointing),
    )


def _exactly(name: str, size: float, trains: bool = False) -> Term:
    return Term(name, size, size, trains)


def _training(
    config: RunConfig, model: PublishedModel, transformer: torch.nn.Module, checkpointing: bool
) -> Term:
    """Return the activations of a training batch; guidance keeps those of both passes."""
    sizes, passes = model.architecture, model.passes(config.model)
    image_tokens, text_tokens = model.tokens(config.model)
    chosen = config.changed(adaptation={"gradient_checkpointing": checkpointing})
    batch = WorkNeed.of(  # a reference has no activations
        transformer, image_tokens, chosen, keeps_reference=False, one_by_one=model.cuts_padding
    )
    low = passes * batch.training_bytes
    each = config.sampling.batch_size * (image_tokens + text_tokens) * sizes.width
    inputs = 9 if config.adaptation.adapts_feed_forward else 4
    block = (_KEPT_BYTES + _FLOAT32 * inputs) * each
    high = (
        passes * sizes.blocks * (_BFLOAT16 * each) + block if checkpointing else passes * sizes.blocks * block
    )
    word = "with" if checkpointing else "without"
    return Term(f"training batch, {word} checkpointing", low, max(low, high), trains=True)
