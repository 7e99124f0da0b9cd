"""Scores that come back: what a prompt's drafts were may come again, and what those of other prompts were.

A location and a scale of each prompt (`score_model`) describe scores with one mode. Where a prompt's images
succeed or fail on a graded scale, they take two modes for wide noise, and a prompt that has shown one mode
alone for one that will never show another. There the next draft is drawn from an urn (Blackwell and MacQueen,
Ferguson distributions via Pólya urn schemes, 1973): it repeats one of the prompt's n drafts so far, but for a
little noise, with probability n / (n + 2); else it is one of the model, or one like any prompt's, equally
likely. Whether scores look like that is asked of them: each is predicted from the others of its prompt
(Geisser, The predictive sample reuse method, 1975).

Everything is in latent numbers of `score_model`.

Shapes: P prompts, B bins of equal latent intervals, R random outcomes, N drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_WIDTHS = (0.125, 0.25, 0.5)
"""Scales of the logistic noise with which a draft is repeated; that of all scores is 1."""

_OF_MODEL, _OF_ALL = 1.0, 1.0
"""Weights, in drafts, of the model and of all prompts' scores."""

_PENALTY = 8.0
"""By so many nats the urn has to explain the scores better than the model alone."""


def bin_probabilities(edges: np.ndarray, locations: np.ndarray, scales: np.ndarray | float) -> np.ndarray:
    """Probabilities of the B bins between B - 1 latent numbers, at least 1e-12: shape (B, locations).

    Args:
        edges: between the bins, ascending, (B - 1,).
        locations: of logistic distributions.
        scales: of these.
    """
    bounds = np.concatenate([[-np.inf], edges, [np.inf]])
    below = 1 / (1 + np.exp(np.clip((locations - bounds[:, None]) / scales, -700, 700)))
    return np.maximum(np.diff(below, axis=0), 1e-12)


def best_width(
    counted_PB: np.ndarray, model_PB: np.ndarray, edges: np.ndarray, centres_B: np.ndarray
) -> float | None:
    """The noise of repeated drafts with which the urn explains the scores best; None where the model does.

    Args:
        counted_PB: weight of each prompt's scores in each bin.
        model_PB: probability of a bin by the model, from the prompt's scores without one of that bin.
        edges: latent numbers between the bins, (B - 1,).
        centres_B: mean latent number of a bin's scores.
    """
    left_PB = np.minimum(counted_PB, 1.0)
    others_P = np.maximum(counted_PB.sum(axis=1, keepdims=True) - 1.0, 0.0)
    all_B = counted_PB.sum(axis=0) / counted_PB.sum()
    by_model = (counted_PB * np.log(model_PB)).sum()
    best, gain = None, _PENALTY
    for width in _WIDTHS:
        noise_BB = bin_probabilities(edges, centres_B, width)
        own_PB = np.einsum("pb,cb->pc", counted_PB, noise_BB) - left_PB * np.diagonal(noise_BB)
        likely_PB = _OF_MODEL * model_PB + _OF_ALL * all_B + np.maximum(own_PB, 0.0)
        likely_PB /= _OF_MODEL + _OF_ALL + others_P
        gained = float((counted_PB * np.log(likely_PB)).sum() - by_model)
        if gained > gain:
            best, gain = width, gained
    return best


@dataclass(frozen=True)
class ScoreUrn:
    """An urn for each prompt.

    Attributes:
        width: of the noise of a repeated draft.
        judged: latent numbers of each prompt's drafts, P arrays.
        pool: of all prompts' scores.
    """

    width: float
    judged: Sequence[np.ndarray]
    pool: np.ndarray

    def draw(self, model_PRN: np.ndarray, logits_RN: np.ndarray, picks_RN: np.ndarray) -> np.ndarray:
        """Latent numbers of drafts to come: each may repeat those before it, of the same outcome.

        Args:
            model_PRN: the model's draws. Of a prompt with n judged drafts, the first n stay as they are.
            logits_RN: standard logistic numbers, one a draft.
            picks_RN: in [0, 1), likewise: from where it is drawn.
        """
        drawn, repeated = model_PRN.copy(), model_PRN.copy()
        for place, own in enumerate(self.judged):
            repeated[place, :, : len(own)] = own
        counts = np.array([len(own) for own in self.judged])
        outcomes = np.arange(len(picks_RN))
        for turn in range(int(counts.min(initial=picks_RN.shape[1])), picks_RN.shape[1]):
            prompts = np.flatnonzero(counts <= turn)
            marks_R = picks_RN[:, turn] * (_OF_MODEL + _OF_ALL + turn) - _OF_MODEL
            pooled_R = self.pool[(np.clip(marks_R / _OF_ALL, 0, 1 - 1e-9) * len(self.pool)).astype(np.intp)]
            earlier_R = np.clip(marks_R - _OF_ALL, 0, max(turn - 1, 0)).astype(np.intp)
            own_PR = repeated[prompts[:, None], outcomes, earlier_R]
            kept_PR = np.where(marks_R < _OF_ALL, pooled_R, own_PR)
            modelled = marks_R < 0
            repeated[prompts, :, turn] = np.where(modelled, model_PRN[prompts, :, turn], kept_PR)
            noise_R = np.where(modelled, 0.0, self.width * logits_RN[:, turn])
            drawn[prompts, :, turn] = repeated[prompts, :, turn] + noise_R
        return drawn
