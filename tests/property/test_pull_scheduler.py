"""Whatever workers do, nothing is lost, nothing accepted twice, and no committed step is given up."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import Lease, RequestKind, WorkItem
from tests.examples import examples

WORKERS = st.sampled_from(("a", "b", "c"))
REACHED = st.dictionaries(st.integers(0, 15), st.integers(0, 3))


@dataclass
class Known:
    """What the model knows of an open request."""

    item: WorkItem[int]
    step: int = 0
    state: object = None
    lease: int | None = None
    leases_before: int = 0  # leases up to this number are of an earlier request of this identity

    @property
    def alike(self) -> tuple[RequestKind, Hashable, int, int]:
        return self.item.kind, self.item.version, self.item.steps, self.step


class Scheduling(RuleBasedStateMachine):
    """The scheduler beside a model that looks at everything, every time."""

    leases = Bundle("leases")

    @initialize()
    def begin(self):
        self.queue: PullScheduler[int] = PullScheduler()
        self.open: dict[int, Known] = {}
        self.valid: set[int] = set()  # leases
        self.holder: dict[int, str] = {}  # of all leases
        self.granted = 0
        self.added = self.accepted = self.dropped = 0
        self.duplicates = self.stale = self.returned = self.redone = self.expired = 0
        self.serial = 0

    @rule(
        kinds=st.dictionaries(st.integers(0, 15), st.sampled_from(RequestKind), min_size=1, max_size=6),
        steps=st.sampled_from((2, 3)),
        version=st.sampled_from((1, 1, 2)),
    )
    def add(self, kinds, steps, version):
        new = [
            WorkItem(number, kind, steps, version)
            for number, kind in kinds.items()
            if number not in self.open
        ]
        self.queue.add(new)
        self.added += len(new)
        self.open |= {item.request: Known(item, leases_before=self.granted) for item in new}

    @rule(target=leases, worker=WORKERS, holds=st.sampled_from((1, 1, 2)), room=st.integers(0, 4),
          kind=st.sampled_from(RequestKind))  # fmt: skip
    def pull(self, worker, holds, room, kind):
        following = self.queue.following(holds, kind)
        lease = self.queue.pull(worker, holds, room, kind)
        works = any(self.holder[number] == worker for number in self.valid)
        fits = [
            known for known in self.open.values()
            if known.lease is None and known.item.version == holds and known.item.kind is kind
        ]  # fmt: skip
        assert (following is None) == (not fits)
        if lease is None:
            assert works or not room or not fits
            return multiple()
        assert not works and lease.holder == worker and 1 <= len(lease.requests) <= room
        assert following is not None and following.request == lease.requests[0]
        self.check_leased(lease, fits, room)
        self.granted = lease.number + 1
        self.holder[lease.number] = worker
        self.valid.add(lease.number)
        for request in lease.requests:
            self.open[request].lease = lease.number
        return lease

    def check_leased(self, lease: Lease[int], fits: list[Known], room: int):
        """What was leased waited, is alike, comes before what was left, and is as much as could be."""
        taken = [self.open[request] for request in lease.requests]
        assert all(known in fits for known in taken)
        assert {known.alike for known in taken} == {(lease.kind, lease.version, lease.steps, lease.step)}
        assert lease.states == tuple(known.state for known in taken)
        left = [known for known in fits if known not in taken]
        if len(taken) < room:
            assert all(known.alike != taken[0].alike for known in left)
        assert all(known.step <= lease.step for known in left)

    def current(self, lease: Lease[int], request: int) -> Known | None:
        known = self.open.get(request)
        return known if known is not None and lease.number >= known.leases_before else None

    @rule(lease=leases, data=st.data())
    def commit(self, lease, data):
        steps = st.dictionaries(st.sampled_from(lease.requests), st.integers(0, lease.steps))
        commits = {}
        for request, step in data.draw(steps).items():
            self.serial += 1
            commits[request] = (step, self.serial)
        held = self.queue.commit(lease, commits)
        for request, (step, state) in commits.items():
            known = self.current(lease, request)
            if known is None or step < known.step:
                self.stale += 1
            elif step > known.step:
                known.step, known.state = step, state
        assert set(held) == {r for r, known in self.open.items() if known.lease == lease.number}

    @rule(lease=leases, data=st.data())
    def deliver(self, lease, data):
        requests = data.draw(st.lists(st.sampled_from(lease.requests), max_size=4))
        accepted = self.queue.deliver(lease, requests)
        expected = []
        for request in requests:
            if self.current(lease, request) is None:
                self.duplicates += 1
            else:
                expected.append(request)
                self.forget(request)
        assert list(accepted) == expected
        self.accepted += len(expected)

    @rule(lease=leases, reached=REACHED)
    def expire(self, lease, reached):
        over = self.valid & {lease.number}
        self.expired += len(over)
        self.lose_steps(over, reached)
        assert set(self.queue.expire(lease, reached)) == self.end(over)

    @rule(lease=leases)
    def hand_back(self, lease):
        assert set(self.queue.hand_back(lease)) == self.end({lease.number})

    @rule(worker=WORKERS, reached=REACHED)
    def lose(self, worker, reached):
        numbers = {number for number in self.valid if self.holder[number] == worker}
        self.lose_steps(numbers, reached)
        assert set(self.queue.on_worker_lost(worker, reached)) == self.end(numbers)

    @rule(lease=leases)
    def drop_leased(self, lease):
        theirs = [request for request in lease.requests if request in self.open]
        for request in theirs:
            self.forget(request)
        assert self.queue.drop(lease.requests) == len(theirs)
        self.dropped += len(theirs)

    @rule(kind=st.sampled_from(RequestKind))
    def drop_waiting(self, kind):
        waiting = [r for r, known in self.open.items() if known.item.kind is kind and known.lease is None]
        for request in waiting:
            self.forget(request)
        assert self.queue.drop_waiting(kind) == len(waiting)
        self.dropped += len(waiting)

    def lose_steps(self, numbers: set[int], reached: dict[int, int]):
        for request, step in reached.items():
            known = self.open.get(request)
            if known is not None and known.lease in numbers:
                self.redone += max(0, step - known.step)

    def forget(self, request: int):
        lease = self.open.pop(request).lease
        if lease is not None and all(known.lease != lease for known in self.open.values()):
            self.valid.discard(lease)

    def end(self, numbers: set[int]) -> set[int]:
        back = {r for r, known in self.open.items() if known.lease in numbers}
        for request in back:
            self.open[request].lease = None
        self.valid -= numbers
        self.returned += len(back)
        return back

    @invariant()
    def the_scheduler_agrees_with_the_model(self):
        queue = self.queue
        assert {r: queue.committed(r) for r in range(16)} == {
            r: (self.open[r].step, self.open[r].state) if r in self.open else None for r in range(16)
        }
        for kind in RequestKind:
            of_kind = [known for known in self.open.values() if known.item.kind is kind]
            assert queue.unfinished(kind) == len(of_kind)
            assert queue.waiting(kind) == sum(known.lease is None for known in of_kind)
            waiting = sorted(known.item.steps - known.step for known in of_kind if known.lease is None)
            assert queue.waiting_steps(kind) == waiting
        counters = queue.counters
        assert (counters.duplicates, counters.stale_commits, counters.expired) == (
            self.duplicates, self.stale, self.expired
        )  # fmt: skip
        assert (counters.returned, counters.redone_steps) == (self.returned, self.redone)
        assert self.added == self.accepted + self.dropped + len(self.open)

    def teardown(self):
        """All workers die, and one that lives finishes everything."""
        if not hasattr(self, "queue"):
            return
        for worker in ("a", "b", "c"):
            self.queue.on_worker_lost(worker)
        for version, kind in itertools.product((1, 2), RequestKind):
            while (lease := self.queue.pull("last", version, 3, kind)) is not None:
                for request in self.queue.deliver(lease, lease.requests):
                    del self.open[request]  # once, and only what is open
        assert not self.queue.unfinished() and not self.open


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(examples(4), stateful_step_count=50)
