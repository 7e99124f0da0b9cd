"""What an alarm leads to: an event, a higher KL, an earlier checkpoint, the end; the same after a resume."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tasks.iteration.alarm as alarm
from gpu_runtime.learning.registry import keeps_reference
from storage.config.run_config import AlgorithmConfig, EvaluationConfig, RunConfig
from storage.errors import HackingError
from storage.evaluations.quality import AlarmCourse
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import EvaluationRecord, JudgedImage
from storage.record.run_store import RunStore
from tasks.iteration.alarm import answer, take_up
from tests.tiny_run import OBJECTIVE_NAMES, TinyRun, tiny_config

HACKED, SOUND = 0.2, 0.1
"""Distances to the truth; before training it is `SOUND`."""


class Runtime:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def return_to(self, blobs: Mapping[str, bytes]) -> None:
        self.asked.append(blobs["n"])

    def set_kl_weight(self, weight: float) -> None:
        self.asked.append(weight)


class Run:
    """A run whose evaluations are written here."""

    def __init__(self, folder: Path, on_alarm: str) -> None:
        self.store = RunStore(Home(folder))
        self.config = RunConfig.model_validate({"evaluation": {"on_alarm": on_alarm}})
        self.store.create_run("r", self.config, {}, os.getpid())
        self.checkpoints = CheckpointStore(self.store.home.run("r"))
        self._evaluated(0, SOUND)
        self.session = self.opened(1)

    def opened(self, first_iteration: int) -> Any:
        """A session as a start or a resume makes it."""
        return SimpleNamespace(
            run_id="r", config=self.config, store=self.store, checkpoints=self.checkpoints, runtime=Runtime(),
            alarm=AlarmCourse(), first_iteration=first_iteration, next_plan="drafted",
        )  # fmt: skip

    def evaluate(
        self, iteration: int, distance: float, saves: bool = True, score: float = 0.5
    ) -> alarm.Answer:
        """An iteration's checkpoint and evaluation, answered."""
        if saves:
            self.checkpoints.save(iteration, {"n": str(iteration).encode()}, {})
        self._evaluated(iteration, distance, score)
        return answer(self.session, iteration)

    def events(self) -> list[tuple[str, str]]:
        with self.store.reading() as connection:
            return connection.execute("SELECT kind, message FROM events ORDER BY event_id").fetchall()

    def _evaluated(self, iteration: int, distance: float, score: float = 0.25) -> None:
        images = [
            JudgedImage(
                place, 0, f"p{place}", "", score, False, "", None,
                figures={"truth_distance": distance * (1 + place / 100)},
            )
            for place in range(16)
        ]  # fmt: skip
        record = EvaluationRecord("r", iteration, iteration, 0.0, 1.0, score, 0.0, images)
        self.store.commit_evaluation(record)


def test_warn_is_one_event_until_an_evaluation_is_sound_again(tmp_path: Path):
    run = Run(tmp_path, "warn")
    distances = {10: HACKED, 20: HACKED, 30: SOUND, 40: HACKED}
    said: list[str | None] = []
    for iteration, distance in distances.items():
        again = run.opened(iteration + 1)
        said.append(run.evaluate(iteration, distance).message)
        take_up(again)
        assert answer(again, iteration).message == said[-1], "the same after a kill"
    assert [message is not None for message in said] == [True, False, False, True]
    events = run.events()
    assert [kind for kind, _ in events] == ["hacking", "hacking"]
    assert events[0][1].startswith(
        "the score rises while the images get worse, after iteration 10: Score 0.250 -> 0.5"
    )
    assert run.session.runtime.asked == [] and run.checkpoints.pinned is None


def test_each_alarm_doubles_the_kl(tmp_path: Path):
    run = Run(tmp_path, "kl")
    for iteration, distance in ((10, SOUND), (20, HACKED), (30, HACKED), (40, SOUND), (50, HACKED)):
        run.evaluate(iteration, distance)
    assert run.session.runtime.asked == [0.04, 0.08, 0.16]
    assert AlarmCourse(2).kl_weight(
        RunConfig.model_validate({"algorithm": {"kl_weight": 0.1}})
    ) == pytest.approx(0.4)
    assert AlarmCourse().kl_weight(run.config) == 0


def test_a_run_that_is_resumed_has_the_kl_of_the_alarms_before(tmp_path: Path):
    run = Run(tmp_path, "kl")
    for iteration, distance in ((1, HACKED), (20, SOUND), (30, HACKED)):
        run.evaluate(iteration, distance)
    again = run.opened(31)  # its last work was the evaluation, answered or not
    take_up(again)
    answer(again, 30)
    assert again.runtime.asked == [0.04, 0.08] and again.alarm == run.session.alarm
    later = run.opened(32)
    take_up(later)
    assert later.runtime.asked == [0.08] and later.alarm == run.session.alarm
    assert [kind for kind, _ in run.events()] == ["hacking", "kl_raised"] * 2, "no event twice"


