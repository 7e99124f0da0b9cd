"""Several rewards, each normalised in its prompt group before they are added (GDPO)."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.learning.advantages import normalised_sum, training_samples
from gpu_runtime.scheduling.scores import Score, Term
from storage.config.run_config import RunConfig
from tests.tiny_run import TinyRun, request, tiny_config

EPSILON = 1e-4


def test_each_reward_counts_by_its_weight_however_little_it_varies():
    large, small = [0.0, 1.0, 0.0, 1.0], [0.52, 0.52, 0.5, 0.5]
    term_KPG = np.array([[large], [small]])
    found = normalised_sum(term_KPG, [0.5, 0.5])
    a, b = 0.5 / (0.5 + EPSILON), 0.01 / (0.01 + EPSILON)
    expected = [(-a + b) / 2, (a + b) / 2, (-a - b) / 2, (a - b) / 2]
    assert found.shape == (1, 4) and found.dtype == np.float64
    assert found[0].tolist() == pytest.approx(expected, rel=1e-4)


def test_what_a_plain_sum_cannot_tell_apart_stays_apart():
    """GDPO's own example: sums of (0, 1) and (0, 2) have the same advantages once they are normalised."""
    one = normalised_sum(np.array([[[0.0, 1.0]], [[0.0, 0.0]]]), [1.0, 1.0])
    two = normalised_sum(np.array([[[0.0, 1.0]], [[0.0, 1.0]]]), [1.0, 1.0])
    assert two[0].tolist() == pytest.approx([2 * value for value in one[0].tolist()])


def test_groups_are_apart_and_a_reward_without_variance_adds_nothing():
    term_KPG = np.array([[[0.0, 1.0], [0.0, 0.1]], [[0.3, 0.3], [0.3, 0.3]]])
    found = normalised_sum(term_KPG, [0.75, 0.25])
    assert found[0].tolist() == pytest.approx([-0.75, 0.75], rel=1e-3)
    assert found[1].tolist() == pytest.approx([-0.75, 0.75], rel=3e-3)
    assert normalised_sum(np.full((2, 1, 3), 0.1), [0.5, 0.5]).tolist() == [[0.0, 0.0, 0.0]]
    assert not normalised_sum(np.array([[[-1e-8, 0.0, 1e-8]]]), [1.0]).any()
    assert normalised_sum(np.array([[[0.0, 0.5, 1.0]]]), [1.0])[0, 2] == pytest.approx(1.2244, abs=1e-4)


def test_a_reward_compares_those_alone_for_which_it_counts():
    nan = float("nan")
    term_KPG = np.array([[[1.0, 1.0, 0.0, 0.0]], [[0.5, 0.7, nan, nan]]])
    found = normalised_sum(term_KPG, [0.8, 0.2])
    first, second = 0.5 / (0.5 + EPSILON), 0.1 / (0.1 + EPSILON)
    expected = [0.8 * first - 0.2 * second, 0.8 * first + 0.2 * second, -0.8 * first, -0.8 * first]
    assert found[0].tolist() == pytest.approx(expected)
    alone = normalised_sum(np.array([[[1.0, 0.0]], [[0.5, nan]]]), [0.8, 0.2])
    none = normalised_sum(np.array([[[1.0, 0.0]], [[nan, nan]]]), [0.8, 0.2])
    assert alone.tolist() == none.tolist() == [pytest.approx([0.8 * first, -0.8 * first])]


def advantages(scores: list[Score], std: str = "none") -> list[float]:
    run = TinyRun(tiny_config())
    wanted = [request(prompt, seed) for prompt in range(len(scores) // 2) for seed in range(2)]
    config = RunConfig.model_validate({"algorithm": {"advantage_std": std}})
    found, _ = training_samples(run.sampler.generate(wanted), scores, config.algorithm, "graded")
    return found.value_PG.flatten().tolist()


def scored(first: float, second: float | None, normalised: bool = True) -> Score:
    terms = (Term(0.5, first), Term(0.5, second))
    return Score((first + (second or 0.0)) / 2, False, "", terms=terms if normalised else ())


def test_terms_are_learned_from_in_place_of_the_value():
    # The first reward says the first sample is better, the second says the other; the first varies more.
    pair = [(1.0, 0.1), (0.0, 0.2)]
    plain = advantages([scored(*values, normalised=False) for values in pair])
    assert plain == pytest.approx([0.225, -0.225])
    assert advantages([scored(*values) for values in pair]) == pytest.approx([0.0, 0.0], abs=1e-3)


def test_only_the_batch_s_deviation_keeps_groups_apart_as_in_gdpo():
    """In one group one of two equal rewards differs, in the other one both do."""
    one, both = [scored(0.0, 0.0), scored(1.0, 0.0)], [scored(0.0, 0.0), scored(1.0, 1.0)]
    assert advantages([*one, *both], "batch") == pytest.approx(np.array([-1, 1, -2, 2]) / 2.5**0.5, rel=1e-3)
    assert advantages([*one, *both], "group") == pytest.approx([-1, 1, -1, 1], rel=1e-3)


def test_a_closed_gate_is_neither_gain_nor_loss():
    assert advantages([scored(0.6, 0.2), scored(0.4, None)]) == pytest.approx([0.5, -0.5], rel=2e-3)
    assert advantages([scored(0.6, 0.2), scored(0.4, 0.0)]) == pytest.approx([1.0, -1.0], rel=2e-3)


def test_a_group_with_a_failed_image_is_dropped_and_changes_no_other():
    whole = [scored(1.0, 0.2), scored(0.0, 0.1)]
    failed = [scored(0.4, 0.4), Score(0.0, False, "", error="gone")]
    assert advantages([*whole, *failed]) == pytest.approx([*advantages(whole), 0.0, 0.0])
    assert advantages([*failed, *whole]) == pytest.approx([0.0, 0.0, *advantages(whole)])
