"""A phase under a virtual clock, pulled and pushed; times worked by hand."""

from __future__ import annotations

import pytest

from benchmarks.simulated_phase import GenerationPhase, SimulatedDevice
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.work_items import WorkItem
from gpu_runtime.simulator.push_dispatch import PushDispatch
from storage.errors import SchedulingError

BATCH, STEPS, COMMIT_STEPS = 2, 4, 2


def items(batches: int) -> list[WorkItem[int]]:
    return [WorkItem(number, RequestKind.ROLLOUT, STEPS, 1) for number in range(batches * BATCH)]


def run(scheduler: PullScheduler[int], *devices: SimulatedDevice) -> float:
    return GenerationPhase(scheduler, devices, 1, BATCH, COMMIT_STEPS).run()


def pulled(batches: int, *devices: SimulatedDevice) -> float:
    scheduler: PullScheduler[int] = PullScheduler(BATCH, 1e9, BATCH)
    scheduler.add(items(batches))
    return run(scheduler, *devices)


def pushed(batches: int, *devices: SimulatedDevice) -> float:
    first = [device.name for device in devices if device.since_s == 0]
    scheduler: PushDispatch[int] = PushDispatch(BATCH, 1e9, BATCH, first, 1)
    scheduler.add(items(batches))
    return run(scheduler, *devices)


FAST, SLOW = SimulatedDevice("fast", 1.0), SimulatedDevice("slow", 3.0)


def test_a_batch_takes_its_steps_under_either_dispatch():
    assert pulled(1, FAST) == pushed(1, FAST) == 4.0
    assert pulled(5, FAST) == pushed(5, FAST) == 20.0


def test_who_is_fast_pulls_more_and_a_dealt_share_waits_for_the_slow_one():
    # Six batches of 4 and of 12 seconds. Pulling: the slow one takes its second at 12, when the fast one
    # has done three and takes its fourth, the last. Pushing: three each.
    assert pulled(6, FAST, SLOW) == 24.0
    assert pushed(6, FAST, SLOW) == 36.0
    # Of four, the slow one pulls one; dealt, it has two.
    assert pulled(4, FAST, SLOW) == 12.0
    assert pushed(4, FAST, SLOW) == 24.0


def test_a_lost_device_s_work_goes_on_from_its_commit():
    lost = SimulatedDevice("lost", 1.0, until_s=3.0)
    # It has committed two steps at 2; the other one does its own batch until 4, then the two left.
    assert pulled(2, FAST, lost) == 6.0
    assert pushed(2, FAST, lost) == 6.0


def test_a_lost_device_s_share_is_dealt_over_those_left():
    lost = SimulatedDevice("lost", 1.0, until_s=0.5)
    third = SimulatedDevice("third", 1.0)
    # Six batches: two each; the two of the lost one go to the first and the third.
    assert pushed(6, FAST, lost, third) == 12.0


def test_a_newcomer_pulls_at_once_and_has_no_share_before_one_is_lost():
    newcomer = SimulatedDevice("new", 1.0, since_s=4.0)
    assert pulled(5, FAST, newcomer) == 12.0
    assert pushed(5, FAST, newcomer) == 20.0
    lost = SimulatedDevice("lost", 1.0, until_s=5.0)
    # Two of four are the lost one's; it has done one at 4. Its other is dealt to the first, whose turn it is.
    assert pushed(4, FAST, lost, newcomer) == 12.0


def test_alone_a_newcomer_gets_all():
    lost = SimulatedDevice("lost", 1.0, until_s=1.0)
    assert pushed(2, lost, SimulatedDevice("new", 1.0, since_s=10.0)) == 18.0
    assert pulled(2, lost, SimulatedDevice("new", 1.0, since_s=10.0)) == 18.0


def test_no_device_left_is_an_error():
    with pytest.raises(SchedulingError, match="2 requests are left"):
        pulled(1, SimulatedDevice("lost", 1.0, until_s=1.0))


def test_each_request_is_delivered_once_when_pushed():
    scheduler: PushDispatch[int] = PushDispatch(BATCH, 1e9, BATCH, ["fast", "lost"], 1)
    scheduler.add(items(7))
    run(scheduler, FAST, SimulatedDevice("lost", 1.0, until_s=9.0), SimulatedDevice("new", 1.0, 2.0))
    assert scheduler.done() and scheduler.waiting() == 0
    assert (scheduler.counters.duplicates, scheduler.counters.returned) == (0, BATCH)
