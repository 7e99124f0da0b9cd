"""The planner of drafts against four simple allocations, on synthetic tables of scores.

    python -m benchmarks.allocation [--quick] [--keep]

Baselines decide how many drafts the prompts get in a round from what the planner would know then: the scores
of all rounds but the last, which is judged while this one is planned.

A table holds every candidate's score; the planner that a run uses drafts from it, and so does each baseline,
with the same budget in rounds, each planned while the one before is judged, as in a run. The planner's first
two rounds are larger than the baselines'. The figure is the variance of the selected groups over that of the
best groups of all candidates. Tables are paired by seed; intervals are of the mean difference, 95 %, by
bootstrap over seeds. The planner's settings were chosen with other seeds of these tables; nothing of the
baselines was tuned.

`never_worse`: no difference's interval lies wholly below 0. `ahead_share`: comparisons whose mean is above 0.
A round's time is the processor time of `next_round`, the median over a plan's rounds that have scores.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report import finish, options
from gpu_runtime.exploration.draft_planner import Arm, DraftPlanner, PlannerSettings
from gpu_runtime.exploration.prediction.score_model import PastScores
from gpu_runtime.exploration.selection import max_variance_subset

GROUP, CANDIDATES, PROMPTS, ROUNDS = 8, 24, 32, 8
BUDGETS = (0.125, 0.25, 0.5, 0.75)
"""Drafts as shares of all candidates."""

SEEDS, FIRST_SEED = 160, 1000
"""Those before the first one are for choosing the planner's settings. The worst of hundreds of differences is
read, so each has to be known well: with heavy tails 40 seeds leave a standard error of 0.02."""

_RESAMPLES = 2000

Random = np.random.Generator


def _coin(random: Random, rate: np.ndarray | float, size: tuple[int, int]) -> np.ndarray:
    return (random.random(size) < rate).astype(float)


def _noise(random: Random, prompts: int, deviation: float) -> np.ndarray:
    """A lognormal factor of each prompt's noise."""
    return np.exp(random.normal(0, deviation, (prompts, 1)))


def _graded(
    random: Random, mean: np.ndarray, weight: np.ndarray | float, size: tuple[int, int]
) -> np.ndarray:
    return random.beta(weight * mean + 0.05, weight * (1 - mean) + 0.05, size)


def _all_or_nothing(random: Random, size: tuple[int, int]) -> np.ndarray:
    """Four prompts of ten never succeed, three always do, three sometimes."""
    kind = random.random((size[0], 1))
    some = random.random((size[0], 1))
    return _coin(random, np.where(kind < 0.4, 0.0, np.where(kind < 0.7, 1.0, some)), size)


def _ordinal(latent: np.ndarray, steps: int) -> np.ndarray:
    return np.round(steps * np.clip(latent, 0, 1)) / steps


def _difficulty(random: Random, prompts: int, mean: float, deviation: float) -> np.ndarray:
    return random.normal(mean, deviation, (prompts, 1))


