"""Floating-point operations of Qwen-Image's transformer, by formula, and as torch counts them.

A multiplication with its addition counts as two. Left out, as everywhere: norms, activations, RoPE and
whatever else is no matrix product; on a GPU they cost time and no operations to speak of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpu_runtime.models.published import Architecture, PassOperations


@dataclass(frozen=True)
class TransformerShape:
    """Sizes of the transformer; the defaults are Qwen-Image's, 20.4 billion parameters.

    Attributes:
        layers, heads, head_width: of its double-stream blocks.
        text_width: of a text token as the encoder gives it.
        channels: of a latent token.
        rope_axes: how the head's width is divided over time, rows and columns.
    """

    layers: int = 60
    heads: int = 24
    head_width: int = 128
    text_width: int = 3584
    channels: int = 64
    rope_axes: tuple[int, int, int] = (16, 56, 56)

    @property
    def width(self) -> int:
        """Of a token inside."""
        return self.heads * self.head_width

    def arguments(self) -> dict[str, Any]:
        """Arguments of `QwenImageTransformer2DModel`."""
        return {
            "patch_size": 2,
            "in_channels": self.channels,
            "out_channels": self.channels // 4,
            "num_layers": self.layers,
            "attention_head_dim": self.head_width,
            "num_attention_heads": self.heads,
            "joint_attention_dim": self.text_width,
            "axes_dims_rope": self.rope_axes,
        }


def pass_flops(
    shape: TransformerShape, image_tokens: int, text_tokens: int, rank: int = 0, full: bool = False
) -> PassOperations:
    """Operations of one sample's passes.

    Args:
        shape: of the transformer.
        image_tokens: latent tokens S.
        text_tokens: text tokens L.
        rank: of adapters on all linear layers of attention and feed-forward; 0 for none.
        full: whether every weight is trained instead.
    """
    sizes = Architecture(
        shape.width, double=shape.layers, channels=shape.channels, text_width=shape.text_width
    )
    return sizes.operations(image_tokens, text_tokens, rank, full=full)


def counted_forward(shape: TransformerShape, image_side: int, text_tokens: int) -> int:
    """Operations of one sample's forward pass as torch counts them, without doing them (`meta`).

    Args:
        shape: of the transformer.
        image_side: latent tokens along an edge of a square image.
        text_tokens: text tokens, all real.
    """
    from diffusers import QwenImageTransformer2DModel

    with torch.device("meta"):
        transformer: Any = QwenImageTransformer2DModel(**shape.arguments())
        latents = torch.empty(1, image_side**2, shape.channels)
        text = torch.empty(1, text_tokens, shape.text_width)
        timestep = torch.empty(1)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        transformer(
            hidden_states=latents, encoder_hidden_states=text, timestep=timestep,
            img_shapes=[[(1, image_side, image_side)]], return_dict=False,
        )  # fmt: skip
    return counter.get_total_flops()
