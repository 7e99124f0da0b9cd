"""Gathering and sharding of tensors over the processes of a group. Any shape.

Plain tensors pass through, so code for one process need not distinguish them. Gathering is a collective:
every process of the group must do it, in the same order.
"""

from __future__ import annotations

from typing import Any

import torch


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return True if this process holds only a shard of the tensor (torch's DTensor)."""
    # By its attribute: the class's module is slow to import, and one process never needs it.
    return hasattr(tensor, "full_tensor")


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard, sharing memory, or a plain tensor itself; dimension 0 may be empty."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor, in its full shape; a collective if it is sharded."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def sharded_like(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a full tensor sharded like `like`; every process has all of it, so nothing is sent."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import distribute_tensor

    model: Any = like
    return distribute_tensor(full, model.device_mesh, model.placements, src_data_rank=None)
