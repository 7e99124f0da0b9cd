"""A process group over the members of a sequence-parallel group: forming, use, interruption, closing.

The group is its process's default group, so a process is in one at a time. torch's other ways
(`new_group`, `split_group`, `shrink_group`) cannot grow, or do not work with gloo.

If a peer ends while a message is half sent or half received, gloo does not free threads that wait for that
message: it tells those that still wait for their turn, and closes the connection. So gloo is waited for in
short turns, and abandoned with what it holds if the group is called off meanwhile.

gloo has no call that frees a member blocked on a silent peer before the time-out. Shutting its sockets down
does, within milliseconds, except in that case. They are distinguished from all other sockets of the process
(such as Ray's) by an address of the loopback network that nothing else uses.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from storage.errors import ConfigurationError, GroupBrokenError

GROUP_ADDRESS = "127.83.80.1"
"""Address that a group's members listen on. Groups stay within an instance, so loopback suffices."""

_BACKEND = "instance_gloo"
_CONNECT = datetime.timedelta(seconds=2)
"""gloo's time-out while a group is formed: it waits five times as long for a peer's connection."""

_THREADS = 1  # of gloo; more help with several collectives at a time, which Ulysses never has

_TURN = datetime.timedelta(seconds=0.05)
"""Longest wait for gloo between checks that the group is not called off; a collective's end ends it."""

_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""Environment variable, set to 0 whatever it was: by itself, torch ends a process whose peer is gone; here it
goes on in another group."""

_SETTINGS = {
    # torch would keep the last 2,000 collectives, each with its Python stack, to report time-outs: in each
    # process, megabytes that are never read.
    "TORCH_FR_BUFFER_SIZE": "0",
    # torch also records a failure permanently in the driver's store, and would end members of later groups
    # because of it.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""Other environment variables that torch reads when it forms a group; an existing value stays."""

_END_ERRORS = (RuntimeError, AssertionError, ValueError, KeyError)
"""Errors from ending a default group that is gone, or that another thread is ending."""


class InstanceGroup:
    """A group of members that can reach each other; forming it waits for all of them.

    Args:
        store: connection to the driver's store; broken if the forming is interrupted.
        prefix: prefix of its keys; a new one for each group, or members would meet those of an old one.
        size: number of members, at least 2.
        timeout_s: longest wait for a peer that is not interrupted: a backstop. It does not end a wait for
            NCCL, as `_ERROR_HANDLING` is 0: the driver ends a device that does not answer within its lease.
        device: device of the tensors; a CUDA device means NCCL, which is not tested on several GPUs.
        called_off: function that is True if the group is broken off; called while waiting for a peer.

    Raises:
        GroupBrokenError: if a peer did not come, or the forming was interrupted.
        ConfigurationError: if this process already has a default group.

    Attributes:
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
        """Send part i of the first dimension of contiguous `parts` to member i; return theirs, by rank.

        Raises RuntimeError if a peer is gone, and GroupBrokenError if the group is called off.
        """
        got = torch.empty_like(parts)
        self._finish(dist.all_to_all_single(got, parts, group=self.group, async_op=True))
        return got

    def gather(self, part: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenate the parts of all members, of one shape, along `dim`. Fails as `exchange` does."""
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._finish(dist.all_gather(parts, part.contiguous(), group=self.group, async_op=True))
        return torch.cat(parts, dim=dim)

    def any_true(self, said: bool) -> bool:
        """Return True for all members if any says so; all call this at one point. Fails as `exchange`."""
        flag = torch.tensor([int(said)], device=self._device)
        self._finish(dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group, async_op=True))
        return bool(flag.item())

    @property
    def cut_off(self) -> bool:
        """True if numbers that were received may be wrong: NCCL ends what is called off without an error."""
        return self._cuda and self._called_off()

    def close(self) -> None:
        """Leave at once; peers that still wait for this member get an error."""
        if not self._cuda or self._called_off():  # NCCL would wait for peers to leave, too
            interrupt(self._device)
        group = self.group
        del self.group
        with contextlib.suppress(*_END_ERRORS):
            if dist.is_initialized():
                dist.destroy_process_group()
        if self._left_behind is not None:
            # Releasing the group would wait for gloo's thread, until the time-out.
            threading.Thread(target=_keep, args=(group, self._left_behind), daemon=True).start()
            self._left_behind = None

    def _finish(self, work: Any) -> None:
        """Wait for a collective to end."""
        if self._cuda:  # `interrupt` frees threads that wait for NCCL
            work.wait()
            return
        while True:
            try:
                work.wait(_TURN)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises its own error, or nothing if it has just ended
                    return
            if self._called_off():
                self._left_behind = work
                raise GroupBrokenError("called off while a message was under way")

    def _form(self, store: dist.Store, rank: int, size: int, timeout_s: float) -> dist.ProcessGroup:
        register_gloo(_BACKEND, GROUP_ADDRESS, connect=_CONNECT, threads=_THREADS)
        hook = sys.excepthook  # torch wraps it again for each group, and never unwraps it
        # A failed attempt has used up a name, which is part of the keys at which members meet.
        world: Any = dist.distributed_c10d._world
        world.group_count = 0
        os.environ[_ERROR_HANDLING] = "0"
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        own, timeout = dist.PrefixStore(self._prefix, store), datetime.timedelta(seconds=timeout_s)
        try:
            # gloo waits for a peer's connection when there is no socket yet to shut down, and NCCL where it
            # cannot be aborted. So members first meet at the store, where they can be freed at any time;
            # then only a peer that ends in between is waited for.
            own.set(f"here/{rank}", "")
            own.wait([f"here/{member}" for member in range(size)], timeout)
            dist.init_process_group(
                "nccl" if self._cuda else _BACKEND,
                store=own,
                rank=rank,
                world_size=size,
                timeout=timeout,
                # Named, it is connected now; else the first denoising step would wait for that.
                device_id=torch.device("cuda", torch.cuda.current_device()) if self._cuda else None,
            )
        except RuntimeError as error:
            with contextlib.suppress(*_END_ERRORS):
                dist.destroy_process_group()
            raise GroupBrokenError(f"group {self._prefix} was not formed: {error}") from error
        finally:
            sys.excepthook = hook
        group = dist.group.WORLD
        assert group is not None
        return group


