"""Queries over the record, about runs and about seeds, against hand-worked figures."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from storage.config.run_config import RunConfig
from storage.readers.figures import moments_after
from storage.record.queries import runs as queries
from storage.record.queries import seeds as seed_queries
from storage.record.records import (
    CandidateRecord,
    EvaluationRecord,
    IterationRecord,
    SampleImage,
    SampleRecord,
    StateInterval,
)
from storage.record.results import run_result
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.sample_run import evaluation_record, iteration_record, write_sample_run


def test_odd_values_survive(store: RunStore):
    sample = SampleRecord(7, "emoji 🌞 'quoted'", 2**40, 3, 0.25, False, "", "boom", 0, None, None, "w")
    record = IterationRecord("r", 1, 1, 0.0, 1.0, {"loss": float("nan"), "new name": float("inf")}, [sample])
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.commit_iteration(record)
    with store.reading() as connection:
        row = connection.execute(
            "SELECT prompt, seed_index, error, explored_score, advantage FROM samples "
            "JOIN prompts USING (run_id, prompt_id)"
        ).fetchone()
        frame = queries.metric_curves(connection, "r")
    assert row == ("emoji 🌞 'quoted'", 2**40, "boom", None, None)
    assert math.isnan(frame["loss"].iloc[0])
    assert frame["new name"].tolist() == [float("inf")]


def test_queries_on_hand_worked_figures(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())

    def at(start: float, market: str, lasting_s: float) -> StateInterval:
        return StateInterval("w-" + market, market, "rollout", start, start + lasting_s, 3.6)  # type: ignore[arg-type]

    store.commit_evaluation(
        EvaluationRecord("r", 0, 0, 100, 110, 0.25, 0.0, [], intervals=[at(100, "reserved", 10)])
    )
    store.commit_iteration(
        IterationRecord("r", 1, 1, 110, 130, {"kl": 0.5}, [], intervals=[at(110, "spot", 20)])
    )
    store.commit_iteration(
        IterationRecord("r", 2, 2, 125, 150, {"kl": 0.6, "late": 1}, [], intervals=[at(130, "reserved", 20)])
    )
    # A night passes between a kill and a resume.
    store.commit_iteration(IterationRecord("r", 3, 3, 9000, 9010, {}, [], intervals=[at(9000, "spot", 10)]))
    store.commit_evaluation(EvaluationRecord("r", 3, 3, 9010, 9020, 0.75, 0.5))
    with store.reading() as connection:
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


def test_work_of_later_iterations_that_was_discarded_is_paid_before_they_are_repeated(store: RunStore):
    begun(store, "r")
    for number, at in ((1, 0.0), (2, 20.0), (3, 40.0), (2, 1000.0), (3, 1020.0)):
        if at == 1000.0:
            store.discard_after("r", 1)  # a kill, and a resume at 1,000
        rented = [StateInterval("reserved-0", "reserved", "train", at, at + 10, 360.0)]  # a dollar
        store.commit_iteration(IterationRecord("r", number, number, at, at + 10, {}, [], intervals=rented))
        rented = [StateInterval("spot-0", "spot", "rollout", at + 10, at + 20, 36.0)]
        store.commit_evaluation(
            EvaluationRecord("r", number, number, at + 10, at + 20, 0.5, 0.0, intervals=rented)
        )
    with store.reading() as connection:
        cost = queries.cost_by_iteration(connection, "r")
        scores = queries.score_courses(connection, ["r"])
        moments = moments_after(connection, "r", -1)
    assert cost["iteration"].tolist() == [1, 2, 3]
    assert cost["reserved_usd"].tolist() == pytest.approx([1, 4, 5])
    assert cost["spot_usd"].tolist() == pytest.approx([0.1, 0.4, 0.5])
    assert scores["elapsed_s"].tolist() == pytest.approx([20, 80, 100])
    assert scores["usd"].tolist() == pytest.approx([1.1, 4.4, 5.5])
    totals = [moment.figures["cost/total_usd"] for moment in moments]
    assert totals == pytest.approx([1, 1.1, 4.3, 4.4, 5.4, 5.5])
    assert [m.figures["cost/evaluation_usd"] for m in moments if m.number % 2] == pytest.approx([0.1] * 3)


def begun(store: RunStore, run_id: str, **settings: Any) -> None:
    store.create_run(run_id, RunConfig(**settings), {}, os.getpid())


def test_the_table_of_runs(store: RunStore):
    begun(store, "old")
    begun(store, "new")
    store.commit_evaluation(evaluation_record("old", 0, 100.0))
    store.commit_iteration(iteration_record("old", 1, 109.0))  # 18 s
    store.commit_iteration(iteration_record("old", 2, 120.0))  # 7 s of it beside the first
    store.commit_evaluation(evaluation_record("old", 20, 1000.0))  # a break before
    with store.reading() as connection:
        latest, of = queries.latest_runs(connection, 1)
        table = queries.run_overview(connection, ["old", "new"])
        one = queries.run_overview(connection, latest)
    assert table["run_id"].tolist() == ["new", "old"]
    assert table["wall_s"].tolist() == pytest.approx([0.0, 9 + 18 + 11 + 9])
    assert table["iterations"].tolist() == [0, 2]
    old = table.iloc[1]
    assert old["score_before"] < old["score_now"] == old["score_best"]
    assert old["usd"] == pytest.approx((2 * 18 + 2 * 9) * (10.98 + 2 * 2.51) / 3600)
    assert table["score_now"].isna().tolist() == [True, False]
    assert (latest, of, one["run_id"].tolist()) == (["new"], 2, ["new"])


def test_a_result_counts_the_drafts_that_were_judged(store: RunStore):
    begun(store, "r")
    for iteration, figures in ((1, {"drafts": 8.0, "draft_errors": 3.0}), (2, {"drafts": 2.0}), (3, {})):
        store.commit_iteration(IterationRecord("r", iteration, 1, 0.0, 1.0, figures))
    assert run_result(store, "r")["drafts"] == 7


def test_the_best_score_is_never_below_the_last_one(store: RunStore):
    """The last one may be over more held-out prompts than those in between."""
    begun(store, "a")
    store.commit_evaluation(evaluation_record("a", 0, 100.0))
    best = []
    for after in (0.9, 0.1):
        store.set_summary("a", {"score_after": after})
        with store.reading() as connection:
            best.append(queries.run_overview(connection, ["a"])["score_best"].item())
    assert best[0] == 0.9 and 0.1 < best[1] < 0.9


def test_time_at_work_begins_with_the_loading_of_the_weights(store: RunStore):
    begun(store, "a")
    evaluation = evaluation_record("a", 0, 100.0)
    loading = StateInterval("reserved-0", "reserved", "load", 70.0, 100.0, 10.98)
    store.commit_evaluation(dataclasses.replace(evaluation, intervals=[loading, *evaluation.intervals]))
    with store.reading() as connection:
        table = queries.run_overview(connection, ["a"])
        course = queries.score_courses(connection, ["a"])
    assert table["wall_s"].tolist() == course["elapsed_s"].tolist() == pytest.approx([30.0 + 9.0])


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
    with store.reading() as connection:
        assert queries.runs_of_other_seeds(connection, "one") == {1: "one", 2: "two"}
        assert queries.runs_of_other_seeds(connection, "two-old") == {1: "one", 2: "two-old"}
        assert queries.runs_of_other_seeds(connection, "longer") == {3: "longer"}
        assert queries.runs_of_other_seeds(connection, "broken") == {}
        assert queries.runs_of_other_seeds(connection, "gone") == {}


def test_lists_of_runs_open_no_file_of_rows(store: RunStore):
    for run_id, seed in (("one", 1), ("two", 2)):
        begun(store, run_id, seed=seed)
        store.commit_evaluation(evaluation_record(run_id, 0, 0.0))
    store.set_summary("one", {"score_before": 0.25, "score_after": 0.75})
    store.set_status("one", "finished")
    for file in store.home.runs.rglob("*.parquet"):
        file.write_bytes(b"damaged")
    with store.reading() as connection:
        listed = queries.listed_runs(connection)
        assert queries.latest_runs(connection, 1) == (["two"], 2)
        assert queries.alike_but_seed(connection, "two") == {"one": 1, "two": 2}
        assert connection.damaged == []
    assert listed[["run_id", "status"]].to_numpy().tolist() == [["two", "running"], ["one", "finished"]]
    assert listed["score_now"].isna().tolist() == [True, False]
    assert listed.iloc[1][["score_before", "score_now"]].tolist() == [0.25, 0.75]


def test_evenly_spread_iterations(store: RunStore):
    begun(store, "r")
    for iteration in range(1, 11):
        store.commit_iteration(IterationRecord("r", iteration, 1, 0.0, 1.0, {}))
    with store.reading() as connection:
        spread = seed_queries.spread_iterations
        assert spread(connection, "r", 10) == list(range(1, 11))
        assert spread(connection, "r", 4) == [1, 4, 7, 10]
        assert spread(connection, "r", 1) == [10]
        assert spread(connection, "r", 3, 2, 7) == [3, 5, 7]
        assert spread(connection, "other", 3) == []


def test_drafts_of_some_iterations(store: RunStore):
    write_sample_run(store, "r", iterations=4, exploring=True)
    with store.reading() as connection:
        pairs = [seed_queries.pair_counts(connection, "r", some) for some in ([2], [4], [2, 4])]
        third = seed_queries.drafts_by_prompt(connection, "r", [3])
        every = seed_queries.drafts_by_prompt(connection, "r", [1, 2, 3, 4])
    second, fourth, both = (sum(frame["seeds"].tolist()) for frame in pairs)
    assert min(second, fourth) > 0 and second + fourth == both
    assert third.equals(every.loc[every["iteration"] == 3].reset_index(drop=True))


def draft(
    seed: int,
    score: float,
    *,
    prompt: int = 0,
    fidelity: str = "full",
    version: int = 3,
    round: int = 0,
    kept: bool = True,
    error: str | None = None,
) -> CandidateRecord:
    return CandidateRecord(
        prompt, f"prompt {prompt}", seed, fidelity, version, score, score == 1, error, round, 0, kept
    )


def sample(seed: int, score: float, rank: int = 0, prompt: int = 0, error: str | None = None) -> SampleRecord:
    """A sample of the rollout, whose weights are of version 4."""
    return SampleRecord(
        prompt, f"prompt {prompt}", seed, 4, score, score == 1, f"seed {seed}", error, rank, 0.5, None, "w"
    )


def committed(
    store: RunStore,
    iteration: int = 5,
    samples: Sequence[SampleRecord] = (),
    candidates: Sequence[CandidateRecord] = (),
    sample_images: Sequence[SampleImage] = (),
) -> None:
    store.commit_iteration(
        IterationRecord(
            "r", iteration, 5, 0.0, 1.0, {}, list(samples),
            candidates=list(candidates), sample_images=list(sample_images),
        )
    )  # fmt: skip


def rows(frame: pd.DataFrame, *columns: str) -> list[tuple]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


BY_OLDER = dataclasses.replace(sample(0, 0.5), policy_version=3)
PAIRS = {
    "a draft that was trained on is no fresh score of itself": (
        [BY_OLDER, sample(1, 0.2)], [draft(0, 0.5), draft(1, 0.9)], [(True, 0.9, 0.2, 1)],
    ),
    "the rollout, or the re-score, which wins over the sample; seed 4 was never looked at again": (
        [sample(1, 0.75), sample(2, 0.25)],
        [draft(1, 1.0), draft(2, 0.5), draft(3, 0.0, kept=False), draft(4, 0.1, kept=False),
         draft(2, 0.3, version=4, round=-1), draft(3, 0.2, version=4, round=-1, kept=False)],
        [(False, 0.0, 0.2, 1), (True, 0.5, 0.3, 1), (True, 1.0, 0.75, 1)],
    ),
    "a draft of the rollout's own weights is not stale": (
        [sample(1, 0.5)], [draft(1, 0.5, version=4)], [],
    ),
    "a refused draft against the one made in its place; seed 1 was rolled out all the same": (
        [sample(1, 0.75), sample(2, 0.25)],
        [draft(1, 0.7, version=4), draft(2, 0.2, version=4), draft(3, 0.4, version=4, kept=False),
         draft(1, 0.1, kept=False), draft(3, 0.9, kept=False), draft(4, 0.3, kept=False),
         draft(4, 0.6, version=4, round=-1, kept=False)],
        [(False, 0.3, 0.6, 1), (False, 0.9, 0.4, 1), (True, 0.1, 0.7, 1)],
    ),
    "the full draft counts, and then the newest": (
        [sample(1, 0.5), sample(2, 0.5)],
        [draft(1, 0.9, fidelity="preview-5"), draft(1, 0.6, round=1),
         draft(2, 0.1, version=2), draft(2, 0.2, version=3), draft(2, 0.3, fidelity="preview-5")],
        [(True, 0.2, 0.5, 1), (True, 0.6, 0.5, 1)],
    ),
    "images without a score are left out": (
        [sample(1, 0.0, error="boom"), sample(2, 0.5), sample(3, 0.25)],
        [draft(1, 0.5), draft(2, 0.0, error="boom"), draft(3, 0.5),
         draft(3, 0.0, version=4, round=-1, error="boom")],
        [(True, 0.5, 0.25, 1)],
    ),
    "equal pairs are counted": (
        [sample(1, 0.25), sample(2, 0.25)], [draft(1, 0.50001), draft(2, 0.5)], [(True, 0.5, 0.25, 2)],
    ),
}  # fmt: skip
"""Samples, drafts, and the pairs of one seed's scores by older and by newer weights."""


