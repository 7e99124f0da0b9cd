"""Exploration across iterations: statistics of prompts, drafts and windows, and plans based on them.

Pure: it neither generates nor scores. The runtime gets an iteration's planner from `begin`, makes the
drafts that the planner requests, and gets the seeds from `finish`. It passes the staleness monitor's
re-scores to `review`, which decides whether to trust the drafts under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_runtime.exploration.draft_planner import Draft, DraftPlanner, PlannerSettings, ScoreHistory
from gpu_runtime.exploration.fidelity import FULL, MeasuredFidelities, costs_of
from gpu_runtime.exploration.monitor import RankMonitor, Review, compare
from gpu_runtime.exploration.plan import (
    Candidate,
    Note,
    SeedPlan,
    draft_spreads,
    plain_plan,
    prompts_of_iteration,
)
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.exploration.window import WindowForecast
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import RunConfig

_MOST_ROUNDS = 16
"""Most planning rounds per iteration; more would add little."""


Judgement = Candidate | Score
"""A scorer's judgement of an image."""


class SeedExplorer:
    """A run's knowledge of prompts and seeds, under any strategy.

    Args:
        strategy: chooses among the drafts; the runtime calls it when drafts may be made.

    Raises:
        ValueError: if a fidelity is unknown, or more prompts are to be explored than there are.
    """

    def __init__(self, config: RunConfig, prompt_ids: Sequence[int], strategy: Strategy) -> None:
        self.strategy = strategy
        strategy.start(config)
        self._config = config
        self._settings = config.exploration
        self._prompt_ids = list(prompt_ids)
        self._history = ScoreHistory()
        self._fidelities = MeasuredFidelities(costs_of(self._settings.fidelities, config.sampling))
        self.forecast = WindowForecast()
        self._monitor = RankMonitor(self._settings)

    def prompts(self, iteration: int) -> list[int]:
        """Return the prompts to explore for an iteration; the strategy picks those to train on."""
        config = self._config
        trained, explored = config.algorithm.prompts_per_iteration, config.prompts_explored
        count = explored if self.strategy.drafts else trained
        return prompts_of_iteration(self._prompt_ids, count, config.seed, iteration)

    def plain(self, iteration: int, *notes: Note) -> SeedPlan:
        """Return the plan without exploration: the first prompts and seeds."""
        prompts = self.prompts(iteration)[: self.strategy.undrafted_groups(iteration, self._config)]
        plan = plain_plan(prompts, self._config.algorithm.group_size, iteration)
        if not self.strategy.drafts:
            return plan
        figures = {"drafts": 0.0, "prompts_unexplored": float(len(prompts))}
        return replace(plan, notes=notes, figures=figures)

    def begin(self, iteration: int, budget: float | None, devices: int = 1) -> DraftPlanner:
        """Return the planner of an iteration's drafts.

        Args:
            budget: cost of all drafts, in full drafts; None for every candidate.
            devices: number of devices, each drafting one batch at a time. The plan depends on it.
        """
        prompts = self.prompts(iteration)
        everything = float(len(prompts) * self._settings.candidates)
        algorithm = self._config.algorithm
        budget = everything if budget is None else min(budget, everything)
        # Two rounds are under way: smaller ones would idle devices while the first is scored.
        round_size = max(2, devices) * self._config.sampling.batch_size
        rounds = max(1, min(_MOST_ROUNDS, int(budget / round_size)))
        return DraftPlanner(
            prompts,
            PlannerSettings(
                algorithm.group_size,
                algorithm.prompts_per_iteration,
                self._settings.candidates,
                budget,
                rounds=rounds,
            ),
            self._fidelities.arms(),
            self._history.past(prompts, iteration),
            (self._config.seed, iteration),
        )

    def finish(self, iteration: int, planner: DraftPlanner, candidates: Iterable[Candidate]) -> SeedPlan:
        """Return the seeds to roll out, chosen from the drafts judged in time.

        Args:
            candidates: the drafts that were made.
        """
        made = tuple(sorted(candidates, key=lambda draft: (draft.prompt_id, draft.seed_index)))
        judged: dict[int, dict[int, float]] = {prompt: {} for prompt in planner.prompts}
        for draft in made:
            if draft.error is None:
                # In the planner's terms: the expected scores of full drafts.
                judged[draft.prompt_id][draft.seed_index] = planner.expected(
                    draft.fidelity, self.signal(draft)
                )
        self._history.add(iteration, {prompt: list(scores.values()) for prompt, scores in judged.items()})
        choice = self.strategy.choose(planner, judged)
        compared = {
            prompt: (choice.random[prompt], choice.spread[prompt])
            for prompt in choice.seeds
            if prompt in choice.random
        }
        reached = {prompt for prompt, scores in judged.items() if scores}
        figures = {
            "drafts": float(len(made)),
            "draft_errors": float(sum(draft.error is not None for draft in made)),
            "prompts_explored": float(len(reached)),
            "prompts_unexplored": float(sum(prompt not in reached for prompt in choice.seeds)),
        }
        figures |= draft_spreads(compared.values())
        return SeedPlan(iteration, choice.seeds, made, compared, figures)

    def monitored(self, plan: SeedPlan) -> list[Draft]:
        """Return the drafts to repeat with the rollout's weights, to check that ranks hold.

        Empty while the run trains on drafts, which are then the samples themselves.
        """
        return [] if self.strategy.trains_on_drafts else self._monitor.to_rescore(plan)

    def review(
        self,
        plan: SeedPlan,
        rescored: Iterable[Candidate],
        rolled: Mapping[tuple[int, int], Judgement],
    ) -> Review | None:
        """Compare a plan's drafts, or those of the refused plan before it, with fresh scores of their seeds.

        Args:
            rescored: the judged drafts of `monitored`.
            rolled: the rollout's judgements by prompt and seed; may be empty.

        Returns:
            None if nothing can be compared.
        """
        # Drafts that replace refused ones use the rollout's weights, as re-scores do.
        anew = plan.candidates if plan.superseded else ()
        again = [draft for draft in (*rescored, *anew) if draft.error is None]
        fresh: dict[tuple[int, int], Judgement] = dict(rolled)
        fresh |= {(draft.prompt_id, draft.seed_index): draft for draft in again if draft.fidelity == FULL}
        judged = [draft for draft in plan.stale_drafts if draft.error is None]
        # The kept seeds are extremes, which correlate better than all candidates do, so a prompt
        # counts only if the window had time for all its re-scores.
        partly = {d.prompt_id for d in judged if (d.prompt_id, d.seed_index) not in fresh}
        monitored = {draft.prompt_id for draft in again} - partly
        drafts = [draft for draft in judged if draft.prompt_id in monitored]
        pairs: dict[int, tuple[list[float], list[float]]] = {}
        moved = False
        for draft in drafts:
            now = fresh[draft.prompt_id, draft.seed_index]
            stale_scores, fresh_scores = pairs.setdefault(draft.prompt_id, ([], []))
            stale_scores.append(self.signal(draft))
            fresh_scores.append(self.signal(now))
            # The graded score moves long before an image turns from wrong to right.
            moved = moved or draft.value != now.value
            self._fidelities.note(draft.fidelity, draft.prompt_id, self.signal(draft), self.signal(now))
        for draft in again:
            now = fresh.get((draft.prompt_id, draft.seed_index))
            if draft.fidelity != FULL and now is not None:
                scores = self.signal(draft), self.signal(now)
                self._fidelities.note(draft.fidelity, draft.prompt_id, *scores, fresh=True)
        self._fidelities.end_iteration()
        if not pairs:
            return None
        agreement = compare(pairs, self._config.algorithm.group_size)
        return self._monitor.verdict(plan.iteration, agreement, moved)

    def signal(self, judgement: Judgement) -> float:
        """Return the score to learn from: the graded score, or 1 for an exact match."""
        return judgement.value if self._config.reward.signal == "graded" else float(judgement.exact)

    def state(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint."""
        return {
            "history": self._history.state(),
            "fidelities": self._fidelities.state(),
            "forecast": self.forecast.state(),
            "ranks": self._monitor.ranks,
            "strategy": self.strategy.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned."""
        self._history.restore(state["history"])
        self._fidelities.restore(state["fidelities"])
        self.forecast.restore(state["forecast"])
        self._monitor.ranks = list(state["ranks"])
        self.strategy.restore(state["strategy"])
