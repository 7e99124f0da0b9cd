"""A run's budget: when it ends, what is counted, and how it goes on."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import start
from storage.config.run_config import RunConfig
from storage.environment import EARLIER_ENDS, read_earlier_ends
from storage.errors import ConfigurationError, ServerError
from storage.evaluations.reproductions import reference_of
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import JUDGE_USD, StateInterval
from storage.record.results import run_result
from storage.record.run_store import RunStore
from storage.record.tables import iteration_rows
from tasks.inputs import refuse_unfit_facts
from tasks.iteration.budget import Spending, end_at_spent_budget, refuse_spent_budget, spending
from tasks.iteration.session import Session
from tests.sample_run import evaluation_record, iteration_record
from tests.tampering import set_run

AT = 1_700_000_000.0
ITERATION_USD, EVALUATION_USD = 18 * 16.0 / 3600, 9 * 16.0 / 3600
"""18 s and 9 s of three devices at 10.98, 2.51 and 2.51 dollars an hour."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    return RunStore(Home(tmp_path).ensure())


def begun(store: RunStore, iterations: int, **budget: float) -> RunConfig:
    """A run with an evaluation and so many iterations."""
    config = RunConfig.model_validate({"iterations": 9, "budget": budget})
    store.create_run("r", config, {}, os.getpid())
    store.commit_evaluation(evaluation_record("r", 0, AT, 4, 2))
    for iteration in range(1, iterations + 1):
        store.commit_iteration(iteration_record("r", iteration, AT + 18 * iteration, 8))
    return config


def after(store: RunStore, config: RunConfig, record: Any) -> Any:
    """The session after an iteration that is not committed yet; without one, as it is resumed."""
    session: Any = SimpleNamespace(
        run_id="r", config=config, store=store, last_iteration=config.iterations, ended_early=""
    )
    if record is None:
        end_at_spent_budget(session, store.run("r").last_iteration or 0)
    else:
        end_at_spent_budget(session, record.iteration, record)
    return session


@pytest.mark.parametrize(
    ("name", "limit", "last"),
    [
        ("usd", EVALUATION_USD + 3 * ITERATION_USD + EVALUATION_USD + 0.001, 9),
        ("usd", EVALUATION_USD + 3 * ITERATION_USD + EVALUATION_USD - 0.001, 2),
        ("usd", 0.001, 2),
        ("hours", (9 + 3 * 18 + 9) / 3600 + 1e-6, 9),
        ("hours", (9 + 3 * 18 + 9) / 3600 - 1e-6, 2),
        ("usd", 0.0, 9),
    ],
)
def test_a_run_ends_before_the_iteration_that_would_exceed_its_budget(
    store: RunStore, name: str, limit: float, last: int
):
    config = begun(store, 1, **{name: limit})
    session = after(store, config, iteration_record("r", 2, AT + 36, 8))
    assert session.last_iteration == last
    events = [(event["kind"], event["message"]) for event in store.folder("r").events()]
    assert events == ([("budget", session.ended_early)] if last == 2 else [])
    if last == 2:
        said = f"budget.{name} is {limit:g}: after iteration 2 of 9 the run has"
        assert session.ended_early.startswith(said)
        assert f"`spotlight resume r --budget-{name} N`" in session.ended_early


def test_the_last_iteration_ends_no_run_early(store: RunStore):
    config = begun(store, 1, usd=0.001).model_copy(update={"iterations": 2})
    session = after(store, config, iteration_record("r", 2, AT + 36, 8))
    assert (session.ended_early, store.folder("r").events()) == ("", [])


@pytest.mark.parametrize(("more_usd", "last"), [(0.001, 9), (-0.001, 2)])
def test_an_evaluation_that_follows_anyway_counts_beside_the_one_at_the_end(
    store: RunStore, more_usd: float, last: int
):
    config = begun(store, 1, usd=3 * ITERATION_USD + 3 * EVALUATION_USD + more_usd)
    config = config.changed(evaluation={"every": 1})
    assert after(store, config, iteration_record("r", 2, AT + 36, 8)).last_iteration == last


def test_before_the_first_iteration_the_evaluation_at_the_end_alone_is_known(store: RunStore):
    begun(store, 0)
    used = spending(store, "r")
    assert (used.next_usd, used.next_hours) == pytest.approx((EVALUATION_USD, 9 / 3600))
    store.create_run("empty", RunConfig(), {}, os.getpid())
    assert spending(store, "empty") == Spending(0.0, 0.0, 0.0, 0.0)


