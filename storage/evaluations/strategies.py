"""Comparison of exploration strategies, from runs that otherwise differ only in their seed.

An iteration that explores may train on more samples, take longer and cost more, so the held-out scores are
compared at equal iterations, equal trained samples, equal paid device time and equal dollars: at the largest
amount that both runs of a pair have reached. Between two evaluations, a prompt's score is interpolated.
Evaluations cost the same with every strategy and do not count; nor do device starts, or work that a resumed
run repeated.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from storage.config.exploration import ExplorationConfig
from storage.environment import CODE_DIGESTS, MODELLED, STRATEGY_DIGEST, is_modelled
from storage.evaluations.figures import over_seeds, tagged_estimates
from storage.record.queries.runs import without_seed
from storage.record.reading import RecordConnection
from storage.record.results import too_short
from storage.text import usd

_WITHOUT = ExplorationConfig().strategy
"""The strategy that explores nothing, the default."""

Arms = Mapping[str, Mapping[int, str]]
"""Runs by seed, by strategy; the first strategy is the baseline."""


class Amount(NamedTuple):
    """A quantity by which runs are matched for comparison: its name in a sentence, and a format."""

    title: str
    form: Callable[[float], str]


AMOUNTS: Mapping[str, Amount] = {
    "iterations": Amount("iterations", "{:,.0f}".format),
    "samples": Amount("trained samples", "{:,.0f}".format),
    "device_s": Amount("paid device time", "{:,.0f} s".format),
    "usd": Amount("dollars", usd),
}

_PROMPTS, _SEEDS = "95 % t interval over held-out prompts", "95 % t interval over run seeds"


@dataclass(frozen=True)
class _Course:
    """The held-out scores of a run by evaluated iteration and prompt, and the amounts reached by then."""

    scores: Mapping[int, Mapping[str, float]]
    reached: Mapping[str, Sequence[float]]

    def at(self, amount: str, value: float) -> dict[str, float]:
        """Return the score of each prompt at an amount, which is at most the last one reached."""
        reached, evaluated = self.reached[amount], list(self.scores)
        after = int(np.searchsorted(reached, value))
        late = self.scores[evaluated[after]]
        if after == 0 or reached[after] == value:
            return dict(late)
        early = self.scores[evaluated[after - 1]]
        share = (value - reached[after - 1]) / (reached[after] - reached[after - 1])
        return {
            prompt: (1 - share) * early[prompt] + share * score
            for prompt, score in late.items()
            if prompt in early
        }


def strategy_arms(connection: RecordConnection, run_ids: Sequence[str]) -> Arms:
    """Return the runs by strategy and seed; empty unless they differ in nothing else, and two share a seed.

    Their name and cluster may differ too, and not every run records the digests of its code. The default,
    which explores nothing, comes first, then the others in the order of the runs.
    """
    rows = connection.execute("SELECT run_id, config, environment FROM runs").fetchall()
    recorded = {run_id: (config, json.loads(environment)) for run_id, config, environment in rows}
    arms: dict[str, dict[int, str]] = {}
    common: list[Any] = []
    versions: dict[tuple[str, str], str] = {}
    for run_id in run_ids:
        config, environment = recorded.get(run_id, ("{}", {}))
        settings, seed = without_seed(config)
        exploration = settings.get("exploration")
        exploration = exploration if isinstance(exploration, dict) else {}
        strategy = exploration.get("strategy")
        if not isinstance(strategy, str) or seed is None or seed in arms.get(strategy, {}):
            return {}
        others = {key: value for key, value in exploration.items() if key not in ("strategy", "options")}
        common.append(settings | {"exploration": others})
        arms.setdefault(strategy, {})[seed] = run_id
        for fact in CODE_DIGESTS & environment.keys():
            of = strategy if fact == STRATEGY_DIGEST else ""
            if versions.setdefault((fact, of), environment[fact]) != environment[fact]:
                return {}
    if len(arms) < 2 or any(settings != common[0] for settings in common):
        return {}
    ordered = sorted(arms, key=lambda strategy: strategy != _WITHOUT)
    with_pairs = [name for name in ordered if arms[name].keys() & arms[ordered[0]].keys()]
    return {name: arms[name] for name in with_pairs} if len(with_pairs) > 1 else {}


def compared_strategies(connection: RecordConnection, arms: Arms) -> dict[str, Any]:
    """Return each strategy's lead over the first one at equal amounts, in held-out score, as JSON values.

    Only seeds with which both were evaluated after training count. With one seed, the interval is over
    held-out prompts, paired by text; with several, it is over run seeds.

    Returns:
        `baseline`, `runs` (by strategy and seed), `modelled` (True if no device was rented for any of them),
        and `strategies`: for each other one, by name, `seeds`, `interval` (what it is over), `too_short` (why
        it is too early to judge; empty if it is not) and `at_equal`, by the names of `AMOUNTS`: `amount` (the
        mean over seeds), `baseline` and `score` (means), `difference`, `low`, `high`, and `is_clear` (the
        interval excludes 0, and it is not too early). `at_equal` lacks a quantity that a run used nothing of.
    """
    baseline, *others = arms
    ran = [run_id for runs in arms.values() for run_id in runs.values()]
    courses = {run_id: _read_course(connection, run_id) for run_id in ran}
    facts = connection.execute(
        "SELECT config, environment FROM runs WHERE list_contains(?::VARCHAR[], run_id)", [ran]
    ).fetchall()
    return {
        "baseline": baseline,
        "runs": {strategy: {str(seed): run for seed, run in runs.items()} for strategy, runs in arms.items()},
        "modelled": all(is_modelled(*map(json.loads, each)) for each in facts),
        "strategies": {name: _compared(courses, arms[baseline], arms[name]) for name in others},
    }


def _compared(
    courses: Mapping[str, _Course], before: Mapping[int, str], after: Mapping[int, str]
) -> dict[str, Any]:
    both = {seed: (courses[before[seed]], courses[after[seed]]) for seed in before.keys() & after.keys()}
    seeds = sorted(seed for seed, pair in both.items() if all(max(one.scores, default=0) for one in pair))
    pairs = [both[seed] for seed in seeds]
    short = too_short(min((max(course.scores) for pair in pairs for course in pair), default=0))
    at_equal = {name: _at_equal(pairs, name, not short) for name in AMOUNTS}
    return {
        "seeds": seeds,
        "interval": _SEEDS if len(seeds) > 1 else _PROMPTS,
        "too_short": short,
        "at_equal": {name: found for name, found in at_equal.items() if found is not None},
    }


def _at_equal(pairs: Sequence[tuple[_Course, _Course]], name: str, may_claim: bool) -> dict[str, Any] | None:
    """Return the figures at equal amounts of a quantity; None without pairs, or if a run used none."""
    amounts, befores, afters, differences = [], [], [], []
    for pair in pairs:
        amount = min(course.reached[name][-1] for course in pair)
        if amount <= 0:
            return None
        before, after = (course.at(name, amount) for course in pair)
        shared = [prompt for prompt in before if prompt in after]
        if not shared:
            return None
        amounts.append(amount)
        befores.append(statistics.fmean(before[prompt] for prompt in shared))
        afters.append(statistics.fmean(after[prompt] for prompt in shared))
        differences = [after[prompt] - before[prompt] for prompt in shared]
    if not pairs:
        return None
    found = (
        over_seeds([late - early for early, late in zip(befores, afters, strict=True)], -1.0)
        if len(pairs) > 1
        else tagged_estimates(differences, [""] * len(differences), -1.0).overall
    )
    return {
        "amount": statistics.fmean(amounts),
        "baseline": statistics.fmean(befores),
        "score": statistics.fmean(afters),
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "is_clear": may_claim and (found.low > 0 or found.high < 0),
    }


def _read_course(connection: RecordConnection, run_id: str) -> _Course:
    rows = connection.execute(
        "SELECT iteration, prompt, avg(score) FROM evaluation_images JOIN prompts USING (run_id, prompt_id) "
        "WHERE run_id = ? AND purpose = 'evaluate' AND error IS NULL GROUP BY ALL ORDER BY ALL",
        [run_id],
    ).fetchall()
    scores: dict[int, dict[str, float]] = {}
    for iteration, prompt, score in rows:
        scores.setdefault(iteration, {})[prompt] = score
    trained = connection.execute(
        "SELECT iteration, count(advantage) FROM samples WHERE run_id = ? GROUP BY iteration ORDER BY ALL",
        [run_id],
    ).fetchall()
    paid = connection.execute(
        "SELECT iteration, sum(own_s), sum(own_s * usd_per_hour / 3600) FROM (SELECT w.iteration, "
        "w.usd_per_hour, greatest(0, w.ended_at - greatest(w.started_at, i.started_at)) AS own_s "
        "FROM worker_states w JOIN iterations i USING (run_id, iteration) "
        "WHERE run_id = ? AND w.phase = 'iteration') GROUP BY iteration ORDER BY ALL",
        [run_id],
    ).fetchall()

    def up_to(rows: Sequence[Sequence[float]], column: int) -> list[float]:
        return [float(sum(row[column] for row in rows if row[0] <= iteration)) for iteration in scores]

    return _Course(
        scores,
        {
            "iterations": [float(iteration) for iteration in scores],
            "samples": up_to(trained, 1),
            "device_s": up_to(paid, 1),
            "usd": up_to(paid, 2),
        },
    )


def in_words(answer: Mapping[str, Any]) -> list[str]:
    """Return the answer of `compared_strategies` as sentences, the short answers first."""
    found = [_short(answer["baseline"], name, each) for name, each in answer["strategies"].items()]
    for name, each in answer["strategies"].items():
        seeds = ", ".join(map(str, each["seeds"]))
        for amount, one in each["at_equal"].items():
            mark = f" {MODELLED}" * (answer["modelled"] and amount == "usd")
            found.append(
                f"{name} minus {answer['baseline']} at equal {AMOUNTS[amount].title} "
                f"({AMOUNTS[amount].form(one['amount'])}{mark}): {one['difference']:+.3f} "
                f"({one['low']:+.3f} to {one['high']:+.3f}), {one['score']:.3f} against "
                f"{one['baseline']:.3f}."
            )
        if each["at_equal"]:
            alone = len(each["seeds"]) == 1
            more = "; another run seed may give another answer: add seeds" if alone else ""
            found.append(f"{each['interval']} (run seed{'s' * (not alone)} {seeds}){more}.")
    return found


def _short(baseline: str, name: str, each: Mapping[str, Any]) -> str:
    """Return which of two strategies scores higher, and at equal amounts of what."""
    at_equal = each["at_equal"]
    if not at_equal:
        return f"{name} against {baseline}: no answer yet, both need an evaluation after training."
    if each["too_short"]:
        return f"{name} against {baseline}: {each['too_short']}."
    higher, lower, even = [], [], []
    found = {
        "scores clearly higher than": higher, "scores clearly lower than": lower,
        "no clear difference from": even,
    }  # fmt: skip
    for amount, one in at_equal.items():
        titles = even if not one["is_clear"] else higher if one["difference"] > 0 else lower
        titles.append(AMOUNTS[amount].title)
    parts = [f"{words} {baseline} at equal {_listed(titles)}" for words, titles in found.items() if titles]
    return f"{name}: {'; '.join(parts)}."


def _listed(titles: Sequence[str]) -> str:
    *first, last = titles
    return f"{', '.join(first)} and {last}" if first else last
