"""How leases end, what late messages come to, and what is refused."""

import pickle

import pytest

from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WorkItem
from storage.errors import SchedulingError
from tests.small_scheduler import LEASE_S, item, nothing, pulled, scheduler

ROLLOUT = RequestKind.ROLLOUT


def test_a_lease_that_is_not_renewed_expires_and_goes_on_from_its_last_commit():
    queue = scheduler(item("r"))
    lease = pulled(queue, "hung", now=0.0)
    assert queue.next_expiry_s == 10.0
    queue.commit(lease, {"r": (2, "s")}, 4.0)  # renews until 14
    assert queue.expire(13.9) == ()
    assert queue.next_expiry_s == 14.0
    assert queue.expire(14.0) == (lease,)
    assert queue.next_expiry_s is None
    again = pulled(queue, "b", now=14.0)
    assert (again.step, again.states) == (2, ("s",))
    assert (queue.counters.expired, queue.counters.returned) == (1, 1)


def test_an_overdue_lease_that_was_not_expired_is_still_renewed():
    queue = scheduler(item("r"))
    lease = pulled(queue, now=0.0)
    assert queue.commit(lease, {}, 50.0) == ("r",)
    assert queue.expire(59.0) == ()


def test_a_clock_that_steps_back_does_not_shorten_a_lease():
    queue = scheduler(item("r"))
    lease = pulled(queue, now=100.0)
    queue.commit(lease, {}, 104.0)
    queue.commit(lease, {}, 20.0)
    assert queue.expire(113.0) == ()
    assert queue.expire(114.0) == (lease,)


def test_delivering_a_part_renews_the_rest():
    queue = scheduler(item("a"), item("b"))
    lease = pulled(queue, now=0.0)
    assert queue.deliver(lease, ["a"], 8.0) == ("a",)
    assert queue.expire(17.0) == ()
    assert queue.held("a") == 1
    assert queue.expire(18.0) == (lease,)
    assert queue.deliver(lease, ["a", "b"], 19.0) == ("b",)
    assert queue.counters.duplicates == 1
    assert queue.done() and queue.waiting() == 0


def test_a_late_commit_counts_if_it_is_ahead_of_what_is_known():
    queue = scheduler(item("r"))
    late = pulled(queue, "slow")
    queue.expire(10.0)
    # It waits: the next one goes on from the late commit.
    assert queue.commit(late, {"r": (2, "late 2")}, 11.0) == ()
    fresh = pulled(queue, "fast", now=11.0)
    assert (fresh.step, fresh.states) == (2, ("late 2",))
    # It is leased: recorded, but the lease stays where it is.
    assert queue.commit(late, {"r": (3, "late 3")}, 12.0) == ()
    assert queue.committed("r") == (3, "late 3")
    assert queue.commit(fresh, {"r": (2, "behind")}, 13.0) == ("r",)
    assert queue.commit(fresh, {"r": (3, "the same bits")}, 13.0) == ("r",)
    assert queue.committed("r") == (3, "late 3")
    assert queue.counters.stale_commits == 1
    # What the late one sent renewed nothing; what the valid one sent did.
    assert queue.expire(22.9) == ()
    assert queue.expire(23.0) == (fresh,)


def test_a_late_delivery_is_accepted_once_and_tells_the_other_worker_to_stop():
    queue = scheduler(item("a"), item("b"))
    late = pulled(queue, "slow")
    queue.expire(10.0)
    again = pulled(queue, "fast", now=10.0)
    assert again.requests == late.requests
    assert queue.deliver(late, ["a"], 11.0) == ("a",)
    assert queue.commit(again, {}, 12.0) == ("b",)
    assert queue.held("fast") == 1
    assert queue.deliver(again, ["a", "b"], 13.0) == ("b",)
    assert queue.commit(again, {}, 14.0) == ()
    assert queue.deliver(late, ["b"], 15.0) == ()
    assert queue.counters.duplicates == 2
    assert queue.done() and queue.held("fast") == 0


def test_a_late_delivery_of_what_waits_again_is_not_served_again():
    queue = scheduler(item("a"), item("b"))
    late = pulled(queue, "slow")
    queue.commit(late, {"a": (1, "s")}, 1.0)
    queue.expire(11.0)
    assert queue.deliver(late, ["a", "b"], 12.0) == ("a", "b")
    assert nothing(queue, "fast")
    assert (queue.done(), queue.waiting(), queue.counters.returned) == (True, 0, 2)


