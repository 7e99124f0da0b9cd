"""How the exploration benchmark reads its curves: values worked out by hand."""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.exploration import __main__ as main
from benchmarks.exploration.__main__ import main_arms, reported_curves
from benchmarks.exploration.arms import ARMS, RECIPES, TASKS, Recipe, arm_config, arms_of, recipes_of
from benchmarks.exploration.curve_store import CurveStore
from benchmarks.exploration.exploration_auto import CASES, curves_wanted
from benchmarks.exploration.learning_curve import Curve
from benchmarks.exploration.modelled_fleet import Costs, Fleet, costs_of, iteration_s, public_costs
from benchmarks.exploration.summary import ArmCurves, gains_at_equal, ratio, summarise
from benchmarks.exploration.tuning import (
    FINAL_SEEDS,
    HELD_OUT,
    SUBJECTS,
    TUNING_SEED,
    choose,
    finalists,
    tuning_curves,
    tuning_settings,
    tuning_split,
)
from benchmarks.report import RESULTS
from gpu_runtime.exploration.strategies.fresh import FRESH
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.simulator.comparison.learning_curves import end_of, reached_at, rising_fit
from storage.config.loading import load_config
from storage.prompts.files import resolve_prompt_path

MIXED = Fleet(reserved=4, spot=8, trainers=4, scorers=6)
EVERYWHERE = replace(MIXED, trainers=12)
COSTS = Costs(rollout=0.75, draft=0.5, score=0.25, train=0.5, driver=0.5, planning=1.0)
WITHOUT_DRAFTS = replace(COSTS, planning=0.0)


def test_a_target_is_reached_where_the_rising_fit_reaches_it():
    iterations, values = [0, 4, 8, 12, 16], [0.1, 0.3, 0.2, 0.45, 0.65]
    # The second and the third are pooled: 0.25 at 6.
    places, means = rising_fit(iterations, values)
    assert (places, means) == (pytest.approx([0, 6, 12, 16]), pytest.approx([0.1, 0.25, 0.45, 0.65]))
    assert reached_at(iterations, values, 0.1) == 0
    assert reached_at(iterations, values, 0.15) == pytest.approx(2), "no floor before the first evaluations"
    assert reached_at(iterations, values, 0.35) == pytest.approx(9)
    assert reached_at(iterations, values, 0.65) == 16
    assert reached_at(iterations, values, 0.66) is None
    assert end_of(values) == pytest.approx(1.3 / 3)


@pytest.mark.parametrize("pace", [4.0, 8.0, 12.0])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_planted_crossings_are_found_without_bias(pace, share):
    """Curves like those measured, with an evaluation's noise: where they cross is known."""
    rng, iterations, target = random.Random(f"{pace}{share}"), list(range(25)), 0.2 * share
    true = -pace * math.log(1 - target / 0.25)
    found = []
    for _ in range(200):
        values = [0.25 * (1 - math.exp(-at / pace)) + rng.gauss(0, 0.015) for at in iterations]
        reached = reached_at(iterations, [0.0, *values[1:]], target)
        assert reached is not None
        found.append(reached)
    assert statistics.median(found) == pytest.approx(true, rel=0.05, abs=0.2)
    assert statistics.fmean(found) == pytest.approx(true, rel=0.05, abs=0.2)


SLOWLY_JUDGED = replace(MIXED, scorers=1)


@pytest.mark.parametrize(
    ("strategy", "fleet", "drafts", "updates", "seconds"),
    [
        # 96 rollouts of .75 s over 12 devices, 64 trained samples over 4 devices, the driver. 24 s of scoring
        # over 6 scorers end before.
        (PLAIN, MIXED, 0, 1, 6 + 8 + 0.5),
        # With one scorer training ends with it, but for the updates after the first one.
        (PLAIN, SLOWLY_JUDGED, 0, 1, 24 + 0.5),
        (PLAIN, SLOWLY_JUDGED, 0, 4, 24 + 6 + 0.5),
        # 48 drafts: 24 s over 8 devices are hidden behind training.
        (STALE, MIXED, 48, 1, 6 + 8 + 0.5),
        # 192 drafts: 96 s over 8 devices outlast it by 4 s. The first of 8 rounds is planned before, the
        # others meanwhile, and each device waits for an eighth of that.
        (STALE, MIXED, 192, 1, 6 + 12 + 1 / 8 + 7 / 8 / 8 + 0.5),
        # They are judged after the rollouts.
        (STALE, SLOWLY_JUDGED, 48, 1, 24 + 12 + 0.5),
        # Over all 12 devices 2 s, and as long for scoring.
        (FRESH, MIXED, 48, 1, 6 + 0.5 + 2 + 1 / 8 + 7 / 8 / 12 + 8),
        # Where all train there is no window beside training.
        (STALE, EVERYWHERE, 48, 1, 6 + 0.5 + 2 + 1 / 8 + 7 / 8 / 12 + 8 / 3),
    ],
)
def test_the_seconds_of_an_iteration(strategy, fleet, drafts, updates, seconds):
    curve = Curve(rollouts=[128, 96, 96], drafts=[0, drafts, 0], samples={"train": 3 * 64})
    costs = COSTS if drafts else WITHOUT_DRAFTS
    assert iteration_s(curve, costs, fleet, strategy, updates) == pytest.approx(seconds)


