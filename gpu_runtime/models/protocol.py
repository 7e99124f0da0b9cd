"""What every diffusion-transformer family offers to the sampler and the trainer.

Shape suffixes: B samples, L text tokens, E text width, S image tokens, C latent channels,
H W pixels, T denoising steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Conditioning:
    """Encoded prompts, one row a sample; everything the denoiser needs beside the latents.

    Attributes:
        embeds_BLE: text embeddings, float.
        mask_BL: True where a text token is real, False where it is padding.
    """

    embeds_BLE: torch.Tensor
    mask_BL: torch.Tensor

    def rows(self, index: Sequence[int]) -> Conditioning:
        """Select (and repeat) rows: one entry of `index` for each sample of the result."""
        row = torch.as_tensor(list(index), device=self.embeds_BLE.device)
        return Conditioning(self.embeds_BLE[row], self.mask_BL[row])


class DiffusionModel(Protocol):
    """A DiT family: encode prompts, predict velocity, decode. Sampling lives elsewhere."""

    transformer: torch.nn.Module
    """The network that post-training changes; everything else is frozen."""

    latent_shape: tuple[int, int]
    """(S, C) of one sample's latents."""

    device: torch.device

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Encode B prompts; the same prompt gives the same bits in any list."""
        ...

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        """Predict v = noise - x0 at noise level sigma in (0, 1]; float32, shape (B, S, C)."""
        ...

    def decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Decode latents to uint8 RGB images, shape (B, H, W, 3), on the CPU."""
        ...

    def sigmas(self, steps: int) -> torch.Tensor:
        """The family's noise schedule: float64, `steps` + 1 values falling from 1 to 0."""
        ...
