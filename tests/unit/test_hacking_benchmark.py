"""The figures of the benchmark of hacking, by hand, and its runs' settings."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.exploration import curve_store
from benchmarks.hacking import (
    arm_figures,
    chosen_arm,
    course_store,
    ends_sound,
    loss_at,
    stopped,
    summarise,
    warned,
)
from benchmarks.hacking_runs import COMPARED, FULL, HACKING, QUICK, SOUND, Course, wanted_runs
from storage.config.loading import load_config
from tasks.checks.quick_checks import with_read_options


def course(
    judge: list[float], alarms: tuple[int, ...] = (), gain: float = 0.2, far: float = 0.1, grain: float = 0.01
) -> Course:
    """Evaluations ten iterations apart; score, distance and grain change at the last one."""
    count = len(judge)
    return Course(
        tuple(range(0, 10 * count, 10)), (*[0.5] * (count - 1), 0.5 + gain), tuple(judge),
        (*[0.1] * (count - 1), far), (*[0.01] * (count - 1), grain), alarms,
    )  # fmt: skip


def test_the_alarm_has_to_come_at_an_earlier_evaluation_than_the_loss():
    lost = [0.5, 0.48, 0.44, 0.2]
    assert loss_at(course(lost)) == 20, "0.44 is below 0.45"
    assert loss_at(course([0.5, 0.46, 0.6])) is None
    assert [warned(course(lost, alarms)) for alarms in ((10,), (20,), (10, 20), ())] == [
        True,
        False,
        True,
        False,
    ]


def test_only_lost_runs_count_for_the_alarm_and_only_sound_ones_for_a_false_one():
    courses = {
        ("glyphs", "long", 0): course([0.5, 0.55, 0.6], (10,)),
        ("glyphs", "jpeg", 0): course([0.5, 0.47, 0.1], (10,)),
        ("glyphs", "kl", 0): course([0.5, 0.55, 0.6], (10,)),
        ("glyphs", "recipe", 0): course([0.5, 0.55, 0.4], (10,)),
        ("shapes", "kl", 0): course([0.5, 0.55, 0.6]),
    }
    figures = summarise(courses)
    assert (figures["hacking_runs"], figures["lost_runs"], figures["alarm_before_loss"]) == (2, 1, True)
    assert (figures["runs_of_sound_arms"], figures["sound_runs"], figures["false_alarms"]) == (3, 2, 1)
    assert figures["hacked"]["glyphs-jpeg-0"]["loss_at"] == 20
    assert summarise({("glyphs", "long", 0): course([0.5, 0.6])})["alarm_before_loss"] is None
    assert not ends_sound(course([0.5, 0.6], far=0.2))


def test_gain_and_quality_are_of_the_same_seeds():
    courses = {
        ("glyphs", "unguarded", 0): course([0.5, 0.5, 0.5], gain=0.2, grain=0.03),
        ("glyphs", "unguarded", 1): course([0.5, 0.5, 0.5], gain=0.4, grain=0.03),
        ("glyphs", "kl", 0): course([0.5, 0.5, 0.5], gain=0.19, far=0.09, grain=0.01),
        ("glyphs", "kl", 1): course([0.5, 0.5, 0.5], gain=0.40, far=0.09, grain=0.011),
        ("glyphs", "kl", 2): course([0.5, 0.5, 0.5], gain=9.0),
    }
    figures = arm_figures(courses, "glyphs", "kl")
    assert figures is not None and figures["seeds"] == 2, "the third has no unguarded run"
    assert figures["gain_share"]["all"] == pytest.approx([0.95, 1.0])
    half = 12.7062 * 0.05 / 2**0.5 / 2**0.5  # Student's t of one degree times the standard error
    assert figures["gain_share"]["high"] - figures["gain_share"]["mean"] == pytest.approx(half, rel=1e-4)
    assert figures["grain_ratio"]["mean"] == pytest.approx(1.05)
    assert figures["distance_change"]["mean"] == pytest.approx(-0.01)
    assert arm_figures(courses, "shapes", "kl") is None


def test_an_early_stop_is_the_unguarded_run_before_its_first_alarm():
    whole = course([0.5, 0.6, 0.4, 0.3], (20, 30))
    assert (stopped(whole).iterations, stopped(whole).judge) == ((0, 10), (0.5, 0.6))
    assert stopped(course([0.5, 0.6])).iterations == (0, 10)


def test_the_chosen_arm_keeps_images_on_both_tasks():
    def arm(share: float, far: float = -0.01, grain: float = 1.0) -> dict[str, Any]:
        return {
            "gain_share": {"mean": share}, "distance_change": {"mean": far}, "grain_ratio": {"mean": grain},
        }  # fmt: skip

    glyphs = {"unguarded": arm(1.0), "kl": arm(0.97), "early_stop": arm(0.99), "recipe": arm(1.2, grain=1.2)}
    shapes = {"unguarded": arm(1.0), "kl": arm(0.96), "early_stop": arm(0.9), "recipe": arm(1.0)}
    glyphs["lora"] = shapes["lora"] = arm(2.0)  # the largest, of one run seed
    assert chosen_arm({"glyphs": glyphs, "shapes": shapes, "demo": {"recipe": arm(0.9)}}) == "kl"
    assert chosen_arm({"glyphs": {"kl": arm(1.0, far=0.01)}, "shapes": shapes}) is None


@pytest.mark.parametrize("length", [FULL, QUICK])
def test_every_run_has_settings_that_are_accepted_and_a_name_of_its_own(length):
    wanted = wanted_runs(2, length)
    for want in wanted:
        config = with_read_options(load_config(want.preset, want.settings, {}))
        assert config.evaluation.judge == "templates" and config.runtime.cluster == "local"
    assert len({want.name for want in wanted}) == len(wanted) == 18 + 10
    assert {want.seed for want in wanted if want.arm in COMPARED} == {0}
    assert {want.seed for want in wanted_runs(3, length) if want.arm in HACKING} == {0, 1}
    assert sum(want.arm in SOUND for want in wanted_runs(3, length)) == 15
    assert [want.seed for want in wanted_runs(2, length, ["glyphs-long"])] == [0, 1]


def test_courses_that_the_repository_keeps_are_found_on_another_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "here"))
    monkeypatch.setattr(curve_store, "KEPT", tmp_path / "repository")
    first, second, *_ = wanted = wanted_runs(1, QUICK)
    store = course_store("abc")
    store.save(first.name, course([0.5, 0.6], (10,)))
    store.keep()
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "elsewhere"))
    names = {want.key: want.name for want in wanted}
    assert course_store("def", ["abc"]).load_all(names) == {first.key: course([0.5, 0.6], (10,))}
    assert course_store("def").load_all(names) == {}
    assert first.run_id("abc") != second.run_id("abc") != second.run_id("def")


@pytest.mark.parametrize("task", ["shapes", "demo"])
def test_the_recipe_is_what_the_preset_does_by_itself(task):
    (want,) = [want for want in wanted_runs(1, FULL) if want.key == (task, "recipe", 0)]
    recipe, preset = (load_config(want.preset, settings, {}) for settings in (want.settings, []))
    for section in ("reward", "algorithm", "optimizer", "adaptation", "sampling"):
        assert getattr(recipe, section) == getattr(preset, section), section
