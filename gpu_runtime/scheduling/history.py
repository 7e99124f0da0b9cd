"""The promises to a run with faults, checked from its history. Pure: standard library only.

What a history says exactly: which denoising steps each worker did, and which of them were done again;
which samples were asked for, and how often each was accepted; which worker held a sample when. The promises:

- Every sample that was asked for is accepted, once.
- No two workers hold a sample at one time.
- A sample that is accepted has had all its denoising steps.
- With a notice a loss costs a sample at most one denoising step; without, at most the commit interval, and a
  commit that was sent and died with its sender on the way.

The same holds of drafts, but that none has to be accepted: a training window that closes drops what is left.
A draft that is trained on is a sample that was asked for; it may have been accepted in the life before.

A life that ends in the middle (its driver died) leaves its last phase unfinished; a resumed run does that
again from its checkpoint, which is no step of a sample done again.
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
"""Between the names of workers that share a lease."""

LEAST_WARNING_S = 0.25
"""A notice that the driver knew of this shortly before a worker's end, or later, was no warning."""

MOST_REDONE_WITH_NOTICE = 1
"""Denoising steps of a sample that a loss with a notice may cost."""


@dataclass(frozen=True)
class HistoryLine:
    """One line of a history.

    Attributes:
        life: of the run, from 1; each resumption begins one.
        by: name of the process that wrote it.
        at: unix seconds.
        event: what happened.
        facts: the rest of the line.
    """

    life: int
    by: str
    at: float
    event: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Redone:
    """Denoising steps that were done again because a worker gave samples up.

    Attributes:
        life: of the run.
        worker: that had done them first.
        with_notice: it had seen a preemption notice in time.
        interval: most denoising steps between two commits of its samples.
        most: of one sample.
        total: of all its samples.
        on_the_way: denoising steps of a commit that the worker had sent and the driver never got; a device
            works on while one travels.
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
class MissingHistory:
    """A worker that joined, and whose history is on another machine.

    Attributes:
        life: of the run.
        worker: its name.
        host: the machine.
        path: the file there.
    """

    life: int
    worker: str
    host: str
    path: str


@dataclass(frozen=True)
class HistoryReport:
    """What a history says of the promises.

    Attributes:
        requested: samples asked for in phases that ended, and drafts that were trained on.
        lost: those of them that were never accepted.
        duplicated: samples accepted more than once.
        held_twice: samples leased to one worker while another held them.
        incomplete: samples accepted without all their denoising steps.
        dropped: deliveries that came a second time and were dropped.
        steps_needed: denoising steps of the samples of ended phases.
        steps_done: what was done of them.
        redone: by loss; workers that were lost without any are there too.
        unfinished: samples of phases that the death of the driver cut off.
        missing: histories of workers on other machines; without them, steps that were done are not known.
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
    missing: tuple[MissingHistory, ...] = ()

    @property
    def steps_redone(self) -> int:
        """Denoising steps done more than once, in phases that ended."""
        return sum(loss.total for loss in self.redone)

    def losses(self, with_notice: bool) -> int:
        """Workers lost with a notice, or without."""
        return sum(loss.with_notice == with_notice for loss in self.redone)

    def most_redone(self, with_notice: bool) -> int:
        """Denoising steps that a loss cost a sample at most; 0 without any loss."""
        return max((loss.most for loss in self.redone if loss.with_notice == with_notice), default=0)

    def broken(self) -> list[str]:
        """The promises that were broken, or cannot be checked, in words; none is well."""
        said = [
            f"the history of {one.worker} (life {one.life}) is on {one.host} at {one.path}: copy it into the "
            "folder of that life, and check again"
            for one in self.missing
        ]
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
    """A phase of generating: what was asked for and what became of it; of drafts nothing has to be done."""

    steps: int
    requests: list[str]
    drafts: bool = False
    ended: bool = False
    accepted: Counter[str] = field(default_factory=Counter)
    leases: list[int] = field(default_factory=list)


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
    """What the lines of one life say."""

    phases: list[_Phase] = field(default_factory=list)
    leases: dict[int, _Lease] = field(default_factory=dict)
    holder: dict[str, int] = field(default_factory=dict)
    held_twice: list[str] = field(default_factory=list)
    drafted: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    lost_at: dict[str, float] = field(default_factory=dict)
    noticed_at: dict[str, float] = field(default_factory=dict)

    def phase_of(self, kind: str | None) -> _Phase:
        """The newest phase of a kind: drafts may be under way beside a rollout.

        Args:
            kind: as of requests; None in histories of earlier versions, where a phase came after another.
        """
        drafts = kind == RequestKind.EXPLORE
        return next(one for one in reversed(self.phases) if kind is None or one.drafts == drafts)

    def to_blame(self, lease: _Lease) -> str:
        """The worker that a lease went back for: of several that shared it, the one lost or warned then."""
        members = lease.worker.split(MEMBERS_JOINED_BY)
        if len(members) == 1 or lease.back_at is None:
            return lease.worker
        struck_at = self.noticed_at if lease.why == "notice" else self.lost_at
        away_s = {name: abs(struck_at[name] - lease.back_at) for name in members if name in struck_at}
        return min(away_s, key=away_s.__getitem__, default=lease.worker)

    def warned(self, worker: str) -> bool:
        """Whether a worker was known to be under notice in time, by the driver's clock."""
        seen = self.noticed_at.get(worker)
        end = self.lost_at.get(worker)
        return seen is not None and (end is None or end - seen > LEAST_WARNING_S)


