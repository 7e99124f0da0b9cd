"""Tensors that are sharded over the processes of a group: gathered, and sharded again. Any shape.

Plain tensors pass through, so that code of one process need not ask. Gathering is a collective: every
process of the group must do it, in the same order.
"""

from __future__ import annotations

from typing import Any

import torch


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this process holds only a shard of the tensor (torch's DTensor)."""
    # By its attribute: the class's module takes long to import, and one process never needs it.
    return hasattr(tensor, "full_tensor")


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """This process's shard, sharing memory; its first dimension may have size 0. A plain tensor: itself."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor, in its full shape; a collective where it is sharded."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def gathered_like(shard: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The full tensor, of `like`'s full shape, from the processes' shards of it; a collective."""
    if not is_sharded(like):
        return shard
    from torch.distributed.tensor import DTensor

    model: Any = like
    shards = DTensor.from_local(
        shard, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )
    return shards.full_tensor()


def sharded_like(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A full tensor sharded as `like` is; every process has all of it, so nothing is sent."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import distribute_tensor

    model: Any = like
    return distribute_tensor(full, model.device_mesh, model.placements, src_data_rank=None)
