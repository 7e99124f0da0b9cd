"""The simple allocations that the planner is compared with: by hand, and what all of them have to keep to."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exploration.allocation import (
    BASELINES,
    Position,
    captured,
    even,
    halving,
    play,
    thompson,
    upper_confidence,
)


def position(counts: list[int], judged: list[int], variance: list[float], budget: int = 100) -> Position:
    return Position(
        np.array(counts), np.array(judged), np.array(variance), 1.0, 24, budget, np.random.default_rng(0)
    )


def test_an_allocation_knows_all_rounds_but_the_last():
    table = np.arange(12.0).reshape(2, 6)
    seen: list[tuple[list[int], list[int], list[float]]] = []

    def one_each(at: Position, drafts: int) -> np.ndarray:
        seen.append((at.counts.tolist(), at.judged.tolist(), at.variance.tolist()))
        return np.array([drafts // 2, drafts - drafts // 2])

    assert play(table, 8, 4, one_each, np.random.default_rng(0)).tolist() == [4, 4]
    assert [counts for counts, _, _ in seen] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert [judged for _, judged, _ in seen] == [[0, 0], [0, 0], [1, 1], [2, 2]]
    # Two scores that differ by 1 have the variance 1/2.
    assert [variance for _, _, variance in seen] == [[0, 0], [0, 0], [0, 0], [0.5, 0.5]]


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("budget", [3, 16, 50, 96])
def test_each_spends_the_budget_and_no_prompt_has_more_drafts_than_candidates(name: str, budget: int):
    table = np.random.default_rng(1).normal(size=(8, 12))
    counts = play(table, budget, 8, BASELINES[name], np.random.default_rng(2))
    assert counts.sum() == budget
    assert counts.min() >= 0 and counts.max() <= 12


def test_where_the_next_drafts_go():
    assert even(position([3, 1, 2], [3, 1, 2], [0, 0, 0]), 3).tolist() == [0, 2, 1]
    # After two drafts of each the largest deviation takes all, until its doubt has fallen.
    assert upper_confidence(position([1, 2, 2], [1, 2, 2], [0, 9, 0]), 3).tolist() == [1, 2, 0]
    # In the second of four stages, half of the prompts goes on: those of the largest variances.
    assert halving(position([8] * 4, [8] * 4, [1, 4, 2, 3], budget=100), 4).tolist() == [0, 2, 0, 2]


class NoChance:
    """In place of a generator: remembers the degrees of freedom that it is asked for."""

    def chisquare(self, freedom: np.ndarray) -> np.ndarray:
        self.freedom = freedom
        return np.full(len(freedom), 2.0)


def test_drafts_under_way_say_nothing_yet():
    chance = NoChance()
    at = Position(np.array([4, 4]), np.array([2, 4]), np.array([3.0, 1.5]), 1.0, 24, 100, chance)  # type: ignore[arg-type]
    # With two drafts' prior of variance 1: (2 + 1 * 3) / 2 = 2.5 and (2 + 3 * 1.5) / 2 = 3.25.
    assert thompson(at, 3).tolist() == [0, 3]
    assert chance.freedom.tolist() == [3, 5]
    # UCB's doubt falls with those under way, too.
    assert upper_confidence(position([4, 2], [2, 2], [1, 1]), 2).tolist() == [0, 2]


def test_the_captured_share_is_that_of_the_best_groups():
    table = np.array([[0.0] * 8 + [1.0] * 8, [0.0] * 16])
    assert captured(table, np.array([8, 8])) == 0
    # One success of eight: 7/64 of the best group's 16/64.
    assert captured(table, np.array([9, 8])) == pytest.approx(7 / 16)
    assert captured(table, np.array([16, 0])) == 1
