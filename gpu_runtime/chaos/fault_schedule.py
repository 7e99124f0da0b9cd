"""Seeded schedules of faults for chaos runs: kind, victim and time of each fault. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import Field

from storage.config.errors import read_row
from storage.config.section import Section
from storage.errors import ConfigurationError
from storage.text import parse_json

FaultKind = Literal[
    "kill",
    "notice_then_kill",
    "half_at_once",
    "kill_while_joining",
    "kill_while_committing",
    "hung_worker",
    "slow_worker",
    "coordinator_restart",
    "scorer_death",
    "stopped_driver",
    "server_death",
    "agent_death",
]
FaultPhase = Literal["explore", "rollout", "reward", "train", "commit"]

FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
FAULT_PHASES: tuple[FaultPhase, ...] = get_args(FaultPhase)

_LASTING: tuple[FaultKind, ...] = ("hung_worker", "slow_worker", "stopped_driver")
_VALUES: Mapping[str, Sequence[FaultKind]] = {
    "grace_s": ("notice_then_kill",), "duration_s": _LASTING, "slowdown": ("slow_worker",),
}  # fmt: skip
"""Kinds of faults that need each of these values; the others do not have it."""


class Fault(Section):
    """A fault, injected at a time or at the beginning of a phase."""

    kind: FaultKind
    """`kill_while_joining` and `kill_while_committing` hit the first worker that joins, or commits, from then
    on."""

    at_s: float | None = Field(default=None, ge=0)
    """Seconds from the beginning of the run; None if a phase triggers it."""

    iteration: int | None = Field(default=None, ge=0)
    """Iteration, from 0, that triggers the fault when it enters `phase`; None with a time."""

    phase: FaultPhase | None = None
    """Phase that triggers the fault; None with a time."""

    victim: int = Field(default=0, ge=0)
    """Index of the victim among the candidates by name, modulo their number."""

    grace_s: float | None = Field(default=None, ge=0)
    """Seconds from the notice to the kill; `notice_then_kill` only, None elsewhere."""

    duration_s: float | None = Field(default=None, ge=0)
    """Seconds until the process goes on; `hung_worker`, `slow_worker` and `stopped_driver` only."""

    slowdown: float | None = Field(default=None, ge=1)
    """Factor by which a slow worker is slower; `slow_worker` only."""

    def contradictions(self) -> Iterator[str]:
        """Yield why these values cannot be together."""
        triggers = [self.iteration is not None, self.phase is not None]
        if any(triggers) != all(triggers) or any(triggers) == (self.at_s is not None):
            yield (
                f"fault {self.kind}: at_s={self.at_s}, iteration={self.iteration}, phase={self.phase}; "
                "give either at_s, or iteration and phase"
            )
        for name, kinds in _VALUES.items():
            if (getattr(self, name) is not None) != (self.kind in kinds):
                yield (
                    f"fault {self.kind} needs {name}; give it"
                    if self.kind in kinds
                    else f"fault {self.kind} has no {name}; leave it out"
                )


def draw_faults(
    seed: int,
    count: int,
    length_s: float,
    iterations: int,
    *,
    kinds: Sequence[FaultKind] = FAULT_KINDS,
    timed_share: float = 0.5,
    graces_s: Sequence[float] = (0.0, 5.0, 30.0, 120.0),
    durations_s: tuple[float, float] = (1.0, 60.0),
) -> tuple[Fault, ...]:
    """Return a schedule drawn with a seed; the same arguments give the same schedule.

    The kinds are dealt like shuffled packs of cards, so all appear once there are as many faults as kinds,
    and no kind appears two more times than another that is in `kinds` equally often.

    Args:
        length_s: upper bound of the times, which lie in [0, length_s].
        iterations: upper bound of the triggering iterations, which lie in [0, iterations).
        kinds: kinds to draw from; one that is listed twice comes twice as often.
        timed_share: probability that a fault has a time rather than a trigger, 0 to 1.
        graces_s: choices of the seconds from a notice to the kill.
        durations_s: least and most seconds that a worker hangs or is slow, or the driver is stopped.

    Returns:
        Timed faults in order of time, then triggered ones in order of iteration and phase.
    """
    assert kinds, "none could be drawn"
    source = random.Random(seed)
    dealt: list[FaultKind] = []
    while len(dealt) < count:
        dealt += source.sample(list(kinds), len(kinds))
    faults: list[Fault] = []
    for kind in dealt[:count]:
        if source.random() < timed_share:
            moment: dict[str, Any] = {"at_s": min(round(source.uniform(0, length_s), 3), length_s)}
        else:
            moment = {"iteration": source.randrange(iterations), "phase": source.choice(FAULT_PHASES)}
        faults.append(
            Fault(
                kind=kind,
                victim=source.randrange(1024),
                grace_s=source.choice(graces_s) if kind == "notice_then_kill" else None,
                duration_s=round(source.uniform(*durations_s), 3) if kind in _LASTING else None,
                slowdown=round(source.uniform(2, 10), 1) if kind == "slow_worker" else None,
                **moment,
            )
        )
    return tuple(sorted(faults, key=_moment))


def _moment(fault: Fault) -> tuple[int, float, int]:
    if fault.at_s is not None:
        return 0, fault.at_s, 0
    assert fault.iteration is not None and fault.phase is not None
    return 1, fault.iteration, FAULT_PHASES.index(fault.phase)


def take_due(
    pending: list[Fault], now_s: float, entered: tuple[int, FaultPhase] | None = None
) -> list[Fault]:
    """Take out and return the faults that are due, in order.

    Args:
        pending: faults that are not due yet; the due ones are removed.
        now_s: seconds since the beginning.
        entered: iteration and phase that are being entered, if any.
    """
    due = [
        fault
        for fault in pending
        if (fault.at_s is not None and fault.at_s <= now_s)
        or (entered is not None and (fault.iteration, fault.phase) == entered)
    ]
    pending[:] = [fault for fault in pending if fault not in due]
    return due


def faults_from_json(text: str) -> tuple[Fault, ...]:
    """Return the schedule of a JSON list of objects, one for each fault.

    Raises:
        ConfigurationError: the text is not a JSON list of objects, or a fault is invalid or has an unknown
            field (the message counts from 1).
    """
    rows = parse_json(text, "the schedule of faults", ConfigurationError, "write a list of objects")
    if not isinstance(rows, list):
        raise ConfigurationError(
            f"the schedule of faults is a {type(rows).__name__}; write a list of objects"
        )
    return tuple(
        read_row(row, f"fault {number} of {len(rows)}", Fault) for number, row in enumerate(rows, start=1)
    )
