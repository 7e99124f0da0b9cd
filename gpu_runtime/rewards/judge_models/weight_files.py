"""Weights in a single file of their authors' own, which transformers does not load, and a head of them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from storage.errors import ModelError, quoted
from storage.text import one_line

HEAD_PLACES = (0, 2, 4, 6, 7)
"""Of the five linear layers among a head's; between them are dropouts, which judging leaves out."""


def read_weights(setting: str, file: str) -> dict[str, torch.Tensor]:
    """The tensors of a file by name: `.safetensors`, or what `torch.save` wrote.

    Nothing but tensors is unpickled: a file of weights can hold any program.

    Args:
        setting: that names the file, for messages.
        file: its path.

    Raises:
        ModelError: it is missing, or holds something else.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ModelError(
            f"{setting} = {quoted(file)} is no file here; download the weights and name their file"
        )
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, SafetensorError) as error:
        reason = one_line(str(error))[:200]  # torch's goes on about how to unpickle programs
        raise ModelError(f"{setting}: {path} holds no weights that torch can read: {reason}") from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ModelError(f"{setting}: {path} holds no weights by name; name a file of them")
    return {str(name): value.float() for name, value in found.items()}


def fill(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], setting: str) -> None:
    """Give a model all of its weights; what else there is among them is left out.

    Args:
        model: as its configuration has made it.
        weights: by the model's own names.
        setting: that names the file, for messages.

    Raises:
        ModelError: some are missing, or of another shape.
    """
    needed = dict(model.named_parameters())
    kind = type(model).__name__
    lacking = sorted(needed.keys() - weights.keys())
    if lacking:
        raise ModelError(
            f"{setting}: the file lacks {len(lacking)} weights of a {kind}, such as {lacking[0]}; name a "
            "whole one"
        )
    for name, parameter in needed.items():
        if weights[name].shape != parameter.shape:
            raise ModelError(
                f"{setting}: {name} of the file's {kind} has shape {tuple(weights[name].shape)} where "
                f"{tuple(parameter.shape)} is needed; name a whole file"
            )
    model.load_state_dict({name: weights[name] for name in needed}, strict=False)


def linear_head(
    weights: Mapping[str, torch.Tensor], setting: str, width: int, prefix: str = "layers."
) -> torch.nn.Sequential:
    """The five linear layers that turn a vector of a model into one number, as two judges have them.

    Args:
        weights: by the file's names.
        setting: that names the file, for messages.
        width: of the vector.
        prefix: what the head's names begin with.

    Raises:
        ModelError: layers are missing, or of other shapes than follow each other.
    """
    layers = []
    for place in HEAD_PLACES:
        name = f"{prefix}{place}"
        weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        if weight is None or bias is None:
            missing = f"{name}.{'bias' if bias is None and weight is not None else 'weight'}"
            raise ModelError(f"{setting}: the file has no {missing}; name the file of a whole head")
        wanted = (1 if place == HEAD_PLACES[-1] else len(bias), width)
        if weight.shape != wanted or bias.shape != wanted[:1]:
            raise ModelError(
                f"{setting}: {name} has weights of shape {tuple(weight.shape)} where {wanted} is needed; "
                "name the head that was trained on the model beside it"
            )
        layer = torch.nn.Linear(width, wanted[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers.append(layer)
        width = wanted[0]
    return torch.nn.Sequential(*layers).eval()
