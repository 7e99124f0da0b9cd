"""The moving average of weights against values worked by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gpu_runtime.learning.ema import MovingAverage


def weights(*values: float) -> dict[str, np.ndarray]:
    """A state of one tensor."""
    return {"w": np.array(values, np.float32)}


def test_first_updates_forget_fast() -> None:
    # Decays 2/11 and 3/12: 0 * 2/11 + 11 * 9/11 = 9, then 9 * 0.25 + 5 * 0.75 = 6.
    average = MovingAverage(weights(0, 0), decay=0.9, interval=1)
    average.update(lambda: weights(11, 0))
    assert average.state["w"].tolist() == pytest.approx([9, 0], abs=1e-6)
    average.update(lambda: weights(5, 0))
    assert average.state["w"].tolist() == pytest.approx([6, 0], abs=1e-6)


def test_decay_is_the_upper_limit() -> None:
    average = MovingAverage(weights(1), decay=0.1, interval=1)
    average.update(lambda: weights(11))  # 0.1 * 1 + 0.9 * 11
    assert average.state["w"].tolist() == pytest.approx([10], abs=1e-6)


def test_late_updates_use_the_decay_itself() -> None:
    average = MovingAverage(weights(1), decay=0.9, interval=1)
    average.load(weights(1), training_steps=1000)
    average.update(lambda: weights(2))
    assert average.state["w"].tolist() == pytest.approx([1.1], abs=1e-6)


def test_decay_zero_is_the_weights_themselves() -> None:
    average = MovingAverage(weights(3), decay=0.0, interval=1)
    average.update(lambda: weights(0.1))
    assert np.array_equal(average.state["w"], weights(0.1)["w"])


def test_only_every_interval_moves_the_average() -> None:
    # Only the third training step counts, as the first update: 0 * 2/11 + 11 * 9/11.
    average = MovingAverage(weights(0), decay=0.9, interval=3)

    def unread() -> dict[str, np.ndarray]:
        raise AssertionError("copies weights that are not needed")

    for _ in range(2):
        average.update(unread)
        assert average.state["w"].tolist() == [0]
    average.update(lambda: weights(11))
    assert average.state["w"].tolist() == pytest.approx([9], abs=1e-6)
    assert average.training_steps == 3


def test_average_shares_no_memory_with_what_it_was_given() -> None:
    start, loaded = weights(1), weights(2)
    average = MovingAverage(start, decay=0.5, interval=1)
    average.update(lambda: weights(5))
    assert start["w"].tolist() == [1]
    average.load(loaded, training_steps=0)
    average.update(lambda: weights(5))
    assert loaded["w"].tolist() == [2]


def test_loaded_average_goes_on_to_the_same_bits() -> None:
    states = [weights(*row) for row in np.random.default_rng(0).standard_normal((9, 5))]
    whole, first = (MovingAverage(states[0], decay=0.9, interval=2) for _ in range(2))
    for state in states[1:]:
        whole.update(partial(dict, state))
    for state in states[1:4]:
        first.update(partial(dict, state))
    resumed = MovingAverage(states[8], decay=0.9, interval=2)
    resumed.load(first.state, first.training_steps)
    for state in states[4:]:
        resumed.update(partial(dict, state))
    assert np.array_equal(resumed.state["w"], whole.state["w"])
    assert resumed.state["w"].dtype == np.float32
