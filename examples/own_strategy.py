"""Two exploration strategies of your own: one keeps other drafts, one drafts at another time.

The built-in strategies roll out the group with the largest variance of scores, by exact selection.
`BEST_AND_WORST` takes as many of a prompt's best drafts as of its worst, a common shortcut. `FRESH_FIRST`
drafts before the rollout as long as the weights change fast, and beside training from then on. Run one:

    PYTHONPATH=examples spotlight train --preset glyphs \
        --set exploration.strategy=own_strategy:FRESH_FIRST --set iterations=3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import Field

from gpu_runtime.exploration.draft_planner import Choice, DraftPlanner
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.registry import StrategyPlugin
from gpu_runtime.exploration.strategies.stale import Stale
from gpu_runtime.exploration.strategies.strategy import Ahead, Drafting
from storage.config.section import Section


class Shares(Section):
    """Options of `BEST_AND_WORST`, in `[exploration.options]`."""

    best: float = Field(default=0.5, ge=0, le=1)
    """Share of a group taken from a prompt's best drafts; the rest are its worst."""


@dataclass
class BestAndWorst(Stale):
    """Drafts are made as `stale` makes them; only the choice among them differs."""

    options: Shares

    def choose(self, planner: DraftPlanner, judged: Mapping[int, Mapping[int, float]]) -> Choice:
        """Replace the seeds of the prompts that were kept, where enough drafts were judged."""
        choice = planner.choose()
        return replace(
            choice,
            seeds={prompt: self._group(judged[prompt], seeds) for prompt, seeds in choice.seeds.items()},
        )

    def _group(self, scores: Mapping[int, float], seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(scores) < len(seeds):
            return seeds
        best = round(len(seeds) * self.options.best)
        ranked = sorted(scores, key=lambda seed: (-scores[seed], seed))
        return tuple(sorted(ranked[:best] + ranked[len(ranked) - (len(seeds) - best) :]))


class FirstIterations(Section):
    """Options of `FRESH_FIRST`, in `[exploration.options]`."""

    fresh: int = Field(default=2, ge=0)
    """Iterations whose seeds are drafted with the weights of their own rollout."""


@dataclass
class FreshFirst(Stale):
    """Drafts before the rollout in the first iterations, and in the training window afterwards."""

    options: FirstIterations
    drafts_before_rollout = True  # besides those beside training

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead | None:
        """Choose nothing ahead as long as drafts are fresh."""
        return None if iteration <= self.options.fresh else super().ahead(iteration, drafting)

    def before_rollout(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Draft on all devices, which are free, in the first iterations."""
        if iteration <= self.options.fresh:
            return drafting.on_all_devices(iteration)
        return super().before_rollout(iteration, drafting)


BEST_AND_WORST = StrategyPlugin(BestAndWorst, Shares)
FRESH_FIRST = StrategyPlugin(FreshFirst, FirstIterations)