def test_amounts_from_a_dollar_on_have_cents(store: RunStore):
    config, record = begun(store, 1, usd=1.0), iteration_record("r", 2, AT + 36, 8)
    record.metrics[JUDGE_USD] = 1.5
    assert "the run has used $1.70, and " in after(store, config, record).ended_early


def test_the_evaluation_at_the_end_is_as_large_as_the_first(store: RunStore):
    begun(store, 1)
    small = evaluation_record("r", 1, AT + 36, 1, 1)
    half = [dataclasses.replace(one, ended_at=one.started_at + 1) for one in small.intervals]
    store.commit_evaluation(dataclasses.replace(small, intervals=half))
    assert spending(store, "r").next_usd == pytest.approx(ITERATION_USD + EVALUATION_USD)


def test_all_lives_and_judges_count_and_the_start_of_devices_is_not_expected_again(store: RunStore):
    begun(store, 2)
    store.discard_after("r", 1)
    record = iteration_record("r", 2, AT + 1000, 8)
    loading = StateInterval("reserved-0", "reserved", "load", AT + 640, AT + 1000, 10.0)
    record = dataclasses.replace(
        record, metrics=record.metrics | {JUDGE_USD: 0.5}, intervals=[loading, *record.intervals]
    )
    for uncommitted in (True, False):
        if not uncommitted:
            store.commit_iteration(record)
        used = spending(store, "r", record if uncommitted else None)
        assert used.usd == pytest.approx(EVALUATION_USD + 3 * ITERATION_USD + 1.0 + 0.5)
        assert used.hours == pytest.approx((9 + 3 * 18 + 360) / 3600)
        assert used.next_usd == pytest.approx(ITERATION_USD + 0.5 + EVALUATION_USD)
        assert used.next_hours == pytest.approx(27 / 3600)


def test_the_hours_count_whichever_trainers_are_lost_and_replaced(store: RunStore):
    config = begun(store, 1, hours=(9 + 2 * 18 + 18 + 9) / 3600 - 1e-6)
    lives = [("reserved-0", 0, 4), ("reserved-1", 0, 12), ("reserved-0.1", 10, 17)]  # for a second, none
    states = [
        StateInterval(worker, "reserved", "train", AT + 36 + begin, AT + 36 + end, 10.98)
        for worker, begin, end in lives
    ]
    record = dataclasses.replace(iteration_record("r", 2, AT + 36, 8), intervals=states)
    used = spending(store, "r", record)
    assert used.hours == pytest.approx((9 + 2 * 18) / 3600) and used.next_hours == pytest.approx(27 / 3600)
    assert used.usd == pytest.approx(EVALUATION_USD + ITERATION_USD + (4 + 12 + 7) * 10.98 / 3600)
    assert after(store, config, record).ended_early.startswith("budget.hours is")
    store.commit_iteration(record)
    assert run_result(store, "r")["wall_s"] == pytest.approx(9 + 2 * 18)


