"""HunyuanVideo 1.5's clips decoded one latent frame after another, and the memory that decoding takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo15, AutoencoderKLWan
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpu_runtime.models.checks.sizing import device_memory
from gpu_runtime.models.families.frames_in_turn import decode_in_turn
from gpu_runtime.models.published import published_model
from storage.config.loading import load_config


def tiny_vae() -> Any:
    """A VAE that enlarges frames in time and space, in space alone, and not at all."""
    kind: Any = AutoencoderKLHunyuanVideo15
    vae = kind(
        latent_channels=4, block_out_channels=(8, 16, 16, 32), layers_per_block=1,
        spatial_compression_ratio=8, temporal_compression_ratio=4,
    )  # fmt: skip
    for weight in vae.parameters():
        if weight.ndim == 1 or weight.std() == 0:
            torch.nn.init.normal_(weight, std=0.5)
    return vae


@pytest.mark.parametrize("latent_frames", [1, 2, 3, 7])
@torch.no_grad()
def test_a_clip_is_what_the_vae_makes_of_all_frames_at_once(latent_frames: int):
    torch.manual_seed(0)
    vae = tiny_vae()
    latents = torch.randn(1, 4, latent_frames, 3, 4)
    expected = vae.decode(latents, return_dict=False)[0]
    assert expected.shape == (1, 3, 4 * (latent_frames - 1) + 1, 24, 32) and expected.std() > 0.1
    for _ in range(2):  # nothing is left of a clip
        assert (decode_in_turn(vae.decoder, latents) - expected).abs().max() <= 1e-5
    assert torch.equal(vae.decode(latents, return_dict=False)[0], expected)


@torch.no_grad()
def test_a_decoder_that_failed_decodes_the_next_clip():
    torch.manual_seed(0)
    vae = tiny_vae()
    with pytest.raises(RuntimeError):
        decode_in_turn(vae.decoder, torch.randn(1, 5, 2, 3, 4))
    latents = torch.randn(1, 4, 2, 3, 4)
    expected = vae.decode(latents, return_dict=False)[0]
    assert (decode_in_turn(vae.decoder, latents) - expected).abs().max() <= 1e-5


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made meanwhile had at one time, on a device without memory too."""

    def __init__(self) -> None:
        super().__init__()
        self._live: set[int] = set()
        self._bytes = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and id(tensor.untyped_storage()) not in self._live:
                storage = tensor.untyped_storage()
                self._live.add(id(storage))
                self._bytes += storage.nbytes()
                weakref.finalize(storage, self._end, id(storage), storage.nbytes())
        self.peak = max(self.peak, self._bytes)
        return made

    def _end(self, storage: int, size: int) -> None:
        self._live.remove(storage)
        self._bytes -= size


@torch.no_grad()
def peak_of(decode: Callable[[torch.Tensor], torch.Tensor], channels: int, side: int, frames: int) -> int:
    latents = torch.empty(1, channels, frames, 480 // side, 832 // side, device="meta")
    with PeakBytes() as bytes_:
        clip = decode(latents)
    assert clip.shape == (1, 3, 4 * (frames - 1) + 1, 480, 832)
    return bytes_.peak


def counted_range(preset: str, frames: int) -> tuple[float, float]:
    config = load_config(preset, [f"model.frames={4 * (frames - 1) + 1}"], {})
    model = published_model(config.model)
    assert model is not None
    terms = device_memory(config, model, keeps_reference=False).in_turn
    return next((term.low, term.high) for term in terms if term.name == "decoding an image")


def test_the_published_decoders_take_the_counted_memory_whatever_the_length():
    with torch.device("meta"):
        hunyuan: Any = AutoencoderKLHunyuanVideo15()
        wan: Any = AutoencoderKLWan()
    cases: list[tuple[str, int, Callable[[int], int]]] = [
        (
            "hunyuan-video-1.5-480", 1260,
            lambda frames: peak_of(lambda box: decode_in_turn(hunyuan.decoder, box), 32, 16, frames),
        ),
        (
            "wan2.2-a14b-480", 126,
            lambda frames: peak_of(lambda box: wan.decode(box, return_dict=False)[0], 16, 8, frames),
        ),
    ]  # fmt: skip
    for (preset, millions, peak), vae in zip(cases, (hunyuan, wan), strict=True):
        assert sum(weight.numel() for weight in vae.parameters()) // 10**6 == millions, "as published"
        peaks = {frames: peak(frames) for frames in (1, 5, 31)}
        for frames, found in peaks.items():
            low, high = counted_range(preset, frames)
            assert low <= found <= high, (preset, frames)
        assert peaks[31] < 1.1 * peaks[5], "of a clip of seven times the length"
