"""A process group over the members of a sequence-parallel group: forming, use, interruption, closing.

The group is its process's default group, so a process is in one at a time. torch's other ways
(`new_group`, `split_group`, `shrink_group`) cannot grow, or do not work with gloo.

If a peer ends while a message is half sent or half received, gloo does not free threads that wait for that
message: it tells those that still wait for their turn, and closes the connection. So gloo is waited for in
short turns, and abandoned with what it holds if the group is called off meanwhile.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gpu_runtime.sequence_parallel import group_sockets
from storage.errors import ConfigurationError, GroupBrokenError

_BACKEND = "instance_gloo"
_CONNECT = datetime.timedelta(seconds=2)
"""gloo's time-out while a group is formed: it waits five times as long for a peer's connection."""

_THREADS = 1  # of gloo; more help with several collectives at a time, which Ulysses never has

_TURN = datetime.timedelta(seconds=0.05)
"""Longest wait for gloo between checks that the group is not called off; a collective's end ends it."""


class InstanceGroup:
    """A group of members that can reach each other; forming it waits for all of them.

    Args:
        store: connection to the driver's store; broken if the forming is interrupted.
        prefix: prefix of its keys; a new one for each group, or members would meet those of an old one.
        rank: rank of this process.
        size: number of members, at least 2.
        timeout_s: longest wait for a peer that is not interrupted: a backstop.
        device: device of the tensors; a CUDA device means NCCL, which is not tested.
        called_off: function that is True if the group is broken off; called while waiting for a peer.

    Raises:
        GroupBrokenError: if a peer did not come, or the forming was interrupted.
        ConfigurationError: if this process already has a default group.

    Attributes:
        rank: rank of this process.
        size: number of members.
        group: torch's process group; gone once the group is left.
    """

    def __init__(
        self,
        store: dist.Store,
        prefix: str,
        rank: int,
        size: int,
        timeout_s: float,
        device: torch.device,
        called_off: Callable[[], bool],
    ) -> None:
        if dist.is_initialized():
            raise ConfigurationError(
                "this process has a default process group already; sequence parallelism needs a process "
                "without one (destroy_process_group)"
            )
        self.rank, self.size = rank, size
        self._device = device
        self._cuda = device.type == "cuda"
        self._prefix = prefix
        self._called_off = called_off
        self._left_behind: Any = None
        self.group = self._form(store, rank, size, timeout_s)

    def exchange(self, parts: torch.Tensor) -> torch.Tensor:
        """Send part i of the first dimension to member i.

        Args:
            parts: one part for each member, contiguous.

        Returns:
            The part from each member, in order of rank; of the same shape.

        Raises:
            RuntimeError: if a peer is gone, or the group is called off (then `GroupBrokenError`).
        """
        got = torch.empty_like(parts)
        self._finish(dist.all_to_all_single(got, parts, group=self.group, async_op=True))
        return got

    def gather(self, part: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the parts of all members, concatenated.

        Args:
            part: part of this member, of the same shape at each.
            dim: dimension to concatenate along.

        Raises:
            RuntimeError: see `exchange`.
        """
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._finish(dist.all_gather(parts, part.contiguous(), group=self.group, async_op=True))
        return torch.cat(parts, dim=dim)

    def any_true(self, said: bool) -> bool:
        """Return True for all members if any passes True; all must call this at the same point.

        Raises:
            RuntimeError: see `exchange`.
        """
        flag = torch.tensor([int(said)], device=self._device)
        self._finish(dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group, async_op=True))
        return bool(flag.item())

    def close(self) -> None:
        """Leave at once; peers that still wait for this member get an error."""
        if not self._cuda:
            group_sockets.shut_down_group()
        group = self.group
        del self.group
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        if self._left_behind is not None:
            # Releasing the group would wait for gloo's thread, until the time-out.
            keeping = threading.Thread(target=_keep, args=(group, self._left_behind), daemon=True)
            keeping.start()
            self._left_behind = None

    def _finish(self, work: Any) -> None:
        """Wait for a collective to end."""
        if self._cuda:  # `interrupt` frees threads that wait for NCCL
            work.wait()
            return
        while not _ends_within(work, _TURN):
            if self._called_off():
                self._left_behind = work
                raise GroupBrokenError("called off while a message was under way")

    def _form(self, store: dist.Store, rank: int, size: int, timeout_s: float) -> dist.ProcessGroup:
        _register_backend()
        hook = sys.excepthook  # torch wraps it again for each group, and never unwraps it
        # A failed attempt has used up a name, which is part of the keys at which members meet.
        world: Any = dist.distributed_c10d._world
        world.group_count = 0
        try:
            dist.init_process_group(
                "nccl" if self._cuda else _BACKEND,
                store=dist.PrefixStore(self._prefix, store),
                rank=rank,
                world_size=size,
                timeout=datetime.timedelta(seconds=timeout_s),
            )
        except RuntimeError as error:
            with contextlib.suppress(RuntimeError, AssertionError, ValueError):
                dist.destroy_process_group()
            raise GroupBrokenError(f"group {self._prefix} was not formed: {error}") from error
        finally:
            sys.excepthook = hook
        group = dist.group.WORLD
        assert group is not None
        return group


def _ends_within(work: Any, limit: datetime.timedelta) -> bool:
    """Return True if a collective ends in time; raise its error if it ends with one."""
    try:
        work.wait(limit)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # raises its own error, or nothing if it has just ended
    return True


def _keep(group: dist.ProcessGroup, work: Any) -> None:
    """Keep a group until gloo has given up waiting."""
    with contextlib.suppress(RuntimeError):
        work.wait()


def interrupt(device: torch.device) -> None:
    """Free this process's other threads that wait for a peer of the group; they raise RuntimeError.

    With gloo, threads whose message is under way are not freed: see the top of this file.
    """
    if device.type != "cuda":
        group_sockets.shut_down_group()
    elif dist.is_initialized():
        dist.distributed_c10d._abort_process_group()


def is_group_failure(error: RuntimeError) -> bool:
    """Return True if an error came from a collective, and not from the model."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _register_backend() -> None:
    if _BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_BACKEND, _gloo_on_this_instance, devices=["cpu"])


def _gloo_on_this_instance(
    store: dist.Store, rank: int, size: int, timeout: datetime.timedelta
) -> dist.ProcessGroupGloo:
    # torch would keep the last 2,000 collectives, each with its Python stack, to report time-outs: unread
    # megabytes in each process. It looks once, when the first group of the process is made.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    gloo: Any = dist.ProcessGroupGloo  # its stub lacks the options
    options = gloo._Options()
    # gloo waits for a peer's connection when there is no socket yet to shut down. So members first meet at
    # the store, where they can be freed at any time; then only a peer that ends in between is waited for.
    options._timeout = min(timeout, _CONNECT)
    options._threads = _THREADS
    options._devices = [gloo.create_device(hostname=group_sockets.GROUP_ADDRESS)]
    store.set(f"here/{rank}", "")
    store.wait([f"here/{member}" for member in range(size)], timeout)
    group = gloo(store, rank, size, options)
    group._set_default_timeout(timeout)
    return group
