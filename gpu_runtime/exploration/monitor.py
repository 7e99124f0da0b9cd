"""The staleness monitor: re-scores some drafts with newer weights and decides whether ranks hold.

Do seeds keep their rank when the weights change? Stale and fresh scores of the same seeds are compared
within each prompt, because seeds compete only there: across prompts, easy and hard ones would make any two
policies look alike. Prompts are weighted by the spread of their ranks, so a prompt whose candidates all
score the same has no weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_runtime.exploration.draft_planner import Draft
from gpu_runtime.exploration.fidelity import FULL
from gpu_runtime.exploration.plan import Candidate, Note, SeedPlan
from gpu_runtime.exploration.selection import max_variance_subset
from storage.config.exploration import ExplorationConfig

MONITOR_ROUND = -1
"""Round number of candidates that the staleness monitor re-scored."""

_REVIEWS = 3
"""Reviews that a verdict covers: a single iteration gives few ranks."""

_ENOUGH_PAIRS = 16
"""Fewest candidates they must compare before drafts can be refused."""

Pairs = Mapping[int, tuple[Sequence[float], Sequence[float]]]
"""Stale and fresh scores of the same candidates, by prompt."""

RankSums = tuple[int, float, float, float]
"""Candidates compared in a review, and its `Agreement.rank_sums`."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of stale and fresh scores.

    Attributes:
        pairs: candidates compared.
        spearman: rank correlation in [-1, 1], ties at their average rank; None if nothing differs.
        kendall: tau-b, in [-1, 1]; None if nothing differs.
        rank_sums: products of stale and fresh ranks, and the squares of both, each summed; the agreement of
            several iterations is computed from them.
        kept_overlap: share of the kept seeds that fresh scores would also keep; None if no prompt
            has more candidates than it keeps.
    """

    pairs: int
    spearman: float | None
    kendall: float | None
    kept_overlap: float | None
    rank_sums: tuple[float, float, float]


@dataclass(frozen=True)
class Review:
    """The staleness monitor's finding.

    Attributes:
        trusted: True if stale drafts may still choose seeds.
    """

    agreement: Agreement
    trusted: bool
    notes: tuple[Note, ...]


class RankMonitor:
    """Checks some prompts' drafts every iteration, and remembers the last reviews.

    Attributes:
        ranks: what is remembered of them, as JSON values for a checkpoint.
    """

    def __init__(self, settings: ExplorationConfig) -> None:
        self._settings = settings
        self.ranks: list[RankSums] = []

    def to_rescore(self, plan: SeedPlan) -> list[Draft]:
        """Return the drafts to repeat with the rollout's weights, to check that a plan's ranks hold.

        All candidates of some prompts are repeated: as full drafts, except for the kept seeds, whose
        rollouts already give fresh scores; and by every preview, in use or not, to measure it under equal
        weights. Drafts that replace refused ones already have fresh scores too.
        """
        anew = plan.candidates if plan.superseded else ()
        fresh = {Draft(draft.prompt_id, draft.seed_index, draft.fidelity) for draft in anew}
        judged: dict[int, list[Candidate]] = {}
        for draft in plan.stale_drafts:
            if draft.error is None and draft.prompt_id in plan.seeds:
                judged.setdefault(draft.prompt_id, []).append(draft)
        # The prompts with most drafts tell most about ranks; ties go to the first.
        most = sorted(judged, key=lambda prompt: (-len(judged[prompt]), prompt))
        chosen = [
            draft for prompt in sorted(most[: self._settings.monitor_prompts]) for draft in judged[prompt]
        ]
        in_full = [d for d in chosen if d.seed_index not in plan.seeds[d.prompt_id]]
        previews = [name for name in self._settings.fidelities if name != FULL]
        wanted = [Draft(d.prompt_id, d.seed_index) for d in in_full] + [
            Draft(d.prompt_id, d.seed_index, name) for name in previews for d in chosen
        ]
        return [draft for draft in wanted if draft not in fresh]

    def verdict(self, iteration: int, agreement: Agreement, moved: bool) -> Review:
        """Return the verdict on an iteration's agreement, combined with the reviews before it.

        Args:
            moved: True if any graded score changed.
        """
        least = self._settings.min_spearman
        # Sums, not correlations: candidates that all stopped succeeding have no correlation, but
        # their stale ranks weigh against those that have.
        self.ranks = [*self.ranks, (agreement.pairs, *agreement.rank_sums)][-_REVIEWS:]
        compared, product, stale, fresh = (sum(column) for column in zip(*self.ranks, strict=True))
        if stale == 0 and fresh == 0:
            return Review(agreement, True, ())
        spearman = _correlation((product, stale, fresh)) or 0.0
        trusted = spearman >= least or compared < _ENOUGH_PAIRS
        if not trusted:
            message = (
                f"stale and fresh ranks of {compared} drafts correlate by {spearman:.2f} (Spearman), "
                f"below exploration.min_spearman={least:g}; the next seeds will be redrafted. A lower "
                "learning rate keeps ranks longer"
            )
        elif not moved and agreement.pairs >= _ENOUGH_PAIRS:
            message = (
                f"all {agreement.pairs} stale and fresh scores are equal; training may not be "
                "changing the weights (check the gradient norm and the learning rate)"
            )
        else:
            return Review(agreement, True, ())
        return Review(agreement, trusted, (("staleness", f"iteration {iteration}: {message}"),))


def compare(pairs: Pairs, group_size: int) -> Agreement:
    """Return the agreement of stale and fresh scores, within prompts.

    Args:
        pairs: each prompt's stale and fresh scores, equally many, in the order of their seeds.
    """
    arrays = [(np.asarray(stale, float), np.asarray(fresh, float)) for stale, fresh in pairs.values()]
    rank_sums = _sums([(_ranks(stale), _ranks(fresh)) for stale, fresh in arrays])
    sign_sums = _sums([(_signs(stale), _signs(fresh)) for stale, fresh in arrays])
    kept = [
        [set(max_variance_subset(scores, group_size).indices) for scores in both]
        for both in arrays
        if len(both[0]) > group_size
    ]
    overlaps = [len(stale & fresh) / group_size for stale, fresh in kept]
    return Agreement(
        pairs=sum(len(stale) for stale, _ in arrays),
        spearman=_correlation(rank_sums),
        kendall=_correlation(sign_sums),
        kept_overlap=float(np.mean(overlaps)) if overlaps else None,
        rank_sums=rank_sums,
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks minus their mean; equal values share the average of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    average = last - (counts - 1) / 2
    return average[inverse] - (len(values) + 1) / 2


def _signs(values: np.ndarray) -> np.ndarray:
    """Return 1, 0 or -1 for every pair of candidates: which of the two is better."""
    first, second = np.triu_indices(len(values), k=1)
    return np.sign(values[first] - values[second])


def _correlation(sums: tuple[float, float, float]) -> float | None:
    """Return the sum of products over the root of the product of both sums of squares."""
    product, first, second = sums
    return product / (first * second) ** 0.5 if first * second > 0 else None


def _sums(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    return (
        sum(float(a @ b) for a, b in pairs),
        sum(float(a @ a) for a, _ in pairs),
        sum(float(b @ b) for _, b in pairs),
    )