def test_devices_are_never_ahead_of_what_plans_their_drafts():
    curve = Curve(rollouts=[96] * 3, drafts=[0, 48, 0], samples={"train": 3 * 64})
    slow = replace(COSTS, planning=20.0)
    seconds = iteration_s(curve, slow, MIXED, STALE, 1)
    assert seconds == pytest.approx(6 + 20 + 0.5), "48 drafts of half a second take 8 devices 3 s"


def made(
    exact: list[float], every: int = 4, slow: float = 1.0, trained_s: float = 96.0, drafts: int = 48
) -> Curve:
    """A curve of three iterations' work, with the given evaluations."""
    seconds = {"rollout": 216.0, "explore": 72.0, "score": 72.0, "train": trained_s}
    return Curve(
        iterations=list(range(0, every * len(exact), every)),
        score=exact,
        exact=exact,
        distance=[0.3] * len(exact),
        grain=[0.2, *[0.3] * (len(exact) - 1)],
        rollouts=[96, 96, 96],
        drafts=[drafts] * 3,
        seconds={kind: slow * value for kind, value in seconds.items()},
        samples={"rollout": 288, "explore": 3 * drafts, "score": 288, "train": 192},
        driver_s=[slow * (1.5 if drafts else 0.5)] * 3,
        beside_s=[slow] * 2 if drafts else [],
    )


def test_a_slow_core_changes_no_cost():
    curves = [made([0.0]), made([0.0]), made([0.0], slow=1.5)]
    assert costs_of(curves[2:], curves, curves) == costs_of(curves[:1], curves, curves) == COSTS


def test_few_dear_rollouts_change_the_costs_of_no_arm_alone():
    """An arm that trains on drafts rolls out a few at a time, each of which takes longer."""
    plain, drafts = made([0.0], drafts=0), made([0.0])
    drafts.rollouts, drafts.samples["rollout"], drafts.seconds["rollout"] = [1] * 3, 3, 4.5
    costs = [costs_of([curve], [plain, drafts], [plain, drafts]) for curve in (plain, drafts)]
    assert costs[0].rollout == costs[1].rollout == pytest.approx((216 + 4.5) / (288 + 3))
    assert (costs[1].draft, costs[1].train, costs[1].score) == (0.5, 0.5, 0.25)


def test_planning_beside_training_is_a_share_of_the_driver_s_time():
    before = made([0.0])
    before.beside_s = []
    assert costs_of([before], [before], [before]) == replace(COSTS, driver=1.5, planning=0.0)
    assert costs_of([before, made([0.0])], [before], [before]) == COSTS, "of the curves that noted it"


def arm(name: str, *curves: Curve, strategy: Strategy = PLAIN) -> ArmCurves:
    costs = COSTS if strategy.drafts else WITHOUT_DRAFTS
    return ArmCurves(name, dict(enumerate(curves)), costs, strategy, "exact", 1)


RISING = [0.1, 0.15, 0.2, 0.25, 0.3, 0.3, 0.3]
QUICK = [0.1, 0.2, 0.3, 0.4, 0.5]


def test_targets_are_shares_of_the_gain_that_the_arm_without_exploration_ends_with():
    # The last three evaluations: .2 above the start; also of a run seed that begins higher.
    plain = arm("plain", made(RISING), made([value + 0.05 for value in RISING]))
    assert plain.targets() == pytest.approx({25: 0.05, 50: 0.1, 75: 0.15, 100: 0.2})
    assert plain.base() == pytest.approx(0.125)


