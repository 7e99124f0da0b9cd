"""What is asked of several runs and of images, against hand-worked figures."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.queries import comparisons as comparison_queries
from storage.record.queries import images as image_queries
from storage.record.queries import seeds as seed_queries
from storage.record.records import IterationRecord, StateInterval
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.sample_run import evaluation_record, iteration_record, write_sample_run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Home(tmp_path))


def begun(store: RunStore, run_id: str, **settings: Any) -> None:
    store.create_run(run_id, RunConfig(**settings), {}, os.getpid())


def test_the_table_of_runs(store: RunStore):
    begun(store, "old")
    begun(store, "new")
    store.commit_evaluation(evaluation_record("old", 0, 100.0))
    store.commit_iteration(iteration_record("old", 1, 109.0))  # 18 s
    store.commit_iteration(iteration_record("old", 2, 120.0))  # 7 s of it beside the first
    store.commit_evaluation(evaluation_record("old", 20, 1000.0))  # a break before
    with store.records.reading() as connection:
        table = comparison_queries.run_table(connection, 10)
        one = comparison_queries.run_table(connection, 1)
    assert table["run_id"].tolist() == ["new", "old"]
    assert table["wall_s"].tolist() == pytest.approx([0.0, 9 + 18 + 11 + 9])
    assert table["iterations"].tolist() == [0, 2]
    old = table.iloc[1]
    assert old["score_before"] < old["score_now"] == old["score_best"]
    assert old["usd"] == pytest.approx((2 * 18 + 2 * 9) * (10.98 + 2 * 2.51) / 3600)
    assert table["score_now"].isna().tolist() == [True, False]
    assert (one["run_id"].tolist(), one["of"].tolist()) == (["new"], [2])


def test_time_at_work_begins_with_the_loading_of_the_weights(store: RunStore):
    begun(store, "a")
    evaluation = evaluation_record("a", 0, 100.0)
    loading = StateInterval("reserved-0", "reserved", "load", 70.0, 100.0, 10.98)
    store.commit_evaluation(dataclasses.replace(evaluation, intervals=[loading, *evaluation.intervals]))
    with store.records.reading() as connection:
        table = comparison_queries.run_table(connection, 10)
        course = comparison_queries.score_courses(connection, ["a"])
    assert table["wall_s"].tolist() == course["elapsed_s"].tolist() == pytest.approx([30.0 + 9.0])


def test_the_courses_of_several_runs_with_what_was_paid_until_then(store: RunStore):
    begun(store, "a")
    begun(store, "silent")
    store.commit_evaluation(evaluation_record("a", 0, 0.0))
    store.commit_iteration(iteration_record("a", 1, 9.0))
    store.commit_evaluation(evaluation_record("a", 1, 27.0))
    with store.records.reading() as connection:
        frame = comparison_queries.score_courses(connection, ["silent", "a"])
        assert comparison_queries.score_courses(connection, ["silent"]).empty
    assert frame["run_id"].tolist() == ["a", "a"]
    assert frame["elapsed_s"].tolist() == pytest.approx([9.0, 36.0])
    hourly = 10.98 + 2 * 2.51
    assert frame["usd"].tolist() == pytest.approx([9 * hourly / 3600, 36 * hourly / 3600])


def test_runs_that_differ_in_the_seed_alone(store: RunStore):
    for run_id, settings in {
        "one": {"seed": 1}, "two-old": {"seed": 2}, "two": {"seed": 2, "name": "other"},
        "longer": {"seed": 3, "iterations": 41}, "unscored": {"seed": 4},
    }.items():  # fmt: skip
        begun(store, run_id, **settings)
        if run_id != "unscored":
            store.commit_evaluation(evaluation_record(run_id, 0, 0.0))
    begun(store, "broken")
    store.folder("broken").change(RUN_FILE, lambda run: run | {"config": [1]})
    with store.records.reading() as connection:
        assert comparison_queries.runs_of_other_seeds(connection, "one") == {1: "one", 2: "two"}
        assert comparison_queries.runs_of_other_seeds(connection, "two-old") == {1: "one", 2: "two-old"}
        assert comparison_queries.runs_of_other_seeds(connection, "longer") == {3: "longer"}
        assert comparison_queries.runs_of_other_seeds(connection, "broken") == {}
        assert comparison_queries.runs_of_other_seeds(connection, "gone") == {}


def test_pictures_of_some_images_at_some_evaluations(store: RunStore):
    write_sample_run(store, "r", iterations=20)
    with store.records.reading() as connection:
        images = image_queries.pictured_images(connection, "r")
        assert image_queries.pictured_evaluations(connection, "r") == [0, 10, 20]
        found = image_queries.pictures(connection, "r", [(3, 0), (1, 0)], [0, 20])
        assert image_queries.pictures(connection, "other", [(3, 0)], [0]).empty
        assert image_queries.pictures(connection, "r", [], [0]).empty
    assert images["prompt_id"].tolist() == list(range(12))
    assert set(images["evaluations"]) == {3}
    assert found[["prompt_id", "iteration"]].to_numpy().tolist() == [[1, 0], [1, 20], [3, 0], [3, 20]]
    assert all(bytes(png).startswith(b"\x89PNG") for png in found["png"])


def test_evenly_spread_iterations(store: RunStore):
    begun(store, "r")
    for iteration in range(1, 11):
        store.commit_iteration(IterationRecord("r", iteration, 1, 0.0, 1.0, {}))
    with store.records.reading() as connection:
        spread = seed_queries.spread_iterations
        assert spread(connection, "r", 10) == list(range(1, 11))
        assert spread(connection, "r", 4) == [1, 4, 7, 10]
        assert spread(connection, "r", 1) == [10]
        assert spread(connection, "r", 3, 2, 7) == [3, 5, 7]
        assert spread(connection, "other", 3) == []


def test_counted_pairs_are_the_pairs(store: RunStore):
    write_sample_run(store, "r", iterations=4, exploring=True)
    with store.records.reading() as connection:
        pairs = seed_queries.stale_and_fresh(connection, "r")
        counts = seed_queries.pair_counts(connection, "r")
        some = seed_queries.stale_and_fresh(connection, "r", [2, 4])
        few = seed_queries.pair_counts(connection, "r", [2, 4])
        drafts = seed_queries.drafts_by_prompt(connection, "r", [3])
        every = seed_queries.drafts_by_prompt(connection, "r")
    grouped = pairs.assign(stale=pairs["stale"].round(4), fresh=pairs["fresh"].round(4))
    wanted = grouped.groupby(["kept", "stale", "fresh"]).size()
    assert counts.set_index(["kept", "stale", "fresh"])["seeds"].to_dict() == wanted.to_dict()
    assert set(some["iteration"]) == {2, 4}
    assert len(some) == few["seeds"].sum() == pairs["iteration"].isin([2, 4]).sum()
    of_third = every.loc[every["iteration"] == 3].reset_index(drop=True)
    assert drafts.equals(of_third)
