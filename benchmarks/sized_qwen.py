"""Qwen-Image's transformer at its real size with random weights, as the sampler and the trainer take it.

Random weights cost the time that trained ones do; the images are noise.

Shape suffixes: B samples, L text tokens, E text width, S image tokens, C latent channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel

from benchmarks.transformer_flops import TransformerShape
from gpu_runtime.models.protocol import Conditioning

REAL = TransformerShape()
TINY = TransformerShape(layers=2, heads=2, head_width=16, text_width=32, channels=16, rope_axes=(4, 6, 6))

_PIXELS_A_TOKEN = 16
_DEVIATION = 0.02  # of the weights: small enough that sixty blocks do not overflow


def build_transformer(
    shape: TransformerShape, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Any:
    """A transformer made on the device itself: the host need not hold 41 GB."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        # Its rotary tables are no parameters, so building it on `meta` first would lose them.
        with torch.device(device):
            transformer: Any = QwenImageTransformer2DModel(**shape.arguments())
    finally:
        torch.set_default_dtype(before)
    draw = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in transformer.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, _DEVIATION, generator=draw)
            elif name.endswith("bias"):
                weight.zero_()
    return transformer.eval()


class SizedQwen:
    """Implements `gpu_runtime.models.protocol.DiffusionModel` for square images.

    Args:
        transformer: its network.
        shape: of the network.
        pixels: edge of an image, a multiple of 16.
        text_tokens: length of every prompt; all of them real, so that no mask is needed.
        decoder: a VAE; without one, `decode` shows the first channels as pixels.
        masked: whether to pass the mask all the same, as prompts of unequal length would need.
    """

    def __init__(
        self,
        transformer: Any,
        shape: TransformerShape,
        pixels: int,
        text_tokens: int,
        decoder: Any = None,
        masked: bool = False,
    ) -> None:
        self.transformer = transformer
        self.side = pixels // _PIXELS_A_TOKEN
        self.latent_shape: tuple[int, int] = (self.side**2, shape.channels)
        parameter = next(transformer.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self._text = (text_tokens, shape.text_width)
        self._decoder = decoder
        self._masked = masked

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """What a generator draws that the prompt's hash seeds, (B, L, E); no text encoder runs."""
        embeds_BLE = torch.empty(len(prompts), *self._text)
        for row, prompt in enumerate(prompts):
            key = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=7).digest(), "little")
            embeds_BLE[row] = torch.randn(self._text, generator=torch.Generator().manual_seed(key))
        mask_BL = torch.ones(len(prompts), self._text[0], dtype=torch.bool)
        return Conditioning(embeds_BLE.to(self.device, self.dtype), mask_BL.to(self.device))

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        """Predict v, float32, shape (B, S, C)."""
        output = self.transformer(
            hidden_states=latents_BSC.to(self.dtype),
            encoder_hidden_states=conditioning.embeds_BLE,
            encoder_hidden_states_mask=conditioning.mask_BL if self._masked else None,
            timestep=sigma_B.to(self.dtype),
            img_shapes=[[(1, self.side, self.side)]] * len(latents_BSC),
            return_dict=False,
        )
        return output[0].float()

    @torch.no_grad()
    def decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Images (B, H, W, 3) uint8 on the CPU, an image at a time."""
        if self._decoder is None:
            pixels = latents_BSC[..., :3].reshape(len(latents_BSC), self.side, self.side, 3)
            return ((pixels.clamp(-1, 1) + 1) * 127.5).to(torch.uint8).cpu()
        images = [self._decoder.decode(self._unpacked(row), return_dict=False)[0] for row in latents_BSC]
        pixels_BCHW = torch.cat(images)[:, :, 0].float()
        return ((pixels_BCHW.clamp(-1, 1) + 1) * 127.5).to(torch.uint8).permute(0, 2, 3, 1).cpu()

    def sequence_lengths(self) -> tuple[int, int]:
        """Image and text tokens of a sample."""
        return self.latent_shape[0], self._text[0]

    def sigmas(self, steps: int) -> torch.Tensor:
        """Even noise levels: the schedule's shift costs no time."""
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64)

    def _unpacked(self, latents_SC: torch.Tensor) -> torch.Tensor:
        """Tokens of 2 x 2 into the VAE's own (1, channels, 1 frame, rows, columns)."""
        channels = latents_SC.shape[1] // 4
        grid = latents_SC.view(self.side, self.side, channels, 2, 2).permute(2, 0, 3, 1, 4)
        return grid.reshape(1, channels, 1, 2 * self.side, 2 * self.side).to(self.dtype)
