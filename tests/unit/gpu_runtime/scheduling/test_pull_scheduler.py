"""Which requests are offered in what order, what late messages come to, and what is refused.

`tests/property/test_pull_scheduler.py` checks the bookkeeping of leases against a model.
"""

import pickle

import pytest

from gpu_runtime.scheduling.pull_scheduler import PullScheduler, steps_to_commit
from gpu_runtime.scheduling.requests import Lease, RequestKind, SampleRequest, WorkItem
from storage.errors import SchedulingError

ROLLOUT, EXPLORE = RequestKind.ROLLOUT, RequestKind.EXPLORE


def item(name: str, kind: RequestKind = ROLLOUT, steps: int = 4, version: int = 1) -> WorkItem[str]:
    return WorkItem(name, kind, steps, version)


def scheduler(*items: WorkItem[str]) -> PullScheduler[str]:
    made: PullScheduler[str] = PullScheduler()
    made.add(items)
    return made


def pulled(queue: PullScheduler[str], worker: str = "a", room: int = 2) -> Lease[str]:
    lease = queue.pull(worker, 1, room, ROLLOUT)
    assert lease is not None
    return lease


def order(queue: PullScheduler[str], count: int, room: int = 2) -> list[tuple[str, ...]]:
    return [pulled(queue, f"worker {number}", room=room).requests for number in range(count)]


@pytest.mark.parametrize(
    ("configured", "step_s", "drafts", "steps"),
    [
        (0, None, False, 4), (0, 9.0, False, 4), (0, 0.25, False, 4), (0, 0.2, False, 8),
        (0, 0.01, False, 100), (10, 0.01, False, 10), (10, 0.01, True, 2),
        (0, None, True, 2), (1, None, True, 1),
    ],
)  # fmt: skip
def test_fours_of_steps_that_take_a_second_are_committed_unless_it_is_configured(
    configured: int, step_s: float | None, drafts: bool, steps: int
):
    assert steps_to_commit(configured, step_s, drafts) == steps


def test_requests_are_served_in_the_order_of_their_coming():
    queue = scheduler(*map(item, ("1a", "1b", "1c", "2a", "3a")))
    assert order(queue, 3) == [("1a", "1b"), ("1c", "2a"), ("3a",)]
    assert queue.pull("a", 1, 2, ROLLOUT) is None


def test_of_requests_of_different_lengths_those_that_came_first_go_first():
    queue = scheduler(item("a4"), item("b4"), item("a8", steps=8), item("b8", steps=8))
    assert [name for (name,) in order(queue, 4, room=1)] == ["a4", "b4", "a8", "b8"]


def test_a_lease_goes_on_from_one_committed_step_and_the_furthest_comes_first():
    queue = scheduler(*map(item, "abc"))
    lease = pulled(queue, room=4)
    queue.commit(lease, {"a": (2, "at 2"), "b": (1, "at 1"), "c": (2, "at 2 too")})
    queue.hand_back(lease)
    queue.add([item("d")])  # fresh, so behind them
    first, second, third = (pulled(queue, worker, room=4) for worker in ("a", "b", "c"))
    assert (first.requests, first.step, first.states) == (("a", "c"), 2, ("at 2", "at 2 too"))
    assert (second.requests, second.step, second.states) == (("b",), 1, ("at 1",))
    assert (third.requests, third.step) == (("d",), 0)


def test_of_requests_that_are_equally_far_those_that_came_back_first_go_first():
    queue = scheduler(item("a4"), item("b8", steps=8))
    for lease in [pulled(queue, worker, room=1) for worker in ("a", "b")]:
        queue.commit(lease, {lease.requests[0]: (2, "at 2")})
        queue.hand_back(lease)
    assert order(queue, 2, room=1) == [("a4",), ("b8",)]


def test_a_worker_has_one_lease_of_the_kind_that_it_asks_for():
    queue = scheduler(item("x", EXPLORE), item("r"), item("later"))
    assert queue.following(1, EXPLORE) == item("x", EXPLORE)
    lease = pulled(queue, room=1)
    assert lease.requests == ("r",)
    assert queue.pull("a", 1, 1, EXPLORE) is None
    queue.deliver(lease, ["r"])
    explored = queue.pull("a", 1, 1, EXPLORE)
    assert explored is not None and (explored.requests, explored.kind) == (("x",), EXPLORE)


def test_a_fresh_request_that_came_back_has_its_turn_first():
    queue = scheduler(*map(item, "0123"))
    pulled(queue, "lost")
    alive = pulled(queue, "alive")
    assert queue.on_worker_lost("lost") == ("0", "1")
    assert queue.on_worker_lost("lost") == ()
    assert queue.hand_back(alive) == ("2", "3")
    assert queue.hand_back(alive) == ()
    assert order(queue, 2) == [("2", "3"), ("0", "1")]