@pytest.mark.usefixtures("run_r")
@pytest.mark.parametrize("case", PAIRS)
def test_pairs_of_stale_and_fresh_scores(store: RunStore, case: str):
    samples, candidates, expected = PAIRS[case]
    committed(store, samples=samples, candidates=candidates)
    with store.reading() as connection:
        frame = seed_queries.pair_counts(connection, "r", [5])
        assert seed_queries.pair_counts(connection, "r", [4]).empty
    assert rows(frame, "kept", "stale", "fresh", "seeds") == expected


@pytest.mark.usefixtures("run_r")
def test_drafts_by_prompt(store: RunStore):
    committed(
        store,
        samples=[sample(1, 1.0), sample(2, 0.0), sample(1, 0.5, prompt=7)],
        candidates=[
            draft(1, 1.0), draft(2, 0.0, round=1), draft(3, 0.5, kept=False), draft(4, 1.0, kept=False),
            draft(4, 0.2, fidelity="preview-5", kept=False),
            draft(3, 0.9, version=4, round=-1, kept=False),
            draft(1, 0.5, prompt=9, kept=False),
        ],
    )  # fmt: skip
    with store.reading() as connection:
        frame = seed_queries.drafts_by_prompt(connection, "r", [5])
    assert rows(frame, "iteration", "prompt_id", "prompt", "drafts", "seeds", "in_plan") == [
        (5, 0, "prompt 0", 5, 4, True),
        (5, 7, "prompt 7", 0, 0, True),  # rolled out unexplored
        (5, 9, "prompt 9", 1, 1, False),  # explored in vain
    ]
    assert frame["success_share"].tolist() == pytest.approx([0.5, math.nan, 0.0], nan_ok=True)


