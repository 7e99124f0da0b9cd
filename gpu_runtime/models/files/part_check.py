"""Checks of a part's configuration against its weights' files, before memory is spent on it.

If a configuration lacks its sizes, diffusers and transformers assume those of a large model, so a damaged
one would fill the memory. The layers are therefore first built on the meta device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gpu_runtime.models.files.pipeline_folder import tensor_shapes
from storage.errors import ModelError

_COUNTS = re.compile(r"n(um)?_(\w+_)?layers|depth|layers_per_block")
"""Names of settings that give the number of layers: building them takes time even without memory."""


def empty_part(
    build: Callable[[], Any], class_name: str, folder: Path, config: Mapping[str, Any], files: Sequence[Path]
) -> Any:
    """Build a part on the meta device, without memory for its weights.

    Args:
        build: function that builds it from its configuration.
        config: content of its config.json.

    Raises:
        ModelError: if the configuration is damaged or that of another model, or the files hold fewer or
            other weights than it describes.
    """
    # diffusers writes the class into a configuration, transformers the kind of model.
    named = config.get("_class_name")
    if named != class_name and "model_type" not in config:
        problem = "names no model" if named is None else f"describes a {named}"
        raise ModelError(
            f"{folder} is not a valid {class_name}: its config.json {problem}; download the model again, "
            "or name another"
        )
    shapes = {name: shape for file in files for name, shape in tensor_shapes(file).items()}
    for name, value in _numbers(config):
        if _COUNTS.fullmatch(name) and not 0 <= value <= len(shapes):
            raise ModelError(
                f"{folder}: config.json says {name} = {value}, but the weight files have {len(shapes)} "
                "tensors; download the model again, whole"
            )
    try:
        with torch.device("meta"):
            part = build()
    except (
        TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError, AssertionError,
        MemoryError,
    ) as error:  # fmt: skip
        raise ModelError(f"{folder} is not a valid {class_name}: {error}; name another model") from error
    _refuse_other_weights(part, class_name, folder, shapes)
    return part


def refuse_other_names(part: Any, folder: Path, files: Sequence[Path], exactly: bool = False) -> None:
    """Refuse files that lack some of the weights, by name.

    Args:
        exactly: True to also refuse extra tensors, which a configuration with fewer layers would ignore.

    Raises:
        ModelError: if so; with one of the names.
    """
    found = {name for file in files for name in tensor_shapes(file)}
    lacking = sorted({name for name, _ in part.named_parameters()} - found)
    if lacking:
        raise ModelError(
            f"{folder} lacks {len(lacking)} weights of a {type(part).__name__}, such as {lacking[0]}; "
            "download the model again, whole"
        )
    further = sorted(found - part.state_dict().keys()) if exactly else []
    if further:
        raise ModelError(
            f"{folder} has {len(further)} tensors that its config.json does not describe, such as "
            f"{further[0]}; restore the files"
        )


def _refuse_other_weights(
    part: Any, class_name: str, folder: Path, shapes: Mapping[str, Sequence[int]]
) -> None:
    wanted = {name: list(weight.shape) for name, weight in part.named_parameters()}
    for name, shape in wanted.items():
        if name in shapes and list(shapes[name]) != shape:
            raise ModelError(
                f"{folder}: {name} has shape {list(shapes[name])} in the file and {shape} by config.json; "
                "one of the two belongs to another model: download it again, whole"
            )
    # Names may differ between file and layers, and a shared weight may be stored once or twice.
    asked, held = (sum(math.prod(shape) for shape in all_.values()) for all_ in (wanted, shapes))
    if asked > held:
        raise ModelError(
            f"{folder}: config.json describes a {class_name} of {asked:,} parameters, but the weight files "
            f"hold {held:,}; download the model again, whole"
        )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    """Yield the numbers in a configuration and in nested ones."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield name, value
