"""The distribution of a prompt's next draft score: a posterior predictive, for all prompts at once.

The model is an ordinal regression with a location and a scale for each prompt (McCullagh, Regression models
for ordinal data, 1980). A score is a monotone function g of a latent number z, which is logistic with the
prompt's location m and scale s. g comes from the scores of all prompts together: it maps the standard
logistic distribution to theirs. A value that recurs often is an atom, so 0 and 1 stay 0 and 1. Between other
values g is linear, and beyond the extremes it continues with the same slope, so a new draft may beat all
earlier ones. Such a model needs no unit, and outliers do not move it; but if prompts differ, it mistakes
equal noise for unequal, because g is steep where scores are few. So scores without atoms are also fitted
with a linear g, and the g that explains them better is used.

All prompts share the prior of (m, s), which is estimated from them: weights on a grid, by expectation
maximisation (nonparametric maximum likelihood; Kiefer and Wolfowitz, 1956), from a smooth start with the
weight of one prompt. So the data determine how alike prompts are, in success rate and in noise. With few
drafts, prompts differ in noise by chance. If scores are graded, the scales' weights are therefore averaged
over three hypotheses, by how well each explains the scores (Bayesian model averaging; Hoeting et al., 1999):
one scale for all prompts, all scales equally likely, and the estimated weights. If continuous scores predict
each other better than this model, as bimodal ones do, drafts come from an urn (`score_urn`).

Shapes: P prompts, S scales and M locations of the grid, K = S * M its points, B bins of scores (one per
value, or equal shares of all scores), C hypotheses, R random outcomes, N drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_runtime.exploration.prediction.score_urn import ScoreUrn, best_width, bin_probabilities

_SCALES = 2.0 ** np.arange(-3, 1.5, 0.5)
"""Scales of the grid, relative to the scale of all scores; variances are a factor of 2 apart."""

_LOCATIONS = np.linspace(-6.0, 6.0, 31)
"""Locations of the grid; those of all scores have mean 0 and deviation 1.8."""

_PRIOR_PROMPTS = 1.0
"""Weight of the prior's smooth start, in prompts; above it, equally rare successes look unequal."""

_MOST_FOR_PRIOR = 256
"""Most prompts that the prior is estimated from; more are not needed."""

_EM_ITERATIONS = 40
"""Iterations of expectation maximisation; few keep the prior smooth where scores say little."""

_MOST_BINS = 64
"""Most values that the likelihood distinguishes; more are merged by rank."""

_FEW_VALUES = 5
"""Most distinct values that always form a discrete scale."""

_RARE_TIES = 4.0
"""Mean count above which more values are a discrete scale too; else only a value that is so many times
more frequent than the mean is an atom, such as the 0 of failures among graded scores."""

_UNSEEN = 0.5
"""Weight, in drafts, of failure and of success where few values, and not these, were seen so far."""

_PENALTY_OF_RANKS = 20.0
"""Nats by which a g read off the scores must explain them better than a linear one, because it was fitted
to them. This and the next constant were chosen on tables that `benchmarks.exploration.allocation`
does not report."""

_PENALTY_OF_WEIGHTS = 8.0
"""The same for the scales' weights, which are estimated from the scores."""

_DEVIATION = 1.8
"""Standard deviation of the standard logistic distribution."""

_EDGE = 10.0
"""Largest absolute latent number; larger ones are clipped."""

_CELLS = 32
"""Entries of g's table per latent unit."""

_LATENTS = np.arange(-int(_EDGE * _CELLS), int(_EDGE * _CELLS) + 1) / _CELLS
"""Latent numbers of g's table."""

_QUANTUM = 2.0**-20
"""Unit of log-likelihoods: sums of its multiples are exact in any order of addition."""

_WEIGHT_QUANTUM = 2.0**-6
"""Unit of the weights of past scores, for the same reason."""

_GRID_S, _GRID_M = (grid.ravel() for grid in np.meshgrid(_SCALES, _LOCATIONS, indexing="ij"))
# In the smooth start, each scale's locations spread so that all prompts together have the deviation of the
# standard logistic distribution: prompts that hardly vary differ much from each other.
_SPREAD = np.maximum(_DEVIATION * np.sqrt(np.maximum(1 - _GRID_S**2, 0.0)), 0.3)
_START = np.exp(-0.5 * (_GRID_M / _SPREAD) ** 2)
_START /= _START.reshape(len(_SCALES), -1).sum(axis=1).repeat(len(_LOCATIONS)) * len(_SCALES)
# One scale for all prompts, whichever it is; and all scales equally likely.
_SCALE_HYPOTHESES_CS = np.vstack([np.eye(len(_SCALES)), np.full(len(_SCALES), 1 / len(_SCALES))])
_LOG_HYPOTHESES_C = np.array([*[-np.log(len(_SCALES))] * len(_SCALES), 0.0, -_PENALTY_OF_WEIGHTS])


