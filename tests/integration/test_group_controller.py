"""Groups of processes under a controller: planned changes of the degree in the middle of a batch."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

from tests.group_members import STEPS, alone, await_events, controller_of, first_states, largest_error
from tests.sharing_processes import run_in_group

TOLERANCE = 1e-4


def test_a_batch_that_changes_its_degree_at_every_step_ends_as_in_one_process():
    states = first_states()
    with controller_of("a", "b", "c", "d") as controller:
        controller.submit(states, STEPS)
        degrees, events = [], []
        plans = [{1: 1.0, 2: 0.5}, {1: 1.0}, {1: 1.0, 2: 0.5, 4: 0.3}, {1: 1.0, 2: 0.5}]
        while not any(event.kind == "finished" for event in events):
            for event in await_events(controller, "step"):
                events.append(event)
                if event.kind == "step":
                    degrees.append(event.degree)
            if plans and len(degrees) < STEPS:
                controller.resize(plans.pop(0))
        assert set(degrees) == {1, 2, 4} and len(degrees) == STEPS
        finished = next(event for event in events if event.kind == "finished")
        assert largest_error(finished.value, alone(states)) <= TOLERANCE
        assert finished.value[0].trajectory.step_W.tolist() == alone(states)[0].trajectory.step_W.tolist()


def test_at_the_same_degree_a_batch_ends_with_the_same_bits_however_it_was_interrupted():
    states = first_states()
    endings = []
    for interrupted in (False, True):
        with controller_of("a", "b") as controller:
            controller.submit(states, STEPS)
            events = await_events(controller, "step", 2)
            if interrupted:  # the same members in a new group: an epoch, but no other degree
                controller.add("c")
                events += await_events(controller, "ready")
                controller.remove("b")
            while not any(event.kind == "finished" for event in events):
                events += controller.poll(0.5)
            assert {event.degree for event in events if event.kind == "step"} == {2}
            endings.append(next(event.value for event in events if event.kind == "finished"))
    assert largest_error(*endings) == 0.0


def test_a_device_too_many_works_alone_and_a_new_one_makes_the_group_grow():
    with controller_of("a", "b", "c") as controller:
        assert [len(group.members) for group in controller.book.groups] == [2, 1]
        controller.submit(first_states(1), STEPS)
        controller.submit(first_states(2), STEPS)
        events = await_events(controller, "finished", 2)
        assert {event.degree for event in events if event.kind == "step"} == {1, 2}
        controller.add("d")
        await_events(controller, "ready")
        controller.submit(first_states(3), STEPS)
        events = await_events(controller, "finished")
        assert {event.degree for event in events if event.kind == "step"} == {4}


def test_a_member_that_is_removed_leaves_between_chunks_and_nothing_is_done_twice():
    with controller_of("a", "b", "c", "d") as controller:
        controller.submit(first_states(), STEPS)
        events = await_events(controller, "step", 2)
        controller.remove("b")
        events += await_events(controller, "finished")
        degrees = [event.degree for event in events if event.kind == "step"]
        assert len(degrees) == STEPS
        assert degrees[0] == 4 and degrees[-1] == 2
        assert "b" not in {member for group in controller.book.groups for member in group.members}


def agreed_stop(member, epoch, states, name):
    """Two steps at most; `name` is under notice from the first one on."""
    return member.advance(epoch, states, 2, stop=lambda: member.name == name)


def test_a_notice_at_one_member_stops_all_at_the_same_step():
    with controller_of("a", "b") as controller:
        group = controller.book.groups[0]
        for name in group.members:
            controller.call(name, agreed_stop, group.epoch, first_states(), group.members[1])
        answers = [event.value for event in await_events(controller, "called", 2) if event.kind == "called"]
        assert [[state.step for state in states] for states in answers] == [[1] * 4] * 2
        assert largest_error(*answers) == 0.0


def recorded_collectives(group: dist.ProcessGroup) -> int:
    for _ in range(5):
        dist.all_reduce(torch.ones(1), group=group)
    native: Any = torch._C  # its stub lacks the module
    dumped = native._distributed_c10d._dump_fr_trace(
        includeCollectives=True, includeStackTraces=False, onlyActive=False
    )
    return len(pickle.loads(dumped)["entries"])


def test_members_keep_no_record_of_their_collectives():
    assert run_in_group(2, recorded_collectives) == [0, 0]