def test_a_ratio_is_of_medians_and_counts_what_never_gets_there_against_the_faster():
    slow, fast = arm("plain", *[made(RISING)] * 3), arm("stale", *[made(QUICK)] * 3)
    # .1 more after 8 and after 4 iterations.
    found = ratio(slow, fast, (2.0, 1.0), 0.1)
    assert (found["low"], found["median"], found["high"]) == (4.0, 4.0, 4.0)
    assert (found["unreached"], found["run_seeds"]) == ({"slow": 0, "fast": 0}, 3)
    never = ratio(slow, fast, (1.0, 1.0), 0.45)
    assert never["unreached"] == {"slow": 3, "fast": 3}
    assert (never["low"], never["median"], never["high"]) == (0.0, 0.0, 0.0)
    # Of the slower one alone: as if it got there at its end, 24; the fast one has .25 more at 10.
    assert ratio(slow, fast, (1.0, 1.0), 0.25)["median"] == pytest.approx(24 / 10, abs=1e-3)
    assert ratio(slow, fast, (1.0, 1.0), -0.01)["median"] is None, "nothing was gained"


def test_the_interval_is_a_bootstrap_over_the_run_seeds():
    # Three run seeds at 4, 8 and 12 iterations, against 16 of each: medians of draws are 4 and 12 with 7/27.
    curves = [made([0.1, *[0.1] * late, 0.3]) for late in range(3)]
    fast, slow = arm("stale", *curves), arm("plain", *[made([0.1, 0.1, 0.1, 0.1, 0.3])] * 3)
    assert fast.reached(0.2 - 1e-9, [0, 1, 2]) == pytest.approx([4, 8, 12])
    found = ratio(slow, fast, (1.0, 1.0), 0.2 - 1e-9)
    assert (found["low"], found["median"], found["high"]) == pytest.approx((16 / 12, 2, 4), abs=1e-3)
    # Drawn together: a run seed that is hard for both is no difference.
    same = ratio(fast, fast, (1.0, 1.0), 0.1)
    assert (same["low"], same["median"], same["high"]) == (1.0, 1.0, 1.0)


def test_arms_are_compared_at_common_run_seeds():
    slow = replace(arm("plain"), curves={0: made(RISING), 1: made([0.1] * 7)})
    fast = replace(arm("stale"), curves={0: made(RISING), 2: made(QUICK)})
    found = ratio(slow, fast, (1.0, 1.0), 0.15)
    assert (found["run_seeds"], found["median"]) == (1, 1.0)
    assert ratio(slow, replace(fast, curves={2: made(QUICK)}), (1.0, 1.0), 0.15)["median"] is None


def test_gains_once_each_arm_has_taken_as_much_as_the_first_to_end():
    plain = arm("plain", *[made(RISING, drafts=0)] * 4)
    stale = arm("stale", *[made(QUICK)] * 3, made(RISING[:5]), strategy=STALE)
    found = gains_at_equal(plain, [stale], lambda one: 2.0 if one is plain else 1.0)
    # The first to end has taken 16, which is 8 iterations without exploration.
    assert found["amount"] == 16
    assert found["plain"]["interquartile_mean"] == pytest.approx(0.1)
    assert found["stale"]["all"] == pytest.approx([0.4, 0.4, 0.4, 0.2])
    assert found["stale"]["interquartile_mean"] == pytest.approx(0.4)
    assert found["stale"]["probability_of_improvement"] == 1
    assert found["plain"]["probability_of_improvement"] == 0.5


CHOSEN = {"nft": "off_policy_32", "grpo": "off_policy_grpo_32"}


def summary(task: str, curves: dict[tuple[str, int], Curve]) -> dict[str, Any]:
    return summarise(task, curves, {name: arm_config(task, name, 0) for name, _ in curves}, CHOSEN)


