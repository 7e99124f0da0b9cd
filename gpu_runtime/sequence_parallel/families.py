"""The plan of each transformer family's sequence: where tokens are split, and where they are gathered.

diffusers has plans for Qwen-Image, FLUX.1, FLUX.2 and Wan; those of Stable Diffusion 3, Z-Image and
HunyuanVideo 1.5 are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    HunyuanVideo15Transformer3DModel,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
    ZImageTransformer2DModel,
)
from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput

from gpu_runtime.models.joint_attention import JointAttention
from gpu_runtime.sequence_parallel.shared_attention import Order
from storage.errors import ConfigurationError


@dataclass(frozen=True)
class Family:
    """A transformer class as sequence parallelism sees it.

    Attributes:
        splits: points at which tokens are split, in the form of diffusers' plans.
        output: submodule whose output is gathered, along its second dimension.
        text_mask: argument that masks text; None if the family masks none.
        text_at: submodule that is called with the text and its mask; empty for the whole transformer.
        splits_text: False if every member keeps all text, as where only cross-attention reads it.
        attention: processor to use while a sequence is shared; None keeps the model's own.
        shared_part: submodule whose attention is shared; empty for the whole transformer.
        heads: name of the number of attention heads in the configuration.
        order: order of text and image in their joint attention.
    """

    splits: dict[str, Any]
    output: str
    text_mask: str | None
    text_at: str = ""
    splits_text: bool = True
    attention: type | None = None
    shared_part: str = ""
    heads: str = "num_attention_heads"
    order: Order = "text first"


_TOKENS = ContextParallelInput(split_dim=1, expected_dims=3)

_SD3_SPLITS: dict[str, Any] = {
    layer: {0: ContextParallelInput(split_dim=1, expected_dims=3, split_output=True)}
    for layer in ("pos_embed", "context_embedder")
}


# Image and text become one sequence only after two separate layers each, of 32 that the image passes.
# Every member computes those layers whole.
_Z_IMAGE_SPLITS: dict[str, Any] = {"layers.0": {"x": _TOKENS}, "layers.*": {"freqs_cis": _TOKENS}}

# Its text has its final order, padding last, at the first block. Until there every member computes it whole.
# diffusers' processor cuts the text's mask to as many places as a member has tokens; `SharedAttention` puts
# the mask of all tokens there. Ours takes none.
_HUNYUAN_VIDEO_SPLITS: dict[str, Any] = {
    "rope": {part: ContextParallelInput(split_dim=0, expected_dims=2, split_output=True) for part in (0, 1)},
    "transformer_blocks.0": {"hidden_states": _TOKENS, "encoder_hidden_states": _TOKENS},
}


def shared_family_of(transformer: torch.nn.Module) -> Family:
    """Return the family of a transformer, or of each of two experts.

    Raises:
        ConfigurationError: if its sequences cannot be shared.
    """
    transformer = experts_of(transformer)[0]
    if isinstance(transformer, QwenImageTransformer2DModel):
        return Family(*_own_plan(transformer), "encoder_hidden_states_mask")
    if isinstance(transformer, FluxTransformer2DModel | Flux2Transformer2DModel):
        return Family(*_own_plan(transformer), None)
    if isinstance(transformer, SD3Transformer2DModel):
        return Family(_SD3_SPLITS, "proj_out", None, attention=JointAttention, order="image first")
    if isinstance(transformer, ZImageTransformer2DModel):
        return Family(
            _Z_IMAGE_SPLITS,
            "all_final_layer.2-1",
            None,
            shared_part="layers",
            heads="n_heads",
            order="as cut",
        )
    if isinstance(transformer, WanTransformer3DModel):
        splits, output = _own_plan(transformer)
        # The whole transformer's entry splits times of single tokens; here a sample has one.
        return Family(
            {name: entry for name, entry in splits.items() if name},
            output,
            None,
            splits_text=False,
            order="as cut",
        )
    if isinstance(transformer, HunyuanVideo15Transformer3DModel):
        return Family(
            _HUNYUAN_VIDEO_SPLITS,
            "proj_out",
            "attention_mask",
            text_at="transformer_blocks.0",
            shared_part="transformer_blocks",
            order="image first",
        )
    raise ConfigurationError(
        f"sequence parallelism does not know {type(transformer).__name__}; use degree 1, or add the class to "
        "gpu_runtime/sequence_parallel/families.py with a test against one process"
    )


def experts_of(transformer: Any) -> tuple[Any, ...]:
    """Return the transformers that a sample may pass, trained or not: one, or Wan's two experts."""
    return getattr(transformer, "experts", (transformer,))


def _own_plan(transformer: Any) -> tuple[dict[str, Any], str]:
    """Return diffusers' splits, and the submodule at which its plan gathers."""
    plan = transformer._cp_plan
    gathers = {name: entry for name, entry in plan.items() if isinstance(entry, ContextParallelOutput)}
    ((output, entry),) = gathers.items()
    assert entry.gather_dim == 1, "the plans of these families gather tokens of (B, S, E)"
    return {name: entry for name, entry in plan.items() if name not in gathers}, output
