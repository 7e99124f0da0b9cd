"""Scores that come back: by hand, and on scores with two modes."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.exploration.prediction.score_model import (
    ScoreModel,
    _linear,
    _posterior,
    _Scores,
    _urn_width,
)
from gpu_runtime.exploration.prediction.score_urn import ScoreUrn, best_width, bin_probabilities

NOTHING = ((), 0.0)


def two_modes(prompts=32, drafts=12, seed=0):
    """Scores near two levels of each prompt, 2 apart; and which are near the upper one."""
    generator = np.random.default_rng(seed)
    upper = generator.random((prompts, drafts)) < generator.beta(0.7, 0.7, (prompts, 1))
    level = generator.normal(0, 0.25, (prompts, 1))
    return level + 2 * upper + generator.normal(0, 0.15, upper.shape), upper


def model_of(scores, past=None, others=()):
    return ScoreModel(list(scores), past or [NOTHING] * len(scores), others)


def predicted(model, known, outcomes=3000):
    """Each prompt's next score, in so many outcomes."""
    generator = np.random.default_rng(3)
    strata = (np.arange(outcomes) + 0.5) / outcomes

    def numbers():
        return np.stack([generator.permutation(strata) for _ in range(known + 1)], axis=1)

    uniforms = numbers()
    return model.draws(strata, np.log(uniforms) - np.log1p(-uniforms), numbers())[:, :, known]


def urn_of(judged, width=0.0, past=None, weights=None, pool=(-1.0,), pool_weights=None):
    past = past or [()] * len(judged)
    return ScoreUrn(
        width,
        [np.array(own, dtype=float) for own in judged],
        [np.array(former, dtype=float) for former in past],
        np.array(weights or [0.0] * len(judged)),
        np.array(pool),
        np.array(pool_weights or [1.0] * len(pool)),
    )


def test_probabilities_of_bins_by_hand():
    found = bin_probabilities(np.array([0.0, np.log(3)]), np.array([0.0, np.log(3)]), 1.0)
    assert found[:, 0] == pytest.approx([0.5, 0.25, 0.25])
    assert found[:, 1] == pytest.approx([0.25, 0.25, 0.5])


def test_an_urn_repeats_a_draft_or_takes_the_model_or_any_prompts_score():
    """Of two judged drafts: the model, all prompts, the first and the second draft are equally likely."""
    urn = urn_of([[5, 6]], 0.5, pool=(-1.0, -2.0), pool_weights=[3.0, 1.0])
    picks = np.array([0.1, 0.26, 0.43, 0.45, 0.6, 0.9])
    model, logits = np.full((1, 6, 3), 9.0), np.full((6, 3), 2.0)
    found = urn.draw(model, logits, np.repeat(picks[:, None], 3, axis=1))
    # What is repeated has noise of 0.5 * 2; the model's draw has its own. -1 is three quarters of the pool.
    assert found[0, :, 2].tolist() == [9.0, 0.0, 0.0, -1.0, 6.0, 7.0]
    assert found[0, :, :2].tolist() == [[9.0, 9.0]] * 6, "what is judged already is not drawn"
    assert model.tolist() == np.full((1, 6, 3), 9.0).tolist()


def test_former_drafts_are_repeated_by_their_weight():
    """Two drafts and two former ones of weight 1/2 make five parts: a former one has a tenth of all."""
    urn = urn_of([[5, 6]], past=[[7, 8]], weights=[0.5])
    picks = np.repeat(((np.arange(10) + 0.5) / 10)[:, None], 3, axis=1)
    found = urn.draw(np.full((1, 10, 3), 9.0), np.ones((10, 3)), picks)[0, :, 2]
    assert found.tolist() == [9.0, 9.0, -1.0, -1.0, 7.0, 8.0, 5.0, 5.0, 6.0, 6.0]


def test_prompts_of_unequal_drafts_have_urns_of_their_own():
    urn = urn_of([[5], [], [6, 7]], past=[[], [4], []], weights=[0.0, 1.0, 0.0])
    picks = np.array([[0.99, 0.99, 0.99]])
    found = urn.draw(np.full((3, 1, 3), 9.0), np.ones((1, 3)), picks)[:, 0]
    # The last mark of a turn repeats the draft before it; of nothing but a former one, that.
    assert found[0, 1:].tolist() == [5.0, 5.0]
    assert found[1].tolist() == [4.0, 4.0, 4.0]
    assert found[2, 2:].tolist() == [7.0]


def test_a_draft_to_come_may_be_repeated_without_the_noise_that_it_had():
    """Without any judged draft the second one repeats the first in a third of the outcomes."""
    urn = urn_of([[]], width=0.5)
    model = np.arange(6000.0).reshape(1, 3000, 2)
    picks = np.stack([np.full(3000, 0.25), (np.arange(3000) + 0.5) / 3000], axis=1)
    found = urn.draw(model, np.ones((3000, 2)), picks)[0]
    first, second = found.T
    assert first.tolist() == model[0, :, 0].tolist(), "the model's, as it is"
    assert np.mean(second == model[0, :, 1]) == pytest.approx(1 / 3)
    assert np.mean(second == -0.5) == pytest.approx(1 / 3)
    assert np.mean(second == first + 0.5) == pytest.approx(1 / 3)
    pooled = urn.draw(model, np.ones((3000, 2)), np.full((3000, 2), 0.7))[0]
    assert pooled.tolist() == [[-0.5, -0.5]] * 3000, "its noise is not added up"


