"""The backtest's figures by hand, and which kept runs it takes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.backtest import Compared, Figures, _discoveries_s, _shifted, figures_of, ranking
from benchmarks.backtest_runs import QUICK, RUNS, KeptRun, LiveRun, _facts, _find
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.config.loading import load_config
from storage.database.run_store import RunStore
from storage.home import Home
from tasks.inputs import plugin_facts

TRACE = Trace((TraceEvent(0.0, "add", "i"), TraceEvent(30.0, "remove", "i")), 60.0)


def compared(
    live_s: float, simulated_s: float, low: float = 1.0, high: float = 1.0, trace: Trace | None = None,
    closed: float | None = None, usd: tuple[float, float] = (1.0, 1.0),
    rollout_s: tuple[float, float] = (4.0, 4.0),
) -> Compared:  # fmt: skip
    """A run of one sample an iteration; of each pair, the first is live, the second simulated."""
    live, simulated = (
        Figures(seconds, bill, {"rollout": rollout}, {}, int(trace is not None))
        for seconds, bill, rollout in zip((live_s, simulated_s), usd, rollout_s, strict=True)
    )
    kept = KeptRun(LiveRun("one", "one", "glyphs", ()), "one-1", 0.1, trace)
    return Compared(kept, live, simulated, low, high, 1, closed)


def test_errors_of_calm_runs_and_of_runs_under_losses_are_apart():
    rows = [
        compared(10.0, 10.4, closed=1.0, usd=(2.0, 2.2), rollout_s=(4.0, 5.0)),
        compared(10.0, 9.8, closed=0.9995),
        compared(20.0, 26.0, trace=TRACE, usd=(1.0, 0.5)),
    ]
    figures = figures_of(rows, [row.kept for row in rows], 10)
    assert (figures["runs"], figures["runs_under_losses"], figures["losses"]) == (3, 1, 1)
    assert figures["iteration_error_median"] == pytest.approx(0.03)
    assert figures["iteration_error_max"] == pytest.approx(0.04)
    assert figures["dollars_error_median"] == pytest.approx(0.05)
    assert figures["error_under_losses_median"] == pytest.approx(0.3)
    assert figures["dollars_error_under_losses_median"] == pytest.approx(0.5)
    assert figures["phase_error_median"]["rollout"] == 0.0 and figures["phase_error_median"]["train"] is None
    assert figures["closed_form_error"] == pytest.approx(0.0005)


def test_runs_are_ranked_where_they_differ_by_more_than_the_interval():
    # 10 and 10.5 are within the half width of 0.1; 10 and 12 are not.
    near = [compared(10.0, 12.0, 0.9, 1.1), compared(10.5, 11.0)]
    assert ranking(near, lambda figures: figures.iteration_s) == (0, 0)
    assert figures_of(near, [row.kept for row in near], 10)["ranking_kept"] is None
    kept = [compared(10.0, 12.0, 0.9, 1.1), compared(12.0, 12.5)]
    assert ranking(kept, lambda figures: figures.iteration_s) == (1, 1)
    swapped = [compared(10.0, 12.0, 0.9, 1.1), compared(12.0, 11.0)]
    assert ranking(swapped, lambda figures: figures.iteration_s) == (1, 0)
    assert figures_of(swapped, [row.kept for row in swapped], 10)["ranking_kept"] is False


def test_a_loss_is_discovered_after_the_removal_before_it():
    events = (
        TraceEvent(0.0, "add", "i"), TraceEvent(30.0, "remove", "i"), TraceEvent(40.0, "add", "j"),
        TraceEvent(90.0, "remove", "j"),
    )  # fmt: skip
    kept = KeptRun(RUNS[0], "one-1", 0.0, Trace(events, 100.0), began_at=1000.0)
    assert _discoveries_s(kept, [1000.5, 1032.0, 1090.5]) == [2.0, 0.5]


def test_a_trace_that_begins_earlier_has_what_was_there_at_its_beginning():
    assert [event.at_s for event in _shifted(TRACE, 5.0).events] == [5.0, 35.0]
    assert [event.at_s for event in _shifted(TRACE, -5.0).events] == [0.0, 25.0]


def test_a_kept_run_is_taken_while_its_settings_are_the_same(tmp_path: Path):
    home, live = Home(tmp_path).ensure(), QUICK[0]
    config = load_config(live.preset, live.all_settings(4), {})
    name = f"backtest-{live.name}-1"
    RunStore(home).create_run(name, config, plugin_facts(config), os.getpid())
    facts = _facts(home, name)
    facts.parent.mkdir()
    facts.write_text(json.dumps({"busy": 0.25, "events": [], "length_s": 0.0, "began_at": 0.0}))
    assert _find(home, live, 4, "backtest") is None, "it is not finished"
    RunStore(home).set_status(name, "finished")
    found = _find(home, live, 4, "backtest")
    assert found is not None and (found.run_id, found.busy, found.trace) == (name, 0.25, None)
    assert _find(home, live, 5, "backtest") is None
    changed = LiveRun(live.name, live.kind, live.preset, (*live.settings, "seed=5"))
    assert _find(home, changed, 4, "backtest") is None


def test_every_kind_of_run_has_another_to_take_a_profile_from():
    for runs in (RUNS, QUICK):
        names = [live.name for live in runs]
        assert len(set(names)) == len(names)
    for live in RUNS:
        calm = [o for o in RUNS if o.kind == live.kind and o is not live and o.trace_seed is None]
        assert calm, live.name
    assert sum(live.trace_seed is not None for live in RUNS) >= 3
