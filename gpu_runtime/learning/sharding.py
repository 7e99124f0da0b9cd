"""Tensors of which each process of a group holds a part: gathered whole, and cut into parts again.

Plain tensors pass through, so that code of one process need not ask. Gathering is a collective: every
process of the group must do it, in the same order.
"""

from __future__ import annotations

from typing import Any

import torch


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this process holds a part of the tensor only (torch's DTensor)."""
    # By its attribute: the class's module takes long to import, and one process never needs it.
    return hasattr(tensor, "full_tensor")


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of it, sharing memory; maybe nothing (a dimension of size 0)."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """All of it; a collective where it is sharded."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def gathered_like(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """All of a tensor from the parts of it that the processes hold, cut as `like` is; a collective."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    whole: Any = like
    parts = DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return parts.full_tensor()


def sharded_like(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor cut as `like` is; every process has all of it, so nothing is sent."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    cut: Any = like
    return distribute_tensor(whole, cut.device_mesh, cut.placements, src_data_rank=None)