TABLES: dict[str, Callable[[Random, tuple[int, int]], np.ndarray]] = {
    "success, one rate": lambda r, s: _coin(r, 0.3, s),
    "success, many rates": lambda r, s: _coin(r, r.beta(0.6, 1.4, (s[0], 1)), s),
    "rare, one rate": lambda r, s: _coin(r, 0.04, s),
    "rare, many rates": lambda r, s: _coin(r, r.beta(0.4, 5, (s[0], 1)), s),
    "all or nothing": _all_or_nothing,
    "half hopeless": lambda r, s: _coin(r, np.where(r.random((s[0], 1)) < 0.5, 0.0, 0.15), s),
    "graded, one difficulty": lambda r, s: r.beta(2, 3, s),
    "graded, many difficulties": lambda r, s: _graded(r, r.beta(1, 1.5, (s[0], 1)), 8.0, s),
    "graded, unequal noise": lambda r, s: _graded(
        r, r.beta(2, 2, (s[0], 1)), np.exp(r.normal(1.5, 1, (s[0], 1))), s
    ),
    "normal": lambda r, s: r.normal(0, 1, s),
    "normal, many difficulties": lambda r, s: _difficulty(r, s[0], 0, 3) + r.normal(0, 1, s),
    "normal, unequal noise": lambda r, s: r.normal(0, 1, s) * _noise(r, s[0], 0.8),
    "normal, both": lambda r, s: _difficulty(r, s[0], 0, 2) + r.normal(0, 1, s) * _noise(r, s[0], 0.8),
    "heavy tails": lambda r, s: r.standard_t(2.5, s),
    "heavy tails, both": lambda r, s: _difficulty(r, s[0], 0, 2) + r.standard_t(3, s) * _noise(r, s[0], 0.5),
    "lognormal": lambda r, s: np.exp(_difficulty(r, s[0], 0, 0.5) + r.normal(0, 0.7, s)),
    "five values": lambda r, s: _ordinal(_difficulty(r, s[0], 0.5, 0.3) + r.normal(0, 0.2, s), 4),
    "three values, unequal noise": lambda r, s: _ordinal(
        _difficulty(r, s[0], 0.5, 0.3) + 0.2 * r.normal(0, 1, s) * _noise(r, s[0], 0.6), 2
    ),
    "fails or graded": lambda r, s: _coin(r, r.beta(1, 2, (s[0], 1)), s) * r.beta(4, 2, s),
    "two modes": lambda r, s: (
        _difficulty(r, s[0], 0, 0.5) + 2 * _coin(r, r.beta(0.7, 0.7, (s[0], 1)), s) + r.normal(0, 0.3, s)
    ),
    "rare outliers": lambda r, s: r.normal(0, 0.3, s) + 2 * _coin(r, 0.06, s),
}
"""Scores of size (prompts, candidates), by name."""


_FIRST = 2
"""First drafts of each prompt for the baselines that rank by deviation, where the budget allows."""

_OPTIMISM = 0.5
"""Weight of a UCB's second term, over the deviation of the first scores."""

_STAGES = 4
"""Stages of successive halving."""


@dataclass
class Position:
    """Knowledge of an allocation.

    Attributes:
        counts: drafts of each prompt so far, (P,).
        judged: of these, those of all rounds but the last, (P,).
        variance: unbiased, of each prompt's judged scores; 0 below two, (P,).
        pooled: variance of all first scores together.
        candidates: most drafts of a prompt.
        budget: drafts of all rounds together.
        generator: for what is random.
    """

    counts: np.ndarray
    judged: np.ndarray
    variance: np.ndarray
    pooled: float
    candidates: int
    budget: int
    generator: np.random.Generator


Allocation = Callable[[Position, int], np.ndarray]


def play(
    table: np.ndarray, budget: int, rounds: int, allocate: Allocation, generator: np.random.Generator
) -> np.ndarray:
    """Spend a budget on a table of scores; the drafts of each prompt."""
    counts = judged = np.zeros(len(table), dtype=int)
    columns = np.arange(table.shape[1])
    while (left := budget - int(counts.sum())) > 0:
        seen = columns < judged[:, None]
        mean = np.where(seen, table, 0).sum(axis=1) / np.maximum(judged, 1)
        squares = np.where(seen, (table - mean[:, None]) ** 2, 0).sum(axis=1)
        first = table[seen & (columns < _FIRST)]
        pooled = float(first.var()) if len(first) else 0.0
        variance = squares / np.maximum(judged - 1, 1)
        position = Position(counts, judged, variance, pooled, table.shape[1], budget, generator)
        judged, counts = counts, counts + allocate(position, min(left, math.ceil(budget / rounds)))
    return counts


def even(position: Position, drafts: int) -> np.ndarray:
    """The same number for every prompt."""
    return _level(position.counts, np.ones(len(position.counts), dtype=bool), position.candidates, drafts)


