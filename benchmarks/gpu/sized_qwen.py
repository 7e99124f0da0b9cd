"""Qwen-Image at its real size with random weights: the family's own class, without a text encoder.

Random weights take as long as trained ones; the images are noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

from benchmarks.gpu.plan import Plan
from gpu_runtime.models.families.qwen_image import QwenImageModel
from gpu_runtime.models.files.pipeline_parts import Parts
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig

_DEVIATION = 0.02  # standard deviation of the weights: small enough that sixty blocks do not overflow
_SCHEDULE: dict[str, Any] = {
    "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 8192, "max_shift": 0.9,
    "shift_terminal": 0.02, "time_shift_type": "exponential", "use_dynamic_shifting": True,
}  # fmt: skip
"""Qwen-Image's own."""


def build_parts(plan: Plan, device: torch.device) -> Parts:
    """Make all parts except the text encoder on the device, so that the host need not hold 41 GB."""
    with torch.device(device):
        vae: Any = AutoencoderKLQwenImage(**plan.vae)
    before = torch.get_default_dtype()
    torch.set_default_dtype(plan.dtype)
    try:
        # Its rotary tables are not parameters, so building it on `meta` first would lose them.
        with torch.device(device):
            transformer: Any = QwenImageTransformer2DModel(**plan.shape.arguments())
    finally:
        torch.set_default_dtype(before)
    draw = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, weight in transformer.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, _DEVIATION, generator=draw)
            elif name.endswith("bias"):
                weight.zero_()
    for network in (transformer, vae):
        network.eval().requires_grad_(False)
    return Parts(transformer, vae, FlowMatchEulerDiscreteScheduler(**_SCHEDULE), {}, {})


class SizedQwen(QwenImageModel):
    """The family's model for square images; a prompt's hash seeds its random embedding.

    Args:
        parts: result of `build_parts`.
        plan: text lengths and widths.
        size: one of the plan's sizes.
        device: device of the parts.
    """

    def __init__(self, parts: Parts, plan: Plan, size: int, device: torch.device) -> None:
        self._plan = plan
        settings = ModelConfig(
            family="qwen-image", path="random-weights", width=plan.pixels[size], height=plan.pixels[size],
            text_length=plan.text_length, encoders="offload",
        )  # fmt: skip
        super().__init__(parts, settings, device)

    @classmethod
    def refuse_long(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> None:
        """Refuse nothing: there is no tokenizer."""

    def sequence_lengths(self) -> tuple[int, int]:
        """Return the numbers of image and text tokens of a sample."""
        return self.latent_shape[0], self.text_length

    def real_tokens(self, prompt: str) -> torch.Tensor:
        """Return the embeddings of a prompt's tokens without padding, (tokens, width)."""
        key = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=7).digest(), "little")
        shape = self._plan.text_tokens, self._plan.shape.text_width
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(key))
        return drawn.to(self.device, self.dtype)

    def _encode(self, prompt: str) -> Conditioning:
        return self._padded(self.real_tokens(prompt), self.text_length)
