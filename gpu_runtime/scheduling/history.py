"""Checks the promises to a run with faults against its history; pure, standard library only.

A history records exactly which denoising steps each worker did and which were repeated; which samples were
requested and how often each was accepted; and which worker held a sample when. The promises:

- Every requested sample is accepted exactly once.
- No two workers hold a sample at the same time.
- An accepted sample has had all its denoising steps.
- A loss with notice costs a sample at most one denoising step; a loss without notice at most the commit
  interval, plus a commit that was lost in transit with its sender.

The same holds for drafts, except that none must be accepted: a closing training window drops the rest. A
draft used for training counts as a requested sample; it may have been accepted in the previous life.

A life that ends early because its driver died leaves its last phase unfinished; a resumed run repeats that
phase from its checkpoint, which does not count as repeated steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_runtime.scheduling.requests import RequestKind

DRIVER = "driver"
"""Name of the process that grants leases."""

MEMBERS_JOINED_BY = "+"
"""Separator of the names of workers that share a lease."""

LEAST_WARNING_S = 0.25
"""Shortest time from the driver's knowledge of a notice to the worker's end that counts as a warning."""

MOST_REDONE_WITH_NOTICE = 1
"""Largest number of denoising steps that a loss with notice may cost a sample."""


@dataclass(frozen=True)
class HistoryLine:
    """One line of a history.

    Attributes:
        life: number of the run's life, from 1; each resumption begins a new one.
        by: name of the process that wrote it.
        at: time in unix seconds.
    """

    life: int
    by: str
    at: float
    event: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Redone:
    """Denoising steps repeated because a worker gave up samples.

    Attributes:
        worker: worker that did them first.
        with_notice: True if it had a preemption notice in time.
        interval: most denoising steps between two commits of its samples.
        most: most repeated steps of one sample.
        total: repeated steps of all its samples.
        on_the_way: denoising steps of a commit that the worker sent but the driver never received; a device
            continues while one is sent.
    """

    life: int
    worker: str
    with_notice: bool
    interval: int
    most: int
    total: int
    on_the_way: int = 0

    @property
    def limit(self) -> int:
        """Denoising steps that the loss may have cost a sample."""
        if self.with_notice:
            return MOST_REDONE_WITH_NOTICE
        return self.interval + min(self.on_the_way, self.interval)


@dataclass(frozen=True)
class HistoryReport:
    """The result of checking a history against the promises.

    Attributes:
        requested: samples requested in phases that ended, and drafts used for training.
        lost: requested samples that were never accepted.
        duplicated: samples accepted more than once.
        held_twice: samples leased to one worker while another held them.
        incomplete: samples accepted without all their denoising steps.
        dropped: repeated deliveries, which were dropped.
        steps_needed: denoising steps of the samples of ended phases.
        steps_done: denoising steps done of these samples.
        redone: repeated steps by loss, including lost workers without any.
        unfinished: samples of phases cut off by the driver's death.
        missing: histories of workers on other machines, as text; without them, the steps done there are
            unknown.
    """

    requested: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    held_twice: tuple[str, ...]
    incomplete: tuple[str, ...]
    dropped: int
    steps_needed: int
    steps_done: int
    redone: tuple[Redone, ...]
    unfinished: int
    missing: tuple[str, ...] = ()

    @property
    def steps_redone(self) -> int:
        """Denoising steps done more than once, in phases that ended."""
        return sum(loss.total for loss in self.redone)

    def most_redone(self, with_notice: bool) -> int:
        """Return the most denoising steps that a loss cost a sample; 0 without any loss."""
        return max((loss.most for loss in self.redone if loss.with_notice == with_notice), default=0)

    def broken(self) -> list[str]:
        """Return the promises that were broken or cannot be checked, as text; empty if all hold."""
        said = list(self.missing)
        said += [
            f"{len(names)} samples {what}, such as {names[0]}"
            for names, what in (
                (self.lost, "were lost"),
                (self.duplicated, "were accepted twice"),
                (self.held_twice, "were held by two workers at once"),
                (() if self.missing else self.incomplete, "were accepted without all their denoising steps"),
            )
            if names
        ]
        for loss in self.redone:
            if loss.most > loss.limit:
                kind = "with" if loss.with_notice else "without"
                said.append(
                    f"the loss of {loss.worker} {kind} a notice cost a sample {loss.most} denoising steps; "
                    f"the limit is {loss.limit}"
                )
        return said


@dataclass
class _Phase:
    """A generating phase: its requests and their outcome; drafts need not be done."""

    steps: int
    requests: list[str]
    drafts: bool = False
    ended: bool = False
    accepted: Counter[str] = field(default_factory=Counter)
    leases: list[_Lease] = field(default_factory=list)


@dataclass
class _Lease:
    worker: str
    requests: list[str]
    until: int
    phase: _Phase
    interval: int = 0
    done: set[int] = field(default_factory=set)
    sent: int = 0
    committed: int = 0
    back_at: float | None = None
    why: str = ""


@dataclass
class _Life:
    """The contents of the lines of one life."""

    phases: list[_Phase] = field(default_factory=list)
    leases: dict[int, _Lease] = field(default_factory=dict)
    holder: dict[str, int] = field(default_factory=dict)
    held_twice: list[str] = field(default_factory=list)
    drafted: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    lost_at: dict[str, float] = field(default_factory=dict)
    noticed_at: dict[str, float] = field(default_factory=dict)

    def phase_of(self, kind: str | None) -> _Phase:
        """Return the newest phase of a kind: drafts may be under way beside a rollout."""
        drafts = kind == RequestKind.EXPLORE
        return next(one for one in reversed(self.phases) if kind is None or one.drafts == drafts)

    def to_blame(self, lease: _Lease) -> str:
        """Return the worker whose lease went back; if several shared it, the one lost or warned then."""
        if lease.back_at is None:
            return lease.worker
        struck_at = self.noticed_at if lease.why == "notice" else self.lost_at
        members = [name for name in lease.worker.split(MEMBERS_JOINED_BY) if name in struck_at]
        away_s = {name: abs(struck_at[name] - lease.back_at) for name in members}
        return min(away_s, key=away_s.__getitem__, default=lease.worker)

    def warned(self, worker: str) -> bool:
        """Return True if a worker was known to be under notice in time, by the driver's clock."""
        seen = self.noticed_at.get(worker)
        end = self.lost_at.get(worker)
        return seen is not None and (end is None or end - seen > LEAST_WARNING_S)