def _keep(group: dist.ProcessGroup, work: Any) -> None:
    """Keep a group until gloo has given up waiting."""
    with contextlib.suppress(RuntimeError):
        work.wait()


def interrupt(device: torch.device) -> None:
    """Free this process's other threads that wait for a peer of the group; they raise RuntimeError.

    With gloo, threads whose message is under way are not freed: see the top of this file.
    """
    if device.type != "cuda":
        shut_down(lambda connection: GROUP_ADDRESS in connection.hosts)
        return
    with contextlib.suppress(*_END_ERRORS):
        dist.distributed_c10d._abort_process_group()


def is_group_failure(error: Exception) -> bool:
    """Return True if an error came from a collective, and not from the model."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def register_gloo(
    backend: str, address: str, connect: datetime.timedelta = datetime.timedelta.max, threads: int = 2
) -> None:
    """Register a gloo that listens on one address; torch's own uses the address of the machine's name.

    Args:
        connect: longest of gloo's time-outs while a group is formed; by default that of its use.
        threads: threads of gloo, as many as torch gives it.
    """

    def form(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> dist.ProcessGroupGloo:
        gloo: Any = dist.ProcessGroupGloo  # its stub lacks the options
        options = gloo._Options()
        options._timeout = min(timeout, connect)
        options._threads = threads
        options._devices = [gloo.create_device(hostname=address)]
        group = gloo(store, rank, size, options)
        group._set_default_timeout(timeout)
        return group

    if backend.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(backend, form, devices=["cpu"])


def local_ports_to(host_port: int) -> frozenset[int]:
    """Return the local ports of this process's connections to a port."""
    return frozenset(found.own_port for found in _connections() if found.peer_port == host_port)


class Connection(NamedTuple):
    """A connected socket, and its ends as they were when it was found: a peer may leave at any moment.

    Attributes:
        hosts: addresses of both ends.
        own_port, peer_port: ports of the ends.
    """

    socket: socket.socket
    hosts: tuple[str, str]
    own_port: int
    peer_port: int


def shut_down(chosen: Callable[[Connection], bool]) -> None:
    """Shut down the chosen ones of this process's connections."""
    for connection in _connections():
        if chosen(connection):
            with contextlib.suppress(OSError):  # the peer was faster
                connection.socket.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[Connection]:
    """Yield duplicates of this process's connected internet sockets; each is closed after its turn."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed by another thread meanwhile
            continue
        with duplicate:
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                own, peer = duplicate.getsockname(), duplicate.getpeername()
            except OSError:  # not connected, or no longer
                continue
            hosts = own[0].removeprefix("::ffff:"), peer[0].removeprefix("::ffff:")
            yield Connection(duplicate, hosts, own[1], peer[1])
