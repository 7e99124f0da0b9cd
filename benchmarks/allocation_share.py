"""How much of the oracle's spread an allocation of drafts finds, on one table of real scores.

Every candidate of an iteration has been judged; the planner is then run on that table as if it drafted,
once as a bandit and once dividing evenly, from the same history. Weights play no part, so the comparison
is of the allocation alone, and it is paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.plan import Candidate
from gpu_runtime.exploration.selection import max_variance_subset
from storage.config.run_config import RunConfig

Table = Mapping[tuple[int, int], float]
"""What is learned from, of every candidate (prompt, seed index)."""

BUDGETS = (0.125, 0.25, 0.5)
"""Drafts as shares of all candidates at which allocations are compared."""


def variance_of(pool: np.ndarray, chosen: Sequence[int]) -> float:
    """The variance of the chosen entries of a prompt's pool; 0 of none."""
    return float(pool[list(chosen)].var()) if chosen else 0.0


def captured(config: RunConfig, table: Table, seeds: Mapping[int, Sequence[int]]) -> float | None:
    """The chosen seeds' spread over that of the best choice of prompts and seeds; None where it is 0.

    Args:
        config: says how many prompts and seeds are kept.
        table: every candidate of every prompt that was explored.
        seeds: the choice, by prompt; seeds beyond the candidates, which were not tried, are left out.
    """
    settings, algorithm = config.exploration, config.algorithm
    best, got = [], 0.0
    for prompt in sorted({prompt for prompt, _ in table}):
        pool = np.array([table[prompt, seed] for seed in range(settings.candidates)])
        best.append(max_variance_subset(pool, algorithm.group_size).spread)
        chosen = [seed for seed in seeds.get(prompt, ()) if seed < settings.candidates]
        got += variance_of(pool, chosen)
    oracle = sum(sorted(best, reverse=True)[: algorithm.prompts_per_iteration])
    return got / oracle if oracle > 0 else None


def captured_by(
    config: RunConfig,
    prompt_ids: Sequence[int],
    state: Mapping[str, Any],
    iteration: int,
    allocation: Literal["bandit", "uniform"],
    table: Table,
    budget: int | None = None,
) -> float | None:
    """The share that an allocation finds on a table of scores.

    Args:
        config: of the run; its budget of drafts is used.
        prompt_ids: all prompts that the run trains on.
        state: the explorer's, as it was before this iteration was explored.
        iteration: whose prompts the table holds.
        allocation: to be tried.
        table: every candidate's score.
        budget: drafts, in place of the configuration's.
    """
    exploration = config.exploration.model_copy(update={"allocation": allocation})
    tried = config.model_copy(update={"exploration": exploration})
    explorer = SeedExplorer(tried, prompt_ids)
    explorer.restore(state)
    planner = explorer.begin(iteration, budget or config.exploration.drafts or None)
    made: list[Candidate] = []
    while drafts := planner.next_round():
        for draft in drafts:
            score = table[draft.prompt_id, draft.seed_index]
            planner.observe(draft, score)
            # The table holds what is learned from, so graded and exact are the same here.
            made.append(
                Candidate(
                    draft.prompt_id,
                    draft.seed_index,
                    draft.fidelity,
                    0,
                    score,
                    score == 1,
                    None,
                    planner.round_of(draft),
                )
            )
    return captured(config, table, explorer.finish(iteration, planner, made).seeds)


def found_by_budget(
    config: RunConfig, prompt_ids: Sequence[int], state: Mapping[str, Any], iteration: int, table: Table
) -> dict[str, tuple[float, float]]:
    """What the bandit and an even division find with several budgets; arguments as of `captured_by`.

    Returns:
        By budget, as a share of all candidates: the shares of the oracle's spread.
    """
    found = {}
    for share in BUDGETS:
        drafts = round(share * len(table))
        by_bandit, by_uniform = (
            captured_by(config, prompt_ids, state, iteration, allocation, table, drafts) or 0.0
            for allocation in ("bandit", "uniform")
        )
        found[f"{share:g}"] = by_bandit, by_uniform
    return found
