"""What `gpu_profile` measures: on the transformer's real size, and on a tiny one to see whether it runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.sized_qwen import REAL, TINY
from benchmarks.transformer_flops import TransformerShape


@dataclass(frozen=True)
class Plan:
    """Sizes and batches.

    Attributes:
        shape, dtype: of the transformer.
        sizes: edges of the square images in pixels, the smaller first.
        batches: of a denoising step, for each size; the first is measured first, and in all variants.
        run_batch: samples of a rollout and of a training step, for each size.
        text_tokens: length of every prompt.
        rank: of the adapters.
        steps: denoising steps of a rollout.
    """

    shape: TransformerShape
    dtype: torch.dtype
    sizes: tuple[int, int]
    batches: dict[int, tuple[int, ...]]
    run_batch: dict[int, int]
    text_tokens: int
    rank: int
    steps: int = 10


PLANS = {
    "real": Plan(
        shape=REAL,
        dtype=torch.bfloat16,
        sizes=(512, 1280),
        batches={512: (16, 1, 4, 8, 32), 1280: (4, 1, 2)},
        run_batch={512: 16, 1280: 4},
        text_tokens=64,
        rank=64,
    ),
    "tiny": Plan(
        shape=TINY,
        dtype=torch.float32,
        sizes=(64, 128),
        batches={64: (4, 1), 128: (4,)},
        run_batch={64: 4, 128: 4},
        text_tokens=8,
        rank=4,
    ),
}
