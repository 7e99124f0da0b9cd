"""Scores that come back: by hand, and on scores with two modes."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.exploration.score_model import ScoreModel
from gpu_runtime.exploration.score_urn import ScoreUrn, best_width, bin_probabilities

PICKS = (np.arange(4000) + 0.5) / 4000


def two_modes(prompts=32, drafts=12, seed=0):
    """Scores near two levels of each prompt, 2 apart; and which are near the upper one."""
    generator = np.random.default_rng(seed)
    upper = generator.random((prompts, drafts)) < generator.beta(0.7, 0.7, (prompts, 1))
    level = generator.normal(0, 0.25, (prompts, 1))
    return level + 2 * upper + generator.normal(0, 0.15, upper.shape), upper


def model_of(scores):
    return ScoreModel(list(scores), [((), 0.0)] * len(scores), ())


def predicted(scores, drafts=1):
    """Scores of the next drafts, 4,000 outcomes of each."""
    generator = np.random.default_rng(3)
    known = scores.shape[1]
    uniforms = np.stack([generator.permutation(PICKS) for _ in range(known + drafts)], axis=1)
    picks = np.stack([generator.permutation(PICKS) for _ in range(known + drafts)], axis=1)
    found = model_of(scores).draws(PICKS, np.log(uniforms) - np.log1p(-uniforms), picks)
    return found[:, :, known:]


def test_probabilities_of_bins_by_hand():
    found = bin_probabilities(np.array([0.0, np.log(3)]), np.array([0.0, np.log(3)]), 1.0)
    assert found[:, 0] == pytest.approx([0.5, 0.25, 0.25])
    assert found[:, 1] == pytest.approx([0.25, 0.25, 0.5])


def test_an_urn_repeats_what_was_drawn_takes_the_model_or_another_prompts_score():
    """Of two judged drafts: the model, all prompts, the first and the second draft are equally likely."""
    urn = ScoreUrn(0.5, [np.array([5.0, 6.0])], pool=np.array([-1.0, -2.0]))
    picks = np.array([0.1, 0.26, 0.49, 0.6, 0.9])
    model, logits = np.full((1, 5, 3), 9.0), np.full((5, 3), 2.0)
    found = urn.draw(model, logits, np.repeat(picks[:, None], 3, axis=1))
    # A repeated draft has noise of 0.5 * 2; the model's has its own.
    assert found[0, :, 2].tolist() == [9.0, 0.0, -1.0, 6.0, 7.0]
    assert found[0, :, :2].tolist() == [[9.0, 9.0]] * 5, "what is judged already is not drawn"
    assert model.tolist() == np.full((1, 5, 3), 9.0).tolist()


def test_a_draft_to_come_may_be_repeated_too():
    """Without any judged draft the second one repeats the first in a third of the outcomes."""
    urn = ScoreUrn(0.0, [np.zeros(0)], pool=np.array([-1.0]))
    model = np.arange(6000.0).reshape(1, 3000, 2)
    picks = np.stack([np.full(3000, 0.25), (np.arange(3000) + 0.5) / 3000], axis=1)
    found = urn.draw(model, np.ones((3000, 2)), picks)[0]
    first, second = found.T
    assert first.tolist() == model[0, :, 0].tolist()
    assert np.mean(second == first) == pytest.approx(1 / 3)
    assert np.mean(second == -1.0) == pytest.approx(1 / 3)
    assert np.mean(second == model[0, :, 1]) == pytest.approx(1 / 3)


def test_two_modes_are_repeated_and_one_mode_is_not():
    counted = np.zeros((12, 2))
    counted[:6, 0] = counted[6:, 1] = 8
    edges, centres = np.array([0.0]), np.array([-3.0, 3.0])
    assert best_width(counted, np.full((12, 2), 0.5), edges, centres) is not None
    assert best_width(counted, np.where(counted > 0, 0.99, 0.01), edges, centres) is None
    generator = np.random.default_rng(1)
    for scores in (
        generator.normal(size=(32, 12)),
        generator.normal(size=(32, 12)) + generator.normal(0, 2, (32, 1)),
    ):
        assert model_of(scores)._urn is None
    assert model_of(two_modes()[0])._urn is not None


def test_with_two_modes_the_chance_of_each_is_learned():
    scores, upper = two_modes()
    found = predicted(scores)[:, :, 0]
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