@dataclass(frozen=True)
class PastScores:
    """The scores of earlier iterations.

    Attributes:
        own: a prompt's past scores and the weight of each, in current drafts, by prompt.
        others: scores of other prompts, prompt by prompt; they show how prompts differ.
    """

    own: dict[int, tuple[tuple[float, ...], float]] = field(default_factory=dict)
    others: tuple[tuple[float, ...], ...] = ()


class ScoreModel:
    """The posterior predictive distributions of P prompts.

    Args:
        judged: each prompt's scores so far, P of them.
        own: each prompt's past scores and their weights, P of them.
    """

    def __init__(
        self,
        judged: Sequence[np.ndarray],
        own: Sequence[tuple[Sequence[float], float]],
        others: Sequence[Sequence[float]],
    ) -> None:
        weights_P = np.round(np.array([weight for _, weight in own]) / _WEIGHT_QUANTUM) * _WEIGHT_QUANTUM
        past = [np.asarray(scores, dtype=float) for scores, _ in own]
        seen = _Scores(judged, past, weights_P, others)
        self.variance = seen.variance
        graded = len(seen.values) > 2
        scale = _ranked(seen.values, seen.counts, seen.bins)
        posterior_PK, evidence = _posterior(seen.weight_PB @ scale.logs_BK, graded)
        self._urn: ScoreUrn | None = None
        if graded and not _atoms(seen.values, seen.counts).any():
            linear = _linear(seen.values, seen.bins, seen.mean, seen.variance)
            linear_PK, of_linear = _posterior(seen.weight_PB @ linear.logs_BK, graded)
            if of_linear > evidence - _PENALTY_OF_RANKS:
                posterior_PK, scale = linear_PK, linear
            width = _urn_width(seen, scale, posterior_PK)
            if width is not None:
                own_P, past_P = ([scale.latents(scores) for scores in some] for some in (judged, past))
                pool = scale.latents(seen.values)
                self._urn = ScoreUrn(width, own_P, past_P, weights_P, pool, seen.weight_of_values)
        self._posterior_PK, self._table = posterior_PK[: len(judged)], scale.table

    def draws(self, uniforms_R: np.ndarray, logits_RN: np.ndarray, picks_RN: np.ndarray) -> np.ndarray:
        """Return scores of future drafts; each random outcome fixes one location and scale for its drafts.

        So a failed draft makes later ones of the same outcome less likely to succeed.

        Args:
            uniforms_R: ascending numbers in [0, 1) that choose the location and scale.
            logits_RN: standard logistic numbers, one per draft; N is at least a prompt's judged drafts.
            picks_RN: numbers in [0, 1), one per draft; if scores repeat, they choose which.

        Returns:
            (P, R, N): for a prompt with n judged drafts, only the scores from the n + 1st on count.
        """
        prompts, count = self._posterior_PK.shape
        heights = np.cumsum(self._posterior_PK, axis=1)
        heights = np.minimum(heights / heights[:, -1:], 1.0) + 2.0 * np.arange(prompts)[:, None]
        wanted = uniforms_R[None, :] + 2.0 * np.arange(prompts)[:, None]
        found = np.searchsorted(heights.ravel(), wanted.ravel(), side="right").reshape(wanted.shape)
        chosen_PR = found - count * np.arange(prompts)[:, None]
        latent = logits_RN[None] * _GRID_S[chosen_PR][..., None] + _GRID_M[chosen_PR][..., None]
        if self._urn is not None:
            latent = self._urn.draw(latent, logits_RN, picks_RN)
        cells = latent * _CELLS
        cells += _EDGE * _CELLS + 0.5
        np.clip(cells, 0, len(self._table) - 1, out=cells)
        return self._table[cells.astype(np.int32)]


@dataclass(frozen=True)
class _Scale:
    """The map from latent numbers to scores.

    Attributes:
        table: values of g at `_LATENTS`.
        edges: latent numbers between the bins, (B - 1,).
        logs_BK: logarithm of each bin's probability at each grid point.
    """

    table: np.ndarray
    edges: np.ndarray
    logs_BK: np.ndarray

    def latents(self, scores: np.ndarray) -> np.ndarray:
        """Return the latent numbers of scores; scores beyond the table get its ends."""
        return np.interp(scores, self.table, _LATENTS)


