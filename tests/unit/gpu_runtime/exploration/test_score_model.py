"""The posterior predictive distribution: by hand, and where the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpu_runtime.exploration.prediction.score_model import (
    ScoreModel,
    _averaged_over_scales,
    _bins,
    _distinct,
    _linear,
    _posterior,
    _ranked,
)

NOTHING = ((), 0.0)
STRATA = (np.arange(400) + 0.5) / 400


def predicted(judged, own=None, others=()):
    """Each prompt's next scores, 400 of them."""
    model = ScoreModel(
        [np.array(scores, dtype=float) for scores in judged], own or [NOTHING] * len(judged), others
    )
    shuffled = np.random.default_rng(0).permutation(STRATA)
    logits, picks = np.log(shuffled) - np.log1p(-shuffled), np.random.default_rng(1).permutation(STRATA)
    return model.draws(STRATA, logits[:, None], picks[:, None])[:, :, 0]


def ranked_table(values, counts):
    """The table of g from the ranks of scores, each in a bin of its own."""
    return _ranked(np.array(values), np.array(counts), np.arange(len(values))).table


def at(table, latent):
    return table[round((latent + 10) * 32)]


def test_an_atom_is_level_and_single_values_are_joined():
    table = ranked_table([0.0, 2.0, 4.0], [2.0, 1.0, 1.0])
    # 0 up to the median; 2 at 5/8 and 4 at 7/8: latent numbers log(5/3) and log 7.
    assert at(table, -5) == at(table, -0.5) == 0
    assert at(table, 0.5) == pytest.approx(2 * 0.5 / np.log(5 / 3), abs=0.05)
    assert at(table, 1.25) == pytest.approx(2 + 2 * (1.25 - np.log(5 / 3)) / np.log(21 / 5), abs=0.05)


@pytest.mark.parametrize(("counts", "is_level"), [([1.0, 2.0, 1.0], False), ([2.0, 1.0, 2.0], True)])
def test_atoms_at_the_ends_are_the_extremes(counts: list[float], is_level: bool):
    table = ranked_table([0.0, 2.0, 4.0], counts)
    assert (at(table, -9) == 0, at(table, 9) == 4) == (is_level, is_level)


def test_beyond_the_extremes_the_slope_goes_on():
    table = ranked_table(np.arange(20.0), np.ones(20))
    # The highest tenth: 17 at 35/40 and 19 at 39/40, that is 2 for log(39) - log(7).
    highest, slope = np.log(39), 2 / (np.log(39) - np.log(7))
    assert at(table, 8) == pytest.approx(19 + slope * (8 - highest), rel=0.02)
    assert at(table, -8) == pytest.approx(0 - slope * (8 - highest), rel=0.05)
    assert len(table) == 641, "from -10 to 10"


def test_discrete_scores_stay_discrete():
    found = predicted([[0, 1, 1, 0.5], [0, 0, 0.5, 1]])
    assert set(np.unique(found)) == {0.0, 0.5, 1.0}


def test_ties_of_many_values_are_no_atoms_but_a_frequent_one_is():
    twice = [np.arange(12) / 12] * 2
    assert predicted(twice).max() > 11 / 12
    graded = [np.r_[np.zeros(8), np.arange(4, 12) / 12 + place / 100] for place in range(4)]
    found = predicted(graded)
    assert found.min() == 0
    assert np.mean(found == 0) > 0.4
    assert found.max() > max(scores.max() for scores in graded)


def test_continuous_scores_may_exceed_all_seen():
    scores = np.random.default_rng(1).normal(size=(8, 12))
    assert predicted(scores).max() > scores.max()


def test_where_all_are_equal_another_value_stays_possible():
    values, places, counts = _distinct(np.zeros(9))
    assert (values.tolist(), counts.tolist(), set(places)) == ([0.0, 1.0], [9.0, 0.5], {0})
    values, places, counts = _distinct(np.ones(9))
    assert (values.tolist(), counts.tolist(), set(places)) == ([0.0, 1.0], [0.5, 9.0], {1})
    assert 0 < predicted([[0.0] * 4] * 3).mean() < 0.1
    assert _distinct(np.full(9, 2.0))[0].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("scores", [np.array([2.0, 3.0]), np.array([-1.0, 0.5]), np.linspace(0.1, 0.9, 300)])
