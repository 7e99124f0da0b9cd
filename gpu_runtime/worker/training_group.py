"""The training group as a worker sees it: its rendezvous, and which errors are the group's.

Their group is their process's default group, and lasts as long as the process.
"""

from __future__ import annotations

import datetime
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from gpu_runtime.sequence_parallel.process_group import is_group_failure
from gpu_runtime.sequence_parallel.store_address import StoreAddress
from gpu_runtime.worker.training_membership import TrainingMembership
from storage.errors import GroupBrokenError

_BACKEND = "training_gloo"
_PREFIX = "training"


def meet(place: TrainingMembership, device: torch.device) -> dist.ProcessGroup:
    """Form the group; waits for all of them.

    Args:
        place: of this device among them.
        device: where the trained weights lie; a CUDA device means NCCL, which is not tested.

    Raises:
        GroupBrokenError: if one did not come in time.
    """
    _register_backend(_own_address(place.address))
    store = place.address.connect(place.meet_s)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else _BACKEND,
            store=dist.PrefixStore(_PREFIX, store),
            rank=place.rank,
            world_size=place.size,
            timeout=datetime.timedelta(seconds=place.exchange_s),
        )
    except (dist.DistError, RuntimeError) as error:
        raise GroupBrokenError(
            f"training device {place.rank} of {place.size} did not meet the others in {place.meet_s:g} s: "
            f"{error}"
        ) from error
    group = dist.group.WORLD
    assert group is not None
    return group


@contextmanager
def exchanging(place: TrainingMembership | None) -> Iterator[None]:
    """Within this context a device waits for the others that train; None where there are none.

    Raises:
        GroupBrokenError: if one of those is gone.
    """
    try:
        yield
    except RuntimeError as error:
        if place is None or not is_group_failure(error):
            raise
        reason = str(error).splitlines()[0]
        raise GroupBrokenError(
            f"training device {place.rank} of {place.size} lost another one: {reason}"
        ) from error


def _own_address(store: StoreAddress) -> str:
    """By which address this machine reaches the driver: on one machine the loopback, and nothing else."""
    with socket.create_connection((store.host, store.port)) as connection:
        return connection.getsockname()[0]


def _register_backend(address: str) -> None:
    """gloo that listens on one address; torch's own takes the one that the machine's name leads to."""

    def form(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> dist.ProcessGroupGloo:
        gloo: Any = dist.ProcessGroupGloo  # its stub lacks the options
        options = gloo._Options()
        options._timeout = timeout
        options._devices = [gloo.create_device(hostname=address)]
        return gloo(store, rank, size, options)

    if _BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_BACKEND, form, devices=["cpu"])
