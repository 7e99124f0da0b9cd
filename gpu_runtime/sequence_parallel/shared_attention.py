"""Attention of which every member computes some heads, over all tokens in the order of one device.

Ulysses (Jacobs et al. 2023, arXiv 2309.14509, section 3.2): outside attention a member holds some tokens
and all heads, inside it some heads and all tokens; one exchange leads there, and another one back. diffusers
has it too, with an exchange for each of query, key and value and one for the mask, and with the tokens in the
order in which members hold them: text, image, text, image. Then sums over keys are rounded in another order
than on one device. Here the tokens are put into their original order and padding is left out, so that
attention gets the same numbers as on one device, in the same order.

Shape suffixes: B samples, S all tokens, s a member's tokens, L text tokens, N all heads, n a member's heads,
D width of a head, M members.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from diffusers.models._modeling_parallel import ParallelConfig
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from gpu_runtime.sequence_parallel.process_group import InstanceGroup

Order = Literal["text first", "image first", "as cut"]
"""Order of attention's tokens; "as cut" if text and image became one sequence before."""


class SharedAttention(ParallelConfig):
    """Arguments that diffusers passes from an attention processor to `allow_sharing`'s kernels."""

    def __init__(self, group: InstanceGroup, order: Order, image_tokens: int) -> None:
        super().__init__()
        self._group = group
        self._degree = group.size
        self._order = order
        self._image_tokens = image_tokens
        self._text_tokens = self._padded_text = 0
        self._mask_BS: torch.Tensor | None = None

    def begin(self, text_tokens: int, padded_text: int, mask_BL: torch.Tensor | None) -> None:
        """Begin a forward pass.

        Args:
            text_tokens: text tokens L without padding.
            padded_text: text tokens with the padding to a multiple of the degree.
            mask_BL: mask of the text tokens that count, as the caller gave it; None if all do.
        """
        self._text_tokens, self._padded_text = text_tokens, padded_text
        self._mask_BS = None
        if mask_BL is not None:
            image_BS = mask_BL.new_ones((mask_BL.shape[0], self._image_tokens), dtype=torch.bool)
            parts = [mask_BL[:, :text_tokens].bool(), image_BS]
            self._mask_BS = torch.cat(parts if self._order == "text first" else parts[::-1], dim=1)

    def attend(
        self,
        kernel: Callable[..., torch.Tensor],
        qkv_BsND: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        **options: Any,
    ) -> torch.Tensor:
        """Attend over all tokens with this member's heads.

        Args:
            qkv_BsND: query, key and value of this member's tokens.
            mask: mask whose last dimension is this member's tokens or all tokens; None if all count.

        Returns:
            The attention output of this member's tokens, of shape (B, s, N, D).
        """
        held = qkv_BsND[0].shape[1]
        query, key, value = self._in_order(self._heads_of_all(torch.stack(qkv_BsND)))
        if mask is not None and mask.shape[-1] == held:
            mask = None if self._mask_BS is None else self._mask_BS[:, None, None, :]
        out_BSnD = kernel(query, key, value, attn_mask=mask, **options)
        # Exchange back to all heads of this member's tokens.
        by_heads = self._group.exchange(self._as_held(out_BSnD, held).transpose(0, 1).contiguous())
        return by_heads.permute(1, 2, 0, 3, 4).flatten(2, 3)

    def _heads_of_all(self, qkv_3BsND: torch.Tensor) -> torch.Tensor:
        """Exchange to all tokens, member by member, of this member's heads; (3, B, M, s, n, D)."""
        by_heads = qkv_3BsND.unflatten(3, (self._degree, -1)).permute(3, 0, 1, 2, 4, 5)
        return self._group.exchange(by_heads.contiguous()).permute(1, 2, 0, 3, 4, 5)

    def _first_part(self, held: int) -> int | None:
        """Return how many of a member's tokens are in the first part; None if there is only one part."""
        text, image = self._padded_text // self._degree, self._image_tokens // self._degree
        if self._order == "as cut" or held != text + image:
            return None
        return text if self._order == "text first" else image

    def _in_order(self, qkv_3BMsnD: torch.Tensor) -> torch.Tensor:
        first = self._first_part(qkv_3BMsnD.shape[3])
        if first is None:
            return qkv_3BMsnD.flatten(2, 3)
        parts = [qkv_3BMsnD[:, :, :, :first].flatten(2, 3), qkv_3BMsnD[:, :, :, first:].flatten(2, 3)]
        text = 0 if self._order == "text first" else 1
        parts[text] = parts[text][:, :, : self._text_tokens]
        return torch.cat(parts, dim=2)

    def _as_held(self, out_BSnD: torch.Tensor, held: int) -> torch.Tensor:
        """Invert `_in_order`, with zeros in place of padding; (B, M, s, n, D)."""
        first = self._first_part(held)
        if first is None:
            return out_BSnD.unflatten(1, (self._degree, held))
        text = 0 if self._order == "text first" else 1
        sizes = [self._image_tokens, self._image_tokens]
        sizes[text] = self._text_tokens
        parts = list(out_BSnD.split(sizes, dim=1))
        missing = self._padded_text - self._text_tokens
        parts[text] = torch.nn.functional.pad(parts[text], (0, 0, 0, 0, 0, missing))
        return torch.cat([part.unflatten(1, (self._degree, -1)) for part in parts], dim=2)


@cache
def allow_sharing(backend: AttentionBackendName) -> None:
    """Let a kernel of diffusers share heads if it is passed a `SharedAttention`, once per process."""
    kernel = _AttentionBackendRegistry._backends[backend]

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        _parallel_config: ParallelConfig | None = None,
        **options: Any,
    ) -> torch.Tensor:
        if isinstance(_parallel_config, SharedAttention):
            return _parallel_config.attend(kernel, (query, key, value), attn_mask, **options)
        return kernel(query, key, value, attn_mask=attn_mask, _parallel_config=_parallel_config, **options)

    _AttentionBackendRegistry._backends[backend] = attend
