"""Which requests a worker is offered, and in what order."""

from gpu_runtime.scheduling.requests import RequestKind
from tests.small_scheduler import item, nothing, pulled, scheduler

ROLLOUT, EVALUATE, EXPLORE = RequestKind.ROLLOUT, RequestKind.EVALUATE, RequestKind.EXPLORE


def test_requests_are_served_in_the_order_of_their_coming():
    queue = scheduler(*map(item, ("1a", "1b", "1c", "2a", "3a")))
    assert [pulled(queue).requests for _ in range(3)] == [("1a", "1b"), ("1c", "2a"), ("3a",)]
    assert nothing(queue)


def test_rollout_and_evaluation_take_turns_and_come_before_exploration():
    queue = scheduler(item("x", EXPLORE), batch_size=1)
    queue.add(item(f"r{number}") for number in range(3))
    queue.add(item(f"e{number}", EVALUATE) for number in range(3))
    served = [pulled(queue).requests[0] for _ in range(7)]
    assert served == ["e0", "r0", "e1", "r1", "e2", "r2", "x"]


def test_of_requests_of_different_lengths_those_that_came_first_go_first():
    queue = scheduler(item("a4"), item("b4"), item("a8", steps=8), item("b8", steps=8), batch_size=1)
    assert [pulled(queue).requests[0] for _ in range(4)] == ["a4", "b4", "a8", "b8"]


def test_what_is_dropped_is_neither_served_nor_accepted():
    queue = scheduler(item("x0", EXPLORE), item("x1", EXPLORE), item("x2", EXPLORE), item("r"))
    assert pulled(queue).requests == ("r",)
    lease = pulled(queue)
    assert queue.drop(lease.requests) == 2
    assert queue.drop(["x0"]) == 0
    assert queue.commit(lease, {"x0": (1, "s")}, 1.0) == ()
    assert queue.deliver(lease, ["x0"], 1.0) == ()
    assert (queue.counters.duplicates, queue.counters.stale_commits) == (1, 1)
    assert queue.drop_waiting(EXPLORE) == 1
    assert queue.done(EXPLORE) and not queue.done()
    assert queue.drop_waiting(ROLLOUT) == 0  # it is leased


def test_a_worker_is_offered_only_the_version_that_it_holds():
    queue = scheduler(item("old", EXPLORE, version=1), item("new", version=2))
    assert pulled(queue, holds=1).requests == ("old",)
    assert nothing(queue, holds=1)
    assert nothing(queue, holds=3)
    assert pulled(queue, holds=2).version == 2


def test_a_worker_is_offered_only_the_kinds_that_it_may_do():
    queue = scheduler(item("r"), item("e", EVALUATE), item("x", EXPLORE))
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
    queue = scheduler(item("r0"), item("r1"), item("r2"), batch_size=1)
    lease = pulled(queue)
    queue.commit(lease, {"r0": (3, "s")}, 0.0)
    queue.hand_back(lease)
    queue.add([item("e", EVALUATE)])  # it would be its turn
    again = pulled(queue, "b")
    assert (again.requests, again.step, again.states) == (("r0",), 3, ("s",))


def test_exploration_that_goes_on_still_comes_after_a_fresh_rollout():
    queue = scheduler(item("x", EXPLORE))
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
    queue = scheduler(*(item(str(number)) for number in range(4)))
    pulled(queue, "lost")
    pulled(queue, "alive")
    assert queue.on_worker_lost("lost") == ("0", "1")
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