def test_a_notice_hands_back_one_lease_or_all_of_a_worker():
    queue = scheduler(item("a"), item("b"), item("c"), batch_size=1)
    first, second = pulled(queue), pulled(queue)
    assert queue.hand_back(first) == first.requests
    assert queue.hand_back(first) == ()
    assert queue.hand_back("a") == second.requests
    assert queue.held("a") == 0 and queue.counters.returned == 2
    assert pulled(queue).requests == second.requests


def test_a_loss_counts_the_steps_to_be_done_again():
    queue = scheduler(item("a"), item("b"), item("c"), batch_size=3)
    lease = pulled(queue)
    queue.commit(lease, {"a": (1, "s"), "b": (2, "s")}, 0.0)
    # a: 3 done, 1 committed; b: nothing past its commit; c: 2 done, none committed; z: not its own.
    assert sorted(queue.on_worker_lost("a", {"a": 3, "b": 2, "c": 2, "z": 4})) == ["a", "b", "c"]
    assert queue.counters.redone_steps == 2 + 0 + 2
    assert queue.on_worker_lost("a", {"a": 3}) == ()
    # The name is free: a new process under it is served.
    assert pulled(queue).requests == ("b",)


def test_two_open_requests_of_one_identity_are_refused_whole():
    queue = scheduler(item("a"))
    with pytest.raises(SchedulingError, match="'a' is open already"):
        queue.add([item("b"), item("a")])
    assert queue.unfinished() == 1
    with pytest.raises(SchedulingError, match="'c' is open already"):
        queue.add([item("c"), item("c")])
    assert queue.waiting() == 1


def test_an_identity_may_come_again_and_leases_from_before_do_not_touch_it():
    queue = scheduler(item("a"))
    before = pulled(queue)
    queue.drop(["a"])
    queue.add([item("a", steps=9)])
    assert queue.commit(before, {"a": (4, "of before")}, 0.0) == ()
    assert queue.deliver(before, ["a"], 0.0) == ()
    assert queue.committed("a") == (0, None)
    assert (queue.counters.stale_commits, queue.counters.duplicates) == (1, 1)
    again = pulled(queue)
    assert queue.deliver(again, ["a"], 0.0) == ("a",)
    assert queue.committed("a") is None


@pytest.mark.parametrize("step", [-1, 5])
def test_a_commit_outside_of_the_steps_is_refused_whole(step: int):
    queue = scheduler(item("a"), item("b"))
    lease = pulled(queue)
    with pytest.raises(SchedulingError, match=f"at step {step}; commit from 0 to 4"):
        queue.commit(lease, {"a": (1, "s"), "b": (step, "s")}, 9.0)
    assert queue.committed("a") == (0, None)
    assert queue.expire(10.0) == (lease,)  # not renewed either


def test_requests_of_other_leases_are_refused():
    queue = scheduler(item("a"), item("b"), batch_size=1)
    lease = pulled(queue)
    with pytest.raises(SchedulingError, match="not granted here for \\['b'\\]"):
        queue.deliver(lease, ["b"], 0.0)
    with pytest.raises(SchedulingError, match="not granted here"):
        queue.commit(lease, {"b": (1, "s")}, 0.0)
    with pytest.raises(SchedulingError, match="not granted here"):
        scheduler(item("a")).deliver(lease, ["a"], 0.0)
    assert queue.unfinished() == 2


def test_settings_and_items_that_cannot_be_are_refused():
    with pytest.raises(SchedulingError, match="each must be above 0"):
        PullScheduler(0, 1.0, 1)
    with pytest.raises(SchedulingError, match="takes 0 steps"):
        item("a", steps=0)


def test_a_lease_survives_the_way_to_a_worker_and_back():
    request = SampleRequest(ROLLOUT, 0, 1, 2, 3, 1, "a cube")
    queue: PullScheduler[SampleRequest] = PullScheduler(2, LEASE_S, 2)
    queue.add([WorkItem(request, ROLLOUT, 4, 1)])
    lease = queue.pull("a", 0.0, 1, 2)
    back = pickle.loads(pickle.dumps(lease))
    assert queue.commit(back, {back.requests[0]: (2, "s")}, 1.0) == (request,)
    assert queue.deliver(back, back.requests, 2.0) == (request,)


def test_ended_leases_do_not_pile_up():
    queue: PullScheduler[int] = PullScheduler(1, 1e9, 1)
    queue.add(WorkItem(number, ROLLOUT, 1, 1) for number in range(1000))
    stays = queue.pull("stays", 0.0, 1, 1)
    for number in range(1, 1000):
        lease = queue.pull(f"worker {number}", 0.0, 1, 1)
        assert lease is not None
        queue.deliver(lease, lease.requests, 0.0)
    assert queue.next_expiry_s == 1e9
    assert len(pickle.dumps(queue)) < 10_000
    assert queue.expire(1e9) == (stays,)