def test_the_summary_of_hand_made_curves():
    curves: dict[tuple[str, int], Curve] = {}
    for seed in range(3):
        curves["plain_grpo", seed] = made(RISING, drafts=0)
        curves["all_groups_grpo", seed] = made(RISING, drafts=0)
        curves["plain_grpo_16", seed] = made([gain for gain in RISING for _ in "ab"], drafts=0)
        curves["stale_grpo_32_of_48", seed] = made([0.1, *QUICK])
        curves["off_policy_grpo_32", seed] = made(QUICK)
    figures = summary("ocr-graded", curves)
    assert (figures["run_seeds"], figures["base"], figures["target"]) == (3, 0.1, 0.3)
    explored = figures["exploration"]
    assert set(explored) == {"grpo"}, "no arm explores with DiffusionNFT"
    assert (explored["grpo"]["best"], explored["grpo"]["against"]) == ("off_policy_grpo_32", "plain_grpo")
    # .15 after 12 iterations without, and after 6 with exploration, whose drafts are hidden.
    for ratio_75 in ("iteration_ratio_75", "time_ratio_75", "dollar_ratio_75", "sample_ratio_75"):
        assert explored["grpo"][ratio_75]["median"] == pytest.approx(2, abs=1e-3), ratio_75
    # 96 of 144 samples that an iteration draws are rollouts.
    assert explored["grpo"]["generated_ratio_75"]["median"] == pytest.approx(2 * 96 / 144, abs=1e-3)
    assert explored["grpo"]["exact_time_ratio_75"] == explored["grpo"]["time_ratio_75"]
    for share in (75, 100):
        by_arm = explored["grpo"][f"time_ratio_{share}_by_arm"]
        assert set(by_arm) == {"stale_grpo_32_of_48", "off_policy_grpo_32"}
        assert by_arm["off_policy_grpo_32"] == explored["grpo"][f"time_ratio_{share}"]
    against = {name: found["median"] for name, found in explored["grpo"]["time_ratio_75_against"].items()}
    assert against == pytest.approx({"plain_grpo": 2, "plain_grpo_16": 4}, rel=0.05), "half as fast a gain"
    # 96 rollouts on 12 devices, then 64 trained samples on 4 or 48 drafts on 8: training outlasts drafts.
    assert explored["grpo"]["public_split_time_ratio_75"]["61%"]["median"] == pytest.approx(2, abs=1e-3)
    assert (
        figures["against_trained_dead_groups"]["grpo"]["time_ratio_75"] == explored["grpo"]["time_ratio_75"]
    )
    # With all devices training, an iteration without exploration is shorter.
    all_train = figures["all_train"]["grpo"]["time_ratio_75"]["median"]
    assert all_train < explored["grpo"]["time_ratio_75"]["median"]
    best = figures["best_against_all_on_demand"]
    assert (best["best"], best["against"]) == ("off_policy_grpo_32", "plain_grpo")
    # Twelve devices at $6.88, against four of them and eight at $2.84.
    by_hand = all_train * 12 * 6.88 / (4 * 6.88 + 8 * 2.84)
    assert best["dollar_ratio_75"]["median"] == pytest.approx(by_hand, rel=1e-3)
    assert figures["arms"]["plain_grpo"]["iterations_to_75"] == {"median": 12.0, "all": [12.0] * 3}
    assert figures["arms"]["plain_grpo"]["grain_ratio"] == [1.5] * 3
    assert figures["arms"]["plain_grpo"]["trained"] == 64
    del curves["off_policy_grpo_32", 0]
    assert summary("ocr-graded", curves)["run_seeds"] == 2


def test_an_arm_with_the_preset_s_guards_stands_apart_as_it_learns_from_another_reward():
    curves = {
        (arm, seed): made(QUICK, drafts=0 if arm == "plain_nft_shared" else 48)
        for arm in ("off_policy_32", "plain_nft_shared", "off_policy_32_guarded")
        for seed in range(2)
    }
    figures = summary("ocr-graded", curves)
    assert set(figures["arms"]) == {"off_policy_32", "plain_nft_shared"}
    guarded = figures["guarded"]["off_policy_32_guarded"]
    assert guarded["grain_ratio"] == [1.5, 1.5] and guarded["truth_distance_change"] == [0.0, 0.0]
    without, with_guards = (arm_config("ocr-graded", f"off_policy_32{end}", 0) for end in ("", "_guarded"))
    assert without.algorithm.kl_weight == 0 < with_guards.algorithm.kl_weight
    assert (without.reward.scorer, with_guards.reward.scorer) == ("ocr", "sum")
    assert without.exploration == with_guards.exploration


def test_a_public_split_is_of_a_step_that_trains_on_all_that_it_generates():
    costs = public_costs(0.65)
    assert costs.train / (costs.train + costs.rollout) == pytest.approx(0.65)
    assert costs.draft == costs.rollout and costs.score == costs.driver == costs.planning == 0


