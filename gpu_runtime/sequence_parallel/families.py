"""The plan of each transformer family's sequence: where tokens are split, and where they are gathered.

diffusers has plans for Qwen-Image, FLUX.1 and FLUX.2. Stable Diffusion 3 has none, and its attention bypasses
diffusers' dispatcher, so both are here. Z-Image has no plan either; it is here as well.

Shape suffixes: B samples, S tokens, N heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    ZImageTransformer2DModel,
)
from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput
from diffusers.models.attention_dispatch import dispatch_attention_fn

from gpu_runtime.sequence_parallel.shared_attention import Order
from storage.errors import ConfigurationError


@dataclass(frozen=True)
class Family:
    """A transformer class as sequence parallelism sees it.

    Attributes:
        splits: points at which tokens are split, in the form of diffusers' plans.
        output: submodule whose output is gathered, along its second dimension.
        text_mask: argument that masks text; None if the family masks none.
        attention: processor to use while a sequence is shared; None keeps the model's own.
        shared_part: submodule whose attention is shared; empty for the whole transformer.
        heads: name of the number of attention heads in the configuration.
        order: order of text and image in their joint attention.
    """

    splits: dict[str, Any]
    output: str
    text_mask: str | None
    attention: type | None = None
    shared_part: str = ""
    heads: str = "num_attention_heads"
    order: Order = "text first"


class JointAttention:
    """Stable Diffusion 3's attention over image and text, through diffusers' dispatcher.

    Image tokens come first, as in that family's own processor.
    """

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attend; return the image's part, and the text's if there is text."""
        image_tokens = hidden_states.shape[1]
        joint = [_heads(attn, layer, hidden_states) for layer in (attn.to_q, attn.to_k, attn.to_v)]
        joint[0], joint[1] = _normed(attn.norm_q, joint[0]), _normed(attn.norm_k, joint[1])
        if encoder_hidden_states is not None:
            layers = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            text = [_heads(attn, layer, encoder_hidden_states) for layer in layers]
            text[0] = _normed(attn.norm_added_q, text[0])
            text[1] = _normed(attn.norm_added_k, text[1])
            joint = [torch.cat(pair, dim=1) for pair in zip(joint, text, strict=True)]
        query_BSND, key_BSND, value_BSND = joint
        mixed_BSND = dispatch_attention_fn(
            query_BSND,
            key_BSND,
            value_BSND,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        mixed = mixed_BSND.flatten(2).to(hidden_states.dtype)
        image = attn.to_out[1](attn.to_out[0](mixed[:, :image_tokens].contiguous()))
        if encoder_hidden_states is None:
            return image
        after = mixed[:, image_tokens:].contiguous()
        return image, after if attn.context_pre_only else attn.to_add_out(after)


def _heads(attn: Any, layer: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return layer(tokens).unflatten(-1, (attn.heads, -1))


def _normed(norm: torch.nn.Module | None, heads_BSND: torch.Tensor) -> torch.Tensor:
    return heads_BSND if norm is None else norm(heads_BSND)


def _first_output_split() -> dict[int, ContextParallelInput]:
    return {0: ContextParallelInput(split_dim=1, expected_dims=3, split_output=True)}


_SD3_SPLITS: dict[str, Any] = {
    "pos_embed": _first_output_split(),
    "context_embedder": _first_output_split(),
}


# Image and text become one sequence only after two separate layers each, of 32 that the image passes.
# Every member computes those layers whole.
_Z_IMAGE_SPLITS: dict[str, Any] = {
    "layers.0": {"x": ContextParallelInput(split_dim=1, expected_dims=3)},
    "layers.*": {"freqs_cis": ContextParallelInput(split_dim=1, expected_dims=3)},
}


def shared_family_of(transformer: torch.nn.Module) -> Family:
    """Return the family of a transformer.

    Raises:
        ConfigurationError: if its sequences cannot be shared.
    """
    if isinstance(transformer, QwenImageTransformer2DModel):
        return Family(*_own_plan(transformer), "encoder_hidden_states_mask")
    if isinstance(transformer, FluxTransformer2DModel | Flux2Transformer2DModel):
        return Family(*_own_plan(transformer), None)
    if isinstance(transformer, SD3Transformer2DModel):
        return Family(_SD3_SPLITS, "proj_out", None, JointAttention, order="image first")
    if isinstance(transformer, ZImageTransformer2DModel):
        return Family(
            _Z_IMAGE_SPLITS,
            "all_final_layer.2-1",
            None,
            shared_part="layers",
            heads="n_heads",
            order="as cut",
        )
    raise ConfigurationError(
        f"sequence parallelism does not know {type(transformer).__name__}; use degree 1, or add the class to "
        "gpu_runtime/sequence_parallel/families.py with a test against one process"
    )


def _own_plan(transformer: Any) -> tuple[dict[str, Any], str]:
    """Return diffusers' splits, and the submodule at which its plan gathers."""
    plan = transformer._cp_plan
    gathers = {name: entry for name, entry in plan.items() if isinstance(entry, ContextParallelOutput)}
    ((output, entry),) = gathers.items()
    assert entry.gather_dim == 1, "the plans of these families gather tokens of (B, S, E)"
    return {name: entry for name, entry in plan.items() if name not in gathers}, output
