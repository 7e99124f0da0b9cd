import pytest

from gpu_runtime.scheduling.pull_queue import PullQueue


def test_every_request_is_delivered_once_in_batches():
    queue = PullQueue(range(5), 2)
    served = []
    while not queue.done:
        lease = queue.pull("a")
        assert lease is not None and len(lease.requests) <= 2
        served += queue.deliver(lease)
    assert served == [0, 1, 2, 3, 4]
    assert queue.pull("a") is None


def test_what_a_lost_worker_held_comes_first_again():
    queue = PullQueue(range(6), 2)
    lost = queue.pull("lost")
    queue.pull("alive")
    assert lost is not None
    assert queue.give_back("lost") == 2
    again = queue.pull("alive")
    assert again is not None and again.requests == lost.requests
    assert queue.returned == 2


def test_requests_that_come_later_wait_behind_the_others():
    queue = PullQueue([1], 2)
    queue.add([2, 3])
    assert (queue.waiting, queue.following, queue.done) == (3, 1, False)
    lease = queue.pull("a")
    assert lease is not None and lease.requests == (1, 2)
    with pytest.raises(ValueError, match="occurs twice"):
        queue.add([2])
    queue.deliver(lease)
    assert (queue.waiting, queue.following) == (1, 3)


def test_a_lease_holds_requests_that_are_alike():
    queue = PullQueue([1, 3, 2, 4, 6, 5], 2, alike=lambda number: number % 2)
    leases = [queue.pull("a") for _ in range(5)]
    assert [lease.requests for lease in leases if lease] == [(1, 3), (2, 4), (6,), (5,)]


def test_a_late_duplicate_is_dropped_and_counted():
    queue = PullQueue(range(2), 2)
    late = queue.pull("slow")
    assert late is not None
    queue.give_back("slow")
    again = queue.pull("fast")
    assert again is not None
    assert queue.deliver(again) == [0, 1]
    assert queue.deliver(late) == []
    assert queue.duplicates == 2
    assert queue.done


def test_a_request_delivered_late_is_not_served_again():
    queue = PullQueue(range(3), 3)
    late = queue.pull("slow")
    assert late is not None
    queue.give_back("slow")
    assert queue.deliver(late) == [0, 1, 2]
    assert queue.pull("fast") is None


def test_two_requests_of_one_identity_are_refused():
    with pytest.raises(ValueError, match="occurs twice"):
        PullQueue([1, 1], 2)
