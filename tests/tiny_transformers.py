"""A transformer of each way to hand text over, at its smallest, with random weights, and inputs for it.

`tests/integration/test_shared_families.py` has the whole pipelines of all families.

Shape suffixes: B samples, S image tokens, L text tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    FluxTransformer2DModel,
    HunyuanVideo15Transformer3DModel,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
)

BATCH = 2
HEADS = 4
CHANNELS = 8
TEXT_WIDTH = 12
POOLED = 6
ANY_TEXT = ("qwen", "wan", "hunyuan-video")
"""Those whose text is masked, or whole on every member."""

FAMILIES = (*ANY_TEXT, "flux", "sd3")


def transformer_of(family: str, heads: int = HEADS) -> torch.nn.Module:
    """A transformer of two layers; the same weights in any process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model: Any = _build(family, heads)
        for parameter in model.parameters():  # gates are zero or small by default: make them count
            if parameter.std() == 0:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def _build(family: str, heads: int) -> torch.nn.Module:
    if family == "qwen":
        return QwenImageTransformer2DModel(
            patch_size=1, in_channels=CHANNELS, out_channels=CHANNELS, num_layers=2, attention_head_dim=16,
            num_attention_heads=heads, joint_attention_dim=TEXT_WIDTH, axes_dims_rope=(4, 6, 6),
        )  # fmt: skip
    if family == "flux":
        return FluxTransformer2DModel(
            patch_size=1, in_channels=CHANNELS, num_layers=1, num_single_layers=2, attention_head_dim=16,
            num_attention_heads=heads, joint_attention_dim=TEXT_WIDTH, pooled_projection_dim=POOLED,
            guidance_embeds=True, axes_dims_rope=(4, 6, 6),
        )  # fmt: skip
    if family == "wan":
        return WanTransformer3DModel(
            num_attention_heads=heads, attention_head_dim=16, in_channels=CHANNELS, out_channels=CHANNELS,
            text_dim=TEXT_WIDTH, freq_dim=32, ffn_dim=32, num_layers=2, rope_max_seq_len=16,
        )  # fmt: skip
    if family == "hunyuan-video":
        return HunyuanVideo15Transformer3DModel(
            in_channels=CHANNELS, out_channels=CHANNELS, num_attention_heads=heads, attention_head_dim=16,
            num_layers=2, num_refiner_layers=1, mlp_ratio=2.0, text_embed_dim=TEXT_WIDTH,
            text_embed_2_dim=TEXT_WIDTH, image_embed_dim=TEXT_WIDTH, rope_axes_dim=(4, 6, 6), task_type="t2v",
        )  # fmt: skip
    return SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=CHANNELS, num_layers=2, attention_head_dim=16,
        num_attention_heads=heads, joint_attention_dim=TEXT_WIDTH, caption_projection_dim=16 * heads,
        pooled_projection_dim=POOLED, out_channels=CHANNELS, pos_embed_max_size=16,
    )  # fmt: skip


def inputs_of(
    family: str, text_tokens: int = 8, rows: int = 4, columns: int = 4, batch: int = BATCH
) -> dict[str, Any]:
    """Arguments of a forward pass over rows x columns image tokens; the last text tokens are padding."""
    draw = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    timestep_B = torch.rand(batch, generator=draw)
    common: dict[str, Any] = {"return_dict": False}
    if family == "qwen":
        mask_BL = torch.ones(batch, text_tokens, dtype=torch.bool)
        mask_BL[0, text_tokens - 2 :] = False
        return common | {
            "hidden_states": normal(batch, rows * columns, CHANNELS),
            "encoder_hidden_states": normal(batch, text_tokens, TEXT_WIDTH),
            "encoder_hidden_states_mask": mask_BL,
            "timestep": timestep_B,
            "img_shapes": [[(1, rows, columns)]] * batch,
        }
    if family == "wan":  # two frames
        return common | {
            "hidden_states": normal(batch, CHANNELS, 2, rows, 2 * columns),
            "encoder_hidden_states": normal(batch, text_tokens, TEXT_WIDTH),
            "timestep": torch.linspace(200, 900, batch),
        }
    if family == "hunyuan-video":
        mask_BL = torch.ones(batch, text_tokens, dtype=torch.bool)
        mask_BL[0, text_tokens - 2 :] = False
        return common | {
            "hidden_states": normal(batch, CHANNELS, 2, rows // 2, columns),
            "encoder_hidden_states": normal(batch, text_tokens, TEXT_WIDTH),
            "encoder_attention_mask": mask_BL,
            "encoder_hidden_states_2": normal(batch, 3, TEXT_WIDTH),
            "encoder_attention_mask_2": torch.tensor([True, False, False]).repeat(batch, 1),
            "image_embeds": torch.zeros(batch, 2, TEXT_WIDTH),
            "timestep": timestep_B * 1000,
        }
    common |= {
        "encoder_hidden_states": normal(batch, text_tokens, TEXT_WIDTH),
        "pooled_projections": normal(batch, POOLED),
        "timestep": timestep_B if family == "flux" else timestep_B * 1000,
    }
    if family == "flux":
        places = torch.cartesian_prod(torch.zeros(1), torch.arange(float(rows)), torch.arange(float(columns)))
        return common | {
            "hidden_states": normal(batch, rows * columns, CHANNELS),
            "img_ids": places,
            "txt_ids": torch.zeros(text_tokens, 3),
            "guidance": torch.full((batch,), 3.5),
        }
    return common | {"hidden_states": normal(batch, CHANNELS, 2 * rows, 2 * columns)}
