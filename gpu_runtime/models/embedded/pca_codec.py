"""A fixed linear "VAE": principal components of 8x8 RGB patches, one token per patch.

Small transformers learn the strong components of a picture in a minute, and raw pixels not at all.

An edit is decoded as a change of its source: where the decoded pixel differs by less than `LEAST_CHANGE`, or
its whole patch by less than `LEAST_PATCH_CHANGE`, from the decoded source, the source's own pixel is
returned. So neither the codec's loss nor small model errors affect the rest of an image, which equals the
source to the bit.

Shape suffixes: B images, H W pixels, S patches (row by row), D pixel values of a patch (8*8*3),
C latent channels (components kept).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gpu_runtime.models.embedded.folder import PATCH
from gpu_runtime.models.files.finite_numbers import checked_pixels
from storage.errors import ModelError

_VALUES = PATCH * PATCH * 3
"""Values of a patch, D."""

_TENSORS = ("mean_D", "basis_CD", "scale_C")

LEAST_CHANGE = 45 / 255
"""Least change of the channel that changes most, in pixel values of [0, 1]; less counts as model noise. It is
half the difference between the two most similar colours of the task `edits`."""

LEAST_PATCH_CHANGE = 20 / 255
"""Root mean square change of a patch's values below which the whole patch is the source's."""


def patchify(images_BHWC: torch.Tensor) -> torch.Tensor:
    """Cut images of shape (B, H, W, 3) into patches of shape (B, S, D); H, W multiples of 8."""
    count, height, width, channels = images_BHWC.shape
    rows, columns = height // PATCH, width // PATCH
    split = images_BHWC.reshape(count, rows, PATCH, columns, PATCH, channels)
    return split.permute(0, 1, 3, 2, 4, 5).reshape(count, rows * columns, PATCH * PATCH * channels)


def unpatchify(patches_BSD: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Join patches of shape (B, S, D) into images (B, height, width, 3).

    Args:
        patches_BSD: patches row by row, shape (B, S, D).
    """
    rows, columns = height // PATCH, width // PATCH
    split = patches_BSD.reshape(len(patches_BSD), rows, columns, PATCH, PATCH, 3)
    return split.permute(0, 1, 3, 2, 4, 5).reshape(len(patches_BSD), height, width, 3)


@dataclass(frozen=True)
class PatchCodec:
    """A codec of RGB images and latents.

    Attributes:
        mean_D: mean patch, float32, pixel values in [0, 1].
        basis_CD: orthonormal rows, the components kept, strongest first; float32.
        scale_C: divisor of each component when encoding; float32, positive.
    """

    mean_D: torch.Tensor
    basis_CD: torch.Tensor
    scale_C: torch.Tensor

    @property
    def channels(self) -> int:
        """Latent channels C."""
        return len(self.scale_C)

    @classmethod
    def fit(cls, images_BHWC: np.ndarray, components: int, whitening: float = 0.5) -> Self:
        """Fit to uint8 RGB images.

        Args:
            images_BHWC: images, uint8, shape (B, H, W, 3).
            components: latent channels to keep, at most 192.
            whitening: power of a component's deviation that it is divided by; all are then divided by one
                number so that their mean square is 1. At 1 every component weighs the same in the loss, even
                invisible ones; at 0 only the first few count.
        """
        pixels = patchify(torch.from_numpy(images_BHWC)).double() / 255
        patches = pixels.reshape(-1, pixels.shape[-1])
        mean_D = patches.mean(0)
        covariance = (patches - mean_D).T @ (patches - mean_D) / len(patches)
        variance, vectors = torch.linalg.eigh(covariance)
        order = variance.argsort(descending=True)[:components]
        basis_CD = vectors[:, order].T
        # An eigenvector's sign is arbitrary; fix it, so that LAPACK's choice does not matter.
        largest = basis_CD.abs().argmax(1, keepdim=True)
        basis_CD = basis_CD * basis_CD.gather(1, largest).sign()
        deviation_C = variance[order].clamp_min(1e-8).sqrt()
        scale_C = deviation_C**whitening
        scale_C = scale_C * (deviation_C / scale_C).square().mean().sqrt()
        return cls(mean_D.float(), basis_CD.float().contiguous(), scale_C.float())

    def encode(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        """Encode uint8 RGB images (B, H, W, 3) to float32 latents (B, S, C)."""
        patches_BSD = patchify(images_BHWC).float() / 255 - self.mean_D
        return patches_BSD @ self.basis_CD.T / self.scale_C

    def decode(self, latents_BSC: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Decode latents (B, S, C) to uint8 RGB images (B, height, width, 3) on the same device.

        Args:
            latents_BSC: latents, shape (B, S, C).

        Raises:
            NonFiniteError: if a pixel is not finite.
        """
        return _as_bytes(checked_pixels(self._pixels(latents_BSC, height, width)))

    def decode_edits(
        self, latents_BSC: torch.Tensor, source_BSC: torch.Tensor, source_BHWC: torch.Tensor
    ) -> torch.Tensor:
        """Decode latents (B, S, C) of edits to uint8 RGB (B, H, W, 3): the source's where nothing changed.

        Args:
            source_BSC: latents of the sources.

        Raises:
            NonFiniteError: if a pixel is not finite.
        """
        height, width = source_BHWC.shape[1:3]
        pixels_BHWC = checked_pixels(self._pixels(latents_BSC, height, width))
        change_BHWC = pixels_BHWC - self._pixels(source_BSC, height, width)
        strength_BSD = (
            patchify(change_BHWC).square().mean(dim=-1, keepdim=True).sqrt().expand(-1, -1, _VALUES)
        )
        in_patch_BHWC = unpatchify(strength_BSD, height, width) > LEAST_PATCH_CHANGE
        changed_BHWC = in_patch_BHWC & (change_BHWC.abs().amax(dim=-1, keepdim=True) > LEAST_CHANGE)
        return torch.where(changed_BHWC, _as_bytes(pixels_BHWC), source_BHWC)

    def _pixels(self, latents_BSC: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return pixel values, mostly within [0, 1]: float32, shape (B, height, width, 3)."""
        patches_BSD = (latents_BSC.float() * self.scale_C) @ self.basis_CD + self.mean_D
        return unpatchify(patches_BSD, height, width)

    def to(self, device: torch.device) -> PatchCodec:
        """Return the codec with its tensors on `device`."""
        return PatchCodec(self.mean_D.to(device), self.basis_CD.to(device), self.scale_C.to(device))

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        save_file({name: getattr(self, name).cpu().contiguous() for name in _TENSORS}, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ModelError: if the file is missing, unreadable or lacks a tensor, or one has another shape or
                dtype or is not finite.
        """
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: cannot read the codec ({error}); restore the file") from error
        missing = [name for name in _TENSORS if name not in tensors]
        if missing:
            raise ModelError(f"{path} lacks tensor {', '.join(missing)}; restore the file")
        size, channels = PATCH * PATCH * 3, len(tensors["scale_C"].flatten())
        for name, shape in zip(_TENSORS, ((size,), (channels, size), (channels,)), strict=True):
            tensor = tensors[name]
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                raise ModelError(
                    f"{path}: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, not float32 of "
                    f"{shape}; restore the file"
                )
            if not torch.isfinite(tensor).all():
                raise ModelError(f"{path}: a number of {name} is not finite; restore the file")
        return cls(*(tensors[name] for name in _TENSORS))


def _as_bytes(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels * 255).round().clamp(0, 255).to(torch.uint8)
