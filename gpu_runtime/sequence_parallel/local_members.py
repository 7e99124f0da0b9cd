"""Processes on this machine that hold members, forked from a server that has imported everything."""

from __future__ import annotations

import contextlib
import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from gpu_runtime.sequence_parallel import member_process
from gpu_runtime.sequence_parallel.member_process import BuildModel
from gpu_runtime.sequence_parallel.messages import Command
from gpu_runtime.sequence_parallel.process_group import StoreAddress
from storage.config import SamplingConfig

_PRELOADED = ["gpu_runtime.models.embedded", "gpu_runtime.sequence_parallel.member_process"]
_END_S = 10.0


@dataclass
class MemberLink:
    """A member's process and the pipe to it."""

    process: BaseProcess
    connection: Connection

    def send(self, command: Command) -> None:
        """Send; a process that is gone hears nothing, and its end is told by its sentinel."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(command)

    def end(self, kill: bool) -> None:
        """Wait for the process, killing it at once or if it does not end by itself."""
        if kill:
            self.process.kill()
        self.process.join(_END_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        self.connection.close()


class LocalMembers:
    """Starts members' processes.

    Args:
        build: makes the model.
        sampling: noise schedule and batch size.
        preload: further modules that the server imports, so that no process has to.
        timeout_s: a member's longest wait for a peer.
        cold: start each process from nothing instead, to compare.
    """

    def __init__(
        self,
        build: BuildModel,
        sampling: SamplingConfig,
        preload: tuple[str, ...] = (),
        timeout_s: float = 10.0,
        cold: bool = False,
    ) -> None:
        self._context: Any = multiprocessing.get_context("spawn" if cold else "forkserver")
        self._context.set_forkserver_preload([*_PRELOADED, *preload])
        self._build = build
        self._sampling = sampling
        self._timeout_s = timeout_s

    def start(self, name: str, address: StoreAddress, build: BuildModel | None = None) -> MemberLink:
        """Start a member; it says `Ready` when it has its model.

        Args:
            name: of the device.
            address: of the controller's store.
            build: makes the model, where not as usual.
        """
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=member_process.run,
            args=(theirs, name, build or self._build, self._sampling, address, self._timeout_s),
            name=f"member-{name}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return MemberLink(process, ours)
