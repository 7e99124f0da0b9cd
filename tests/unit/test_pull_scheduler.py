import pickle
from typing import Any

import pytest

from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.scheduling.work_items import Lease, WorkItem
from storage.errors import SchedulingError

ROLLOUT, EVALUATE, EXPLORE = RequestKind.ROLLOUT, RequestKind.EVALUATE, RequestKind.EXPLORE
LEASE_S = 10.0


def item(name: str, kind: RequestKind = ROLLOUT, prompt: int = 0, steps: int = 4, version: int = 1):
    return WorkItem(name, kind, steps, prompt, version)


def scheduler(*items: WorkItem[str], batch_size: int = 2, max_held: int = 8) -> PullScheduler[str]:
    made: PullScheduler[str] = PullScheduler(batch_size, LEASE_S, max_held)
    made.add(items)
    return made


def pulled(queue: PullScheduler[str], worker: str = "a", now: float = 0.0, **others: Any) -> Lease[str]:
    lease = queue.pull(worker, now, **{"holds": 1, "room": 8, **others})
    assert lease is not None
    return lease


def nothing(queue: PullScheduler[str], worker: str = "a", now: float = 0.0, **others: Any) -> bool:
    return queue.pull(worker, now, **{"holds": 1, "room": 8, **others}) is None


# What is served, and to whom


def test_prompts_take_turns_however_many_requests_each_has():
    queue = scheduler(*(item(name, prompt=int(name[0])) for name in ("1a", "1b", "1c", "2a", "3a")))
    assert [pulled(queue).requests for _ in range(3)] == [("1a", "2a"), ("3a", "1b"), ("1c",)]
    assert nothing(queue)


def test_rollout_and_evaluation_take_turns_and_come_before_exploration():
    queue = scheduler(item("x", EXPLORE), batch_size=1)
    queue.add(item(f"r{number}") for number in range(3))
    queue.add(item(f"e{number}", EVALUATE) for number in range(3))
    queue.open_window()
    served = [pulled(queue).requests[0] for _ in range(7)]
    assert served == ["e0", "r0", "e1", "r1", "e2", "r2", "x"]


def test_requests_of_different_lengths_take_turns():
    queue = scheduler(item("a4"), item("b4"), item("a8", steps=8), item("b8", steps=8), batch_size=1)
    assert [pulled(queue).requests[0] for _ in range(4)] == ["a4", "a8", "b4", "b8"]


def test_exploration_is_served_only_while_a_window_is_open():
    queue = scheduler(*(item(f"x{number}", EXPLORE) for number in range(3)), batch_size=1)
    assert nothing(queue)
    queue.open_window()
    lease = pulled(queue)
    assert queue.close_window() == ("x0",)
    assert nothing(queue, "b")
    # Kept: what was leased may still be committed and delivered.
    assert queue.commit(lease, {"x0": (2, "s")}, 1.0) == ("x0",)
    assert queue.deliver(lease, ["x0"], 2.0) == ("x0",)
    assert queue.close_window() == ()
    assert (queue.waiting(EXPLORE), queue.done()) == (2, False)


def test_what_is_dropped_is_neither_served_nor_accepted():
    queue = scheduler(item("x0", EXPLORE), item("x1", EXPLORE), item("x2", EXPLORE), item("r"))
    queue.open_window()
    assert pulled(queue).requests == ("r",)
    lease = pulled(queue)
    assert queue.drop(queue.close_window()) == 2
    assert queue.drop(["x0"]) == 0
    assert queue.commit(lease, {"x0": (1, "s")}, 1.0) == ()
    assert queue.deliver(lease, ["x0"], 1.0) == ()
    assert (queue.counters.duplicates, queue.counters.stale_commits) == (1, 1)
    assert queue.drop_waiting(EXPLORE) == 1
    assert queue.done(EXPLORE) and not queue.done()
    assert queue.drop_waiting(ROLLOUT) == 0  # it is leased


def test_a_worker_is_offered_only_the_version_that_it_holds():
    queue = scheduler(item("old", EXPLORE, version=1), item("new", version=2))
    queue.open_window()
    assert pulled(queue, holds=1).requests == ("old",)
    assert nothing(queue, holds=1)
    assert nothing(queue, holds=3)
    assert pulled(queue, holds=2).version == 2


def test_a_worker_is_offered_only_the_kinds_that_it_may_do():
    queue = scheduler(item("r"), item("e", EVALUATE), item("x", EXPLORE))
    assert nothing(queue, kinds={EXPLORE})
    queue.open_window()
    assert pulled(queue, kinds={EXPLORE}).requests == ("x",)
    assert pulled(queue, kinds={EVALUATE}).requests == ("e",)
    assert nothing(queue, kinds={EVALUATE})


