"""The bandit that spends an iteration's drafts where they most raise the kept groups' variance.

Paper: Spotlight (arXiv 2606.19004) plans the training window with a bandit whose arms and pay-off are
not public. Here an arm is a (prompt, fidelity) pair. Its pay-off is the expected gain in the kept group's
variance, times the fidelity's reliability, divided by the draft's cost. The gain is computed, not learned:
future scores are drawn from a model of all prompts' scores (`score_model`), and the exact selection runs
on them (`expected_gain`). A prompt gains nothing more once its group cannot improve, because it already
has the successes and failures it needs or because its scores never differ.

Each round begins the plan that would best spend the remaining budget if no more scores arrived; the next
round replans with the scores that did (open-loop feedback control; Bertsekas, Dynamic Programming and
Optimal Control, section 6.2: never worse in expectation than the plan without feedback). The plan covers
the whole budget because drafts pay off together: with only G drafts of a prompt there is nothing to
select.

A round is planned once the second-to-last round is scored, so devices seldom wait for a scorer, and only
from complete rounds, so the plan does not depend on the devices' speed.

Scores of a prompt from earlier iterations (`ScoreHistory`) are forgotten with a half-life: the policy
moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_runtime.exploration.prediction.expected_gain import ValueCurves
from gpu_runtime.exploration.prediction.score_model import PastScores, ScoreModel
from gpu_runtime.exploration.selection import max_variance_subset, random_spread

_MINIMUM_GAIN = 1e-4
"""Gain in spread per draft, relative to the variance of all scores, below which a prompt gets no drafts."""

_LOOK_SHARE = 1 / 3
"""Share of the budget for first drafts; their scores aim the rest."""

_LEAST_LOOK, _MOST_LOOK = 2, 4
"""Limits of the first drafts per prompt: a single one does not show how much its scores differ."""

_LEAST_JUDGED = 4
"""Fewest judged drafts that can estimate the variance of a prompt's random group."""

_ROUNDING = 1e-9
"""Tolerance for budgets, which are sums of fractions."""

KEPT_SCORES = 32
"""Most scores remembered per prompt, evenly spread over those seen."""

_HALF_LIFE = 10.0
"""Iterations after which a prompt's past scores count half."""

_MOST_WEIGHT = 8.0
"""Most weight of a prompt's past scores, in current drafts."""

_COMMON_ITERATIONS = 4
"""Iterations whose prompts show how prompts differ."""

_MOST_OTHERS = 256
"""Most prompts used for that estimate."""


@dataclass(frozen=True)
class Draft:
    """One candidate seed to try."""

    prompt_id: int
    seed_index: int
    fidelity: str = "full"


@dataclass(frozen=True)
class Arm:
    """A fidelity: how to draft, the cost, and how far the scores can be trusted.

    Attributes:
        fidelity: name, `full` or `preview-K`.
        cost: cost of one draft, in full drafts.
        reliability: squared correlation of its scores with those of full drafts, in [0, 1].
        expected: map from a draft's score to the full draft's expected score.
    """

    fidelity: str = "full"
    cost: float = 1.0
    reliability: float = 1.0
    expected: Callable[[float], float] = field(default=float)


@dataclass(frozen=True)
class PlannerSettings:
    """Limits of a plan.

    Attributes:
        group_size: seeds to keep per prompt, G.
        prompts_kept: prompts to keep, P; more may be explored.
        candidates: most drafts per prompt, N.
        budget: cost of all drafts together, in full drafts.
        rounds: approximate number of rounds that share the budget.
    """

    group_size: int
    prompts_kept: int
    candidates: int
    budget: float
    rounds: int = 8


@dataclass(frozen=True)
class Choice:
    """The chosen seeds and their variance, by prompt.

    Attributes:
        seeds: seeds of the kept prompts, G each.
        spread: variance of the kept drafts' scores; the expected variance of untried seeds where too few
            were judged.
        random: expected variance of a random group of the judged drafts, if enough were judged.
    """

    seeds: dict[int, tuple[int, ...]]
    spread: dict[int, float]
    random: dict[int, float]


@dataclass
class _Round:
    drafts: list[Draft]
    results: dict[Draft, float | None] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.results) == len(self.drafts)


