"""Real SIGKILL and SIGSTOP in the middle of a collective: nobody hangs, the batch goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.group_members import (
    STEPS,
    alone,
    await_events,
    controller_of,
    first_states,
    largest_error,
    strike_in_collective,
)

TOLERANCE = 1e-4
HANG_S = 3.0


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 3])
def test_a_member_struck_in_mid_collective_is_replaced_by_smaller_groups(fault: signal.Signals, victim: int):
    states = first_states()
    with controller_of("a", "b", "c", "d", hang_s=HANG_S) as controller:
        name = controller.book.groups[0].members[victim]
        stopped = controller.process_id(name)
        # 3 layers of 4 collectives are a step: this one is in the third.
        controller.call(name, strike_in_collective, 29, fault)
        await_events(controller, "called")
        controller.submit(states, STEPS)
        events = await_events(controller, "finished")
        assert [event.member for event in events if event.kind == "lost"] == [name]
        degrees = [event.degree for event in events if event.kind == "step"]
        assert degrees[:2] == [4, 4] and set(degrees[2:]) == {2}
        assert len(degrees) == STEPS, "it went on from its last commit"
        finished = next(event for event in events if event.kind == "finished")
        assert largest_error(finished.value, alone(states)) <= TOLERANCE
        with pytest.raises(ProcessLookupError):
            until = time.monotonic() + 20
            while time.monotonic() < until:
                controller.poll(0.1)
                os.kill(stopped, 0)


def test_two_losses_in_a_row_leave_one_device_that_finishes():
    states = first_states()
    with controller_of("a", "b", "c", hang_s=HANG_S) as controller:
        for group in controller.book.groups:
            if len(group.members) == 2:
                for name, number in zip(group.members, (15, 60), strict=True):
                    controller.call(name, strike_in_collective, number, signal.SIGKILL)
        await_events(controller, "called", 2)
        controller.submit(states, STEPS)
        events = await_events(controller, "finished")
        assert sum(event.kind == "lost" for event in events) == 2
        finished = next(event for event in events if event.kind == "finished")
        assert largest_error(finished.value, alone(states)) <= TOLERANCE


def test_a_member_killed_while_a_group_is_formed_holds_nobody_up():
    with controller_of("a", "b", "c", "d", hang_s=HANG_S) as controller:
        name = controller.book.groups[0].members[-1]
        os.kill(controller.process_id(name), signal.SIGSTOP)
        controller.submit(first_states(), STEPS)
        controller.resize({1: 1.0, 2: 0.5})  # the stopped one cannot take its leave
        os.kill(controller.process_id(name), signal.SIGKILL)
        events = await_events(controller, "finished")
        assert [event.degree for event in events if event.kind == "step"][-1] == 2


def test_a_late_member_of_an_old_group_is_harmless():
    states = first_states()
    with controller_of("a", "b", "c", "d", hang_s=HANG_S) as controller:
        name = controller.book.groups[0].members[1]
        controller.call(name, strike_in_collective, 29, signal.SIGSTOP)
        await_events(controller, "called")
        controller.submit(states, STEPS)
        # The controller gives it up; it wakes up before it is killed, and hears that its group is gone.
        link = controller._members[name].link
        pid = controller.process_id(name)
        link.process.kill = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
        events = await_events(controller, "lost")
        os.kill(pid, signal.SIGCONT)
        events += await_events(controller, "finished")
        finished = next(event for event in events if event.kind == "finished")
        assert largest_error(finished.value, alone(states)) <= TOLERANCE
        os.kill(pid, signal.SIGKILL)
