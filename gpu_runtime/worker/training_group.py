"""The training group from a worker's view: rendezvous, policy and trainer, and errors.

The group is each process's default group, and lasts as long as the process.
"""

from __future__ import annotations

import datetime
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist

from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.sequence_parallel.process_group import is_group_failure, register_gloo
from gpu_runtime.worker.protocol import TrainingMembership
from storage.errors import GroupBrokenError

_BACKEND = "training_gloo"
_PREFIX = "training"


def divided(
    place: TrainingMembership, device: torch.device
) -> tuple[Callable[..., Policy], Callable[..., Trainer]]:
    """Form the group, waiting for all its devices; return a builder of its policy and its trainer.

    Args:
        device: device of the trained weights; a CUDA device means NCCL, which is not tested.

    Raises:
        GroupBrokenError: if one did not join in time, or the driver's store does not answer.
    """
    store = place.address.connect(place.meet_s)  # first, for its clear error if no driver answers
    # The address through which this machine reaches the driver; the loopback on the driver's own machine.
    with socket.create_connection((place.address.host, place.address.port)) as connection:
        register_gloo(_BACKEND, connection.getsockname()[0])
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
    # Imported here: FSDP imports slowly, and only devices that train together need it.
    from gpu_runtime.learning.sharded_training import ShardedPolicy, ShardedTrainer

    group = dist.group.WORLD
    assert group is not None
    return partial(ShardedPolicy, group=group), ShardedTrainer


@contextmanager
def exchanging(place: TrainingMembership | None) -> Iterator[None]:
    """Raise GroupBrokenError if an exchange with other training devices fails; None means no others."""
    try:
        yield
    except RuntimeError as error:
        if place is None or not is_group_failure(error):
            raise
        reason = str(error).splitlines()[0]
        raise GroupBrokenError(
            f"training device {place.rank} of {place.size} lost another one: {reason}"
        ) from error