def check_history(lines: Iterable[HistoryLine]) -> HistoryReport:
    """What a history says of the promises.

    Args:
        lines: of all processes and lives; those of one process in the order in which it wrote them.
    """
    by_life: dict[int, list[HistoryLine]] = defaultdict(list)
    for line in lines:
        by_life[line.life].append(line)
    numbered = {number: _read(of_life) for number, of_life in sorted(by_life.items())}
    alive = list(numbered.values())
    ended = [phase for life in alive for phase in life.phases if phase.ended and not phase.drafts]
    made = {name for life in alive for phase in life.phases if phase.drafts for name in phase.accepted}
    drafted = {name for life in alive for name in life.drafted}
    counts = [life.drafted for life in alive]
    counts += [phase.accepted for life in alive for phase in life.phases]
    return HistoryReport(
        requested=sum(len(phase.requests) for phase in ended) + len(drafted),
        lost=(
            *(name for phase in ended for name in phase.requests if not phase.accepted[name]),
            *sorted(drafted - made),
        ),
        duplicated=tuple(name for times in counts for name in times if times[name] > 1),
        held_twice=tuple(name for life in alive for name in life.held_twice),
        incomplete=tuple(
            name for life in alive for phase in life.phases for name in _incomplete(life, phase)
        ),
        dropped=sum(life.dropped for life in alive),
        steps_needed=sum(len(phase.requests) * phase.steps for phase in ended),
        steps_done=sum(
            len(life.leases[lease].done) * len(life.leases[lease].requests)
            for life in alive
            for phase in life.phases
            if phase.ended and not phase.drafts
            for lease in phase.leases
        ),
        redone=tuple(loss for number, life in numbered.items() for loss in _redone(number, life)),
        unfinished=sum(
            len(phase.requests) - len(phase.accepted)
            for life in alive
            for phase in life.phases
            if not (phase.ended or phase.drafts)
        ),
        missing=tuple(one for of_life in by_life.values() for one in _missing(of_life)),
    )


def _missing(lines: list[HistoryLine]) -> list[MissingHistory]:
    """Workers of a life that have joined, and of which there is no line."""
    there = {line.by for line in lines}
    return [
        MissingHistory(line.life, line.facts["worker"], line.facts["host"], line.facts["history"])
        for line in lines
        if line.event == "joined" and "history" in line.facts and line.facts["worker"] not in there
    ]