def test_a_lease_holds_requests_of_one_length_and_one_committed_step():
    queue = scheduler(item("a"), item("b", steps=8), item("c"), batch_size=4)
    assert [pulled(queue).requests for _ in range(2)] == [("a", "c"), ("b",)]
    queue = scheduler(item("a"), item("b"), item("c"), batch_size=4)
    lease = pulled(queue)
    queue.commit(lease, {"a": (2, "at 2"), "b": (1, "at 1"), "c": (2, "at 2 too")}, 0.0)
    queue.hand_back("a")
    first, second = pulled(queue), pulled(queue)
    assert (first.requests, first.step, first.states) == (("a", "c"), 2, ("at 2", "at 2 too"))
    assert (second.requests, second.step, second.states) == (("b",), 1, ("at 1",))


def test_what_goes_on_from_a_commit_comes_before_all_that_is_fresh():
    queue = scheduler(item("r0"), item("r1"), item("r2", prompt=7), batch_size=1)
    lease = pulled(queue)
    queue.commit(lease, {"r0": (3, "s")}, 0.0)
    queue.hand_back(lease)
    queue.add([item("e", EVALUATE)])  # it would be its turn
    again = pulled(queue, "b")
    assert (again.requests, again.step, again.states) == (("r0",), 3, ("s",))


def test_exploration_that_goes_on_still_comes_after_a_fresh_rollout():
    queue = scheduler(item("x", EXPLORE))
    queue.open_window()
    queue.commit(pulled(queue), {"x": (3, "s")}, 0.0)
    queue.hand_back("a")
    queue.add([item("r")])
    assert [pulled(queue).requests for _ in range(2)] == [("r",), ("x",)]


def test_of_two_that_go_on_the_furthest_comes_first():
    queue = scheduler(item("r0"), item("r1"), item("r2"), batch_size=3)
    queue.commit(pulled(queue), {"r0": (1, "s"), "r1": (3, "s"), "r2": (2, "s")}, 0.0)
    queue.hand_back("a")
    assert [pulled(queue).requests for _ in range(3)] == [("r1",), ("r2",), ("r0",)]


def test_a_fresh_request_that_came_back_has_its_turn_first():
    queue = scheduler(*(item(f"{prompt}", prompt=prompt) for prompt in range(4)))
    pulled(queue, "lost")
    pulled(queue, "alive")
    assert queue.lose("lost") == ("0", "1")
    assert queue.hand_back("alive") == ("2", "3")
    assert [pulled(queue).requests for _ in range(2)] == [("2", "3"), ("0", "1")]


def test_a_lease_is_bounded_by_room_and_by_what_the_worker_holds():
    queue = scheduler(*(item(str(number)) for number in range(9)), batch_size=4, max_held=6)
    assert nothing(queue, room=0)
    assert len(pulled(queue, room=3).requests) == 3
    assert len(pulled(queue).requests) == 3
    assert queue.held("a") == 6
    assert nothing(queue)
    assert len(pulled(queue, "b").requests) == 3


# Leases that end


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


def test_an_overdue_lease_that_nobody_expired_is_still_renewed():
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


def test_a_notice_hands_back_and_draining_offers_nothing_more():
    queue = scheduler(item("a"), item("b"), item("c"), batch_size=1)
    first, second = pulled(queue), pulled(queue)
    queue.drain("a")
    assert nothing(queue)
    # Draining alone lets the worker finish.
    assert queue.commit(first, {}, 1.0) == first.requests
    assert queue.hand_back(first) == first.requests
    assert queue.hand_back(first) == ()
    assert queue.hand_back("a") == second.requests
    assert queue.held("a") == 0 and queue.counters.returned == 2
    queue.admit("a")
    assert pulled(queue).requests == second.requests


def test_a_loss_counts_the_steps_to_be_done_again():
    queue = scheduler(item("a"), item("b"), item("c"), batch_size=3)
    lease = pulled(queue)
    queue.commit(lease, {"a": (1, "s"), "b": (2, "s")}, 0.0)
    queue.drain("a")
    # a: 3 done, 1 committed; b: nothing past its commit; c: 2 done, none committed; z: not its own.
    assert sorted(queue.lose("a", {"a": 3, "b": 2, "c": 2, "z": 4})) == ["a", "b", "c"]
    assert queue.counters.redone_steps == 2 + 0 + 2
    assert queue.lose("a", {"a": 3}) == ()
    # The name is free: a new process under it is served.
    assert pulled(queue).requests == ("b",)


# What is refused


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
    queue.add([WorkItem(request, ROLLOUT, 4, request.prompt_id, 1)])
    lease = queue.pull("a", 0.0, 1, 2)
    back = pickle.loads(pickle.dumps(lease))
    assert queue.commit(back, {back.requests[0]: (2, "s")}, 1.0) == (request,)
    assert queue.deliver(back, back.requests, 2.0) == (request,)


def test_ended_leases_do_not_pile_up():
    queue: PullScheduler[int] = PullScheduler(1, 1e9, 1)
    queue.add(WorkItem(number, ROLLOUT, 1, 0, 1) for number in range(1000))
    stays = queue.pull("stays", 0.0, 1, 1)
    for number in range(1, 1000):
        lease = queue.pull(f"worker {number}", 0.0, 1, 1)
        assert lease is not None
        queue.deliver(lease, lease.requests, 0.0)
    assert queue.next_expiry_s == 1e9
    assert len(pickle.dumps(queue)) < 10_000
    assert queue.expire(1e9) == (stays,)
