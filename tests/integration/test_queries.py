"""What is asked of the database, against hand-worked figures."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.queries import runs as queries
from storage.record.records import EvaluationRecord, IterationRecord, SampleRecord, StateInterval
from storage.record.run_store import RunStore
from tests.sample_run import iteration_record, write_sample_run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Home(tmp_path))


def test_odd_values_survive(store: RunStore):
    sample = SampleRecord(7, "emoji 🌞 'quoted'", 2**40, 3, 0.25, False, "", "boom", 0, None, None, "w")
    record = IterationRecord("r", 1, 1, 0.0, 1.0, {"loss": float("nan"), "new name": float("inf")}, [sample])
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.commit_iteration(record)
    with store.records.reading() as connection:
        row = connection.execute(
            "SELECT prompt, seed_index, error, explored_score, advantage FROM samples "
            "JOIN prompts USING (run_id, prompt_id)"
        ).fetchone()
        frame = queries.metric_curves(connection, "r")
    assert row == ("emoji 🌞 'quoted'", 2**40, "boom", None, None)
    assert math.isnan(frame["loss"].iloc[0])
    assert frame["new name"].tolist() == [float("inf")]


def test_going_back_keeps_the_bill(store: RunStore):
    write_sample_run(store, iterations=12)
    with store.records.reading() as connection:
        paid = queries.cost_by_state(connection, "glyphs-sample")[["device_s", "usd"]].sum()
        elapsed = queries.metric_curves(connection, "glyphs-sample")["elapsed_s"].max()
    for _ in range(2):  # a resume may itself be killed and come again
        store.discard_after("glyphs-sample", 8)
    with store.records.reading() as connection:
        states = queries.cost_by_state(connection, "glyphs-sample")
        after = states[["device_s", "usd"]].sum()
        assert queries.metric_curves(connection, "glyphs-sample")["iteration"].tolist() == list(range(1, 9))
        assert queries.score_curve(connection, "glyphs-sample")["iteration"].tolist() == [0]
        booked = connection.execute(
            "SELECT sum((ended_at - started_at) * usd_per_hour / 3600) FROM worker_states"
        ).fetchall()
    assert after.to_numpy() == pytest.approx(paid.to_numpy())
    assert booked[0][0] == pytest.approx(paid["usd"])
    lost = states[states["state"] == "lost"]
    assert sum(lost["device_s"].tolist()) == pytest.approx(3 * (4 * 18 + 9))
    # Done again, at a later time: paid twice, and the time at work goes on from where it was.
    store.commit_iteration(iteration_record("glyphs-sample", 9, time.time() + 3600))
    with store.records.reading() as connection:
        again = queries.metric_curves(connection, "glyphs-sample")
    assert float(again["elapsed_s"].iloc[-1]) == pytest.approx(elapsed + 18)


def test_queries_on_hand_worked_figures(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())

    def at(start: float, market: str, lasting_s: float) -> StateInterval:
        return StateInterval("w-" + market, market, "rollout", start, start + lasting_s, 3.6)  # type: ignore[arg-type]

    store.commit_evaluation(EvaluationRecord("r", 0, 0, 100, 110, 0.25, 0.0, [], [at(100, "reserved", 10)]))
    store.commit_iteration(IterationRecord("r", 1, 1, 110, 130, {"kl": 0.5}, [], [at(110, "spot", 20)]))
    store.commit_iteration(
        IterationRecord("r", 2, 2, 125, 150, {"kl": 0.6, "late": 1}, [], [at(130, "reserved", 20)])
    )
    # A night passes between a kill and a resume.
    store.commit_iteration(IterationRecord("r", 3, 3, 9000, 9010, {}, [], [at(9000, "spot", 10)]))
    store.commit_evaluation(EvaluationRecord("r", 3, 3, 9010, 9020, 0.75, 0.5))
    with store.records.reading() as connection:
        curves = queries.metric_curves(connection, "r")
        scores = queries.score_curve(connection, "r")
        cost = queries.cost_by_iteration(connection, "r")
        overview = queries.run_overview(connection)
    assert curves["elapsed_s"].tolist() == [30, 50, 60]
    assert curves["kl"].tolist()[:2] == [0.5, 0.6]
    assert scores[["iteration", "score", "elapsed_s"]].to_numpy().tolist() == [[0, 0.25, 10], [3, 0.75, 70]]
    assert cost["reserved_usd"].tolist() == pytest.approx([0.01, 0.01, 0.03, 0.03])
    assert cost["spot_usd"].tolist() == pytest.approx([0, 0.02, 0.02, 0.03])
    assert cost["spot_device_s"].tolist() == [0, 20, 20, 30]
    assert overview[["iterations", "score_before", "score_now", "usd"]].to_numpy().tolist() == [
        pytest.approx([3, 0.25, 0.75, 0.06])
    ]


def test_images_of_the_same_prompt_and_seed(store: RunStore):
    write_sample_run(store, iterations=10)
    with store.records.reading() as connection:
        images = queries.images_before_after(connection, "glyphs-sample")
        pairs = queries.paired_scores(connection, "glyphs-sample")
    assert len(images) == 12
    assert set(images["iteration_before"]) == {0}
    assert set(images["iteration_after"]) == {10}
    assert all(bytes(png).startswith(b"\x89PNG") for png in [*images["png_before"], *images["png_after"]])
    assert len(pairs) == 96
    assert sum(pairs["score_after"].tolist()) > sum(pairs["score_before"].tolist())