def _read(lines: list[HistoryLine]) -> _Life:
    """A life from its lines: the driver's first, which say what the leases of the workers' are."""
    life = _Life()
    for line in lines:
        if line.by == DRIVER:
            _read_driver(life, line)
    for line in lines:
        if line.by != DRIVER:
            _read_worker(life, line)
    return life


def _read_driver(life: _Life, line: HistoryLine) -> None:
    facts = line.facts
    if line.event == "notice":
        life.noticed_at.setdefault(facts["worker"], line.at)
    elif line.event == "generate":
        drafts = facts.get("kind") == RequestKind.EXPLORE
        life.phases.append(_Phase(facts["steps"], list(facts["requests"]), drafts))
    elif line.event == "drafted":
        life.drafted.update(facts["requests"])
    elif line.event == "generated":
        life.phase_of(facts.get("kind")).ended = True
    elif line.event == "lease":
        number, names = facts["lease"], facts["requests"]
        life.held_twice += [name for name in names if name in life.holder]
        life.holder |= dict.fromkeys(names, number)
        phase = life.phase_of(facts.get("kind"))
        until = facts.get("until", phase.steps)
        life.leases[number] = _Lease(facts["worker"], list(names), until, phase, committed=facts["step"])
        phase.leases.append(number)
    elif line.event == "commit":
        lease = life.leases[facts["lease"]]
        lease.committed = max(lease.committed, facts["step"])
    elif line.event == "deliver":
        life.leases[facts["lease"]].phase.accepted.update(facts["accepted"])
        life.dropped += len(facts["dropped"])
        for name in facts["accepted"]:
            life.holder.pop(name, None)
    elif line.event == "back":
        lease = life.leases[facts["lease"]]
        if lease.back_at is None:
            lease.back_at, lease.why = line.at, facts["why"]
        for name in [name for name, number in life.holder.items() if number == facts["lease"]]:
            del life.holder[name]
    elif line.event == "lost":
        life.lost_at[facts["worker"]] = line.at


def _read_worker(life: _Life, line: HistoryLine) -> None:
    facts = line.facts
    if line.event == "chunk":
        lease = life.leases[facts["lease"]]
        lease.interval = max(lease.interval, facts["until"] - facts["from"])
    elif line.event == "step":
        life.leases[facts["lease"]].done.update(range(facts["from"], facts["to"]))
    elif line.event == "sent":
        life.leases[facts["lease"]].sent = facts["step"]


def _incomplete(life: _Life, phase: _Phase) -> list[str]:
    """Accepted samples of a phase, some of whose denoising steps no device did."""
    done: dict[str, set[int]] = defaultdict(set)
    until: dict[str, int] = {}
    for lease in (life.leases[number] for number in phase.leases):
        for name in lease.requests:
            done[name] |= lease.done
            until[name] = lease.until
    return [name for name in phase.accepted if not done[name].issuperset(range(until[name]))]


def _redone(number: int, life: _Life) -> list[Redone]:
    """What was done again of each worker that was lost, or gave samples up that were done again."""
    again: dict[str, list[int]] = {worker: [] for worker in life.lost_at}
    total: Counter[str] = Counter()  # of samples alone, as are the steps needed and done
    interval: Counter[str] = Counter()
    on_the_way: Counter[str] = Counter()
    for phase in life.phases:
        if not phase.ended:
            continue
        later: dict[str, set[int]] = defaultdict(set)
        for lease in (life.leases[granted] for granted in reversed(phase.leases)):
            counts = [len(lease.done & later[name]) for name in lease.requests]
            if any(counts):
                worker = life.to_blame(lease)
                again.setdefault(worker, []).extend(counts)
                total[worker] += 0 if phase.drafts else sum(counts)
                interval[worker] = max(interval[worker], lease.interval)
                if lease.why == "lost":  # a hung worker is alive: what it sent has come
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