@pytest.mark.parametrize("task", TASKS)
def test_arms_differ_by_what_they_are_named_for(task):
    for name in arms_of(task):
        config, spent = arm_config(task, name, 0), ARMS[name]
        algorithm, exploration = config.algorithm, config.exploration
        trained = algorithm.prompts_per_iteration * algorithm.group_size
        if name.endswith("_16"):
            assert trained == (32 if name == "off_policy_16" else 64)
            assert exploration.prompts == 16 and (exploration.drafts == 112 or not spent.plain)
            assert spent.every == 2, "evaluated as often in as much time"
        else:
            assert trained == (64 if spent.plain and not name.endswith("_32_of_48") else 128)
        assert (config.exploration.strategy == "plain") == (not spent.plain)
        if spent.plain:
            plain = arm_config(task, spent.plain, 0)
            assert plain.algorithm.options.get("shared") == config.algorithm.options.get("shared")
            assert plain.algorithm.objective == config.algorithm.objective == spent.objective
        assert (config.algorithm.zero_variance_groups == "train") == name.startswith("all_groups")
        assert (config.reward.scorer, config.reward.signal) == (TASKS[task].scorer, TASKS[task].signal)
        assert config.algorithm.kl_weight == 0, "without the guards of its preset"


def tuning(late: dict[str, int], task: str = "ocr-graded"):
    """Curves of all that is tried; an arm's second recipe learns first, and some arms learn later."""
    curves = {}
    for name, recipe, run_seed in tuning_curves(task):
        rate = 0.03 if recipe == RECIPES[ARMS[name].objective][1] else 0.02
        values = [0.1 + rate * max(0, step - late.get(name, 0)) for step in range(6)]
        curves[name, recipe, run_seed] = made(values, every=2, drafts=48 if ARMS[name].plain else 0)
    return curves


def test_the_recipe_of_each_arm_and_the_arm_of_each_objective_are_chosen_on_tuning_curves():
    curves = tuning(
        {
            "off_policy_32": 1,
            **dict.fromkeys(("stale_32", "off_policy_16"), 2),
            **dict.fromkeys(("off_policy_grpo_16", "off_policy_grpo_32", "off_policy_grpo_32_of_48"), 1),
        }
    )
    tuned = choose("ocr-graded", curves)
    assert tuned.chosen == {"nft": "off_policy_48", "grpo": "stale_grpo_32_of_48"}
    assert set(tuned.recipes) == set(arms_of("ocr-graded"))
    for name, recipe in tuned.recipes.items():
        assert recipe == RECIPES[ARMS[name].objective][1]
        assert len(tuned.figures["arms"][name]["tried"]) == len(recipes_of("ocr-graded", name))
    config = arm_config("ocr-graded", "off_policy_48", 0, tuned.recipes["off_policy_48"])
    assert config.optimizer.warmup_steps == RECIPES["nft"][1].warmup_steps
    some = {key: curve for key, curve in curves.items() if key[:2] != ("off_policy_48", RECIPES["nft"][0])}
    assert choose("ocr-graded", some).chosen["nft"] == "off_policy_32", "not all has been tried of the other"
    assert choose("ocr-graded", {}).chosen == {}


def test_long_curves_choose_between_the_two_recipes_that_are_best_by_short_ones():
    first, second, third = RECIPES["nft"][:3]
    short = {first: 0.03, second: 0.02, third: 0.01}
    long = {first: 0.01, second: 0.02, third: 0.9}
    curves = {
        (name, recipe, seed): made([0.1 + rates.get(recipe, 0) * step for step in range(6)])
        for name, recipe, seed in tuning_curves("ocr-graded")
        for rates in [short if seed == TUNING_SEED else long]
    }
    assert finalists("ocr-graded", "plain_nft_shared", curves) == [first, second]
    tuned = choose("ocr-graded", curves)
    assert tuned.recipes["plain_nft_shared"] == second
    finals = tuned.figures["arms"]["plain_nft_shared"]["finals"]
    assert [one["mean_gain"] for one in finals] == [0.03, 0.06]
    missing = ("plain_nft_shared", second, FINAL_SEEDS[1])
    some = {key: curve for key, curve in curves.items() if key != missing}
    assert choose("ocr-graded", some).recipes["plain_nft_shared"] == first, "not all long curves are made"
    compared = choose("ocr-graded", some).figures["arms"]["off_policy_32"]["time_ratio_75"]
    assert compared is None, "its arm without exploration has only short curves"


def test_finalists_run_as_long_as_reported_curves():
    lengths = {(arm, seed): want.iterations for (arm, _, seed), want in tuning_curves("ocr-graded").items()}
    assert lengths["plain_nft_shared", TUNING_SEED] == 10
    assert {lengths[arm, seed] - ARMS[arm].iterations for arm, seed in lengths if seed in FINAL_SEEDS} == {0}