def test_the_model_without_a_score_is_that_of_the_others():
    """By leaving each score out: prior times likelihood of the others, whatever past there is."""
    judged, past, weight = (
        [np.array([0.1, 0.4, 0.9, 1.7]), np.array([3.0, 3.3])],
        [[2.0, 0.2], []],
        [0.25, 0.0],
    )
    seen = _Scores(judged, [np.array(former) for former in past], np.array(weight), ())
    scale = _linear(seen.values, seen.bins, seen.mean, seen.variance)
    # With a prior that is held, Bayes' rule gives the posterior without one score.
    prior = _posterior(np.zeros((1, 279)), graded=False)[0][0]
    posterior = prior * np.exp(seen.weight_PB @ scale.logs_BK)
    posterior /= posterior.sum(axis=1, keepdims=True)
    given: list[np.ndarray] = []

    def spy(drafts_PB, weight_PB, model_PB, noise_BB):
        given.append(model_PB)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_runtime.exploration.prediction.score_model.best_width", spy)
        _urn_width(seen, scale, posterior)
    for prompt, place in zip(*np.nonzero(seen.drafts_PB), strict=True):
        left = seen.weight_PB[prompt].copy()
        left[place] -= 1
        others = prior * np.exp(left @ scale.logs_BK)
        expected = (others / others.sum()) @ np.exp(scale.logs_BK[place])
        assert given[0][prompt, place] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_the_evidence_of_an_urn_by_hand(weight):
    """Two prompts, two bins: one with n - 1 = 7 more scores there, one with 3 in each; former ones count."""
    drafts = np.array([[8.0, 0.0], [4.0, 4.0]] * 4)
    weights = drafts + weight
    noise = np.array([[0.9, 0.1], [0.1, 0.9]])
    total = weights.sum(axis=0)

    def chance(prompt, place, of_model):
        others = weights[prompt].copy()
        others[place] -= 1
        pooled = total.copy()
        pooled[place] -= 1
        own, of_all = noise[place] @ others, noise[place] @ pooled / pooled.sum()
        return (of_model + of_all + own) / (2 + others.sum())

    def gain(of_model):
        parts = [
            drafts[prompt, place] * np.log(chance(prompt, place, of_model) / of_model)
            for prompt, place in zip(*np.nonzero(drafts), strict=True)
        ]
        return sum(parts)

    # The largest probability by the model at which the urn is still better by 8 nats.
    low, high = 0.01, 0.99
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) > 8 else (low, middle)
    for of_model, wanted in ((low * 0.999, True), (low * 1.001, False)):
        found = best_width(drafts, weights, np.full((8, 2), of_model), lambda width: noise)
        assert (found is not None) == wanted


def test_the_width_is_that_which_explains_the_scores_best():
    drafts = np.array([[8.0, 0.0], [0.0, 8.0]] * 4)
    near, far = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[0.6, 0.4], [0.4, 0.6]])

    def found(best):
        return best_width(drafts, drafts, np.full((8, 2), 0.5), lambda width: near if width == best else far)

    assert [found(0.125), found(0.25), found(0.5)] == [0.125, 0.25, 0.5]
    assert best_width(np.zeros((2, 2)), np.zeros((2, 2)), np.ones((2, 2)), lambda width: near) is None


@pytest.mark.parametrize(("prompts", "drafts"), [(32, 12), (128, 1), (300, 4)])
def test_scores_with_one_mode_do_not_come_back(prompts, drafts):
    for level in (0, 2):
        generator = np.random.default_rng(1)
        noise = generator.normal(size=(prompts, drafts))
        assert model_of(noise + generator.normal(0, level, (prompts, 1)))._urn is None


def test_weights_of_former_scores_are_no_evidence():
    """Unimodal scores with a long past of little weight."""
    for seed in range(4):
        generator = np.random.default_rng(seed)
        scores = generator.normal(0, 2, (96, 1)) + generator.normal(size=(96, 20))
        past = [(tuple(row[2:]), 0.22) for row in scores]
        assert model_of(scores[:, :2], past)._urn is None


def test_scores_with_two_modes_do_and_the_chance_of_each_is_learned():
    scores, upper = two_modes()
    assert model_of(scores)._urn is not None
    found = predicted(model_of(scores), 12)
    seen = upper.mean(axis=1)
    middle = scores.mean(axis=1, keepdims=True) + 1 - 2 * seen[:, None]
    expected = (found > middle).mean(axis=1)
    assert np.abs(expected - seen).mean() < 0.1
    # Between the modes there is hardly anything, of a prompt that is in both.
    both = (seen > 0.3) & (seen < 0.7)
    assert np.mean(np.abs(found - middle)[both] < 0.4) < 0.1
    # One mode alone was seen: the other may still come.
    assert (expected[seen == 0] > 0.02).all()
    assert (expected[seen == 1] < 0.98).all()


def test_a_prompts_past_tells_its_mode():
    """Without drafts of today: of one that has always been in a mode, that is expected."""
    scores, upper = two_modes(64, 18)
    past = [(tuple(row), 8 / 18) for row in scores]
    model = model_of([np.zeros(0)] * 64, past, others=tuple(map(tuple, two_modes(64, 12, seed=5)[0])))
    assert model._urn is not None
    always, never = upper.all(axis=1), ~upper.any(axis=1)
    middle = scores.mean(axis=1, keepdims=True) + np.where(always, -1, 1)[:, None]
    expected = (predicted(model, 0) > middle).mean(axis=1)
    # Without its past, each would be expected in the half of all scores that is above.
    assert (expected[always] > 0.65).all() and expected[always].mean() > 0.8
    assert (expected[never] < 0.35).all() and expected[never].mean() < 0.2
