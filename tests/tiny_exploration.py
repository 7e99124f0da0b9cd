"""An explorer of two prompts, plans made by scores that a test says, and their fresh scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate, SeedPlan
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import RunConfig


def make_config(**exploration) -> RunConfig:
    return RunConfig.model_validate(
        {
            "algorithm": {"prompts_per_iteration": 2, "group_size": 2},
            "exploration": {"strategy": "stale", "candidates": 8, **exploration},
        }
    )


def explorer_of(config: RunConfig, prompt_ids: Sequence[int] = (4, 5)) -> SeedExplorer:
    """An explorer that drafts beside training."""
    return SeedExplorer(config, prompt_ids, STALE)


def explore(explorer: SeedExplorer, iteration: int, score, budget: float | None = None) -> SeedPlan:
    """Draft what the planner wants; `score(prompt, seed)` is a value, or None for a failure."""
    planner = explorer.begin(iteration, budget)
    made = []
    while drafts := planner.next_round():
        for draft in drafts:
            value = score(draft.prompt_id, draft.seed_index)
            planner.observe(draft, value)
            error = "broken" if value is None else None
            value = value or 0.0
            made.append(
                Candidate(draft.prompt_id, draft.seed_index, draft.fidelity, 0, value, value == 1, error, 0)
            )
    return explorer.finish(iteration, planner, made)


def rescored(plan: SeedPlan, explorer: SeedExplorer, score) -> list[Candidate]:
    drafts = explorer.monitored(plan)
    return [
        Candidate(d.prompt_id, d.seed_index, d.fidelity, 1, value, value == 1, None, MONITOR_ROUND)
        for d in drafts
        for value in [score(d.prompt_id, d.seed_index)]
    ]


def rolled(plan: SeedPlan, score) -> dict[tuple[int, int], Score]:
    return {
        (p, s): Score(score(p, s), score(p, s) == 1, "") for p, seeds in plan.seeds.items() for s in seeds
    }


def rising(prompt: int, seed: int) -> float:
    return seed / 8


def falling(prompt: int, seed: int) -> float:
    return 1 - seed / 8


def superseded(explorer: SeedExplorer, stale, anew, drafts: int = 8) -> SeedPlan:
    """A plan drafted anew by `anew`, in place of one that `stale` drafted."""
    refused = explore(explorer, 3, stale)
    plan = explore(explorer, 3, anew, budget=drafts)
    newer = tuple(replace(draft, policy_version=1) for draft in plan.candidates)
    return replace(plan, candidates=newer).in_place_of(refused)