@pytest.mark.usefixtures("run_r")
def test_best_and_worst(store: RunStore):
    for iteration in (5, 6, 7):
        committed(
            store, iteration,
            samples=[sample(1, 0.2, 2), sample(2, 1.0, 0), sample(3, 0.6, 1), sample(9, 0.3, 0, prompt=4)],
            sample_images=[SampleImage(0, seed, b"\x89PNG") for seed in (1, 2, 3)]
            + ([SampleImage(4, 9, b"\x89PNG")] if iteration == 6 else []),
        )  # fmt: skip
    with store.reading() as connection:
        latest, single = (seed_queries.best_and_worst(connection, "r", prompt, 1) for prompt in (0, 4))
        one = seed_queries.best_and_worst(connection, "r", 0, 2)
        prompts = seed_queries.pictured_prompts(connection, "r")
    assert rows(latest, "iteration", "prompt_id", "place", "seed_index", "score", "detail") == [
        (7, 0, "best", 2, 1.0, "seed 2"),
        (7, 0, "worst", 1, 0.2, "seed 1"),
    ]
    assert rows(single, "iteration", "place", "seed_index") == [(6, "best", 9)], "a prompt's own latest"
    assert bytes(latest["png"].iloc[0]) == b"\x89PNG"
    assert rows(one, "iteration", "place") == [(7, "best"), (7, "worst"), (6, "best"), (6, "worst")]
    assert rows(prompts, "prompt_id", "prompt", "iteration") == [(0, "prompt 0", 7), (4, "prompt 4", 6)]