class _Scores:
    """The scores of P prompts, followed by those of other prompts.

    Args:
        past, weights_P: past scores of each prompt, and their weights; others as for `ScoreModel`.

    Attributes:
        values, counts: ascending distinct scores, and how often each occurs.
        weight_of_values: weight of each distinct score; past scores have their own.
        bins: bin of each distinct score.
        weight_PB: weight of each prompt's scores in each bin.
        drafts_PB: number of these scores that are current drafts.
        mean, variance: mean and variance of all scores.
    """

    def __init__(
        self,
        judged: Sequence[np.ndarray],
        past: Sequence[np.ndarray],
        weights_P: np.ndarray,
        others: Sequence[Sequence[float]],
    ) -> None:
        prompts, further = len(judged), len(others)
        groups = [*judged, *past, *others]
        sizes = [len(group) for group in groups]
        scores = np.concatenate([*groups, np.zeros(0)]).astype(float)
        self.values, places, self.counts = _distinct(scores)
        self.bins = _bins(self.counts)
        shape = prompts + further, int(self.bins[-1]) + 1
        rows = np.repeat([*range(prompts), *range(prompts), *range(prompts, prompts + further)], sizes)
        cells = rows.astype(np.intp) * shape[1] + self.bins[places]
        weights, drafts = (
            np.repeat(np.concatenate([np.ones(prompts), of_past, np.ones(further)]), sizes)
            for of_past in (weights_P, np.zeros(prompts))
        )
        self.weight_of_values = np.bincount(places, weights, len(self.values))
        self.weight_PB, self.drafts_PB = (
            np.bincount(cells, each, shape[0] * shape[1]).reshape(shape) for each in (weights, drafts)
        )
        self.mean = float(np.average(self.values, weights=self.counts))
        self.variance = float(np.average((self.values - self.mean) ** 2, weights=self.counts))


