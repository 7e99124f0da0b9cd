"""Settings of torch on a GPU under which rollout and training compute the same bits, run after run.

They apply to the whole process: a worker holds one model. On the CPU nothing is set.
"""

from __future__ import annotations

import os

import torch
from torch.utils import deterministic

_SETTINGS = {
    # Each cuBLAS handle gets its own workspace; torch refuses deterministic products without it.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Generating and training alternate between block sizes; without it the gaps between them stay lost.
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
"""Environment variables, read by CUDA's libraries when they first compute; an existing value stays."""


def prepare_gpu() -> None:
    """Choose deterministic kernels; call it before anything computes on the GPU.

    Some backward passes, above all those of attention, sum in the order in which threads arrive, so gradients
    would differ from run to run. The choice also applies to generating: torch chooses the attention kernel by
    it, and the ratio of the first update is 1 only if rollout and training use the same one.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    # All memory is written before it is read; filling it first would cost time.
    deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
