"""The bandit that spends an iteration's drafts where they raise the kept groups' variance most.

Paper: Spotlight (arXiv 2606.19004) plans the training window with a bandit; its arms and pay-off are
not public. Here an arm is a (prompt, fidelity) pair, and its pay-off the expected gain in the variance
of the group that will be kept, times the fidelity's reliability, over the draft's cost. The gain is
computed, not learned: scores to come are drawn from what the prompt's drafts have shown so far and from
its past, and the exact selection is run on them. A prompt whose group cannot get better, because it has
as many successes and failures as it needs, or because nothing ever differs, gains nothing more.

Drafts are planned in rounds. A round is planned when the one before the last is judged, so devices
never wait for a judge, and from complete rounds alone, so the plan does not depend on the devices' speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gpu_runtime.exploration.expected_gain import FARTHEST, OutcomeSamples
from gpu_runtime.exploration.score_history import Prediction
from gpu_runtime.exploration.selection import Criterion, random_spread, select

_MINIMUM_BATCH = 2
"""Drafts of a prompt that a round asks for at first, beyond those that make a group."""

_MINIMUM_GAIN = 2e-4
"""Gain in variance a draft (0.25 is the most that there is) below which a prompt is left alone."""

_LEAST_POOL = 4
"""Judged drafts from which a prompt's mean score is taken for the policy's."""

_ROUNDING = 1e-9
"""Budgets are sums of fractions."""


@dataclass(frozen=True)
class Draft:
    """One candidate seed to try."""

    prompt_id: int
    seed_index: int
    fidelity: str = "full"


@dataclass(frozen=True)
class Arm:
    """A fidelity: how to draft, at what cost and how far its scores can be trusted.

    Attributes:
        fidelity: name, `full` or `preview-K`.
        cost: of one draft, in full drafts.
        reliability: squared correlation of its scores with those of full drafts, in [0, 1].
        expected: from a draft's score to the full draft's expected score.
    """

    fidelity: str = "full"
    cost: float = 1.0
    reliability: float = 1.0
    expected: Callable[[float], float] = field(default=float)


@dataclass(frozen=True)
class PlannerSettings:
    """What a plan has to keep to.

    Attributes:
        group_size: seeds to keep of a prompt, G.
        prompts_kept: prompts to keep, P; more may be explored.
        candidates: most drafts of a prompt, N.
        budget: cost of all drafts together, in full drafts.
        first_drafts: most drafts of every prompt in the first round.
        rounds: how many rounds the budget is divided into, roughly.
        allocation: `bandit`, or `uniform` for the same number of drafts of every prompt.
        criterion: what makes a group good; see `selection`.
    """

    group_size: int
    prompts_kept: int
    candidates: int
    budget: float
    first_drafts: int = 4
    rounds: int = 8
    allocation: Literal["bandit", "uniform"] = "bandit"
    criterion: Criterion = "variance"


@dataclass(frozen=True)
class Choice:
    """What was chosen, by prompt.

    Attributes:
        seeds: of the kept prompts, G each.
        spread: of the kept drafts, by the plan's criterion; what is to be expected of untried seeds
            where too few were judged.
        random: the spread to expect of a random group of the judged drafts, where there are enough.
        pool: mean and deviation of all judged drafts' scores, likewise.
    """

    seeds: dict[int, tuple[int, ...]]
    spread: dict[int, float]
    random: dict[int, float]
    pool: dict[int, tuple[float, float]]


@dataclass
class _Round:
    drafts: list[Draft]
    results: dict[Draft, float | None] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.results) == len(self.drafts)


class DraftPlanner:
    """Plans one iteration's drafts and chooses among them.

    Args:
        prompts: what may be explored, in a fixed order.
        settings: see there.
        arms: at least one fidelity.
        predict: what a prompt's next score may be, from earlier iterations.
        key: numbers that make the random futures this plan's own, such as run seed and iteration.
    """

    def __init__(
        self,
        prompts: Sequence[int],
        settings: PlannerSettings,
        arms: Sequence[Arm],
        predict: Callable[[int], Prediction],
        key: tuple[int, ...],
    ) -> None:
        self.prompts = tuple(prompts)
        self.settings = settings
        self.spent = 0.0
        self._arms = {arm.fidelity: arm for arm in arms}
        # The gain of one more good score is the prompt's; what a fidelity makes of it is the same for all.
        self._arm = max(arms, key=lambda arm: arm.reliability / arm.cost)
        self._predictions = {prompt: predict(prompt) for prompt in self.prompts}
        self._key = key
        self._rounds: list[_Round] = []
        self._issued = dict.fromkeys(self.prompts, 0)
        self._round_of: dict[Draft, int] = {}
        self._finished = False

    @property
    def can_plan(self) -> bool:
        """Whether the next round may be planned now: the one before the last is judged."""
        return not self._finished and all(issued.complete for issued in self._rounds[:-1])

    def next_round(self) -> list[Draft]:
        """The next drafts, by falling gain; empty when the budget is spent or nothing is worth it.

        Raises:
            RuntimeError: if `can_plan` is False.
        """
        if not self.can_plan:
            raise RuntimeError("the round before the last is not judged, or the plan is finished")
        if not self._rounds:
            drafts = self._evenly(min(self._room, self._first_round))
        elif self.settings.allocation == "uniform":
            drafts = self._evenly(min(self._room, self._round_size))
        else:
            drafts = self._by_gain(min(self._room, self._round_size))
        if drafts:
            self._round_of |= dict.fromkeys(drafts, len(self._rounds))
            self._rounds.append(_Round(drafts))
        else:
            self._finished = True
        return drafts

    def observe(self, draft: Draft, score: float | None) -> None:
        """Note a draft's score; None where there is no judgement. A second one changes nothing."""
        self._rounds[self._round_of[draft]].results.setdefault(draft, score)

    def expected(self, fidelity: str, score: float) -> float:
        """The full score to expect of a draft with such a score."""
        return self._arms[fidelity].expected(score)

    def round_of(self, draft: Draft) -> int:
        """The round that asked for a draft."""
        return self._round_of[draft]

    def choose(self) -> Choice:
        """The seeds to roll out, from all that was judged.

        Prompts that were not reached, or that have fewer than G judged drafts, are filled up with
        untried seeds: random ones.
        """
        group = self.settings.group_size
        seeds: dict[int, tuple[int, ...]] = {}
        spread: dict[int, float] = {}
        random: dict[int, float] = {}
        pool: dict[int, tuple[float, float]] = {}
        for prompt in self.prompts:
            judged = self._judged(prompt, len(self._rounds))
            values = np.array([value for _, value in judged])
            if len(judged) >= max(group, _LEAST_POOL):
                pool[prompt] = (float(values.mean()), float(values.std()))
                random[prompt] = random_spread(values, group, self.settings.criterion)
            if len(judged) >= group:
                chosen = select(values, group, self.settings.criterion)
                seeds[prompt] = tuple(judged[index][0] for index in chosen.indices)
                spread[prompt] = chosen.spread
            else:
                tried = [seed for seed, _ in judged]
                untried = range(self._issued[prompt], self._issued[prompt] + group - len(tried))
                seeds[prompt] = tuple(sorted((*tried, *untried)))
                spread[prompt] = self._outcomes(prompt, len(self._rounds), 0).spread(0)
        # sorted() is stable: of equal prompts the first stay.
        best = set(sorted(self.prompts, key=lambda prompt: -spread[prompt])[: self.settings.prompts_kept])
        kept = {prompt: seeds[prompt] for prompt in self.prompts if prompt in best}
        return Choice(kept, spread, random, pool)

    @property
    def _room(self) -> float:
        return self.settings.budget - self.spent

    @property
    def _first_round(self) -> float:
        """A look at every prompt, for a quarter of the budget or so: what is left can still be aimed."""
        each = self.settings.budget / 4 / len(self.prompts)
        return len(self.prompts) * max(1, min(self.settings.first_drafts, int(each)))

    @property
    def _round_size(self) -> float:
        return max(1.0, self.settings.budget / self.settings.rounds)

    def _judged(self, prompt: int, rounds: int) -> list[tuple[int, float]]:
        """(seed, expected full score) of the prompt's judged drafts in the first `rounds` rounds."""
        # Sorted: the order of arrival must not matter.
        return sorted(
            (draft.seed_index, self.expected(draft.fidelity, score))
            for issued in self._rounds[:rounds]
            for draft, score in issued.results.items()
            if draft.prompt_id == prompt and score is not None
        )

    def _issue(self, prompt: int) -> Draft:
        draft = Draft(prompt, self._issued[prompt], self._arm.fidelity)
        self._issued[prompt] += 1
        self.spent += self._arm.cost
        return draft

    def _evenly(self, budget: float) -> list[Draft]:
        """One draft of each prompt after another, until the budget is spent."""
        limit, drafts = self.spent + budget, []
        while True:
            open_prompts = [p for p in self.prompts if self._issued[p] < self.settings.candidates]
            if not open_prompts or self.spent + self._arm.cost > limit + _ROUNDING:
                return drafts
            # The prompt with the fewest drafts is next; of equal ones the first.
            drafts.append(self._issue(min(open_prompts, key=lambda p: self._issued[p])))

    def _by_gain(self, budget: float) -> list[Draft]:
        """Drafts where they raise the kept spread most, until the budget is spent.

        A prompt gets a batch a round, as long as others are worth theirs: the first drafts of many tell
        whether it wants them.
        """
        rates = {prompt: self._rates(prompt, bar) for prompt, bar in self._bars().items()}
        limits = {
            p: self._issued[p] + max(_MINIMUM_BATCH, self.settings.group_size - self._issued[p])
            for p in rates
        }
        limit, drafts = self.spent + budget, []
        while self.spent + self._arm.cost <= limit + _ROUNDING:
            worth = [p for p in self.prompts if rates[p] and rates[p][0] >= _MINIMUM_GAIN]
            if not worth:
                break
            eligible = [p for p in worth if self._issued[p] < limits[p]] or worth
            prompt = max(eligible, key=lambda p: rates[p][0])
            rates[prompt].pop(0)
            drafts.append(self._issue(prompt))
        return drafts

    def _outcomes(self, prompt: int, rounds: int, most: int) -> OutcomeSamples:
        """Up to `most` further drafts of a prompt, from the judgements of the first `rounds` rounds."""
        return OutcomeSamples(
            [score for _, score in self._judged(prompt, rounds)],
            self._predictions[prompt],
            self.settings.group_size,
            self.settings.criterion,
            (*self._key, rounds),
            most,
        )

    def _bars(self) -> dict[int, float]:
        """The spread that each prompt has to exceed to count: another prompt's that it would oust."""
        complete = len(self._rounds) - 1
        now = {prompt: self._outcomes(prompt, complete, 0).spread(0) for prompt in self.prompts}
        kept = self.settings.prompts_kept
        if kept >= len(self.prompts):
            return dict.fromkeys(self.prompts, 0.0)
        ranked = sorted(now.values(), reverse=True)
        # One that is among the kept competes with the best of the others, one of those with the last kept.
        last, next_best = ranked[kept - 1], ranked[kept]
        return {prompt: next_best if value >= last else last for prompt, value in now.items()}

    def _rates(self, prompt: int, bar: float) -> list[float]:
        """Expected gain of each further draft of a prompt, by draft, falling."""
        complete = len(self._rounds) - 1
        most = min(FARTHEST, self.settings.candidates - self._issued[prompt])
        if most <= 0:
            return []
        settled = sum(d.prompt_id == prompt for issued in self._rounds[:complete] for d in issued.drafts)
        pending = self._issued[prompt] - settled
        rates = self._outcomes(prompt, complete, pending + most).rates(pending, most, bar)
        return [rate * self._arm.reliability / self._arm.cost for rate in rates]
