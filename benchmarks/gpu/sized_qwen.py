"""Qwen-Image at its real size or a rehearsal's, with random weights: the family's class, no text encoder.

Random weights cost the time that trained ones do; the images are noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

from gpu_runtime.models.families.qwen_image import QwenImageModel
from gpu_runtime.models.files.pipeline_parts import Parts
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.models.published import Architecture, PassOperations
from storage.config.model import ModelConfig

_DEVIATION = 0.02  # of the weights: small enough that sixty blocks do not overflow
_SCHEDULE: dict[str, Any] = {
    "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 8192, "max_shift": 0.9,
    "shift_terminal": 0.02, "time_shift_type": "exponential", "use_dynamic_shifting": True,
}  # fmt: skip
"""Qwen-Image's own."""


BATCHES = {512: (8, 1, 4), 1280: (1,)}
"""Batches of a denoising step by size; the first one is measured first."""


@dataclass(frozen=True)
class Plan:
    """Sizes and batches; a size is called by the pixels of the real one, also where a rehearsal has fewer.

    Attributes:
        dtype: of the transformer.
        pixels: edge of the square images of each size.
        run_batch: samples of a rollout and of a training step, for each size.
        edge: of the square matrices whose product is the limit.
        compiler: backend of torch.compile.
        text_length, text_tokens: of a prompt, with padding and without.
        rank: of the adapters.
        steps: denoising steps of a rollout.
        layers, heads, head_width: of the transformer's double-stream blocks.
        text_width: of a text token as the encoder gives it.
        channels: of a latent token.
        rope_axes: how the head's width is divided over time, rows and columns.
        vae: arguments of the VAE's class.
    """

    dtype: torch.dtype
    pixels: Mapping[int, int]
    run_batch: Mapping[int, int]
    edge: int
    compiler: str
    text_length: int
    text_tokens: int
    rank: int
    steps: int
    layers: int
    heads: int
    head_width: int
    text_width: int
    channels: int
    rope_axes: tuple[int, int, int]
    vae: Mapping[str, Any]

    def image_tokens(self, size: int) -> int:
        """Latent tokens S of an image."""
        return (self.pixels[size] // 16) ** 2

    def operations(self, size: int, full: bool = False) -> PassOperations:
        """Floating-point operations of one sample's passes: two for a multiplication with its addition.

        Left out, as everywhere: norms, activations, RoPE and whatever else is no matrix product.
        """
        width = self.heads * self.head_width
        sizes = Architecture(width, double=self.layers, channels=self.channels, text_width=self.text_width)
        rank = 0 if full else self.rank
        return sizes.operations(self.image_tokens(size), self.text_length, rank, full=full)

    def transformer(self) -> Any:
        """The transformer, on torch's default device, with the weights that its class begins with."""
        return QwenImageTransformer2DModel(
            patch_size=2, in_channels=self.channels, out_channels=self.channels // 4, num_layers=self.layers,
            attention_head_dim=self.head_width, num_attention_heads=self.heads,
            joint_attention_dim=self.text_width, axes_dims_rope=self.rope_axes,
        )  # fmt: skip


REAL = Plan(
    dtype=torch.bfloat16, pixels={512: 512, 1280: 1280}, run_batch={512: 8, 1280: 4}, edge=8192,
    compiler="inductor", text_length=128, text_tokens=24, rank=64, steps=10, layers=60, heads=24,
    head_width=128, text_width=3584, channels=64, rope_axes=(16, 56, 56), vae={},
)  # fmt: skip
"""20.4 billion parameters."""

TINY = Plan(
    dtype=torch.float32, pixels={512: 32, 1280: 64}, run_batch={512: 4, 1280: 4}, edge=512,
    # Generating code for CPUs takes half a minute, and shows nothing of that for GPUs.
    compiler="eager", text_length=16, text_tokens=4, rank=4, steps=6, layers=2, heads=2, head_width=16,
    text_width=32, channels=16, rope_axes=(4, 6, 6),
    vae={"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
         "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
)  # fmt: skip


def build_parts(plan: Plan, device: torch.device) -> Parts:
    """All parts but the text encoder, made on the device itself: the host need not hold 41 GB."""
    before = torch.get_default_dtype()
    # Rotary tables are no parameters, so building on `meta` first would lose them.
    with torch.device(device):
        vae: Any = AutoencoderKLQwenImage(**plan.vae)
        torch.set_default_dtype(plan.dtype)
        try:
            transformer = plan.transformer()
        finally:
            torch.set_default_dtype(before)
    draw = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, weight in transformer.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, _DEVIATION, generator=draw)
            elif name.endswith("bias"):
                weight.zero_()
    scheduler = FlowMatchEulerDiscreteScheduler(**_SCHEDULE)
    for part in (transformer, vae):
        part.eval().requires_grad_(False)
    return Parts(transformer, vae, scheduler, {}, {})


class SizedQwen(QwenImageModel):
    """The family's model for square images; a prompt is what a generator draws that its hash seeds."""

    def __init__(self, parts: Parts, plan: Plan, size: int, device: torch.device) -> None:
        self._plan = plan
        settings = ModelConfig(
            family="qwen-image", path="random-weights", width=plan.pixels[size], height=plan.pixels[size],
            text_length=plan.text_length, encoders="offload",
        )  # fmt: skip
        super().__init__(parts, settings, device)

    @classmethod
    def refuse_long(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> None:
        """Nothing to refuse: there is no tokenizer."""

    def sequence_lengths(self) -> tuple[int, int]:
        """Image and text tokens of a sample."""
        return self.latent_shape[0], self.text_length

    def _encode(self, prompt: str) -> Conditioning:
        key = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=7).digest(), "little")
        shape = self._plan.text_tokens, self._plan.text_width
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(key))
        return self._padded(drawn.to(self.device, self.dtype), self.text_length)