def test_failure_and_success_are_no_further_values_of_other_or_of_many_scores(scores: np.ndarray):
    values, _, counts = _distinct(scores)
    assert np.array_equal(values, scores) and (counts == 1).all()


def test_of_likelihoods_a_posterior_by_hand():
    """Two grid points alone explain the scores: the others have no probability."""
    logs = np.full((1, 279), -100.0)
    logs[0, 139], logs[0, 140] = np.log(0.75), np.log(0.25)
    posterior, evidence = _posterior(logs, graded=False)
    start = _posterior(np.zeros((1, 279)), graded=False)
    start_ratio = start[0][0]
    assert posterior[0, 139] / posterior[0, 140] > 3 * start_ratio[139] / start_ratio[140] * 0.99
    assert posterior.sum() == pytest.approx(1.0)
    assert start[1] == pytest.approx(0.0), "what is sure in any case is explained by everything"
    assert -6 < evidence < np.log(0.75)
    assert _posterior(logs - 2.0, graded=False)[1] == pytest.approx(evidence - 2.0)


def test_of_many_prompts_every_other_one_gives_the_prior():
    """The first of each two tells nothing, and the second would."""
    logs = np.zeros((512, 279))
    logs[1::2, 1:] = -100.0
    prior = _posterior(np.zeros((1, 279)), graded=False)[0][0]
    assert _posterior(logs, graded=False)[0][0] == pytest.approx(prior)


def test_scales_are_averaged_over_hypotheses_by_hand():
    """Scores that say nothing leave the hypotheses their own weights: 1, 1 and exp(-8)."""
    weights = np.arange(1.0, 10.0) / 45
    prior = np.repeat(weights / 31, 31)
    averaged = _averaged_over_scales(np.ones((5, 279)), prior).reshape(9, 31)
    expected = (2 / 9 + np.exp(-8) * weights) / (2 + np.exp(-8))
    assert averaged.sum(axis=1) == pytest.approx(expected)
    assert averaged / averaged.sum(axis=1, keepdims=True) == pytest.approx(np.full((9, 31), 1 / 31))
    # Scores of five prompts that only the third scale explains, twice as well as any other one.
    likelihood = np.ones((5, 279))
    likelihood[:, 62:93] = 2.0
    weight_of_third = 2.0**5 / 9
    others, alike, fitted = 8 / 9, (10 / 9) ** 5, np.exp(-8) * (1 + weights[2]) ** 5
    averaged = _averaged_over_scales(likelihood, prior).reshape(9, 31).sum(axis=1)
    total = weight_of_third + others + alike + fitted
    assert averaged[2] == pytest.approx((weight_of_third + alike / 9 + fitted * weights[2]) / total)


def test_the_bins_probabilities_add_up_to_one():
    counts = _distinct(np.random.default_rng(2).normal(size=300))[2]
    bins = _bins(counts)
    values = np.sort(np.random.default_rng(2).normal(size=300))
    for scale in (_ranked(values, counts, bins), _linear(values, bins, 0.0, 1.0)):
        logs = scale.logs_BK
        assert bins.max() + 1 == len(logs) == len(scale.edges) + 1 <= 64
        assert np.exp(logs).sum(axis=0) == pytest.approx(np.ones(logs.shape[1]), abs=1e-4)


def test_a_linear_g_by_hand():
    """Mean 10 and deviation 3.6: a score of 2 is one latent number, and the bin of 11 and 13 begins at 10."""
    scale = _linear(np.array([7.0, 9.0, 11.0, 13.0]), np.array([0, 0, 1, 1]), 10.0, 3.6**2)
    assert [at(scale.table, latent) for latent in (-2, 0, 3)] == pytest.approx([6, 10, 16])
    # Of a prompt with location 0 and scale 1: the grid point 6 * 31 + 15.
    assert scale.edges == pytest.approx([0.0])
    assert np.exp(scale.logs_BK[:, 6 * 31 + 15]) == pytest.approx([0.5, 0.5], abs=1e-4)


