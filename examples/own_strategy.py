"""An exploration strategy of one's own: of each prompt's drafts, roll out the best and the worst.

The project's own strategies roll out the group with the largest variance of scores, by exact selection. This
one takes as many of the best as of the worst, a common shortcut. Run it:

    PYTHONPATH=examples spotlight train --preset glyphs \
        --set exploration.strategy=own_strategy:BEST_AND_WORST --set iterations=3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field

from gpu_runtime.exploration.draft_planner import Choice, DraftPlanner
from gpu_runtime.exploration.explorer import DraftTiming, SeedExplorer
from gpu_runtime.exploration.registry import StrategyPlugin
from storage.config.section import Section


class Options(Section):
    """What stands in `[exploration.options]`."""

    best: float = Field(default=0.5, ge=0, le=1)
    """Share of a group that are a prompt's best drafts; the others are its worst."""


class BestAndWorst(SeedExplorer):
    """Drafts are made as the project's strategies make them; only the choice among them differs."""

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
        assert isinstance(self.options, Options)
        best = round(len(seeds) * self.options.best)
        ranked = sorted(scores, key=lambda seed: (-scores[seed], seed))
        return tuple(sorted(ranked[:best] + ranked[len(ranked) - (len(seeds) - best) :]))


BEST_AND_WORST = StrategyPlugin(BestAndWorst, DraftTiming.TRAINING_WINDOW, Options)
