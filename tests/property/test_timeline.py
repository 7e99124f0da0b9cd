"""The states of a device follow each other without a gap and sum to its paid time."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.scheduling.device_time import PaidMeter, Timeline
from storage.clock import Clock

STATES = st.sampled_from(["rollout", "explore", "train", "load", "idle"])


@given(st.lists(st.tuples(st.floats(0, 10), STATES, st.booleans()), max_size=30))
def test_states_sum_to_the_bill(moves):
    timeline = Timeline()
    now = 100.0
    timeline.add("w", "spot", 3.6, now)
    taken = []
    for pause, state, take in moves:
        now += pause
        timeline.enter("w", state, now)
        if take:
            so_far = timeline.so_far(now)
            taken += timeline.take(now)
            assert taken[len(taken) - len(so_far) :] == so_far
    now += 1
    timeline.remove("w", now)
    taken += timeline.take(now)
    assert math.isclose(sum(i.ended_at - i.started_at for i in taken), now - 100, abs_tol=1e-6)
    assert all(a.ended_at == b.started_at for a, b in itertools.pairwise(taken))
    assert math.isclose(sum(i.usd for i in taken), (now - 100) * 3.6 / 3600, abs_tol=1e-9)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100), st.floats(-100_000, 100_000), STATES, st.sampled_from("abc"), st.booleans()
        ),
        max_size=30,
    )
)
def test_states_sum_to_the_meters_however_the_wall_clock_is_set(moves):
    """Devices come, change and go; the wall clock is set at each move."""
    wall_s, monotonic_s = 1.7e9, 7.0
    clock = Clock(lambda: wall_s, lambda: monotonic_s)
    timeline, meter, taken, paid, there = Timeline(), PaidMeter(), [], [], set()
    for pause_s, jump_s, state, worker, leaves in moves:
        wall_s, monotonic_s = wall_s + pause_s + jump_s, monotonic_s + pause_s
        if worker not in there:
            there.add(worker)
            timeline.add(worker, "spot", 3.6, clock.now())
            meter.start(worker, "spot", monotonic_s)
        elif leaves:
            there.discard(worker)
            timeline.remove(worker, clock.now())
            meter.stop(worker, monotonic_s)
        else:
            timeline.enter(worker, state, clock.now())
        if pause_s > 50:
            assert meter.so_far(monotonic_s) == meter.so_far(monotonic_s)
            taken, paid = taken + timeline.take(clock.now()), paid + meter.take(monotonic_s)
    taken, paid = taken + timeline.take(clock.now()), paid + meter.take(monotonic_s)
    for worker in "abc":
        booked_s = sum(i.ended_at - i.started_at for i in taken if i.worker == worker)
        paid_s = sum(part.paid_s for part in paid if part.worker == worker)
        assert math.isclose(booked_s, paid_s, abs_tol=1e-5)
    ends = [i.ended_at for i in taken if i.worker == "a"]
    assert ends == sorted(ends)
    assert math.isclose(
        sum(jump.by_s for jump in clock.take_jumps()), wall_s - clock.now(), abs_tol=1.0 + 1e-5
    )


def test_a_clock_that_steps_back_makes_no_negative_time():
    timeline = Timeline()
    timeline.add("w", "spot", 1.0, 10.0)
    timeline.enter("w", "idle", 9.0)
    timeline.remove("w", 11.0)
    assert [(i.started_at, i.ended_at) for i in timeline.take(11.0)] == [(10.0, 11.0)]
