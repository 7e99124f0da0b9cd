"""Live runs with an alarm: one that is killed between evaluation and answer ends with the same bits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import flows.post_train
import tasks.iteration.alarm
from flows.post_train import post_train
from storage.config.loading import load_config
from storage.errors import HackingError
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tasks.iteration.alarm import Answer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]

ALARM_AT = 2


@pytest.fixture(autouse=True)
def verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation after iteration 2 raises the alarm, and no other one."""
    monkeypatch.setattr(
        tasks.iteration.alarm,
        "_verdict",
        lambda session, iteration: SimpleNamespace(is_hacking=iteration == ALARM_AT, in_words="worse"),
    )


def config_of(on_alarm: str) -> Any:
    settings = [
        "iterations=3", "runtime.cluster=local", "runtime.spot_workers=0", "evaluation.every=1",
        "evaluation.judge=templates", f"evaluation.on_alarm={on_alarm}",
    ]  # fmt: skip
    return load_config("smoke", settings, {})


def last_state(home: Home, run_id: str) -> tuple[int, int, dict[str, bytes]]:
    checkpoint = CheckpointStore(home.run(run_id)).load_latest()
    assert checkpoint is not None
    return checkpoint.iteration, checkpoint.state["policy_version"], checkpoint.blobs


def kinds(home: Home, run_id: str) -> list[str]:
    with RunStore(home).reading() as connection:
        rows = connection.execute("SELECT kind FROM events WHERE run_id = ? ORDER BY event_id", [run_id])
        return [kind for (kind,) in rows.fetchall()]


def judge_figures(home: Home, run_id: str) -> list[tuple[int, int, float, float]]:
    """The second judge's figures of each evaluation: iteration, how many images, the least, the largest."""
    with RunStore(home).reading() as connection:
        return connection.execute(
            "SELECT iteration, count(*), min(value), max(value) FROM evaluation_image_figures "
            "WHERE run_id = ? AND name = 'judge' GROUP BY iteration ORDER BY iteration",
            [run_id],
        ).fetchall()


@pytest.mark.parametrize(
    ("on_alarm", "kind", "deaths"),
    [
        # Before the answer; and after an iteration that follows it.
        ("rollback", "returned", (ALARM_AT, ALARM_AT + 1)),
        ("kl", "kl_raised", (ALARM_AT,)),
    ],
)
def test_a_killed_run_answers_as_the_undisturbed_one(
    home: Home, on_alarm: str, kind: str, deaths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    config, whole, killed = config_of(on_alarm), f"{on_alarm}-whole", f"{on_alarm}-killed"
    post_train(config, whole)
    assert kinds(home, whole) == ["hacking", kind]
    judged = judge_figures(home, whole)
    assert [(iteration, count) for iteration, count, *_ in judged] == [(number, 8) for number in range(4)]
    assert all(0 <= low <= high <= 1 for *_, low, high in judged)
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
    assert kinds(home, killed).count(kind) == 1
    if on_alarm == "rollback":
        assert last_state(home, whole)[1] == 4, "the return is a policy version of its own"


def test_stop_ends_the_run_with_its_last_sound_checkpoint(home: Home):
    with pytest.raises(HackingError, match="spotlight export stopped"):
        post_train(config_of("stop"), "stopped")
    row = RunStore(home).run("stopped")
    assert row.status == "failed" and row.error is not None and "on_alarm is stop" in row.error
    assert last_state(home, "stopped")[0] == ALARM_AT - 1
