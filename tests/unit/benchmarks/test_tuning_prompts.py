"""The prompts that settings of the benchmark of exploration are chosen by."""

from __future__ import annotations

import json

import pytest

from benchmarks.exploration.__main__ import main_arms, reported_curves
from benchmarks.exploration.arms import ARMS, BASELINE, RECIPES, TASKS, arm_config
from benchmarks.exploration.exploration_auto import CASES, curves_wanted
from benchmarks.exploration.learning_curve import Curve
from benchmarks.exploration.tuning import TUNING_SEED, choose, tuning_curves
from benchmarks.exploration.tuning_prompts import HELD_OUT, SUBJECTS, tuning_settings, tuning_split
from benchmarks.report import RESULTS
from storage.config.loading import load_config
from storage.prompts.files import resolve_prompt_path


def lines_of(path: str) -> list[str]:
    return resolve_prompt_path(path).read_text(encoding="utf-8").splitlines()


def test_no_subject_is_on_both_sides_and_every_line_on_one():
    lines = [f"{letter}{number}" for letter in "abcdefgh" for number in range(3)]
    train, held = tuning_split(lines, lambda line: line[0], 4)
    assert sorted(train + held) == sorted(lines) and len(held) == 6, "whole subjects, four lines at least"
    assert not {line[0] for line in train} & {line[0] for line in held}
    assert held == [line for line in lines if line in held], "in their order"
    assert (train, held) == tuning_split(lines, lambda line: line[0], 4)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_tuning_sees_training_prompts_alone_and_judges_by_what_it_does_not_train_on(task, tmp_path):
    scorer, preset = TASKS[task].scorer, TASKS[task].preset
    settings = tuning_settings(scorer, preset, tmp_path)
    config = arm_config(task, "stale_32", TUNING_SEED, prompts=settings)
    train, held = lines_of(config.prompts.train), lines_of(config.prompts.evaluate)
    assert len(held) >= HELD_OUT == config.evaluation.prompts and len(train) >= 2 * len(held)
    subject = SUBJECTS[scorer]
    assert not set(map(subject, train)) & set(map(subject, held))
    reported = load_config(preset, [], {}).prompts
    assert sorted(train + held) == sorted(lines_of(reported.train))
    assert not set(held) & set(lines_of(reported.evaluate))
    wanted = tuning_curves(task, settings)
    assert all(want.config.prompts == config.prompts for want in wanted.values())
    # Wherever the files lie, their curves are found again, and never taken for reported ones.
    assert [want.name for want in wanted.values()] == [want.name for want in tuning_curves(task).values()]
    assert TUNING_SEED not in range(1 + max(seed for _, seed in reported_curves(task, ["stale_32"], 8)))


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_arm_is_tuned_with_equal_effort(task):
    tried = [arm for arm, _ in tuning_curves(task)]
    assert {tried.count(arm) for arm in tried} == {len(recipes) for recipes in RECIPES.values()} == {3}


def test_the_kept_curves_are_those_that_the_arms_of_today_ask_for():
    """A change of a preset or an arm leaves curves that no command finds, and claims without a source."""
    kept = {path.stem: path for path in (RESULTS / "curves" / "tuning-ocr-graded").rglob("*.json")}
    wanted = tuning_curves("ocr-graded")
    nft = {want.name for (arm, _), want in wanted.items() if ARMS[arm].objective == "nft"}
    assert nft <= kept.keys() <= {want.name for want in wanted.values()}, "Flow-GRPO's are not all made yet"
    curves = {
        key: Curve(**json.loads(kept[want.name].read_text()))
        for key, want in wanted.items()
        if want.name in kept
    }
    tuned = choose("ocr-graded", curves)
    assert tuned.chosen == {"nft": "off_policy_32"}
    assert tuned.figures["arms"]["off_policy_32"]["time_ratio_75"] == pytest.approx(2.2, abs=0.1), "README"
    reported = reported_curves("ocr-graded", main_arms(tuned), 8, tuned)
    of_task = (RESULTS / "curves" / "exploration-ocr-graded").rglob("*.json")
    others = ("plain_awm", "plain_dpo", "plain_grpo_guard")
    reported |= reported_curves("ocr-graded", others, 3, tuned)  # of other objectives, for the table of arms
    reported |= reported_curves("ocr-graded", ("off_policy_grpo_32", BASELINE), 8, tuned)
    made = {want.name for want in reported.values()}
    # Curves of the benchmark of `auto` lie beside them, as soon as some are kept.
    of_auto = {want.name for want in curves_wanted(list(CASES), 4).values()}
    assert {path.stem for path in of_task} - of_auto == made - of_auto
