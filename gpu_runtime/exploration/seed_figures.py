"""What a rollout's scores say of the seeds that it was given, whatever chose them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from gpu_runtime.exploration.plan import SeedPlan

Scores = Mapping[tuple[int, int], float]
"""By (prompt_id, seed index)."""


def seed_figures(plan: SeedPlan, signal: Scores, value: Scores) -> dict[str, float]:
    """Metrics of an iteration: what exploration reported, and what came of it.

    Args:
        plan: the iteration's plan.
        signal: what was learned from, of every sample that was judged.
        value: the graded scores of the same.

    Returns:
        The plan's figures, `spread_rollout` (of the signal within a prompt, the mean over the prompts that
        the plan's own spread is of; over all where it has none; without those of which a sample was not
        judged) and, where kept seeds were drafted, `draft_error` (mean distance of a seed's draft and
        rollout score).
    """
    explored = [prompt for prompt in plan.seeds if prompt in plan.compared] or list(plan.seeds)
    spreads = []
    for prompt in explored:
        group = [signal[prompt, seed] for seed in plan.seeds[prompt] if (prompt, seed) in signal]
        if len(group) == len(plan.seeds[prompt]):
            spreads.append(statistics.pvariance(group))
    figures = plan.figures | ({"spread_rollout": statistics.fmean(spreads)} if spreads else {})
    drafted = plan.explored_score
    errors = [abs(drafted[identity] - score) for identity, score in value.items() if identity in drafted]
    return figures | {"draft_error": statistics.fmean(errors)} if errors else figures
