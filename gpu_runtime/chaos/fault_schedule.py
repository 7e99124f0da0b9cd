"""Seeded schedules of faults for chaos runs: kind, victim and time of each fault. Pure."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from storage.errors import ConfigurationError

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


@dataclass(frozen=True)
class Fault:
    """A fault, injected at a time or at the beginning of a phase.

    Attributes:
        kind: kind of fault. `kill_while_joining` and `kill_while_committing` hit the first worker that joins,
            or commits, from then on.
        at_s: seconds from the beginning of the run; None if a phase triggers it.
        iteration: iteration, from 0, that triggers the fault when it enters `phase`; None with a time.
        phase: phase that triggers the fault; None with a time.
        victim: index of the victim among the candidates by name, modulo their number.
        grace_s: seconds from the notice to the kill; `notice_then_kill` only, None elsewhere.
        duration_s: seconds until the process goes on; `hung_worker`, `slow_worker` and `stopped_driver` only.
        slowdown: factor by which a slow worker is slower; `slow_worker` only.

    Raises:
        ConfigurationError: it has a time and a trigger, or neither, or a value that does not fit the kind.
    """

    kind: FaultKind
    at_s: float | None = None
    iteration: int | None = None
    phase: FaultPhase | None = None
    victim: int = 0
    grace_s: float | None = None
    duration_s: float | None = None
    slowdown: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ConfigurationError(f"unknown fault {self.kind!r}; there are {', '.join(FAULT_KINDS)}")
        self._check_moment()
        if not _is_whole(self.victim) or self.victim < 0:
            raise ConfigurationError(
                f"fault {self.kind}: victim is {self.victim!r}; give a whole number from 0 on"
            )
        for name, kinds, least in (
            ("grace_s", ("notice_then_kill",), 0.0),
            ("duration_s", _LASTING, 0.0),
            ("slowdown", ("slow_worker",), 1.0),
        ):
            value = getattr(self, name)
            if self.kind not in kinds:
                if value is not None:
                    raise ConfigurationError(f"fault {self.kind} has no {name}; leave it out")
            elif not _is_finite(value) or value < least:
                raise ConfigurationError(f"fault {self.kind}: {name} is {value!r}; give at least {least}")

    def _check_moment(self) -> None:
        triggered = self.iteration is not None and self.phase is not None
        half = (self.iteration is None) != (self.phase is None)
        if half or triggered == (self.at_s is not None):
            raise ConfigurationError(
                f"fault {self.kind}: at_s={self.at_s}, iteration={self.iteration}, phase={self.phase}; "
                "give either at_s, or iteration and phase"
            )
        if self.at_s is not None and (not _is_finite(self.at_s) or self.at_s < 0):
            raise ConfigurationError(f"fault {self.kind}: at_s is {self.at_s!r}; give seconds from 0 on")
        if triggered and (not _is_whole(self.iteration) or self.iteration < 0):  # type: ignore[operator]
            raise ConfigurationError(
                f"fault {self.kind}: iteration is {self.iteration!r}; give one from 0 on"
            )
        if triggered and self.phase not in FAULT_PHASES:
            raise ConfigurationError(
                f"fault {self.kind}: unknown phase {self.phase!r}; there are {', '.join(FAULT_PHASES)}"
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

    Raises:
        ConfigurationError: an argument is out of range.
    """
    if count < 0 or iterations < 1 or not kinds or not (math.isfinite(length_s) and length_s >= 0):
        raise ConfigurationError(
            f"cannot draw {count} faults of {len(kinds)} kinds over {length_s} s and {iterations} iterations"
            "; give 0 or more faults, a kind, a length from 0 s on and an iteration"
        )
    if not 0 <= timed_share <= 1:
        raise ConfigurationError(f"timed_share is {timed_share}; give a share from 0 to 1")
    source = random.Random(seed)
    dealt: list[FaultKind] = []
    while len(dealt) < count:
        dealt += source.sample(list(kinds), len(kinds))
    faults = [
        _drawn(source, kind, _moment_of(source, length_s, iterations, timed_share), graces_s, durations_s)
        for kind in dealt[:count]
    ]
    return tuple(sorted(faults, key=_moment))


def _moment_of(source: random.Random, length_s: float, iterations: int, timed_share: float) -> dict[str, Any]:
    if source.random() < timed_share:
        return {"at_s": min(round(source.uniform(0, length_s), 3), length_s)}
    return {"iteration": source.randrange(iterations), "phase": source.choice(FAULT_PHASES)}


def _drawn(
    source: random.Random,
    kind: FaultKind,
    moment: dict[str, Any],
    graces_s: Sequence[float],
    durations_s: tuple[float, float],
) -> Fault:
    return Fault(
        kind,
        victim=source.randrange(1024),
        grace_s=source.choice(graces_s) if kind == "notice_then_kill" else None,
        duration_s=round(source.uniform(*durations_s), 3) if kind in _LASTING else None,
        slowdown=round(source.uniform(2, 10), 1) if kind == "slow_worker" else None,
        **moment,
    )


def _moment(fault: Fault) -> tuple[int, float, int]:
    if fault.at_s is not None:
        return 0, fault.at_s, 0
    assert fault.iteration is not None and fault.phase is not None
    return 1, fault.iteration, FAULT_PHASES.index(fault.phase)


class PendingFaults:
    """The faults of a schedule that are not due yet; each becomes due once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._pending = list(faults)

    @property
    def pending(self) -> tuple[Fault, ...]:
        """Faults that are not due yet; those left at a run's end never happened."""
        return tuple(self._pending)

    def due(self, now_s: float, entered: tuple[int, FaultPhase] | None = None) -> list[Fault]:
        """Return the faults due at `now_s`, or as an iteration and phase are `entered`, in order."""
        due = [
            fault
            for fault in self._pending
            if (fault.at_s is not None and fault.at_s <= now_s)
            or (entered is not None and (fault.iteration, fault.phase) == entered)
        ]
        self._pending = [fault for fault in self._pending if fault not in due]
        return due


def faults_from_json(text: str) -> tuple[Fault, ...]:
    """Return the schedule of a JSON list of objects, one for each fault.

    Raises:
        ConfigurationError: the text is not a JSON list of objects, or a fault is invalid or has an unknown
            field (the message counts from 1).
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the schedule of faults is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ConfigurationError(
            f"the schedule of faults is a {type(rows).__name__}; write a list of objects"
        )
    return tuple(_from_row(row, f"fault {number} of {len(rows)}") for number, row in enumerate(rows, start=1))


def _from_row(row: object, where: str) -> Fault:
    names = [field.name for field in fields(Fault)]
    if not isinstance(row, Mapping) or "kind" not in row:
        raise ConfigurationError(f"{where}: {row!r} is no fault; write an object with a kind")
    unknown = [name for name in row if name not in names]
    if unknown:
        raise ConfigurationError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(names)}")
    try:
        return Fault(**row)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf
