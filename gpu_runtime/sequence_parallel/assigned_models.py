"""Transformers around weights that are in memory already: built without memory, then given them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel

from gpu_runtime.models.embedded import TRANSFORMER_CONFIG, EmbeddedModel, resolve_folder
from storage.errors import ModelError


def qwen_transformer_of(
    config: Mapping[str, Any], state: Mapping[str, torch.Tensor]
) -> QwenImageTransformer2DModel:
    """A Qwen-Image transformer whose parameters are the given tensors, not copies.

    Args:
        config: of the transformer, as diffusers saves it.
        state: all its weights.

    Raises:
        ModelError: if names or shapes do not fit, or something would be left without a value.
    """
    with torch.device("meta"):
        transformer: Any = QwenImageTransformer2DModel.from_config(dict(config))
    # Tables of positions are in no state dict; this module has nothing else.
    place = type(transformer.pos_embed)
    transformer.pos_embed = place(
        theta=10000, axes_dim=list(transformer.config["axes_dims_rope"]), scale_rope=True
    )
    try:
        transformer.load_state_dict(dict(state), assign=True)
    except RuntimeError as error:
        raise ModelError(f"the weights do not fit the transformer: {error}") from error
    empty = [name for name, tensor in _tensors(transformer) if tensor.is_meta]
    if empty:
        raise ModelError(
            f"{empty[0]} and {len(empty) - 1} more have no value; load this model from its files"
        )
    return transformer.eval()


def embedded_model_of(path: str, state: Mapping[str, torch.Tensor]) -> EmbeddedModel:
    """An embedded model with a neighbour's weights; the folder gives all but them.

    Raises:
        ModelError: if the weights do not fit.
    """
    config = json.loads((resolve_folder(path) / TRANSFORMER_CONFIG).read_text(encoding="utf-8"))
    return EmbeddedModel.load(path, transformer=qwen_transformer_of(config, state))


def _tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    found = [*module.named_parameters(), *module.named_buffers()]
    for name, part in module.named_modules():
        found += [(f"{name}.{key}", value) for key, value in vars(part).items() if torch.is_tensor(value)]
    return found