def test_a_late_commit_counts_if_it_is_ahead():
    queue = scheduler(item("r"))
    late = pulled(queue, "slow")
    queue.expire(late, {})
    # It waits: the next one goes on from the late commit.
    assert queue.commit(late, {"r": (2, "late 2")}) == ()
    fresh = pulled(queue, "fast")
    assert (fresh.step, fresh.states) == (2, ("late 2",))
    # It is leased: recorded, but the lease stays where it is.
    assert queue.commit(late, {"r": (3, "late 3")}) == ()
    assert queue.commit(fresh, {"r": (2, "behind")}) == ("r",)
    assert queue.commit(fresh, {"r": (3, "the same bits")}) == ("r",)
    assert queue.committed("r") == (3, "late 3")
    assert queue.counters.stale_commits == 1
    assert queue.expire(late, {"r": 4}) == ()
    assert queue.expire(fresh, {"r": 4}) == ("r",)
    counters = queue.counters
    assert (counters.expired, counters.redone_steps, counters.commits, counters.returned) == (2, 1, 4, 2)


def test_a_late_delivery_is_accepted_once_and_tells_the_other_worker_to_stop():
    queue = scheduler(item("a"), item("b"))
    late = pulled(queue, "slow")
    queue.expire(late, {})
    again = pulled(queue, "fast")
    assert again.requests == late.requests
    assert queue.deliver(late, ["a"]) == ("a",)
    assert queue.commit(again, {}) == ("b",)
    assert queue.deliver(again, ["a", "b"]) == ("b",)
    assert queue.commit(again, {}) == ()
    assert queue.deliver(late, ["b"]) == ()
    assert queue.counters.duplicates == 2
    assert (queue.unfinished(), queue.waiting()) == (0, 0)


def test_two_open_requests_of_one_identity_are_refused_whole():
    queue = scheduler(item("a"))
    with pytest.raises(SchedulingError, match="'a' is already open"):
        queue.add([item("b"), item("a")])
    assert queue.unfinished() == 1
    with pytest.raises(SchedulingError, match="'c' is already open"):
        queue.add([item("c"), item("c")])
    assert queue.waiting() == 1


def test_an_identity_may_come_again_and_leases_from_before_do_not_touch_it():
    queue = scheduler(item("a"))
    before = pulled(queue)
    queue.drop(["a"])
    queue.add([item("a", steps=9)])
    assert queue.commit(before, {"a": (4, "of before")}) == ()
    assert queue.deliver(before, ["a"]) == ()
    assert queue.committed("a") == (0, None)
    assert (queue.counters.stale_commits, queue.counters.duplicates) == (1, 1)
    assert queue.deliver(pulled(queue), ["a"]) == ("a",)
    assert queue.committed("a") is None


@pytest.mark.parametrize("step", [-1, 5])
def test_a_commit_outside_of_the_steps_is_refused_whole(step: int):
    queue = scheduler(item("a"), item("b"))
    lease = pulled(queue)
    with pytest.raises(SchedulingError, match=f"at step {step}; commit from 0 to 4"):
        queue.commit(lease, {"a": (1, "s"), "b": (step, "s")})
    assert queue.committed("a") == (0, None)


def test_requests_of_other_leases_are_refused():
    queue = scheduler(item("a"), item("b"))
    lease = pulled(queue, room=1)
    with pytest.raises(SchedulingError, match="not granted here for \\['b'\\]"):
        queue.deliver(lease, ["b"])
    with pytest.raises(SchedulingError, match="not granted here"):
        queue.commit(lease, {"b": (1, "s")})
    with pytest.raises(SchedulingError, match="not granted here"):
        scheduler(item("a")).deliver(lease, ["a"])
    assert queue.unfinished() == 2


def test_items_that_cannot_be_are_refused():
    with pytest.raises(SchedulingError, match="takes 0 steps"):
        item("a", steps=0)


def test_a_lease_survives_the_way_to_a_worker_and_back():
    request = SampleRequest(ROLLOUT, 0, 1, 2, 3, 1, "a cube")
    queue: PullScheduler[SampleRequest] = PullScheduler()
    queue.add([WorkItem(request, ROLLOUT, 4, 1)])
    back = pickle.loads(pickle.dumps(queue.pull("a", 1, 2, ROLLOUT)))
    assert queue.commit(back, {back.requests[0]: (2, "s")}) == (request,)
    assert queue.deliver(back, back.requests) == (request,)


def test_ended_leases_do_not_pile_up():
    queue: PullScheduler[int] = PullScheduler()
    queue.add(WorkItem(number, ROLLOUT, 1, 1) for number in range(1000))
    stays = queue.pull("stays", 1, 1, ROLLOUT)
    for number in range(1, 1000):
        lease = queue.pull(f"worker {number}", 1, 1, ROLLOUT)
        assert lease is not None
        queue.deliver(lease, lease.requests)
    assert len(pickle.dumps(queue)) < 10_000
    assert stays is not None and queue.hand_back(stays) == stays.requests
