"""A model for tests: Qwen-Image's transformer with one layer and random weights, seeded.

Its width is 32 because torch's vectorised SiLU takes 32 floats at a time (AVX-512) and rounds a
remainder otherwise: where 32 does not divide batch x width, the last row has other bits than the rest.

Shape suffixes: B samples, L text tokens, E text width, S image tokens, C latent channels, H W pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel

from gpu_runtime.models.protocol import Conditioning

TEXT_LENGTH, TEXT_WIDTH = 4, 8
GRID = (1, 2, 2)
CHANNELS = 8


class TinyModel:
    """Implements `gpu_runtime.models.protocol.DiffusionModel` with about 45 000 parameters.

    Args:
        seed: of the weights.
        dtype: of the weights.
    """

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            transformer = QwenImageTransformer2DModel(
                patch_size=1,
                in_channels=CHANNELS,
                out_channels=CHANNELS,
                num_layers=1,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=TEXT_WIDTH,
                axes_dims_rope=(4, 6, 6),
            )
        self.transformer: torch.nn.Module = torch.nn.Module.to(transformer.eval(), dtype)
        self._dtype = dtype
        self.latent_shape: tuple[int, int] = (GRID[1] * GRID[2], CHANNELS)
        self.device = torch.device("cpu")

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Encode a prompt as what a generator draws that its hash seeds; its length sets the mask."""
        embeds_BLE = torch.zeros(len(prompts), TEXT_LENGTH, TEXT_WIDTH)
        mask_BL = torch.zeros(len(prompts), TEXT_LENGTH, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            words = min(len(prompt.split()), TEXT_LENGTH)
            key = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "little")
            drawn = np.random.default_rng(key).standard_normal((words, TEXT_WIDTH), dtype=np.float32)
            embeds_BLE[row, :words] = torch.from_numpy(drawn)
            mask_BL[row, :words] = True
        return Conditioning(embeds_BLE, mask_BL)

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        """Predict v, float32, shape (B, S, C)."""
        return self.transformer(
            hidden_states=latents_BSC.to(self._dtype),
            encoder_hidden_states=conditioning.embeds_BLE.to(self._dtype),
            encoder_hidden_states_mask=conditioning.mask_BL,
            timestep=sigma_B,
            img_shapes=[[GRID]] * len(latents_BSC),
            return_dict=False,
        )[0].float()

    def decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Show a token's first three channels as one pixel: (B, 2, 2, 3) uint8."""
        pixels = (latents_BSC[..., :3].clamp(-2, 2) + 2) / 4 * 255
        return pixels.round().to(torch.uint8).reshape(-1, GRID[1], GRID[2], 3)

    def encode_images(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """Invert `decode`; the channels that it does not show are 0."""
        pixels = torch.from_numpy(np.stack(images)).reshape(len(images), -1, 3).float()
        latents_BSC = torch.zeros(len(images), *self.latent_shape)
        latents_BSC[..., :3] = pixels / 255 * 4 - 2
        return latents_BSC

    def resized(self, height: int, width: int) -> Self:
        """Refuse any other size than its own."""
        assert (height, width) == GRID[1:]
        return self

    def sequence_lengths(self) -> tuple[int, int]:
        """Image and text tokens of a sample."""
        return self.latent_shape[0], TEXT_LENGTH

    def sigmas(self, steps: int) -> torch.Tensor:
        """Even noise levels: float64, `steps` + 1 values falling from 1 to 0."""
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64)
