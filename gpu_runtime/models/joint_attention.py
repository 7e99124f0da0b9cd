"""Attention over image and text tokens without a mask, for families whose own is slower or cannot be shared.

Stable Diffusion 3's own bypasses diffusers' dispatcher, through which devices share a sequence. HunyuanVideo
1.5's masks padding even where there is none, and few fast kernels support a mask.

Shape suffixes: B samples, S tokens, N heads, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb


class JointAttention:
    """Processor of diffusers' `Attention`: image tokens first, then text tokens, as in these families."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attend to all tokens; return the image's part, and the text's if there is text."""
        image_tokens = hidden_states.shape[1]
        joint: list[Any] = [_heads(attn, layer, hidden_states) for layer in (attn.to_q, attn.to_k, attn.to_v)]
        joint[0], joint[1] = _normed(attn.norm_q, joint[0]), _normed(attn.norm_k, joint[1])
        if image_rotary_emb is not None:
            joint[:2] = (apply_rotary_emb(each, image_rotary_emb, sequence_dim=1) for each in joint[:2])
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
