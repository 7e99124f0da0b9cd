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
        signal: what was learned from, of every sample.
        value: the graded scores of those that were judged.

    Returns:
        The plan's figures, `variance_rollout` (of the signal within a prompt, the mean over prompts) and,
        where kept seeds were drafted, `draft_error` (mean distance of a seed's draft and rollout score).
    """
    groups = [[signal[prompt, seed] for seed in seeds] for prompt, seeds in plan.seeds.items()]
    variance = statistics.fmean(statistics.pvariance(group) for group in groups)
    figures = plan.figures | {"variance_rollout": variance}
    drafted = plan.explored_score
    errors = [abs(drafted[identity] - score) for identity, score in value.items() if identity in drafted]
    return figures | {"draft_error": statistics.fmean(errors)} if errors else figures
