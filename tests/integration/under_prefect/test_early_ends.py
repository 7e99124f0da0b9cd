"""Live runs that end, or go back, before their last iteration: at their budget, at an alarm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import flows.post_train
import tasks.iteration.alarm
from flows import start
from flows.post_train import post_train
from storage.config.loading import load_config
from storage.errors import ConfigurationError, HackingError, StorageError
from storage.home import Home
from storage.record.records import EvaluationRecord
from storage.record.results import held_out_curve
from storage.record.run_store import RunStore
from tasks.iteration.alarm import Answer
from tasks.iteration.session import Session
from tests.whole_runs import events, last_checkpoint, rows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]

ALARM_AT = 2


def last_state(home: Home, run_id: str) -> tuple[int, int, dict[str, bytes]]:
    checkpoint = last_checkpoint(home, run_id)
    return checkpoint.iteration, checkpoint.state["policy_version"], checkpoint.blobs


def compact_in_vain(store: RunStore, run_id: str, before: int | None = None) -> None:
    if before is None:
        raise StorageError("no space is left for all parts in one")


def test_a_run_ends_at_its_budget_and_goes_on_to_the_same_bits(home: Home, monkeypatch: pytest.MonkeyPatch):
    """Also where it is killed in its last evaluation; a last step that fails stops no other one.

    Nor does it count whether the budget or the number of iterations ended it.
    """
    settings = [
        "iterations=2", "runtime.cluster=local", "runtime.spot_workers=1", "runtime.scorer_workers=1",
        "checkpoint.every=5", "tracking.to=[]", "reward.scorer=jpeg",
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        ended: list[str] = []
        finish_readers = Session.finish_readers
        patch.setattr(RunStore, "compact", compact_in_vain)
        patch.setattr(flows.post_train, "finish_mirror", lambda mirror: ended.append("mirror"))
        patch.setattr(Session, "finish_readers", lambda one: (ended.append("readers"), finish_readers(one)))
        with pytest.raises(StorageError, match="no space"):
            post_train(load_config("smoke", settings, {}), "whole")
    assert ended == ["mirror", "readers"]
    small = load_config("smoke", [*settings, "budget.hours=1e-6"], {})
    result = post_train(small, "small")
    store = RunStore(home)
    row = store.run("small")
    assert result["iterations"] == 1 and result["score_after"] is not None
    assert row.status == "finished" and (row.error or "").startswith("budget.hours is 1e-06")
    assert last_state(home, "small")[0] == 1, "though a checkpoint is due every 5 iterations"
    assert dict(held_out_curve(store, "small")).keys() == {0, 1}
    with pytest.raises(ConfigurationError, match=r"ended early: budget\.hours"):
        start.resumed_configuration(home, "small")

    commit = RunStore.commit_evaluation

    def commit_of_the_first(store: RunStore, record: EvaluationRecord) -> None:
        if record.iteration:
            raise RuntimeError("killed")
        commit(store, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "commit_evaluation", commit_of_the_first)
        with pytest.raises(RuntimeError, match="killed"):
            post_train(small, "killed")
    assert dict(held_out_curve(store, "killed")).keys() == {0}
    post_train(start.resumed_configuration(home, "killed"), "killed")
    assert last_state(home, "killed") == last_state(home, "small")
    assert store.run("killed").status == "finished"
    assert dict(held_out_curve(store, "killed")).keys() == {0, 1}
    post_train(load_config("smoke", [*settings, "iterations=1"], {}), "short")
    for run_id, limit in (("small", "budget.hours=5"), ("short", "iterations=2")):
        raised = start.resumed_configuration(home, run_id, limits=[limit])
        store.set_limits(run_id, raised)
        result = post_train(raised, run_id)
        assert (store.run(run_id).status, store.run(run_id).error) == ("finished", None)
        assert last_state(home, run_id) == last_state(home, "whole")
        assert result["score_after"] == dict(held_out_curve(store, "whole"))[2]
    assert ("limits", "iterations is now 2, was 1") in events(home, "short")


@pytest.fixture
def alarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation after iteration 2 raises the alarm, and no other one."""
    monkeypatch.setattr(
        tasks.iteration.alarm,
        "_verdict",
        lambda session, iteration: SimpleNamespace(is_hacking=iteration == ALARM_AT, in_words="worse"),
    )


def config_of(on_alarm: str) -> Any:
    settings = [
        "iterations=3", "runtime.cluster=local", "runtime.spot_workers=0", "runtime.scorer_workers=1",
        "evaluation.every=1", "evaluation.judge=templates", f"evaluation.on_alarm={on_alarm}",
        "tracking.to=[]", "reward.scorer=jpeg",
    ]  # fmt: skip
    return load_config("smoke", settings, {})


@pytest.mark.usefixtures("alarmed")
@pytest.mark.parametrize(
    ("on_alarm", "kind", "deaths"),
    [
        # Before the answer; and after an iteration that follows it.
        ("rollback", "returned", (ALARM_AT, ALARM_AT + 1)),
        ("kl", "kl_raised", (ALARM_AT,)),
    ],
)
def test_a_run_killed_between_evaluation_and_answer_answers_as_the_undisturbed_one(
    home: Home, on_alarm: str, kind: str, deaths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    config, whole, killed = config_of(on_alarm), f"{on_alarm}-whole", f"{on_alarm}-killed"
    post_train(config, whole)
    assert [kind for kind, _ in events(home, whole)] == ["hacking", kind]
    judged = (
        "SELECT iteration, count(*), min(value) >= 0 AND max(value) <= 1 FROM evaluation_image_figures "
        "WHERE run_id = ? AND name = 'judge' GROUP BY iteration ORDER BY iteration"
    )
    assert rows(home, judged, whole) == [(number, 8, True) for number in range(4)]
    for dies_at in deaths:

        def die(session: Any, iteration: int, dies_at: int = dies_at) -> Answer:
            if iteration == dies_at:
                raise RuntimeError("killed")
            return tasks.iteration.alarm.answer(session, iteration)

        with monkeypatch.context() as patch:
            patch.setattr(flows.post_train, "answer", die)
            with pytest.raises(RuntimeError, match="killed"):
                post_train(config, killed)
    post_train(config, killed)
    assert last_state(home, killed) == last_state(home, whole)
    assert [kind for kind, _ in events(home, killed)].count(kind) == 1
    if on_alarm == "rollback":
        assert last_state(home, whole)[1] == 4, "the return is a policy version of its own"


@pytest.mark.usefixtures("alarmed")
def test_stop_ends_the_run_with_its_last_sound_checkpoint(home: Home):
    with pytest.raises(HackingError, match="spotlight export stopped"):
        post_train(config_of("stop"), "stopped")
    row = RunStore(home).run("stopped")
    assert row.status == "failed" and row.error is not None and "on_alarm is stop" in row.error
    assert last_state(home, "stopped")[0] == ALARM_AT - 1
