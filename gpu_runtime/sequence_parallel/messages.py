"""What a controller tells a member's process, and what that one answers. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_runtime.diffusion.sampler import SampleState
from gpu_runtime.sequence_parallel.epochs import NumberedGroup


@dataclass(frozen=True)
class Join:
    """Go over to a group; None for none."""

    group: NumberedGroup | None


@dataclass(frozen=True)
class Advance:
    """Denoise a batch, with the others of the group of an epoch."""

    epoch: int
    states: tuple[SampleState, ...]
    steps: int


@dataclass(frozen=True)
class Call:
    """Call a function with the member and the arguments, and send back what it returns."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Stop:
    """End the process."""


Command = Join | Advance | Call | Stop


@dataclass(frozen=True)
class Ready:
    """The process has its model."""


@dataclass(frozen=True)
class Advanced:
    """The steps are done; the leader sends the states."""

    epoch: int
    states: tuple[SampleState, ...] | None


@dataclass(frozen=True)
class Broken:
    """The group of an epoch broke; the member waits for another one."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Called:
    """What a called function returned."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """The member cannot go on; no other group would help."""

    reason: str


Answer = Ready | Advanced | Broken | Called | Failed