def test_the_run_returns_to_the_last_sound_checkpoint_and_ends_if_that_does_not_help(tmp_path: Path):
    run = Run(tmp_path, "rollback")
    assert not run.evaluate(10, SOUND).returned
    for iteration in (11, 12):
        run.checkpoints.save(iteration, {"n": b""}, {})
    back = run.evaluate(20, HACKED)
    assert back.returned and run.session.next_plan is None
    assert back.message is not None and "back to the weights of iteration 10" in back.message
    assert run.session.runtime.asked == [b"10"]
    again = run.opened(21)
    take_up(again)
    assert answer(again, 20) == back and again.runtime.asked == [b"10"], "the same after a kill"
    with pytest.raises(HackingError, match="had already returned to iteration 10"):
        run.evaluate(30, HACKED)
    assert run.checkpoints.iterations()[-1] == 10


@pytest.mark.parametrize("saves", [True, False])
def test_a_sound_evaluation_after_a_return_is_returned_to_next_if_it_has_a_checkpoint(
    tmp_path: Path, saves: bool
):
    run = Run(tmp_path, "rollback")
    run.evaluate(10, SOUND)
    run.evaluate(20, HACKED)
    run.evaluate(30, SOUND, saves)  # otherwise the newest checkpoint is still the hacked one
    assert run.evaluate(40, HACKED, saves).returned
    assert run.session.runtime.asked == [b"10", b"30" if saves else b"10"]


@pytest.mark.parametrize("on_alarm", ["rollback", "stop"])
def test_the_checkpoint_before_a_collapse_of_the_score_is_kept(tmp_path: Path, on_alarm: str):
    run = Run(tmp_path, on_alarm)
    run.evaluate(10, SOUND)
    for iteration, score in ((20, 0.3), (30, 0.1), (40, 0.1)):
        run.evaluate(iteration, SOUND, score=score)
    run.evaluate(50, SOUND, saves=False)  # the newest checkpoint is still a collapsed one
    assert run.checkpoints.pinned == 10 and 10 in run.checkpoints.iterations()
    again = run.opened(51)
    take_up(again)
    answer(again, 50)
    assert again.alarm == run.session.alarm
    run.evaluate(60, SOUND)
    assert run.checkpoints.pinned == 60


def test_nothing_sound_to_return_to_ends_the_run(tmp_path: Path):
    run = Run(tmp_path, "rollback")
    with pytest.raises(HackingError, match="no sound checkpoint to return to"):
        run.evaluate(10, HACKED)
    assert run.checkpoints.iterations() == [10]


def test_stop_ends_the_run_and_says_what_to_do(tmp_path: Path):
    run = Run(tmp_path, "stop")
    run.evaluate(10, SOUND)
    with pytest.raises(
        HackingError, match=r"on_alarm is stop; .*iteration 10 \(`spotlight export r`\)"
    ) as caught:
        run.evaluate(20, HACKED)
    assert "algorithm.kl_weight above 0" in str(caught.value)
    assert run.checkpoints.iterations() == [10], "what is exported now is sound"
    assert [kind for kind, _ in run.events()] == ["hacking"]


def test_the_untouched_model_raises_no_alarm(tmp_path: Path):
    assert answer(Run(tmp_path, "stop").session, 0) == alarm.Answer()


def test_only_an_alarm_that_may_raise_the_kl_keeps_the_reference():
    kept = {
        on_alarm: keeps_reference(AlgorithmConfig(), EvaluationConfig.model_validate({"on_alarm": on_alarm}))
        for on_alarm in ("warn", "kl", "rollback", "stop")
    }
    assert kept == {"warn": False, "kl": True, "rollback": False, "stop": False}


def trained(kl_weight: float, later: float | None, objective: str) -> dict[str, np.ndarray]:
    """The weights after an iteration, away from the reference."""
    algorithm = {"prompts_per_iteration": 3, "group_size": 2, "objective": objective, "kl_weight": kl_weight}
    run = TinyRun(tiny_config(algorithm=algorithm, evaluation={"on_alarm": "kl"}))
    run.perturb()
    if later is not None:
        run.trainer.set_kl_weight(later)
    run.trainer.train(run.rollout())
    return run.policy.state()


@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
def test_it_equals_the_configured_one_to_the_bit(objective: str):
    without, configured = trained(0.0, None, objective), trained(5.0, None, objective)
    later, back = trained(0.0, 5.0, objective), trained(5.0, 0.0, objective)
    assert all(np.array_equal(later[name], configured[name]) for name in configured)
    assert all(np.array_equal(back[name], without[name]) for name in without)
    assert any(not np.array_equal(configured[name], without[name]) for name in without)
