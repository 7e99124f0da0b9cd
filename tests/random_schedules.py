"""Random schedules of the pull scheduler, each small, checked against plain bookkeeping.

A schedule is a seed: some requests, some workers that pull, commit, deliver, hang, die, come back late, get
notices and change their weights. At the end one worker lives on and must be able to finish everything.
Nothing here shares code with the scheduler: its answers are compared with what the workers got.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import Lease, RequestKind, WorkItem

_LEASE_S = 10
_WORKERS = ("a", "b", "c", "d")
_KINDS = tuple(RequestKind)
_EVENTS = (
    "pull",
    "commit",
    "deliver",
    "late",
    "wait",
    "hand_back",
    "lose_worker",
    "change_version",
    "add",
)
_WEIGHTS = (10, 8, 5, 4, 4, 1, 2, 2, 1)


@dataclass
class Tally:
    """What many schedules came to.

    Attributes:
        run: schedules.
        lost: requests that were never accepted.
        duplicated: requests that were accepted more than once.
        shared: requests that two valid leases held at once.
        fallen: commits that fell behind what a worker had got before.
        misplaced: requests leased though they were done, or with another version, kind, step or
            state than theirs; commits that were answered with other requests than the lease's open ones.
        requests: all of them.
        late: deliveries and commits from leases that had ended.
        returned: requests that went back to wait.
    """

    run: int = 0
    lost: int = 0
    duplicated: int = 0
    shared: int = 0
    fallen: int = 0
    misplaced: int = 0
    requests: int = 0
    late: int = 0
    returned: int = 0

    @property
    def faults(self) -> int:
        """All that must not be."""
        return self.lost + self.duplicated + self.shared + self.fallen + self.misplaced


@dataclass
class _Schedule:
    """One schedule and its bookkeeping."""

    chance: random.Random
    tally: Tally
    now: int = 0
    items: dict[int, WorkItem[int]] = field(default_factory=dict)
    accepted: dict[int, int] = field(default_factory=dict)  # request → how often
    step: dict[int, int] = field(default_factory=dict)  # request → furthest step sent from any lease
    valid: dict[int, Lease[int]] = field(default_factory=dict)  # by number, as the workers believe
    ended: list[Lease[int]] = field(default_factory=list)
    version: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WORKERS, 1))

    def __post_init__(self) -> None:
        self.queue: PullScheduler[int] = PullScheduler(
            self.chance.randint(1, 3), _LEASE_S, self.chance.randint(1, 5)
        )
        self.add()

    def add(self) -> None:
        new = [
            WorkItem(
                len(self.items) + number,
                self.chance.choice(_KINDS),
                self.chance.choice((2, 3)),
                self.chance.randint(1, 2),
            )
            for number in range(self.chance.randint(1, 6))
        ]
        self.items |= {item.request: item for item in new}
        self.queue.add(new)

    def pull(self, worker: str | None = None) -> bool:
        worker = worker or self.chance.choice(_WORKERS)
        lease = self.queue.pull(worker, self.now, self.version[worker], self.chance.randint(1, 4))
        if lease is None:
            return False
        believed = {request for other in self.valid.values() for request in other.requests}
        for request, state in zip(lease.requests, lease.states, strict=True):
            item = self.items[request]
            known = self.step.get(request, 0)
            self.tally.shared += request in believed and request not in self.accepted
            self.tally.fallen += lease.step < known
            self.tally.misplaced += (
                (item.version, item.kind, item.steps) != (lease.version, lease.kind, lease.steps)
                or lease.version != self.version[worker]
                or lease.step > known
                or request in self.accepted
                or state != ((request, known) if known else None)
            )
        self.valid[lease.number] = lease
        return True

    def _commit(self, lease: Lease[int]) -> None:
        commits: dict[int, tuple[int, object]] = {}
        for request in lease.requests:
            step = self.chance.randint(lease.step, lease.steps)
            if self.chance.random() < 0.8:
                commits[request] = (step, (request, step))
        held = self.queue.commit(lease, commits, self.now)
        for request, (step, _) in commits.items():
            if request not in self.accepted:
                self.step[request] = max(self.step.get(request, 0), step)
        wanted = lease.requests if lease.number in self.valid else ()
        self.tally.misplaced += held != tuple(request for request in wanted if request not in self.accepted)

    def commit(self) -> None:
        if self.valid:
            self._commit(self.chance.choice(list(self.valid.values())))

    def _deliver(self, lease: Lease[int], requests: tuple[int, ...]) -> None:
        for request in self.queue.deliver(lease, requests, self.now):
            self.accepted[request] = self.accepted.get(request, 0) + 1

    def deliver(self) -> None:
        if self.valid:
            lease = self.chance.choice(list(self.valid.values()))
            done = tuple(request for request in lease.requests if self.chance.random() < 0.8)
            self._deliver(lease, done)
            if all(request in self.accepted for request in lease.requests):
                self._end([lease.number])

    def late(self) -> None:
        if self.ended:
            lease = self.chance.choice(self.ended)
            self.tally.late += 1
            if self.chance.random() < 0.5:
                self._commit(lease)
            else:
                self._deliver(lease, lease.requests)

    def wait(self) -> None:
        self.now += self.chance.randint(1, 12)
        self._end([lease.number for lease in self.queue.expire(self.now)])

    def hand_back(self) -> None:
        worker = self.chance.choice(_WORKERS)
        self.queue.hand_back(worker)
        self._end([number for number, lease in self.valid.items() if lease.holder == worker])

    def lose_worker(self) -> None:
        worker = self.chance.choice(_WORKERS)
        self.queue.on_worker_lost(worker, {request: 1 for request in self.items})
        self._end([number for number, lease in self.valid.items() if lease.holder == worker])

    def change_version(self) -> None:
        self.version[self.chance.choice(_WORKERS)] = self.chance.randint(1, 2)

    def _end(self, numbers: list[int]) -> None:
        self.ended += [lease for number in numbers if (lease := self.valid.pop(number, None)) is not None]

    def finish(self) -> None:
        """All others are lost; one worker does what is left, with each version in turn."""
        for worker in _WORKERS:
            self.queue.on_worker_lost(worker)
        self._end(list(self.valid))
        for self.version["last"] in (1, 2):
            while self.pull("last"):
                lease = self.valid[max(self.valid)]
                self._deliver(lease, lease.requests)
                self._end([lease.number])
        self.tally.run += 1
        self.tally.requests += len(self.items)
        self.tally.lost += sum(request not in self.accepted for request in self.items)
        self.tally.lost += not self.queue.done()
        self.tally.duplicated += sum(times > 1 for times in self.accepted.values())
        self.tally.returned += self.queue.counters.returned


def run_schedules(count: int, first_seed: int = 0, events: int = 60) -> Tally:
    """Run schedules with the seeds from `first_seed` on.

    Args:
        count: of schedules.
        first_seed: each schedule has the seed after the one before.
        events: of each schedule, before the last worker finishes it.
    """
    tally = Tally()
    for seed in range(first_seed, first_seed + count):
        schedule = _Schedule(random.Random(seed), tally)
        for event in schedule.chance.choices(_EVENTS, _WEIGHTS, k=events):
            getattr(schedule, event)()
        schedule.finish()
    return tally