def test_likelihoods_are_exact_sums_whatever_the_order():
    """So a library that adds on several threads finds the same bits."""
    values, _, counts = _distinct(np.random.default_rng(6).normal(size=200))
    logs = _ranked(values, counts, _bins(counts)).logs_BK
    counted = np.random.default_rng(7).integers(0, 32 * 64, len(logs)) / 64
    found = counted @ logs
    assert found.tolist() == (counted[::-1] @ logs[::-1]).tolist()
    assert found.tolist() == [math.fsum(counted * column) for column in logs.T]


def test_success_rates_are_learned_and_shrunk():
    few = np.array([0.0] * 7 + [1.0])
    prompts = [few, 1 - few, *[few] * 8, *[1 - few] * 8]
    means = predicted(prompts).mean(axis=1)
    assert 0.1 < means[0] < 0.25
    assert 0.75 < means[1] < 0.9
    # One success in two of a prompt, where all others succeed rarely, counts little.
    rare = predicted([[1.0, 0.0], *[[0.0] * 11 + [1.0]] * 12]).mean(axis=1)
    assert rare[0] < 0.3


def test_all_or_nothing_is_learned_from_the_other_prompts():
    sure = [[0.0] * 6] * 8 + [[1.0] * 6] * 8
    assert predicted([[1.0], *sure])[0].mean() > 0.85
    mixed = [[0.0, 1.0] * 3] * 16
    assert predicted([[1.0], *mixed])[0].mean() < 0.75


def test_unequal_noise_is_learned():
    generator = np.random.default_rng(3)
    scores = generator.normal(size=(16, 8)) * np.repeat([0.2, 2.0], 8)[:, None]
    deviations = predicted(scores).std(axis=1)
    assert deviations[8:].min() > 2 * deviations[:8].max()


@pytest.mark.parametrize("spread", [0.0, 6.0])
def test_chance_does_not_look_like_unequal_noise(spread: float):
    """The drafts of some prompt differ twice as much as those of another one, be the prompts alike or not."""
    generator = np.random.default_rng(9)
    scores = generator.normal(0, spread, (32, 1)) + generator.normal(size=(32, 10))
    seen, deviations = scores.std(axis=1), predicted(scores).std(axis=1)
    assert seen.max() > 2 * seen.min()
    assert deviations.max() < 1.25 * deviations.min()


def test_difficulties_do_not_look_like_noise():
    generator = np.random.default_rng(4)
    scores = generator.normal(size=(24, 6)) + generator.normal(0, 4, (24, 1))
    assert np.median(predicted(scores).std(axis=1)) < 2.0


def test_own_past_counts_by_its_weight_and_others_tell_how_prompts_differ():
    others = [(0.0,) * 6] * 6 + [(1.0,) * 6] * 6
    known, unknown = predicted([[], []], own=[((1.0, 1.0), 1.0), NOTHING], others=others).mean(axis=1)
    assert known > 0.8
    assert 0.3 < unknown < 0.7


def test_latent_numbers_are_rounded_to_the_table_and_those_beyond_get_its_ends():
    model = ScoreModel([np.array([2.0, 5.0, 5.0, 8.0])], [NOTHING], ())
    strata = (np.arange(4000) + 0.5) / 4000
    logits = np.random.default_rng(0).permutation(np.log(strata) - np.log1p(-strata))
    both_ways = model.draws(strata, np.stack([logits, -logits], axis=1), np.full((4000, 2), 0.5))
    assert both_ways.mean() == pytest.approx(5.0, abs=0.01), "a cell is 0.06 wide"
    ends = model.draws(np.full(2, 0.5), np.array([[-1e3], [1e3]]), np.full((2, 1), 0.5))
    table = ranked_table([2.0, 5.0, 8.0], [1.0, 2.0, 1.0])
    assert ends.ravel().tolist() == [table[0], table[-1]]
    assert table[0] < table[1] and table[-2] < table[-1]


def test_without_any_score_success_and_failure_are_equally_likely():
    found = predicted([[]])
    assert set(np.unique(found)) == {0.0, 1.0}
    assert found.mean() == pytest.approx(0.5, abs=0.05)


def test_the_unit_of_scores_does_not_matter():
    scores = np.random.default_rng(5).normal(size=(6, 5))
    assert predicted(scores * 8 + 3) == pytest.approx(predicted(scores) * 8 + 3)