def upper_confidence(position: Position, drafts: int) -> np.ndarray:
    """UCB on the sample deviation: deviation plus a term that falls with the prompt's drafts."""

    def index(counts: np.ndarray) -> np.ndarray:
        doubt = np.sqrt(2 * np.log(counts.sum()) / counts)
        return np.sqrt(position.variance) + _OPTIMISM * math.sqrt(position.pooled) * doubt

    return _one_by_one(position, drafts, index)


def thompson(position: Position, drafts: int) -> np.ndarray:
    """Thompson sampling of the variance, with a prior of two drafts at the pooled one."""

    def index(counts: np.ndarray) -> np.ndarray:
        freedom = np.maximum(position.judged - 1, 0)
        scale = 2 * max(position.pooled, 1e-9) + freedom * position.variance
        return scale / position.generator.chisquare(2 + freedom)

    return _one_by_one(position, drafts, index)


def halving(position: Position, drafts: int) -> np.ndarray:
    """Successive halving: in each stage the half of largest variance goes on."""
    spent = int(position.counts.sum())
    stage = min(_STAGES - 1, spent * _STAGES // position.budget)
    kept = max(1, len(position.counts) >> stage)
    alive = np.zeros(len(position.counts), dtype=bool)
    alive[np.argsort(-position.variance, kind="stable")[:kept]] = True
    wanted = _level(position.counts, alive, position.candidates, drafts)
    rest = drafts - int(wanted.sum())
    return wanted + _level(position.counts + wanted, ~alive, position.candidates, rest)


BASELINES: dict[str, Allocation] = {
    "even": even, "ucb": upper_confidence, "thompson": thompson, "halving": halving,
}  # fmt: skip


def _one_by_one(position: Position, drafts: int, index: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """First drafts of all prompts; then each draft where the index is highest, the ones under way counted."""
    first = min(_FIRST, position.budget // len(position.counts))
    counts = position.counts.copy()
    for _ in range(drafts):
        fewest = int(counts.argmin())
        if counts[fewest] < first:
            counts[fewest] += 1
        else:
            value = np.where(counts < position.candidates, index(np.maximum(counts, 1)), -np.inf)
            counts[int(value.argmax())] += 1
    return counts - position.counts


def _level(counts: np.ndarray, among: np.ndarray, candidates: int, drafts: int) -> np.ndarray:
    """Drafts one by one, each of the prompt with the fewest."""
    filled = counts.copy()
    for _ in range(drafts):
        free = np.where(among & (filled < candidates), filled, candidates)
        if free.min() == candidates:
            break
        filled[int(free.argmin())] += 1
    return filled - counts


@dataclass(frozen=True)
class Comparison:
    """The planner against one baseline, on one table with one budget.

    Attributes:
        difference, low, high: mean of the captured shares' difference, and its interval.
    """

    table: str
    budget: float
    baseline: str
    difference: float
    low: float
    high: float


def captured(table: np.ndarray, drafts: np.ndarray) -> float:
    """The selected groups' variance over that of the best groups of all candidates, 0 to 1.

    Args:
        table: every candidate's score, (prompts, candidates).
        drafts: how many of each prompt's first candidates were judged; too few for a group are filled up with
            the next ones.
    """

    def total(counts: np.ndarray) -> float:
        rows = zip(table, np.maximum(counts, GROUP), strict=True)
        return sum(max_variance_subset(scores[:count], GROUP).spread for scores, count in rows)

    return total(drafts) / total(np.full(len(table), table.shape[1]))


def planned(table: np.ndarray, budget: int, seed: int) -> tuple[np.ndarray, list[float]]:
    """How many drafts the run's planner makes of each prompt, and each round's processor seconds."""
    prompts, candidates = table.shape
    settings = PlannerSettings(GROUP, prompts, candidates, budget, rounds=ROUNDS)
    planner = DraftPlanner(range(prompts), settings, [Arm()], PastScores(), (0, seed))
    counts, seconds = np.zeros(prompts, dtype=int), []
    while True:
        began = time.process_time()
        drafts = planner.next_round()
        seconds.append(time.process_time() - began)
        if not drafts:
            return counts, seconds
        for draft in drafts:
            planner.observe(draft, float(table[draft.prompt_id, draft.seed_index]))
            counts[draft.prompt_id] += 1


def compared(name: str, share: float, seeds: int) -> tuple[list[Comparison], list[float]]:
    """The planner against every baseline, and the mean captured share of each and of the planner (last)."""
    rows = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        key = [seed, list(TABLES).index(name)]
        table = TABLES[name](np.random.default_rng(key), (PROMPTS, CANDIDATES))
        budget = round(share * table.size)
        counts = [
            play(table, budget, ROUNDS, baseline, np.random.default_rng([*key, 1]))
            for baseline in BASELINES.values()
        ]
        rows.append([captured(table, count) for count in (*counts, planned(table, budget, seed)[0])])
    shares = np.array(rows)
    differences = shares[:, -1:] - shares[:, :-1]
    places = np.random.default_rng(7).integers(seeds, size=(_RESAMPLES, seeds))
    low, high = np.quantile(differences[places].mean(axis=1), [0.025, 0.975], axis=0)
    found = [
        Comparison(name, share, baseline, float(differences[:, at].mean()), float(low[at]), float(high[at]))
        for at, baseline in enumerate(BASELINES)
    ]
    return found, [float(value) for value in shares.mean(axis=0)]


def main() -> None:
    """Print one JSON line."""
    arguments = options(__doc__, "four tables, two budgets, three seeds").parse_args()
    names = list(TABLES)[1::6] if arguments.quick else list(TABLES)
    budgets = (0.25, 0.75) if arguments.quick else BUDGETS
    seeds = 3 if arguments.quick else SEEDS
    times = {}
    for prompts in (64, 1024):  # with half of all candidates
        table = TABLES["graded, many difficulties"](np.random.default_rng(5), (prompts, CANDIDATES))
        # The first two rounds are planned without any score, in no time.
        seconds = planned(table, table.size // 2, 0)[1][2:]
        times[f"ms_per_round_{prompts}"] = round(1e3 * statistics.median(seconds), 1)
    comparisons: list[Comparison] = []
    shares: dict[str, dict[str, Any]] = {}
    for name in names:
        for budget in budgets:
            found, means = compared(name, budget, seeds)
            comparisons += found
            by_name = dict(zip((*BASELINES, "planner"), (round(mean, 3) for mean in means), strict=True))
            shares.setdefault(name, {})[f"{budget:g}"] = by_name
            print(f"{name}, {budget:g}: {by_name}", flush=True)
    figures = {
        "tables": len(names),
        "budgets": list(budgets),
        "seeds": seeds,
        "prompts": PROMPTS,
        **summary(comparisons),
        **times,
        "captured": shares,
    }
    finish("allocation", figures, arguments)


def summary(comparisons: list[Comparison]) -> dict[str, Any]:
    """The keys that are read of the result."""
    worst = min(comparisons, key=lambda found: found.difference)
    behind = [found for found in comparisons if found.high < 0]
    ahead = [found for found in comparisons if found.difference > 0]
    return {
        "never_worse": not behind,
        "ahead_share": round(len(ahead) / len(comparisons), 3),
        "ahead_beyond_interval": round(sum(found.low > 0 for found in comparisons) / len(comparisons), 3),
        "worst_gap_to_best_simple": round(worst.difference, 4),
        "worst": _plain(worst),
        "behind": [_plain(found) for found in behind],
    }


def _plain(found: Comparison) -> dict[str, Any]:
    return {
        "table": found.table,
        "budget": found.budget,
        "baseline": found.baseline,
        "difference": round(found.difference, 4),
        "interval": [round(found.low, 4), round(found.high, 4)],
    }


if __name__ == "__main__":
    main()
