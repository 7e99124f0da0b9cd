from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_runtime.models.embedded.pca_codec import PatchCodec, patchify, unpatchify


@pytest.fixture(scope="module")
def images_BHWC() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(64, 16, 24, 3), dtype=np.uint8)


def test_patches_go_row_by_row(images_BHWC: np.ndarray) -> None:
    images = torch.from_numpy(images_BHWC)
    patches_BSD = patchify(images)
    assert patches_BSD.shape == (64, 6, 192)
    assert torch.equal(patches_BSD[0, 4].reshape(8, 8, 3), images[0, 8:16, 8:16])
    assert torch.equal(unpatchify(patches_BSD, 16, 24), images)


def test_all_components_lose_nothing(images_BHWC: np.ndarray) -> None:
    codec = PatchCodec.fit(images_BHWC, 192)
    images = torch.from_numpy(images_BHWC)
    assert torch.equal(codec.decode(codec.encode(images), 16, 24), images)


@pytest.mark.parametrize("whitening", [0.0, 0.5, 1.0])
def test_latents_have_unit_variance(images_BHWC: np.ndarray, whitening: float) -> None:
    codec = PatchCodec.fit(images_BHWC, 32, whitening)
    latents_BSC = codec.encode(torch.from_numpy(images_BHWC))
    assert latents_BSC.shape == (64, 6, 32)
    assert latents_BSC.dtype == torch.float32
    assert latents_BSC.square().mean().item() == pytest.approx(1.0, abs=1e-3)
    assert latents_BSC.mean(dim=(0, 1)).abs().max().item() < 1e-4
    if whitening == 1.0:
        assert latents_BSC.square().mean(dim=(0, 1)).numpy() == pytest.approx(np.ones(32), abs=1e-3)


def test_values_beyond_the_pixel_range_are_clipped(images_BHWC: np.ndarray) -> None:
    codec = PatchCodec.fit(images_BHWC, 32)
    decoded = codec.decode(torch.full((1, 6, 32), 1e6), 16, 24)
    assert decoded.dtype == torch.uint8
    assert set(decoded.unique().tolist()) == {0, 255}
