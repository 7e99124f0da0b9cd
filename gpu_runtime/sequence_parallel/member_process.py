"""A process that holds one member and does what comes through a pipe."""

from __future__ import annotations

import gc
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from gpu_runtime.models.protocol import DiffusionModel
from gpu_runtime.sequence_parallel.member import SequenceParallelMember
from gpu_runtime.sequence_parallel.messages import (
    Advance,
    Advanced,
    Answer,
    Broken,
    Call,
    Called,
    Command,
    Failed,
    Join,
    Ready,
    Stop,
)
from gpu_runtime.sequence_parallel.process_group import StoreAddress
from storage.config import SamplingConfig
from storage.errors import GroupBrokenError

BuildModel = Callable[[], DiffusionModel]
"""Makes a member's model in its own process; it travels there, so it must pickle."""


def run(
    link: Connection,
    name: str,
    build: BuildModel,
    sampling: SamplingConfig,
    address: StoreAddress,
    timeout_s: float,
) -> None:
    """Build the model, then obey until told to stop or the controller is gone."""
    torch.set_num_threads(1)
    try:
        member = SequenceParallelMember(name, build(), sampling, address, timeout_s)
    except Exception as error:  # noqa: BLE001  (told to the controller, whatever it is)
        _send(link, Failed(f"{type(error).__name__}: {error}"))
        return
    # What is there now stays: no collection need look at it again. It made leaving a group ten times slower.
    gc.collect()
    gc.freeze()
    alive = _send(link, Ready())
    while alive:
        try:
            command: Command = link.recv()
        except (EOFError, OSError):
            break
        if isinstance(command, Stop):
            break
        answer = _obey(member, command)
        alive = (answer is None or _send(link, answer)) and not isinstance(answer, Failed)
    member.close()


def _obey(member: SequenceParallelMember, command: Command) -> Answer | None:
    try:
        if isinstance(command, Join):
            return _join(member, command)
        if isinstance(command, Advance):
            return _advance(member, command)
        if isinstance(command, Call):
            return Called(command.function(member, *command.arguments))
    except Exception as error:  # noqa: BLE001  (told to the controller, whatever it is)
        return Failed(f"{type(error).__name__}: {error}")
    return None


def _join(member: SequenceParallelMember, command: Join) -> Answer | None:
    try:
        member.join(command.group)
    except GroupBrokenError as error:
        assert command.group is not None
        return Broken(command.group.epoch, str(error))
    return None


def _advance(member: SequenceParallelMember, command: Advance) -> Answer | None:
    if member.epoch != command.epoch:
        return None  # the group broke before it came to this; that has been said
    try:
        states = member.advance(command.epoch, command.states, command.steps)
    except GroupBrokenError as error:
        return Broken(command.epoch, str(error))
    return Advanced(command.epoch, tuple(states) if member.leads else None)


def _send(link: Connection, answer: Answer) -> bool:
    try:
        link.send(answer)
    except (BrokenPipeError, OSError):  # the controller is gone
        return False
    return True
