"""Whatever workers do, each request is accepted exactly once and none is forgotten."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_runtime.scheduling.pull_queue import Lease, PullQueue

WORKERS = ("a", "b", "c")
COUNT = 12


class Pulling(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.queue = PullQueue(range(COUNT), 3)
        self.held: list[Lease[int]] = []
        self.given_back: list[Lease[int]] = []
        self.accepted: list[int] = []
        self.dropped = 0

    @rule(worker=st.sampled_from(WORKERS))
    def pull(self, worker):
        lease = self.queue.pull(worker)
        if lease is not None:
            assert 1 <= len(lease.requests) <= 3
            self.held.append(lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def deliver(self, data):
        lease = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self._deliver(lease)

    @precondition(lambda self: self.given_back)
    @rule(data=st.data())
    def deliver_late(self, data):
        self._deliver(self.given_back.pop(data.draw(st.integers(0, len(self.given_back) - 1))))

    @rule(worker=st.sampled_from(WORKERS))
    def lose(self, worker):
        self.queue.give_back(worker)
        self.given_back += [lease for lease in self.held if lease.holder == worker]
        self.held = [lease for lease in self.held if lease.holder != worker]

    def _deliver(self, lease):
        accepted = self.queue.deliver(lease)
        self.accepted += accepted
        self.dropped += len(lease.requests) - len(accepted)

    @invariant()
    def accepted_at_most_once_and_counted(self):
        assert len(self.accepted) == len(set(self.accepted))
        assert self.queue.duplicates == self.dropped
        assert self.queue.done == (len(self.accepted) == COUNT)

    def teardown(self):
        for worker in WORKERS:
            self.lose(worker)
        while (lease := self.queue.pull("last")) is not None:
            self._deliver(lease)
        assert sorted(self.accepted) == list(range(COUNT))


TestPulling = Pulling.TestCase
