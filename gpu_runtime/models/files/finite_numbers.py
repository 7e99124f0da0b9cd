"""Checks for numbers that are not finite, in a model's weights and in decoded images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from storage.errors import ModelError, NonFiniteError


def refuse_weights_not_finite(model: torch.nn.Module, where: str) -> None:
    """Refuse a model with a weight that is not finite.

    Raises:
        ModelError: if so; with the weight's name.
    """
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ModelError(_not_finite(where, name, weight))


def refuse_files_not_finite(files: Iterable[Path]) -> int:
    """Read all tensors of safetensors files, one at a time.

    Returns:
        The number of values read.

    Raises:
        ModelError: if one is not finite, or a file cannot be read.
    """
    count = 0
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is not a mapping
                    tensor = opened.get_tensor(name)
                    # isfinite does not support every 8-bit format.
                    wide = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
                    if not torch.isfinite(wide).all():
                        raise ModelError(_not_finite(str(file), name, wide))
                    count += tensor.numel()
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read ({error}); download the model again, whole") from error
    return count


def checked_pixels(pixels: torch.Tensor) -> torch.Tensor:
    """Return decoded pixels of any shape unchanged, checked before rounding turns a NaN into a colour.

    Raises:
        NonFiniteError: if one is not finite.
    """
    if not torch.isfinite(pixels).all():
        raise NonFiniteError("its decoded image has pixels that are not finite")
    return pixels


def _not_finite(where: str, name: str, tensor: torch.Tensor) -> str:
    bad = int((~torch.isfinite(tensor)).sum())
    return (
        f"{where}: {bad:,} of the {tensor.numel():,} values of {name} are not finite; download or make the "
        "model again"
    )