def test_a_run_goes_on_with_a_higher_budget_only(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    passed: list[RunConfig] = []

    def go_on(home: Home, run_id: str, config: RunConfig, *, new_limits: bool, taken: None) -> dict[str, Any]:
        assert new_limits
        passed.append(config)
        store.set_limits(run_id, config)
        return {}

    monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
    monkeypatch.setattr(start, "post_train_under_server", go_on)
    begun(store, 2, usd=0.25)
    store.set_status("r", "finished", "budget.usd is 0.25: N above 0.32")
    with pytest.raises(ConfigurationError, match=r"'r' ended early: budget.usd is 0.25: N above 0.32"):
        start.resume("r")
    too_little: list[dict[str, Any]] = [{"budget_usd": 0.3}, {"iterations": 20}]
    for limits in too_little:
        with pytest.raises(ConfigurationError, match=r"has used \$0.2, .*--budget-usd N`, N above 0.32"):
            start.resume("r", **limits)
    assert store.run("r").status == "finished" and store.run("r").config.budget.usd == 0.25
    start.resume("r", budget_usd=0.5)
    row = store.run("r")
    assert (row.status, row.error) == ("interrupted", None)
    assert row.config.budget.usd == passed[0].budget.usd == 0.5
    assert store.folder("r").events()[-1]["message"] == "budget.usd is now 0.5, was 0.25"
    store.set_status("r", "failed", "a killed run is no different")
    store.set_limits("r", RunConfig.model_validate({"iterations": 9, "budget": {"usd": 0.25}}))
    with pytest.raises(ConfigurationError, match="--budget-usd N`"):
        start.resume("r")
    start.resume("r", budget_usd=0)
    assert passed[1].budget.usd == 0, "no limit from now on"


def test_ends_before_a_run_went_on_are_facts_of_it(store: RunStore):
    def go_on(status: Any, **limits: Any) -> None:
        store.set_status("r", status)
        store.set_limits("r", RunConfig.model_validate(limits))

    def ends() -> dict[int, str]:
        return read_earlier_ends(store.run("r").environment)

    begun(store, 2, usd=0.25)
    go_on("interrupted", iterations=3, budget={"usd": 0.3})
    assert ends() == {}, "it was cut off"
    go_on("finished", iterations=3, budget={"usd": 0.4})
    assert ends() == {2: "budget"}
    store.commit_iteration(iteration_record("r", 3, AT + 54, 8))
    go_on("failed", iterations=4, budget={"usd": 0.01})  # in the evaluation at its end
    go_on("finished", iterations=4, budget={"usd": 9})
    assert ends() == {2: "budget", 3: "iterations"}, "without drafts for the next iteration"
    assert store.run("r").environment[EARLIER_ENDS] == "2 budget, 3 iterations"
    nothing: Any = None
    session = Session("r", store.run("r").config, nothing, store, nothing, nothing, nothing)
    session.earlier_ends = ends()
    assert [session.prepares_next(iteration) for iteration in (1, 2, 3, 4)] == [True, True, False, False]
    assert [session.ends_after(iteration) for iteration in (1, 2, 3, 4)] == [False, True, True, True]
    assert [session.evaluates_after(iteration) for iteration in range(5)] == [True, False, True, True, True]
    with pytest.raises(
        ConfigurationError, match=r"recorded earlier ends are 'two'; .* such as '2 iterations"
    ):
        refuse_unfit_facts({EARLIER_ENDS: "two"}, RunConfig().exploration)


def test_a_refused_start_changes_nothing_and_leaves_nothing(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nothing answers there
    monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
    begun(store, 2)
    store.set_summary("r", {"score_after": 0.5})
    store.set_status("r", "finished")
    before = store.run("r")
    for begin in (partial(start.resume, "r", iterations=9), partial(start.train, "smoke", run_id="other")):
        with pytest.raises(ServerError, match="no Prefect server answers"):
            begin()
    assert store.run("r") == before
    assert store.home.run_ids() == ["r"]
    store.set_status("r", "running")
    set_run(store, "r", host="another-machine")
    before = store.run("r")
    with pytest.raises(ServerError, match="no Prefect server answers"):
        start.resume("r", take_over=True)
    assert store.run("r") == before, "it is taken over once all checks have passed"
    assert "taken_over" not in [event["kind"] for event in store.folder("r").events()]


def test_a_resumed_run_whose_budget_one_iteration_has_spent_begins_no_other(store: RunStore):
    assert after(store, begun(store, 1, usd=0.001), None).last_iteration == 1


def test_a_run_without_an_iteration_does_one_whatever_its_budget(store: RunStore):
    assert after(store, begun(store, 0, usd=0.001), None).last_iteration == 9


def test_a_run_killed_in_its_last_evaluation_is_resumed_for_that_alone(store: RunStore):
    config = begun(store, 2, usd=0.25)
    row = dataclasses.replace(store.run("r"), status="interrupted")
    with pytest.raises(ConfigurationError, match=r"budget.usd is 0.25"):  # no checkpoint is there
        refuse_spent_budget(store, row, config)
    for iteration in (1, 2):
        rows = iteration_rows(iteration_record("r", iteration, AT + 18 * iteration, 8))
        CheckpointStore(store.home.run("r")).save(iteration, {"weights": b"w"}, {}, rows)
    refuse_spent_budget(store, row, config)
    session = after(store, config, None)
    assert session.last_iteration == 2 and session.ended_early.startswith("budget.usd is 0.25")
    store.commit_evaluation(evaluation_record("r", 2, AT + 60, 4, 2))
    with pytest.raises(ConfigurationError, match=r"budget.usd is 0.25"):  # nothing is missing
        refuse_spent_budget(store, row, config)


def test_a_run_that_ended_early_is_reproduced_as_far_as_it_went(store: RunStore):
    begun(store, 2, usd=0.25)
    blobs = {"weights": b"w", "drafts": b"d"}
    rows = iteration_rows(iteration_record("r", 2, AT + 36, 8))
    CheckpointStore(store.home.run("r")).save(2, blobs, {}, rows)
    store.set_status("r", "finished")
    assert reference_of(store, "r").digests.keys() == blobs.keys()
    store.set_status("r", "finished", "budget.usd is 0.25")
    assert reference_of(store, "r").digests.keys() == {"weights"}, "no iteration followed that has drafts"
    config = reference_of(store, "r").run_config
    assert (config.iterations, config.budget.usd) == (2, 0)
