"""Repeating scores: a prompt's next draft may score like one of its earlier drafts, or like any prompt's.

A location and a scale per prompt (`score_model`) describe scores with one mode. If images succeed or fail on
a graded scale, a prompt has two modes, which that model takes for wide noise; and once a prompt has shown
one of them, the model does not expect the other. Then the next draft comes from an urn (Blackwell and
MacQueen, Ferguson distributions via Pólya urn schemes, 1973): with probability n / (n + 2) it repeats one of
the prompt's n drafts so far, with past ones counted by their weights; otherwise it comes from the model or
from the scores of all prompts, equally likely. Repeated scores get a little noise. The scores decide whether
to use the urn: each is predicted from the others (Geisser, The predictive sample reuse method, 1975).

All numbers are latent numbers of `score_model`.

Shapes: P prompts, B bins of scores, R random outcomes, N drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_WIDTHS = (0.125, 0.25, 0.5)
"""Scales of the logistic noise added to repeated drafts; all scores together have scale 1."""

_OF_MODEL, _OF_ALL = 1.0, 1.0
"""Weights, in drafts, of the model and of all prompts' scores."""

_PENALTY = 8.0
"""Nats by which the urn must explain the scores better than the model alone."""


def bin_probabilities(edges: np.ndarray, locations: np.ndarray, scales: np.ndarray | float) -> np.ndarray:
    """Return probabilities of the B bins between B - 1 latent numbers, at least 1e-12: (B, locations).

    Args:
        edges: latent numbers between the bins, ascending, (B - 1,).
    """
    bounds = np.concatenate([[-np.inf], edges, [np.inf]])
    below = 1 / (1 + np.exp(np.clip((locations - bounds[:, None]) / scales, -700, 700)))
    return np.maximum(np.diff(below, axis=0), 1e-12)


def best_width(
    whole_PB: np.ndarray,
    counted_PB: np.ndarray,
    model_PB: np.ndarray,
    noise_BB: Callable[[float], np.ndarray],
) -> float | None:
    """Return the noise of repeated drafts that explains the scores best; None if the model alone does.

    Args:
        whole_PB: number of each prompt's current drafts in each bin. These are predicted.
        counted_PB: weight of all its scores there, including past ones; at least `whole_PB`.
        model_PB: the model's probability of a bin, from the prompt's scores without one in that bin.
        noise_BB: for each width, the probability that a score in a bin (column) repeats in a bin (row).
    """
    weight = counted_PB.sum()
    if weight <= 1:
        return None
    others_P = counted_PB.sum(axis=1, keepdims=True) - 1
    by_model = (whole_PB * np.log(model_PB)).sum()
    best, gain = None, _PENALTY
    for width in _WIDTHS:
        noise = noise_BB(width)
        itself_B = np.diagonal(noise)
        own_PB = np.einsum("pb,cb->pc", counted_PB, noise) - itself_B
        all_B = (np.einsum("b,cb->c", counted_PB.sum(axis=0), noise) - itself_B) / (weight - 1)
        urn_PB = _OF_MODEL * model_PB + _OF_ALL * np.maximum(all_B, 0.0) + np.maximum(own_PB, 0.0)
        # A bin without scores has nothing to predict.
        urn_PB = np.where(whole_PB > 0, urn_PB / np.maximum(_OF_MODEL + _OF_ALL + others_P, 1e-9), 1.0)
        gained = float((whole_PB * np.log(urn_PB)).sum() - by_model)
        if gained > gain:
            best, gain = width, gained
    return best


@dataclass(frozen=True)
class ScoreUrn:
    """An urn for each prompt.

    Attributes:
        width: scale of the noise added to repeated scores.
        judged: latent numbers of each prompt's drafts, P arrays.
        past: latent numbers of its past drafts, P arrays.
        weights: weight of each of a prompt's past drafts, (P,).
        pool: latent numbers of all prompts' scores.
        pool_weights: their weights.
    """

    width: float
    judged: Sequence[np.ndarray]
    past: Sequence[np.ndarray]
    weights: np.ndarray
    pool: np.ndarray
    pool_weights: np.ndarray

    def draw(self, model_PRN: np.ndarray, logits_RN: np.ndarray, picks_RN: np.ndarray) -> np.ndarray:
        """Return latent numbers of future drafts: each may repeat earlier ones of the same outcome.

        Args:
            model_PRN: the model's draws. For a prompt with n judged drafts, the first n stay unchanged; N is
                at least n.
            logits_RN: standard logistic numbers, one per draft.
            picks_RN: numbers in [0, 1), one per draft, that choose its source.
        """
        drawn, repeated = model_PRN.copy(), model_PRN.copy()
        past_PL = np.zeros((len(self.past), max([1, *map(len, self.past)])))
        for place, (own, former) in enumerate(zip(self.judged, self.past, strict=True)):
            repeated[place, :, : len(own)] = own
            past_PL[place, : len(former)] = former
        counts = np.array([len(own) for own in self.judged])
        most_P = np.array([len(former) for former in self.past])
        pool = np.cumsum(self.pool_weights) / self.pool_weights.sum()
        for turn in range(int(counts.min(initial=picks_RN.shape[1])), picks_RN.shape[1]):
            prompts = np.flatnonzero(counts <= turn)[:, None]
            weight_P1, most_P1 = self.weights[prompts], most_P[prompts]
            marks_PR = picks_RN[:, turn] * (_OF_MODEL + _OF_ALL + weight_P1 * most_P1 + turn) - _OF_MODEL
            modelled_PR = marks_PR < 0
            pooled_PR = marks_PR < _OF_ALL
            share_PR = np.clip(marks_PR / _OF_ALL, 0, 1 - 1e-9)
            of_all_PR = self.pool[np.searchsorted(pool, share_PR, side="right")]
            marks_PR = np.maximum(marks_PR - _OF_ALL, 0.0)
            former_PR = (marks_PR / np.where(weight_P1 > 0, weight_P1, 1.0)).astype(np.intp)
            is_former_PR = (marks_PR < weight_P1 * most_P1) & (former_PR < most_P1)
            of_past_PR = past_PL[prompts, np.minimum(former_PR, past_PL.shape[1] - 1)]
            earlier_PR = np.maximum(marks_PR - weight_P1 * most_P1, 0.0).astype(np.intp)
            own_PR = repeated[prompts, np.arange(len(picks_RN)), earlier_PR]
            own_PR = np.where(pooled_PR, of_all_PR, np.where(is_former_PR, of_past_PR, own_PR))
            rows = prompts[:, 0]
            repeated[rows, :, turn] = np.where(modelled_PR, model_PRN[rows, :, turn], own_PR)
            noise_PR = np.where(modelled_PR, 0.0, self.width * logits_RN[:, turn])
            drawn[rows, :, turn] = repeated[rows, :, turn] + noise_PR
        return drawn
