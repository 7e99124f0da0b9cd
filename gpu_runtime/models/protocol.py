"""The interface of diffusion-transformer families for the sampler and the trainer.

Shape suffixes: B samples, L text tokens, E width, S image tokens, C latent channels,
H W pixels, T denoising steps, Z tokens of a source image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch

from storage.config.run_config import RunConfig


@dataclass(frozen=True)
class Conditioning:
    """Encoded prompts, one row per sample; everything the denoiser needs beside the latents.

    Attributes:
        embeds_BLE: text embeddings, float.
        mask_BL: True where a text token is real, False where it is padding.
        pooled_BE: one vector for the whole prompt, of another width, in families that have one.
        second: text embedded by another encoder, in families whose transformer takes the two separately.
        source_BZC: latents of the images that the prompts ask to change, which follow the sample's own
            tokens; None without such images.
        source_BHWC: these images, uint8 RGB, in families that decode with their help.
        negative: encoded negative prompts, in families where they depend on the source.
    """

    embeds_BLE: torch.Tensor
    mask_BL: torch.Tensor
    pooled_BE: torch.Tensor | None = None
    second: Conditioning | None = None
    source_BZC: torch.Tensor | None = None
    source_BHWC: torch.Tensor | None = None
    negative: Conditioning | None = None

    @cached_property
    def texts(self) -> list[torch.Tensor]:
        """Embeddings of each row's real tokens; cut only once, because counting them waits for the device."""
        return [embeds_LE[mask_L] for embeds_LE, mask_L in zip(self.embeds_BLE, self.mask_BL, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        values = (getattr(self, field.name) for field in fields(self))
        return sum(value.nbytes for value in values if value is not None)

    def rows(self, index: Sequence[int]) -> Conditioning:
        """Select (and repeat) rows: one entry of `index` for each sample of the result."""
        row = torch.as_tensor(list(index), device=self.embeds_BLE.device)
        return self._each(lambda tensor: tensor[row])

    def to(self, device: torch.device | str) -> Conditioning:
        """Return the conditioning on a device."""
        return self._each(lambda tensor: tensor.to(device))

    @staticmethod
    def joined(parts: Sequence[Conditioning]) -> Conditioning:
        """Join the rows of several in order; all of them or none have pooled vectors, and sources."""

        def together(values: list[Any]) -> Any:
            if isinstance(values[0], Conditioning):
                return Conditioning.joined(values)
            return None if values[0] is None else torch.cat(values)

        names = [field.name for field in fields(Conditioning)]
        return Conditioning(*(together([getattr(part, name) for part in parts]) for name in names))

    def with_source(self, tokens_BSC: torch.Tensor) -> torch.Tensor:
        """Return a sample's tokens, followed by those of its source if it has one: (B, S + Z, C)."""
        if self.source_BZC is None:
            return tokens_BSC
        return torch.cat([tokens_BSC, self.source_BZC.to(tokens_BSC.dtype)], dim=1)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Conditioning:
        def changed(value: Any) -> Any:
            if isinstance(value, Conditioning):
                return value._each(change)
            return None if value is None else change(value)

        return Conditioning(*(changed(getattr(self, field.name)) for field in fields(self)))


class DiffusionModel(Protocol):
    """A DiT family, which encodes prompts, predicts velocity and decodes. Sampling is elsewhere."""

    transformer: torch.nn.Module
    """The network that post-training changes; everything else is frozen."""

    latent_shape: tuple[int, int]
    """Shape (S, C) of one sample's latents."""

    device: torch.device

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Encode B prompts; the same prompt gives the same bits in any list."""
        ...

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        """Predict v = noise - x0 at noise level sigma in (0, 1]; float32, shape (B, S, C).

        Args:
            latents_BSC: noisy latents, float32, shape (B, S, C).
            sigma_B: noise level of each sample, shape (B,).
        """
        ...

    def decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        """Decode latents to uint8 RGB images (B, H, W, 3), or clips (B, F, H, W, 3), on the CPU.

        Raises:
            NonFiniteError: if a pixel is not finite.
        """
        ...

    def encode_images(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """Encode B uint8 RGB images (H, W, 3) to latents (B, S, C), float32; the inverse of `decode`.

        The same image gives the same bits in any list.

        Raises:
            ConfigurationError: if the family encodes no images.
        """
        ...

    def resized(self, height: int, width: int) -> Self:
        """Return the same model, with the same weights, for images of another size in pixels.

        Raises:
            ConfigurationError: if it cannot make this size.
        """
        ...

    def sequence_lengths(self) -> tuple[int, int]:
        """Return the image and text tokens of a sample, as the transformer's attention sees them."""
        ...

    def sigmas(self, steps: int) -> torch.Tensor:
        """Return the family's noise schedule: float64, shape (steps + 1,), falling from about 1 to 0."""
        ...


@runtime_checkable
class EditingModel(Protocol):
    """A model that changes an image as a prompt asks; every prompt comes with an image."""

    def encode_edits(self, prompts: Sequence[str], sources: Sequence[np.ndarray]) -> Conditioning:
        """Encode B prompts and their images; the same pair gives the same bits in any list.

        Args:
            sources: image of each, uint8 RGB, shape (H, W, 3), of the size that the model makes; (N, H, W, 3)
                where a prompt comes with N images.
        """
        ...

    def decode_edits(self, latents_BSC: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        """Decode latents to uint8 RGB images, shape (B, H, W, 3), on the CPU.

        Args:
            latents_BSC: latents, shape (B, S, C).
            conditioning: encoded prompts, one row per sample, with its source.

        Raises:
            NonFiniteError: if a pixel is not finite.
        """
        ...


class ModelOutline(Protocol):
    """A model's outline for the checks before a run."""

    transformer: torch.nn.Module
    """Layers of the model, perhaps without memory for their weights."""

    def check_prompts(self, prompts: list[str]) -> None:
        """Refuse a prompt that the model cannot encode."""
        ...

    def check_machine(self, config: RunConfig | None = None, keeps_reference: bool = False) -> None:
        """Refuse a run, or one worker, if this machine lacks an attention kernel or memory for it.

        Args:
            config: settings of the run; None for a worker that only generates.
            keeps_reference: True if training needs the reference policy.
        """
        ...

    def memory_in_words(self, config: RunConfig, keeps_reference: bool) -> str:
        """Describe the least memory that a run needs on a device; empty if that is little."""
        ...

    def text_length_for(self, degree: int) -> int | None:
        """Return the next `model.text_length` whose text tokens divide by a degree; None if none does."""
        ...

    def sequence_lengths(self) -> tuple[int, int]:
        """Return the image and text tokens of a sample, as the transformer's attention sees them."""
        ...

    def blank_image(self) -> np.ndarray:
        """Return an image or a clip of the model's size, uint8, (H, W, 3) or (F, H, W, 3)."""
        ...
