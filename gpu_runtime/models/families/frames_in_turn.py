"""HunyuanVideo 1.5's decoder, one latent frame after another: memory hardly grows with a clip's length.

The decoder is causal: a frame depends on itself and on earlier ones. Its convolutions read the two frames
before the one that they compute, and its attention the keys and values of all earlier ones. Both are cached,
so that a clip equals the decoder's output for all frames at once, except for rounding. diffusers' Wan decoder
does so itself; its HunyuanVideo 1.5 decoder can only blend tiles of frames, which changes the pixels.

Shape suffixes: B samples, C channels, T h w latent frames, rows and columns, F H W the same of pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import (
    HunyuanVideo15AttnBlock,
    HunyuanVideo15CausalConv3d,
    HunyuanVideo15Upsample,
)
from torch.nn.functional import pad, scaled_dot_product_attention

Earlier = dict[torch.nn.Module, Any]
"""State that each layer keeps from earlier frames."""


def decode_in_turn(decoder: torch.nn.Module, latents_BCThw: torch.Tensor) -> torch.Tensor:
    """Decode latents by the decoder of an `AutoencoderKLHunyuanVideo15`: (B, 3, F, H, W).

    Only one thread at a time may use the decoder.
    """
    earlier: Earlier = {}
    layers: list[Any] = [layer for layer in decoder.modules() if type(layer) in _IN_TURN]
    for layer in layers:
        layer.forward = partial(_IN_TURN[type(layer)], layer, earlier)
    try:
        return torch.cat([decoder(latents_BC1hw) for latents_BC1hw in latents_BCThw.split(1, dim=2)], dim=2)
    finally:
        for layer in layers:
            del layer.forward


def _convolve(layer: Any, earlier: Earlier, frames: torch.Tensor) -> torch.Tensor:
    """Convolve frames with earlier ones; at a clip's start these are copies of its first frame."""
    *sides, before, _ = layer.time_causal_padding
    frames = pad(frames, (*sides, 0, 0), mode=layer.pad_mode)
    if layer not in earlier:
        earlier[layer] = frames[:, :, :1].repeat(1, 1, before, 1, 1)
    frames = torch.cat([earlier[layer], frames], dim=2)
    earlier[layer] = frames[:, :, frames.shape[2] - before :].clone()
    return layer.conv(frames)


def _attend(layer: Any, earlier: Earlier, frame_BC1hw: torch.Tensor) -> torch.Tensor:
    """Let a frame attend to itself and to all earlier ones."""
    normed = layer.norm(frame_BC1hw)
    query, key, value = (to(normed).flatten(2).mT[:, None] for to in (layer.to_q, layer.to_k, layer.to_v))
    if layer in earlier:
        key, value = (torch.cat(pair, dim=2) for pair in zip(earlier[layer], (key, value), strict=True))
    earlier[layer] = key, value
    mixed = scaled_dot_product_attention(query, key, value)
    return layer.proj_out(mixed[:, 0].mT.reshape(normed.shape)) + frame_BC1hw


def _upsample(layer: Any, earlier: Earlier, frames: torch.Tensor) -> torch.Tensor:
    """Upsample frames; in time, each becomes two, except the first of a clip."""
    if not layer.add_temporal_upsample or layer not in earlier:
        earlier[layer] = True
        return type(layer).forward(layer, frames)
    doubled, same = (layer._dcae_upsample_rearrange(part, r1=2) for part in (layer.conv(frames), frames))
    return doubled + same.repeat_interleave(layer.repeats, dim=1)


_IN_TURN: dict[type, Callable[..., torch.Tensor]] = {
    HunyuanVideo15CausalConv3d: _convolve,
    HunyuanVideo15AttnBlock: _attend,
    HunyuanVideo15Upsample: _upsample,
}
