"""By how many devices a sequence can be shared: the large models' figures, worked by hand."""

from __future__ import annotations

import pytest

from gpu_runtime.sequence_parallel.sequence_shape import SequenceShape
from storage.errors import ConfigurationError

TOKENS_1280 = (1280 // 16) ** 2  # 6400


def test_flux_at_1280_is_shared_by_powers_of_two():
    assert SequenceShape(24, TOKENS_1280, 512, any_text=False).degrees(8) == (1, 2, 4, 8)


def test_stable_diffusion_35_large_has_38_heads_that_only_two_can_share():
    assert SequenceShape(38, TOKENS_1280, 332, any_text=False).degrees(8) == (1, 2)


def test_masked_text_may_have_any_length():
    assert SequenceShape(24, TOKENS_1280, 333, any_text=True).degrees(8) == (1, 2, 4, 8)


@pytest.mark.parametrize("degree", [3, 5, 7])
def test_a_refusal_names_the_degrees_that_would_do(degree: int):
    shape = SequenceShape(24, TOKENS_1280, 512, any_text=False)
    with pytest.raises(ConfigurationError, match=rf"divide by degree {degree}; below it, 1, 2"):
        shape.check(degree)


@pytest.mark.parametrize("degree", [0, -2])
def test_a_degree_below_one_is_refused(degree: int):
    with pytest.raises(ConfigurationError, match=f"the degree is {degree}"):
        SequenceShape(24, 64, 8, any_text=True).check(degree)


def test_a_sequence_without_tokens_is_refused():
    with pytest.raises(ConfigurationError, match="image_tokens is 0"):
        SequenceShape(24, 0, 8, any_text=True)
