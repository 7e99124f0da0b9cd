"""Sizes that the Qwen-Image stages measure: the real ones, and those of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gpu_runtime.models.published import Architecture


@dataclass(frozen=True)
class TransformerShape:
    """Sizes of Qwen-Image's transformer; the defaults are the real ones, 20.4 billion parameters.

    Attributes:
        layers, heads, head_width: sizes of its double-stream blocks.
        text_width: width of the encoder's text tokens.
        channels: channels of a latent token.
        rope_axes: split of the head's width over time, rows and columns.
    """

    layers: int = 60
    heads: int = 24
    head_width: int = 128
    text_width: int = 3584
    channels: int = 64
    rope_axes: tuple[int, int, int] = (16, 56, 56)

    @property
    def architecture(self) -> Architecture:
        """Return the sizes by which operations are counted."""
        width = self.heads * self.head_width
        return Architecture(width, double=self.layers, channels=self.channels, text_width=self.text_width)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `QwenImageTransformer2DModel`."""
        return {
            "patch_size": 2,
            "in_channels": self.channels,
            "out_channels": self.channels // 4,
            "num_layers": self.layers,
            "attention_head_dim": self.head_width,
            "num_attention_heads": self.heads,
            "joint_attention_dim": self.text_width,
            "axes_dims_rope": self.rope_axes,
        }


@dataclass(frozen=True)
class Plan:
    """Sizes and batches; a size is named by its real pixels, even if a rehearsal has fewer.

    Attributes:
        shape, dtype: the transformer's.
        vae: arguments of the VAE's class.
        pixels: edge of the square images of each size.
        batches: batch sizes of a denoising step, for each size; the first is measured first.
        run_batch: samples per batch of a rollout and of a training step, for each size.
        text_length, text_tokens: tokens of a prompt with and without padding.
        rank: rank of the adapters.
        steps: denoising steps of a rollout.
        edge: edge of the square matrices whose product gives the limit.
        compiler: backend of torch.compile.
    """

    shape: TransformerShape
    dtype: torch.dtype
    vae: dict[str, Any]
    pixels: dict[int, int]
    batches: dict[int, tuple[int, ...]]
    run_batch: dict[int, int]
    text_length: int
    text_tokens: int
    rank: int
    steps: int
    edge: int
    compiler: str

    def image_tokens(self, size: int) -> int:
        """Return the latent tokens S of an image."""
        return (self.pixels[size] // 16) ** 2


REAL = Plan(
    shape=TransformerShape(),
    dtype=torch.bfloat16,
    vae={},
    pixels={512: 512, 1280: 1280},
    batches={512: (8, 1, 4), 1280: (1,)},
    run_batch={512: 8, 1280: 4},
    text_length=128,
    text_tokens=24,
    rank=64,
    steps=10,
    edge=8192,
    compiler="inductor",
)

TINY = Plan(
    shape=TransformerShape(
        layers=2, heads=2, head_width=16, text_width=32, channels=16, rope_axes=(4, 6, 6)
    ),
    dtype=torch.float32,
    vae={
        "base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
        "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4,
    },
    pixels={512: 32, 1280: 64},
    batches={512: (8, 1, 4), 1280: (1,)},
    run_batch={512: 4, 1280: 4},
    text_length=16,
    text_tokens=4,
    rank=4,
    steps=6,
    edge=512,
    compiler="eager",  # generating code for CPUs takes half a minute, and tells nothing about GPUs
)  # fmt: skip