def check_history(lines: Iterable[HistoryLine]) -> HistoryReport:
    """Check a history against the promises; lines of one process are in the order of writing."""
    by_life: dict[int, list[HistoryLine]] = defaultdict(list)
    for line in lines:
        by_life[line.life].append(line)
    numbered = {number: _read(of_life) for number, of_life in sorted(by_life.items())}
    alive = list(numbered.values())
    phases = [phase for life in alive for phase in life.phases]
    ended = [phase for phase in phases if phase.ended and not phase.drafts]
    made = {name for phase in phases if phase.drafts for name in phase.accepted}
    drafted = {name for life in alive for name in life.drafted}
    counts = [*(life.drafted for life in alive), *(phase.accepted for phase in phases)]
    wrote = {(number, line.by) for number, of_life in by_life.items() for line in of_life}
    return HistoryReport(
        requested=sum(len(phase.requests) for phase in ended) + len(drafted),
        lost=(
            *(name for phase in ended for name in phase.requests if not phase.accepted[name]),
            *sorted(drafted - made),
        ),
        duplicated=tuple(name for times in counts for name in times if times[name] > 1),
        held_twice=tuple(name for life in alive for name in life.held_twice),
        incomplete=tuple(name for phase in phases for name in _incomplete(phase)),
        dropped=sum(life.dropped for life in alive),
        steps_needed=sum(len(phase.requests) * phase.steps for phase in ended),
        steps_done=sum(len(lease.done) * len(lease.requests) for phase in ended for lease in phase.leases),
        redone=tuple(loss for number, life in numbered.items() for loss in _redone(number, life)),
        unfinished=sum(
            len(phase.requests) - len(phase.accepted) for phase in phases if not (phase.ended or phase.drafts)
        ),
        missing=tuple(
            f"the history of {line.facts['worker']} (life {number}) is on {line.facts['host']} at "
            f"{line.facts['history']}: copy it into the folder of that life, and check again"
            for number, of_life in by_life.items()
            for line in of_life
            if line.event == "joined" and "history" in line.facts
            if (number, line.facts["worker"]) not in wrote
        ),
    )


