"""Trials of regrouping: their times, and those that say nothing as a phase ended meanwhile."""

from __future__ import annotations

from benchmarks.fleet.elastic_sp import KILLER, evaluate
from gpu_runtime.scheduling.history import DRIVER, HistoryLine
from storage.record.records import StateInterval

FOUR, THREE = "reserved-0+spot-0+spot-1+spot-2", "reserved-0+spot-0+spot-1"


def line(at: float, by: str, event: str, **facts: object) -> HistoryLine:
    return HistoryLine(1, by, at, event, facts)


def history(ends_at: float) -> list[HistoryLine]:
    """One loss and its replacement, in a phase that ends at a moment; leases 0 to 2 are of 4, 3 and 4."""
    leases = [
        line(at, DRIVER, "lease", lease=lease, worker=group)
        for lease, (at, group) in enumerate([(0.0, FOUR), (1.1, THREE), (4.2, FOUR.replace("2", "2.1"))])
    ]
    return [
        *leases,
        line(0.9, "spot-2", "chunk", lease=0),
        line(0.5, KILLER, "process", name=KILLER),  # which each history begins with
        line(1.0, KILLER, "kill", worker="spot-2"),
        line(1.15, "reserved-0", "step", lease=1),
        line(ends_at, DRIVER, "generated"),
        line(4.25, "spot-2.1", "step", lease=2),
    ]


def loaded(at: float) -> list[StateInterval]:
    return [StateInterval("spot-2.1", "spot", "load", 2.0, at, 1.0)]


def test_times_are_from_the_kill_and_from_the_replacements_weights():
    trials = evaluate(history(ends_at=9.0), loaded(4.0))
    assert [round(seconds, 3) for seconds in trials.killed_s] == [0.15]
    assert [round(seconds, 3) for seconds in trials.planned_s] == [0.25]
    assert (trials.between_phases, trials.hangs) == (0, 0)


def test_a_last_step_of_the_victim_is_not_its_replacements():
    victim = StateInterval("spot-2", "spot", "load", 0.1, 0.2, 1.0)
    lines = [*history(ends_at=9.0), line(1.001, "spot-2", "step", lease=0)]
    trials = evaluate(lines, [victim, *loaded(4.0)])
    assert [round(seconds, 3) for seconds in trials.planned_s] == [0.25]


def test_a_phase_that_ends_meanwhile_leaves_nothing_to_measure():
    assert evaluate(history(ends_at=4.1), loaded(4.0)).planned_s == []
    lost = evaluate(history(ends_at=1.05), loaded(4.0))
    began = [*history(ends_at=9.0), line(1.05, DRIVER, "generate")]
    assert evaluate(began, loaded(4.0)).killed_s == [], "it fell between two phases"
    assert (lost.killed_s, lost.between_phases, len(lost.planned_s), lost.hangs) == ([], 1, 1, 0)


def test_a_kill_without_a_new_group_is_a_hang():
    lines = [one for one in history(ends_at=9.0) if one.facts.get("lease") == 0 or one.by == KILLER]
    assert evaluate(lines, []).hangs == 1