def test_a_result_comes_of_tuned_and_reported_curves_that_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr("benchmarks.report.environment", lambda: {"commit": "abc"})
    monkeypatch.setattr(sys, "argv", ["exploration", "--task", "ocr-graded", "--as-is"])
    with pytest.raises(SystemExit):
        main.main()
    assert "has been tuned by this commit: call with --tuning first" in capsys.readouterr().err
    late = {"off_policy_32": 1, "off_policy_16": 1}
    store, curves = CurveStore("tuning-ocr-graded", "abc"), tuning(late)
    for key, want in tuning_curves("ocr-graded").items():
        store.save(want.name, curves[key])
    with pytest.raises(SystemExit):
        main.main()
    assert "no chosen arm has curves yet" in capsys.readouterr().err
    tuned = choose("ocr-graded", curves)
    assert main.main_arms(tuned)[:4] == [
        "off_policy_48", "plain_nft_shared", "plain_nft_shared_16", "all_groups_nft"
    ]  # fmt: skip
    store = CurveStore("exploration-ocr-graded", "abc")
    wanted = main.reported_curves("ocr-graded", main.main_arms(tuned), 2, tuned)
    assert wanted["off_policy_48", 0].config.optimizer.warmup_steps == RECIPES["nft"][1].warmup_steps
    for (name, _), want in wanted.items():
        plain = not ARMS[name].plain
        store.save(want.name, made(RISING if plain else QUICK, drafts=0 if plain else 48))
    main.main()
    figures = json.loads(capsys.readouterr().out)
    assert figures["tuning"]["chosen"] == tuned.chosen
    assert (figures["run_seeds"], figures["exploration"]["nft"]["best"]) == (2, "off_policy_48")
    assert figures["best_against_all_on_demand"]["against"] == "plain_grpo"
    for (name, _), want in wanted.items():
        if ARMS[name].objective == "grpo":
            (tmp_path / "benchmarks" / "exploration-ocr-graded" / "abc" / f"{want.name}.json").unlink()
    main.main()
    some = json.loads(capsys.readouterr().out)
    assert some["exploration"] == {"nft": figures["exploration"]["nft"]}, "whatever is made of the other"
    assert some["best_against_all_on_demand"] == {}


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
    assert min(TUNING_SEED, *FINAL_SEEDS) > max(seed for _, seed in reported_curves(task, ["stale_32"], 8))


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_arm_is_tuned_with_equal_effort(task):
    by_objective: dict[str, set[frozenset[Recipe]]] = {}
    for arm in arms_of(task):
        tried_with = frozenset(recipe for name, recipe, _ in tuning_curves(task) if name == arm)
        by_objective.setdefault(ARMS[arm].objective, set()).add(tried_with)
    assert all(len(recipes) == 1 for recipes in by_objective.values())
    assert {*RECIPES["nft"]} <= by_objective["nft"].pop()


def test_the_kept_curves_are_those_that_the_arms_of_today_ask_for():
    """A change of a preset or an arm leaves curves that no command finds, and claims without a source."""
    kept = {path.stem: path for path in (RESULTS / "curves" / "tuning-ocr-graded").rglob("*.json")}
    wanted = tuning_curves("ocr-graded")
    nft = {
        want.name for key, want in wanted.items() if ARMS[key[0]].objective == "nft" and key[2] == TUNING_SEED
    }
    assert nft <= kept.keys() <= {want.name for want in wanted.values()}, "other arms' are not all made"
    curves = {
        key: Curve(**json.loads(kept[want.name].read_text()))
        for key, want in wanted.items()
        if want.name in kept
    }
    tuned = choose("ocr-graded", curves)
    assert tuned.chosen == {"nft": "off_policy_32", "grpo": "off_policy_grpo_16"}
    compared = ["stale_32", "off_policy_48"]
    arms = [arm for arm in main_arms(tuned) if arm != "all_groups_grpo"] + compared  # which is not made yet
    reported = reported_curves("ocr-graded", arms, 8, tuned)
    of_task = (RESULTS / "curves" / "exploration-ocr-graded").rglob("*.json")
    for other, seeds in (("plain_awm", 3), ("plain_dpo", 3), ("plain_grpo_guard", 5)):  # for tables of arms
        reported |= reported_curves("ocr-graded", (other,), seeds, tuned)
    made = {want.name for want in reported.values()}
    # Curves of the benchmark of `auto` lie beside them, as soon as some are kept.
    of_auto = {want.name for want in curves_wanted(list(CASES), 8).values()}
    assert {path.stem for path in of_task} - of_auto == made - of_auto
