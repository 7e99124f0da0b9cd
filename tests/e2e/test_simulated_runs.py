"""Simulated runs in the database: what was simulated is there to the last second, and every page says it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.simulator.comparison.learning_curves import LearningCurve, LearningCurves
from gpu_runtime.simulator.comparison.policies import policies_of
from gpu_runtime.simulator.simulated_run import SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.queries.runs import runs_of_other_seeds
from storage.record.records import EvaluationRecord
from storage.record.results import live_runs
from storage.record.run_store import RunStore, check_resumable
from tasks.export import export_run
from tasks.profiles import recorded_curves
from tasks.recorded_profile import recorded_profile
from tasks.what_if import record_run
from tests.dashboard_page import figures, opened_page, sentences
from tests.simulated import simulated, small_config
from ui.report.report import report_page

CONFIG = small_config(iterations=3, every=1)
LOST = Trace((TraceEvent(0.0, "add", "s"), TraceEvent(60.0, "remove", "s")), 1000.0)
CURVE = LearningCurve(iterations=(0, 2), values=(0.2, 0.4))
CURVES = LearningCurves(name="c", arms={"plain": (CURVE,), "stale": (CURVE, CURVE)})
(SPOTLIGHT,) = policies_of(["spotlight"])


def simulated_run() -> SimulatedRun:
    return simulated(CONFIG, 1, 1, LOST, STALE, keeps_intervals=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Two runs: one with the scores of a curve, one without."""
    home = Home(tmp_path_factory.mktemp("home")).ensure()
    store = RunStore(home)
    record_run(store, "bare", CONFIG, SPOTLIGHT, simulated_run(), "profile small")
    record_run(store, "simulated", CONFIG, SPOTLIGHT, simulated_run(), "profile small", CURVES)
    return home


def states(home: Home, run_id: str) -> Mapping[tuple[str, str], float]:
    with RunStore(home).reading() as connection:
        rows = connection.execute(
            "SELECT market, state, sum(ended_at - started_at) FROM worker_states "
            "WHERE run_id = ? GROUP BY market, state",
            [run_id],
        ).fetchall()
    return {(market, state): seconds for market, state, seconds in rows}


@pytest.mark.parametrize("run_id", ["simulated", "bare"])
def test_the_ledger_is_that_of_the_simulated_run(home: Home, run_id: str):
    run = simulated_run()
    expected = {key: time / TICKS_PER_S for key, time in run.spent.items() if time}
    # Unix seconds hold times of a fraction of a microsecond.
    assert states(home, run_id) == pytest.approx(expected, abs=1e-4)
    row = RunStore(home).run(run_id)
    assert (row.status, row.last_iteration) == ("simulated", 3)
    assert row.summary["cost_usd"] == pytest.approx(run.usd, rel=1e-6)
    assert row.ended_at is not None and row.ended_at - row.created_at == pytest.approx(run.wall_s, abs=1e-4)


def test_scores_are_those_of_the_policy_s_curve(home: Home):
    with RunStore(home).reading() as connection:
        scores = connection.execute(
            "SELECT run_id, iteration, score FROM evaluations ORDER BY iteration"
        ).fetchall()
        lost = connection.execute("SELECT run_id FROM device_events WHERE kind = 'lost'").fetchall()
    assert [row[:2] for row in scores] == [("simulated", iteration) for iteration in range(4)]
    assert [score for *_, score in scores] == pytest.approx([0.2, 0.3, 0.4, 0.4])
    assert sorted(lost) == [("bare",), ("simulated",)]


def test_nothing_takes_it_for_a_run_that_was_done(home: Home, tmp_path: Path):
    row = RunStore(home).run("simulated")
    for take in (
        lambda: check_resumable(row),
        lambda: recorded_profile(home, "simulated"),
        lambda: recorded_curves(home, "simulated"),
        lambda: export_run(home, "simulated", tmp_path / "exported"),
    ):
        with pytest.raises(ConfigurationError, match="was simulated by `spotlight what-if`"):
            take()
    with RunStore(home).reading() as connection:
        assert live_runs(connection) == [], "what is measured of a run at work"


def test_it_is_no_seed_of_a_recorded_run_and_none_is_one_of_it(tmp_path: Path):
    store = RunStore(Home(tmp_path).ensure())
    record_run(store, "simulated", CONFIG, SPOTLIGHT, simulated_run(), "profile small", CURVES)
    row = store.run("simulated")
    store.create_run("done", row.config.model_copy(update={"seed": 7}), {}, 1)
    store.commit_evaluation(EvaluationRecord("done", 0, 0, 1.0, 2.0, 0.5, 0.5))
    with store.reading() as connection:
        assert runs_of_other_seeds(connection, "simulated") == {row.config.seed: "simulated"}
        assert runs_of_other_seeds(connection, "done") == {7: "done"}


@pytest.mark.parametrize("name", ["convergence", "spot", "cost", "health", "seeds", "images"])
def test_each_page_of_it_says_so(home: Home, name: str, monkeypatch: pytest.MonkeyPatch):
    run_id = "bare" if name == "convergence" else "simulated"
    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    page = opened_page(name, run=run_id)
    assert f"{run_id} :orange-badge[simulated]" in [header.value for header in page.header]
    assert "Simulated: this run never ran" in sentences(page)
    assert "policy spotlight" in sentences(page)
    if name == "spot":
        assert "Spot idle" in figures(page)
        assert figures(page)["Goodput"] == "-", "it records no samples"
    assert "never joined" not in sentences(page), "its trace decides on its devices"
    assert "does not explore" not in sentences(page), "its policy does"


def test_the_score_before_training_is_not_the_last_one(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    page = opened_page("convergence", run="simulated")
    assert "**Score 0.20 → 0.40**, after 3 iterations" in sentences(page)
    assert RunStore(home).run("simulated").summary["unjoined_devices"] == []


def test_the_list_of_runs_and_the_report_say_so(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    page = opened_page("runs")
    assert page.dataframe[0].value["status"].tolist() == ["simulated", "simulated"]
    assert "Simulated: this run never ran" in report_page(RunStore(home), "simulated")
