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
