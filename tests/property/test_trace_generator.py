"""Generated traces: the same for the same seed, never more than wanted, losses as correlated as asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.spot.traces.generator import TraceShape, generate_trace
from gpu_runtime.spot.traces.trace import summarise
from storage.errors import ConfigurationError
from tests.examples import examples
from tests.spot_traces import alive_at

shapes = st.builds(
    TraceShape,
    capacity=st.integers(1, 12),
    length_s=st.floats(1, 20_000),
    mean_lifetime_s=st.floats(100, 10_000),
    multi_loss_share=st.floats(0, 1),
    largest_burst=st.integers(2, 8),
    zones=st.integers(1, 4),
    mean_reacquire_s=st.floats(60, 2000),
    min_reacquire_s=st.floats(0, 60),
)
seeds = st.integers(0, 2**64 - 1)


@given(shapes, seeds)
def test_the_same_seed_gives_the_same_trace(shape, seed):
    assert generate_trace(shape, seed) == generate_trace(shape, seed)


@given(shapes, seeds)
def test_never_more_than_wanted_and_no_name_twice(shape, seed):
    trace = generate_trace(shape, seed)
    alive: set[str] = set()
    came: set[str] = set()
    for event in trace.events:
        if event.kind == "add":
            assert event.instance not in came
            came.add(event.instance)
            alive.add(event.instance)
        else:
            alive.remove(event.instance)
        assert 0 <= len(alive) <= shape.capacity
    assert len(alive_at(trace, 0)) == shape.capacity
    assert trace.length_s == shape.length_s


@given(shapes, seeds)
def test_what_is_lost_together_is_of_one_zone_and_no_larger_than_asked(shape, seed):
    lost: dict[float, list[str]] = {}
    for event in generate_trace(shape, seed).events:
        if event.kind == "remove":
            lost.setdefault(event.at_s, []).append(event.instance.rsplit("-", 1)[0])
    for zones in lost.values():
        assert len(set(zones)) == 1 and len(zones) <= shape.largest_burst
    if shape.multi_loss_share == 0:
        assert all(len(zones) == 1 for zones in lost.values())
    if shape.multi_loss_share == 1:
        assert all(len(zones) > 1 for zones in lost.values())


@examples(0.3)
@given(share=st.floats(0, 1), seed=seeds, zones=st.integers(1, 3))
def test_the_share_of_common_losses_and_the_lifetimes_are_near_those_asked_for(share, seed, zones):
    # About 3,300 losses: four standard deviations of the share are below 0.08 even in bursts of six.
    shape = TraceShape(24, 900_000.0, mean_lifetime_s=6000.0, multi_loss_share=share, zones=zones)
    figures = summarise(generate_trace(shape, seed))
    assert figures.losses > 2000
    assert figures.multi_loss_share == pytest.approx(share, abs=0.08)
    assert 3600 / (figures.losses_per_instance_hour or 0) == pytest.approx(6000, rel=0.2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"capacity": 0}, "capacity of a generated trace is 0; give at least 1"),
        ({"length_s": 0.0}, "length_s of a generated trace is 0.0"),
        ({"mean_lifetime_s": float("nan")}, "mean_lifetime_s of a generated trace is nan"),
        ({"multi_loss_share": 1.5}, "multi_loss_share is 1.5; give a share from 0 to 1"),
        ({"largest_burst": 1}, "largest_burst of a generated trace is 1; give at least 2"),
        ({"zones": 0}, "zones of a generated trace is 0"),
        ({"min_reacquire_s": -1.0}, "min_reacquire_s"),
        ({"mean_reacquire_s": 5.0}, "mean_reacquire_s of a generated trace is 5.0; give at least 60.0"),
    ],
)
def test_a_shape_that_is_none_is_refused(changed, message):
    with pytest.raises(ConfigurationError, match=message):
        TraceShape(**{"capacity": 4, "length_s": 100.0, **changed})