def _read(lines: list[HistoryLine]) -> _Life:
    """Return a life from its lines, the driver's first because they define the workers' leases."""
    life = _Life()
    for line in sorted(lines, key=lambda line: line.by != DRIVER):
        event, facts = line.event, line.facts
        if event == "chunk":
            lease = life.leases[facts["lease"]]
            lease.interval = max(lease.interval, facts["until"] - facts["from"])
        elif event == "step":
            life.leases[facts["lease"]].done.update(range(facts["from"], facts["to"]))
        elif event == "sent":
            life.leases[facts["lease"]].sent = facts["step"]
        elif event == "notice" and line.by == DRIVER:  # a worker notes its own, too, by its clock
            life.noticed_at.setdefault(facts["worker"], line.at)
        elif event == "generate":
            drafts = facts.get("kind") == RequestKind.EXPLORE
            life.phases.append(_Phase(facts["steps"], list(facts["requests"]), drafts))
        elif event == "drafted":
            life.drafted.update(facts["requests"])
        elif event == "generated":
            life.phase_of(facts.get("kind")).ended = True
        elif event == "lease":
            number, names = facts["lease"], facts["requests"]
            life.held_twice += [name for name in names if name in life.holder]
            life.holder |= dict.fromkeys(names, number)
            phase = life.phase_of(facts.get("kind"))
            until = facts.get("until", phase.steps)
            lease = _Lease(facts["worker"], list(names), until, phase, committed=facts["step"])
            life.leases[number] = lease
            phase.leases.append(lease)
        elif event == "commit":
            lease = life.leases[facts["lease"]]
            lease.committed = max(lease.committed, facts["step"])
        elif event == "deliver":
            life.leases[facts["lease"]].phase.accepted.update(facts["accepted"])
            life.dropped += len(facts["dropped"])
            for name in facts["accepted"]:
                life.holder.pop(name, None)
        elif event == "back":
            lease = life.leases[facts["lease"]]
            if lease.back_at is None:
                lease.back_at, lease.why = line.at, facts["why"]
            for name in [name for name, number in life.holder.items() if number == facts["lease"]]:
                del life.holder[name]
        elif event == "lost":
            life.lost_at[facts["worker"]] = line.at
    return life


def _incomplete(phase: _Phase) -> list[str]:
    """Return accepted samples of a phase with denoising steps that no device did."""
    done: dict[str, set[int]] = defaultdict(set)
    until: dict[str, int] = {}
    for lease in phase.leases:
        for name in lease.requests:
            done[name] |= lease.done
            until[name] = lease.until
    return [name for name in phase.accepted if not done[name].issuperset(range(until[name]))]


def _redone(number: int, life: _Life) -> list[Redone]:
    """Return the repeated steps of each worker that was lost or gave up samples."""
    again: dict[str, list[int]] = {worker: [] for worker in life.lost_at}
    total: Counter[str] = Counter()  # of samples only, like the steps needed and done
    interval: Counter[str] = Counter()
    on_the_way: Counter[str] = Counter()
    for phase in life.phases:
        if not phase.ended:
            continue
        later: dict[str, set[int]] = defaultdict(set)
        for lease in reversed(phase.leases):
            counts = [len(lease.done & later[name]) for name in lease.requests]
            if any(counts):
                worker = life.to_blame(lease)
                again.setdefault(worker, []).extend(counts)
                total[worker] += 0 if phase.drafts else sum(counts)
                interval[worker] = max(interval[worker], lease.interval)
                if lease.why == "lost":  # a hung worker is alive: what it sent has arrived
                    on_the_way[worker] = max(on_the_way[worker], lease.sent - lease.committed)
            for name in lease.requests:
                later[name] |= lease.done
    return [
        Redone(
            number, worker, life.warned(worker), interval[worker], max(counts, default=0), total[worker],
            on_the_way[worker],
        )
        for worker, counts in again.items()
    ]  # fmt: skip