class DraftPlanner:
    """The planner of one iteration's drafts, which also chooses among them.

    Args:
        prompts: prompts that may be explored, in a fixed order.
        arms: at least one fidelity.
        key: numbers that seed this plan's random outcomes, such as run seed and iteration.

    Attributes:
        round_of: the round that asked for each draft.
    """

    def __init__(
        self,
        prompts: Sequence[int],
        settings: PlannerSettings,
        arms: Sequence[Arm],
        past: PastScores,
        key: tuple[int, ...],
    ) -> None:
        self.prompts = tuple(prompts)
        self.settings = settings
        self.spent = 0.0
        self.round_of: dict[Draft, int] = {}
        self._round_size = max(1.0, settings.budget / settings.rounds)
        self._arms = {arm.fidelity: arm for arm in arms}
        # The gain of one more good score is the prompt's; a fidelity scales it alike for all prompts.
        self._arm = max(arms, key=lambda arm: arm.reliability / arm.cost)
        self._past = past
        self._key = key
        self._rounds: list[_Round] = []
        # Sorted: the result must not depend on the order of the prompts.
        self._order = sorted(self.prompts)
        self._place = {prompt: place for place, prompt in enumerate(self._order)}
        self._issued = np.zeros(len(self._order), dtype=int)
        self._known: list[list[tuple[int, float]]] = [[] for _ in self._order]
        self._absorbed = 0
        self._finished = False

    @property
    def can_plan(self) -> bool:
        """True if the next round may be planned: the second-to-last one is scored."""
        return not self._finished and all(issued.complete for issued in self._rounds[:-1])

    def next_round(self) -> list[Draft]:
        """Return the next drafts; empty when the budget is spent or no draft is worth its cost.

        Raises:
            RuntimeError: if `can_plan` is False.
        """
        if not self.can_plan:
            raise RuntimeError("the second-to-last round is not scored yet, or the plan is finished")
        if len(self._rounds) < (1 if self._past.own else 2):
            drafts = self._first_look()
        else:
            drafts = self._by_gain(self._affordable(self._round_size))
        if drafts:
            self.round_of |= dict.fromkeys(drafts, len(self._rounds))
            self._rounds.append(_Round(drafts))
        else:
            self._finished = True
        return drafts

    def observe(self, draft: Draft, score: float | None) -> None:
        """Record a draft's score, or None without a judgement. A second score is ignored."""
        self._rounds[self.round_of[draft]].results.setdefault(draft, score)

    def expected(self, fidelity: str, score: float) -> float:
        """Return the expected full score of a draft with this score."""
        return self._arms[fidelity].expected(score)

    def choose(self) -> Choice:
        """Return the seeds to roll out, from all judged drafts.

        Prompts with fewer than G judged drafts are filled up with untried seeds, which are random.
        """
        group = self.settings.group_size
        seeds: dict[int, tuple[int, ...]] = {}
        spread: dict[int, float] = {}
        random: dict[int, float] = {}
        known = self._judged(len(self._rounds))
        short = any(len(scores) < group for scores in known)
        expected = self._curves(known, len(self._rounds))[0].now() if short else np.zeros(0)
        for place, prompt in enumerate(self._order):
            judged = sorted(known[place])
            values = np.array([value for _, value in judged])
            if len(judged) >= max(group, _LEAST_JUDGED):
                random[prompt] = random_spread(values, group)
            if len(judged) >= group:
                chosen = max_variance_subset(values, group)
                seeds[prompt] = tuple(judged[index][0] for index in chosen.indices)
                spread[prompt] = chosen.spread
            else:
                tried = [seed for seed, _ in judged]
                first = int(self._issued[place])
                seeds[prompt] = tuple(sorted((*tried, *range(first, first + group - len(tried)))))
                spread[prompt] = float(expected[place])
        # sorted() is stable: ties keep the first prompts.
        best = set(sorted(self.prompts, key=lambda prompt: -spread[prompt])[: self.settings.prompts_kept])
        kept = {prompt: seeds[prompt] for prompt in self.prompts if prompt in best}
        return Choice(kept, spread, random)

    def _affordable(self, part: float = math.inf) -> int:
        """Return how many drafts the rest of the budget pays for, or a part of it."""
        return int((min(self.settings.budget - self.spent, part) + _ROUNDING) / self._arm.cost)

    def _first_look(self) -> list[Draft]:
        """Return first drafts of as many prompts as their share of the budget allows, in two rounds.

        The second round is planned before the first is scored, so without past scores it is unguided too.
        """
        prompts = len(self._order)
        paid = self._affordable(self.settings.budget * _LOOK_SHARE)
        each = max(min(_MOST_LOOK, paid // max(1, prompts)), _LEAST_LOOK)
        reached = min(prompts, max(1, paid // each))
        if not self._rounds:
            each = (each + 1) // 2
        each = min(each, self.settings.candidates)
        wanted = np.where(np.arange(prompts) < reached, np.maximum(each - self._issued, 0), 0)
        return self._issue(_share(wanted, self._affordable()))

    def _judged(self, rounds: int) -> list[list[tuple[int, float]]]:
        """Return (seed, expected full score) of each prompt's judged drafts in the first `rounds` rounds."""
        known = [list(scores) for scores in self._known]
        for issued in self._rounds[self._absorbed : rounds]:
            for draft, score in issued.results.items():
                if score is not None:
                    value = self.expected(draft.fidelity, score)
                    known[self._place[draft.prompt_id]].append((draft.seed_index, value))
        return known

    def _by_gain(self, count: int) -> list[Draft]:
        """Return the first `count` drafts of the plan that spends the rest of the budget best."""
        complete = len(self._rounds) - 1
        self._known, self._absorbed = self._judged(complete), complete
        curves, variance = self._curves(self._known, complete)
        segments = curves.segments(self._issued, self._bars(curves.now()))
        worth = segments.rate >= _MINIMUM_GAIN * variance
        length = np.where(worth, segments.drafts, 0)
        left = self._affordable() - (np.cumsum(length) - length)
        taken = np.clip(left, 0, length)
        planned = np.bincount(segments.prompt, taken, len(self._order)).astype(int)
        return self._issue(_share(planned, count))

    def _issue(self, wanted: np.ndarray) -> list[Draft]:
        """Return the next `wanted` drafts of each prompt, seed by seed, and charge their cost."""
        drafts = [
            Draft(self._order[place], int(self._issued[place]) + turn, self._arm.fidelity)
            for turn in range(int(wanted.max(initial=0)))
            for place in np.flatnonzero(wanted > turn)
        ]
        self._issued = self._issued + wanted
        self.spent += len(drafts) * self._arm.cost
        return drafts

    def _curves(self, known: list[list[tuple[int, float]]], rounds: int) -> tuple[ValueCurves, float]:
        """Return the prompts' expected gain from further drafts, and the variance of all scores."""
        # Sorted: the order of arrival must not matter.
        judged = [np.array([score for _, score in sorted(scores)], dtype=float) for scores in known]
        nothing: tuple[tuple[float, ...], float] = ((), 0.0)
        own = [self._past.own.get(prompt, nothing) for prompt in self._order]
        model = ScoreModel(judged, own, self._past.others)
        group, candidates = self.settings.group_size, self.settings.candidates
        curves = ValueCurves(model.draws, judged, group, candidates, (*self._key, rounds))
        return curves, model.variance

    def _bars(self, now: np.ndarray) -> np.ndarray:
        """Return the spread that each prompt must exceed: that of the prompt it would replace."""
        kept = self.settings.prompts_kept
        if kept >= len(now):
            return np.zeros(len(now))
        ranked = np.sort(now)[::-1]
        # A kept prompt competes with the best of the others; another prompt with the last one kept.
        last, next_best = ranked[kept - 1], ranked[kept]
        return np.where(now >= last, next_best, last)


def _share(planned: np.ndarray, count: int) -> np.ndarray:
    """Share `count` drafts in proportion to the planned numbers, never above them; ties go to the first."""
    total = int(planned.sum())
    if total <= count:
        return planned
    wanted, rest = np.divmod(planned * count, total)
    wanted[np.argsort(-rest, kind="stable")[: count - int(wanted.sum())]] += 1
    return wanted


class ScoreHistory:
    """Scores by prompt, forgotten with a half-life in iterations."""

    def __init__(self) -> None:
        self._of_prompt: dict[int, tuple[int, list[float]]] = {}

    def add(self, iteration: int, scores: Mapping[int, Sequence[float]]) -> None:
        """Record the scores of an iteration's drafts, by prompt; they replace a prompt's older ones."""
        for prompt, values in scores.items():
            if values:
                self._of_prompt[prompt] = (iteration, _spread(values))

    def past(self, prompts: Sequence[int], iteration: int) -> PastScores:
        """Return past scores of these prompts, and of others, which show how prompts differ."""
        own: dict[int, tuple[tuple[float, ...], float]] = {}
        others: list[tuple[int, int]] = []
        explored = set(prompts)
        for prompt, (seen, values) in self._of_prompt.items():
            if prompt in explored:
                weight = min(len(values), _MOST_WEIGHT) * 0.5 ** ((iteration - seen) / _HALF_LIFE)
                own[prompt] = tuple(values), weight / len(values)
            elif iteration - seen <= _COMMON_ITERATIONS:
                others.append((-seen, prompt))
        newest = [prompt for _, prompt in sorted(others)[:_MOST_OTHERS]]
        return PastScores(own, tuple(tuple(self._of_prompt[prompt][1]) for prompt in newest))

    def state(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint."""
        return {"of_prompt": [[prompt, seen, values] for prompt, (seen, values) in self._of_prompt.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned."""
        self._of_prompt = {prompt: (seen, list(values)) for prompt, seen, values in state["of_prompt"]}


def _spread(values: Sequence[float]) -> list[float]:
    """Return at most KEPT_SCORES of the values, evenly from the lowest to the highest."""
    ordered = sorted(values)
    if len(ordered) <= KEPT_SCORES:
        return ordered
    places = np.linspace(0, len(ordered) - 1, KEPT_SCORES).round().astype(int)
    return [ordered[place] for place in places]