def _urn_width(seen: _Scores, scale: _Scale, posterior_PK: np.ndarray) -> float | None:
    sample = slice(None, None, -(-len(posterior_PK) // _MOST_FOR_PRIOR))
    # The posterior without one score of a bin is the posterior with it, divided by the bin's probability.
    model_PB = 1 / np.einsum("pk,bk->pb", posterior_PK[sample], np.exp(-scale.logs_BK))
    centres_B = np.bincount(seen.bins, scale.latents(seen.values)) / np.bincount(seen.bins)
    return best_width(
        seen.drafts_PB[sample],
        seen.weight_PB[sample],
        model_PB,
        lambda width: bin_probabilities(scale.edges, centres_B, width),
    )


def _distinct(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return at least two distinct values, each score's index among them, and how often each occurs.

    With few distinct values, others stay possible: failure and success, 0 and 1, if all scores lie
    between them.
    """
    unseen = np.zeros(0)
    seen = np.unique(scores)
    if len(seen) <= _FEW_VALUES and ((seen >= 0) & (seen <= 1)).all():
        unseen = np.setdiff1d([0.0, 1.0], seen)
    elif len(seen) == 1:
        unseen = seen + 1.0
    values, places = np.unique(np.concatenate([scores, unseen]), return_inverse=True)
    counts = np.bincount(places[: len(scores)], minlength=len(values)).astype(float)
    return values, places[: len(scores)], np.where(counts == 0, _UNSEEN, counts)


def _logit(shares: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(shares) - np.log1p(-shares)


def _atoms(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return a mask of the distinct values that are atoms."""
    often = counts.sum() / len(values)
    few = len(values) <= _FEW_VALUES or often > _RARE_TIES
    # Among many values, an occasional tie is chance or rounding.
    return (counts != 1) if few else counts > _RARE_TIES * often


def _bins(counts: np.ndarray) -> np.ndarray:
    """Return each distinct value's bin, ascending from 0."""
    if len(counts) <= _MOST_BINS:
        return np.arange(len(counts))
    middle = np.cumsum(counts) / counts.sum() - counts / counts.sum() / 2
    return np.unique((middle * _MOST_BINS).astype(int), return_inverse=True)[1]


def _ranked(values: np.ndarray, counts: np.ndarray, bins: np.ndarray) -> _Scale:
    """Return the g given by ranks, which maps the standard logistic distribution to that of all scores."""
    share, upper = counts / counts.sum(), np.cumsum(counts) / counts.sum()
    edges = _logit(upper[np.flatnonzero(np.diff(bins))])
    lower = np.concatenate([[0.0], upper[:-1]])
    atom = _atoms(values, counts)
    # g is flat over an atom's interval, and reaches a value seen once in the middle of its interval.
    ends = np.stack(
        [np.where(atom, lower, upper - share / 2), np.where(atom, upper, upper - share / 2)], axis=1
    )
    knots = np.clip(_logit(np.clip(ends, 0.0, 1.0).ravel()), -_EDGE, _EDGE)
    heights = np.repeat(values, 2)
    tail = max(1, len(values) // 10)
    if not atom[0]:
        slope = (heights[2 * tail] - heights[0]) / max(knots[2 * tail] - knots[0], 1e-9)
        knots, heights = np.r_[-_EDGE, knots], np.r_[heights[0] - slope * (knots[0] + _EDGE), heights]
    if not atom[-1]:
        slope = (heights[-1] - heights[-1 - 2 * tail]) / max(knots[-1] - knots[-1 - 2 * tail], 1e-9)
        knots, heights = np.r_[knots, _EDGE], np.r_[heights, heights[-1] + slope * (_EDGE - knots[-1])]
    return _Scale(np.interp(_LATENTS, knots, heights), edges, _logs(edges))


def _linear(values: np.ndarray, bins: np.ndarray, mean: float, variance: float) -> _Scale:
    """Return the linear g that gives the scores their mean and variance."""
    slope = max(np.sqrt(variance), 1e-12) / _DEVIATION
    last = np.flatnonzero(np.diff(bins))
    edges = ((values[last] + values[last + 1]) / 2 - mean) / slope
    return _Scale(mean + slope * _LATENTS, edges, _logs(edges))


def _logs(edges: np.ndarray) -> np.ndarray:
    """Return log-probabilities of the B bins between B - 1 latent numbers, (B, K)."""
    logs = np.log(bin_probabilities(edges, _GRID_M, _GRID_S))
    return np.round(logs / _QUANTUM) * _QUANTUM


def _posterior(logs_PK: np.ndarray, graded: bool) -> tuple[np.ndarray, float]:
    """Return each prompt's probabilities of the grid points, with a prior estimated from all prompts.

    Args:
        logs_PK: log-likelihoods of the prompts' scores.
        graded: True if scores take other values than failure and success, which separates noise from level.

    Returns:
        The probabilities, and the logarithm of the evidence.
    """
    highest_P = logs_PK.max(axis=1, keepdims=True)
    likelihood = np.exp(logs_PK - highest_P)
    sample = likelihood[:: -(-len(likelihood) // _MOST_FOR_PRIOR)]
    prior = _START
    # einsum adds in a fixed order, whatever the number of threads.
    for _ in range(_EM_ITERATIONS):
        evidence = np.einsum("pk,k->p", sample, prior)
        expected = prior * np.einsum("pk,p->k", sample, 1 / evidence)
        prior = (expected + _PRIOR_PROMPTS * _START) / (len(sample) + _PRIOR_PROMPTS)
        if graded:
            prior = _averaged_over_scales(sample, prior)
    posterior = likelihood * prior
    evidence = posterior.sum(axis=1, keepdims=True)
    return posterior / evidence, float((np.log(evidence) + highest_P).sum())


def _averaged_over_scales(likelihood_PK: np.ndarray, prior_K: np.ndarray) -> np.ndarray:
    """Return the prior with scales' weights averaged over the hypotheses; each scale keeps its locations."""
    prior_SM = prior_K.reshape(len(_SCALES), -1)
    weights_S = prior_SM.sum(axis=1)
    located_SM = prior_SM / weights_S[:, None]
    likelihood_PSM = likelihood_PK.reshape(len(likelihood_PK), *located_SM.shape)
    likelihood_PS = np.einsum("psm,sm->ps", likelihood_PSM, located_SM)
    hypotheses_CS = np.vstack([_SCALE_HYPOTHESES_CS, weights_S])
    with np.errstate(divide="ignore"):  # a hypothesis may rule scores out
        logs_C = np.log(np.einsum("ps,cs->pc", likelihood_PS, hypotheses_CS)).sum(axis=0) + _LOG_HYPOTHESES_C
    chances_C = np.exp(logs_C - logs_C.max())
    averaged_S = np.einsum("c,cs->s", chances_C / chances_C.sum(), hypotheses_CS)
    return (averaged_S[:, None] * located_SM).ravel()
