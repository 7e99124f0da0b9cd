"""The backtest's figures by hand, and which kept runs it takes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cost.backtest import (
    Compared,
    Figures,
    _discoveries_s,
    _shifted,
    figures_of,
    first_phase_at,
    ranking,
    scaled,
    slowness,
    work_s,
)
from benchmarks.cost.backtest_runs import QUICK, RUNS, KeptRun, LiveRun, _facts, _find, _kill
from benchmarks.cost.machine_speed import watched
from flows.disturbed_run import DisturbedRun
from gpu_runtime.chaos.fault_injector import Done
from gpu_runtime.chaos.fault_schedule import Fault
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.config.loading import load_config
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.inputs import plugin_facts
from tasks.recorded_profile import recorded_profile
from tests.sample_run import write_sample_run

TRACE = Trace((TraceEvent(0.0, "add", "i"), TraceEvent(30.0, "remove", "i")), 60.0)


def compared(
    live_s: float, simulated_s: float, low: float = 1.0, high: float = 1.0, trace: Trace | None = None,
    closed: float | None = None, usd: tuple[float, float] = (1.0, 1.0),
) -> Compared:  # fmt: skip
    """A run of one sample an iteration; of each pair, the first is live, the second simulated."""
    live, simulated = (
        Figures(seconds, bill, {}, int(trace is not None))
        for seconds, bill in zip((live_s, simulated_s), usd, strict=True)
    )
    kept = KeptRun(LiveRun("one", "one", "glyphs", ()), "one-1", 0.1, trace)
    return Compared(kept, live, simulated, low, high, 1, closed, 1.0, 1.1 * simulated_s)


def test_errors_of_calm_runs_and_of_runs_under_losses_are_apart():
    rows = [
        compared(10.0, 10.4, closed=1.0, usd=(2.0, 2.2)),
        compared(10.0, 9.8, closed=0.9995),
        compared(20.0, 26.0, trace=TRACE, usd=(1.0, 0.5)),
    ]
    figures = figures_of(rows, [row.kept for row in rows], 10)
    assert (figures["runs"], figures["runs_under_losses"], figures["losses"]) == (3, 1, 1)
    assert figures["iteration_error_median"] == pytest.approx(0.03)
    assert figures["iteration_error_max"] == pytest.approx(0.04)
    assert figures["unscaled_iteration_error_median"] == pytest.approx((0.144 + 0.078) / 2)
    assert figures["dollars_error_median"] == pytest.approx(0.05)
    assert figures["error_under_losses_median"] == pytest.approx(0.3)
    assert figures["dollars_error_under_losses_median"] == pytest.approx(0.5)
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
    figures = figures_of(swapped, [row.kept for row in swapped], 10)
    assert figures["ranking_kept"] is False
    assert figures["ranking_in_order"] < figures["ranking_pairs"]


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
    known = {"busy": 0.25, "events": [], "length_s": 0.0, "began_at": 0.0}
    facts.write_text(json.dumps(known | {"speed": [[1.0, 0.005]]}))
    assert _find(home, live, 4, "backtest") is None, "it is not finished"
    RunStore(home).set_status(name, "finished")
    found = _find(home, live, 4, "backtest")
    assert found is not None and (found.run_id, found.busy, found.trace) == (name, 0.25, None)
    assert found.speed == ((1.0, 0.005),)
    assert _find(home, live, 5, "backtest") is None
    changed = LiveRun(live.name, live.kind, live.preset, (*live.settings, "seed=5"))
    assert _find(home, changed, 4, "backtest") is None
    facts.write_text(json.dumps(known))
    assert _find(home, live, 4, "backtest") is None, "of an earlier version: the machine was not watched"


def test_every_kind_of_run_has_another_to_take_a_profile_from():
    for runs in (RUNS, QUICK):
        names = [live.name for live in runs]
        assert len(set(names)) == len(names)
    for live in RUNS:
        calm = [o for o in RUNS if o.kind == live.kind and o is not live and o.trace_seed is None]
        assert calm, live.name
        assert not live.alone or any(other.kind == live.alone for other in RUNS)
    assert sum(live.trace_seed is not None for live in RUNS) >= 3


def test_runs_that_share_samples_are_counted_apart():
    two = replace(compared(10.0, 10.8, usd=(2.0, 2.1)), degree=2)
    figures = figures_of([compared(10.0, 10.1), two], [two.kept], 10)
    assert figures["runs_sharing"] == 1
    assert figures["error_sharing_median"] == pytest.approx(0.08)
    assert figures["dollars_error_sharing_median"] == pytest.approx(0.05)


def test_a_profile_is_scaled_by_what_fixed_work_took_during_the_phases(tmp_path: Path):
    home = Home(tmp_path).ensure()
    write_sample_run(RunStore(home), "one", iterations=2)
    began_at = first_phase_at(home, "one")
    looks = ((began_at - 1, 0.9), (began_at, 0.004), (began_at + 1, 0.006), (began_at + 2, 0.005))
    assert work_s(home, KeptRun(RUNS[0], "one", 0.0, speed=looks)) == 0.005
    slow_run = KeptRun(RUNS[0], "one", 0.0, speed=((began_at, 0.006),))
    others = [KeptRun(RUNS[0], "one", 0.0, speed=((began_at, seconds),)) for seconds in (0.003, 0.005)]
    under_losses = KeptRun(RUNS[0], "one", 0.0, TRACE, speed=((began_at, 0.9),))
    assert slowness(home, slow_run, [slow_run, *others, under_losses]) == pytest.approx(1.5)
    recorded = recorded_profile(home, "one")
    slow = scaled(recorded, 1.5)
    assert slow.step_s(8) == pytest.approx(1.5 * recorded.step_s(8))
    assert slow.train_sample_s.value == pytest.approx(1.5 * recorded.train_sample_s.value)
    assert slow.evaluation == recorded.evaluation, "a ratio"


def test_the_machine_is_watched_until_the_end_of_a_context():
    with watched() as looks:
        assert looks == []
    assert looks and all(0 < seconds < 1 for _, seconds in looks)
    assert [at for at, _ in looks] == sorted(at for at, _ in looks)


def test_a_spot_worker_that_is_killed_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = Home(tmp_path).ensure()
    write_sample_run(RunStore(home), "killed", iterations=2)
    with RunStore(home).reading() as connection:
        (began_at,) = connection.execute("SELECT min(started_at) FROM worker_states").fetchone() or (0.0,)
    asked: list[float | None] = []

    def disturbed(home: Home, run_id: str, arguments: object, faults: list[Fault]) -> DisturbedRun:
        asked.extend(fault.at_s for fault in faults)
        done = tuple(Done(fault, began_at + 33.0, ("spot-0",)) for fault in faults)
        return DisturbedRun(done, (), 0, False, 50.0)

    monkeypatch.setattr("benchmarks.cost.backtest_runs.disturb", disturbed)
    known = _kill(home, "killed", [], TRACE)
    assert asked == [30.0] and known["began_at"] == began_at and known["length_s"] == 50.0
    assert known["events"] == [
        (0.0, "add", "worker-0"), (33.0, "remove", "worker-0"), (33.0, "add", "worker-1"),
    ]  # fmt: skip
