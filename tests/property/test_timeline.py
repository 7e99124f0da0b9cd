"""The states of a device follow each other without a gap and sum to its paid time."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.scheduling.timeline import Timeline

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
            taken += timeline.take(now)
    now += 1
    timeline.remove("w", now)
    taken += timeline.take(now)
    assert math.isclose(sum(i.ended_at - i.started_at for i in taken), now - 100, abs_tol=1e-6)
    assert all(a.ended_at == b.started_at for a, b in itertools.pairwise(taken))
    assert math.isclose(sum(i.usd for i in taken), (now - 100) * 3.6 / 3600, abs_tol=1e-9)


def test_a_clock_that_steps_back_makes_no_negative_time():
    timeline = Timeline()
    timeline.add("w", "spot", 1.0, 10.0)
    timeline.enter("w", "idle", 9.0)
    timeline.remove("w", 11.0)
    assert [(i.started_at, i.ended_at) for i in timeline.take(11.0)] == [(10.0, 11.0)]
