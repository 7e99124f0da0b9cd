"""Whatever the identities, two draws share no random number."""

from __future__ import annotations

from dataclasses import astuple
from unittest.mock import patch

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_runtime.diffusion import noise
from gpu_runtime.diffusion.noise import NoiseStream, Purpose, integers, normal

# Numbers near the borders of 8, 16, 24 and 32 bits, where a layout that overlaps would show.
_EDGES = [edge + shift for edge in (2**8, 2**16, 2**24) for shift in (-1, 0, 1)]
WORDS = st.one_of(st.integers(0, 3), st.sampled_from([*_EDGES, 2**32 - 1]), st.integers(0, 2**32 - 1))
STEPS = st.one_of(st.integers(0, 3), st.integers(0, 2**24 - 1))
STREAMS = st.builds(NoiseStream, WORDS, WORDS, WORDS, WORDS)
DRAWS = st.tuples(STREAMS, st.sampled_from(Purpose), STEPS)


def inputs_of(stream: NoiseStream, purpose: Purpose, step: int, count: int) -> list[tuple[int, ...]]:
    """Every (counter, key) that a draw of `count` numbers puts into Philox."""
    seen: list[tuple[int, ...]] = []

    def record(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        both = torch.cat([counter, key], dim=-1).reshape(-1, 6).tolist()
        seen.extend(tuple(row) for row in both)
        return torch.zeros_like(counter)

    with patch.object(noise, "philox4x32", record):
        normal([stream], purpose, step, (count,))
    return seen


@given(one=DRAWS, two=DRAWS)
def test_distinct_identities_never_share_words(one, two) -> None:
    assume((astuple(one[0]), *one[1:]) != (astuple(two[0]), *two[1:]))
    first, second = inputs_of(*one, count=40), inputs_of(*two, count=9)
    assert len(first) == len(set(first)) == 10
    assert len(second) == len(set(second)) == 3
    assert not set(first) & set(second)
    assert all(0 <= word < 2**32 for row in first for word in row)


@given(draw=DRAWS)
def test_draws_repeat_to_the_bit_and_are_finite(draw) -> None:
    stream, purpose, step = draw
    first = normal([stream], purpose, step, (12,))
    assert torch.isfinite(first).all()
    assert torch.equal(first, normal([stream], purpose, step, (12,)))


@given(stream=STREAMS, bound=st.integers(1, 2**32 - 1))
def test_integers_stay_below_their_bound(stream: NoiseStream, bound: int) -> None:
    (value,) = integers([stream], Purpose.WINDOW, bound)
    assert 0 <= value < bound
