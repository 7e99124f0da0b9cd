"""Learning curves, milestones and break-even by values worked by hand."""

from __future__ import annotations

import json
import statistics
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from benchmarks.report import RESULTS
from gpu_runtime.simulator.comparison.learning_curves import (
    MILESTONES,
    LearningCurve,
    LearningCurves,
    read_curves,
)
from gpu_runtime.simulator.comparison.policies import policies_of
from gpu_runtime.simulator.comparison.to_score import (
    break_even_discount,
    break_even_of,
    exploration_worth,
    milestones_of,
    pays_until,
    stops_paying,
)
from gpu_runtime.simulator.comparison.what_if import Comparison, PolicyAnswer, figures_of
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.simulated_run import CostLine, SimulatedRun
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.generator import TraceShape
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.profiles import CURVES, find_curves, recorded_curves
from tasks.what_if_answer import WhatIf, conclusions
from tests.sample_run import evaluation_record
from tests.simulated import small_profile

HOUR = 3600 * TICKS_PER_S
PLACES = tuple(range(0, 28, 4))


def curve(*values: float) -> LearningCurve:
    return LearningCurve(iterations=PLACES[: len(values)], values=values)


CURVES_BY_HAND = LearningCurves(
    name="by-hand",
    model="embedded:glyphs",
    arms={
        # The mean of its last three is 0.5.
        "plain": (curve(0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),),
        # The other one ends just below 0.4.
        "stale": (curve(0.1, 0.3, 0.6), curve(0.1, 0.2, 0.4 - 1e-9, 0.4 - 1e-9)),
    },
)


def asked(preset: str) -> Comparison:
    """A preset's run on one reserved device and four spot devices, in one future."""
    market = SpotMarket(None, TraceShape(capacity=1, length_s=1.0))
    return Comparison(load_config(preset, [], {}), FleetPlan(1, 4, 1, 10.0, 2.0), small_profile(), market, 1)


def made(reserved_h: float, spot_h: float, iterations: int = 10, **more: object) -> SimulatedRun:
    """A run whose iterations take all of its time: ten hours; 10 and 2 dollars an hour."""
    length = 10 * HOUR // iterations
    paid = {"reserved": round(reserved_h * HOUR), "spot": round(spot_h * HOUR)}
    run = SimulatedRun({"reserved": 10.0, "spot": 2.0}, 10 * HOUR, **more)  # type: ignore[arg-type]
    run.iterations = [length] * iterations
    run.paid.update(paid)  # type: ignore[arg-type]
    return run


def answer(name: str, *runs: SimulatedRun) -> PolicyAnswer:
    (policy,) = policies_of([name])
    for run in runs:
        run.more_per_sample, run.drafts = (0.0, 0) if policy.arm == "plain" else (3.0, 30)
    return PolicyAnswer(policy, figures_of(runs), runs=runs)


def test_iterations_to_a_share_of_the_baseline_s_progress():
    curves = CURVES_BY_HAND
    # The base is 0.1, the end 0.5.
    assert [curves.score_at(share) for share in (0.25, 0.5, 1.0)] == pytest.approx([0.2, 0.3, 0.5])
    assert curves.iterations_to("plain", 0.5) == pytest.approx([12.0])
    assert curves.iterations_to("stale", 0.5) == pytest.approx([4.0, 6.0])
    # 0.5 lies at 4 + 4 x 2/3; the other run seed ends below it, and counts with its end.
    assert curves.iterations_to("stale", 1.0) == pytest.approx([20 / 3, 12.0])
    assert (curves.unreached("stale", 0.5), curves.unreached("stale", 1.0)) == (0, 1)
    assert curves.iterations_to("fresh", 0.5) == []


def test_a_milestone_keeps_what_is_not_known_of_learning_and_of_the_system_apart():
    # An iteration takes an hour; it costs 40 hours of 10 dollars and 80 of 2, or 60 of 2, over ten.
    runs = made(40, 80), made(40, 60)
    half = milestones_of(answer("spotlight", *runs), CURVES_BY_HAND)[1]
    found = half.to_json()
    assert (half.share, half.run_seeds, half.unreached) == (0.5, 2, 0)
    assert found["iterations"] == pytest.approx({"low": 4.0, "median": 5.0, "high": 6.0})
    assert found["time_s"]["median"] == pytest.approx(5 * 3600)
    assert found["time_s"]["learning"] == pytest.approx({"low": 4 * 3600, "high": 6 * 3600})
    assert found["time_s"]["system"] == pytest.approx({"low": 5 * 3600, "high": 5 * 3600})
    assert found["usd"]["median"] == pytest.approx(5 * 54)
    assert found["usd"]["learning"] == pytest.approx({"low": 4 * 54, "high": 6 * 54})
    assert found["usd"]["system"] == pytest.approx({"low": 5 * 52, "high": 5 * 56})
    assert milestones_of(answer("critical-path", *runs), CURVES_BY_HAND) == []


def test_the_cost_line_of_an_iteration_leaves_the_start_and_evaluations_out():
    run = made(40, 80, iterations=4)
    run.iterations = [HOUR] * 4  # of ten hours
    assert astuple(run.cost_line) == pytest.approx((40 * 10 / 10, 80 / 10))
    assert astuple(made(40, 80, runs=2).cost_line) == pytest.approx((20.0, 4.0))


def test_at_the_break_even_discount_spot_and_on_demand_cost_the_same():
    # 40 reserved hours and 80 of spot against 70 hours, each of 10 dollars: 300 dollars for 80 hours are
    # 3.75 an hour.
    assert break_even_discount(CostLine(400, 80), CostLine(700, 0), 10.0) == pytest.approx(0.625)
    assert CostLine(400, 80).usd(10 * (1 - 0.625)) == pytest.approx(700)
    assert break_even_discount(CostLine(400, 20), CostLine(700, 0), 10.0) == pytest.approx(-0.5)
    assert break_even_discount(CostLine(800, 20), CostLine(700, 0), 10.0) == pytest.approx(1.5)
    assert break_even_discount(CostLine(400, 0), CostLine(700, 0), 10.0) is None


def test_the_break_even_discount_has_an_interval_over_the_futures():
    spot, demand = answer("spot", made(40, 80), made(40, 60)), answer("on-demand", made(70, 0), made(70, 0))
    even = break_even_of([spot, demand])
    assert even is not None
    assert (even.low, even.high) == pytest.approx((0.5, 0.625))
    assert break_even_of([spot]) is None


@pytest.mark.parametrize(
    ("reserved_h", "said"), [(40, "less {} even without a discount"), (80, "more {} even at a price of 0")]
)
def test_spot_devices_that_pay_without_a_discount_or_never(reserved_h: float, said: str):
    answers = [answer("spot", made(reserved_h, 20)), answer("on-demand", made(70, 0))]
    [concluded] = conclusions(WhatIf(answers, asked("glyphs"), ""))
    words = said.format("than the same devices on demand")
    assert concluded == f"Spot devices cost {words}; the discount is 80%."


def test_the_price_up_to_which_one_way_is_the_cheapest():
    ours = CostLine(100, 20)
    # Against 160 dollars without spot devices: up to 3. Against 110 and 15 hours: up to 2.
    assert pays_until(ours, [CostLine(160, 0)], 10.0) == pytest.approx(3.0)
    assert pays_until(ours, [CostLine(160, 0), CostLine(110, 15)], 10.0) == pytest.approx(2.0)
    assert pays_until(ours, [CostLine(1000, 0)], 10.0) == 10.0
    assert pays_until(ours, [CostLine(90, 0)], 10.0) is None
    # Cheaper than one from 4 on, and than the other up to 3.
    assert pays_until(ours, [CostLine(60, 30), CostLine(160, 0)], 10.0) is None
    assert pays_until(ours, [CostLine(100, 20)], 10.0) == 10.0
    assert pays_until(ours, [CostLine(99, 20)], 10.0) is None


def test_the_score_from_which_on_one_way_is_dearer():
    shares = (0.25, 0.5, 0.75, 1.0)
    others = dict.fromkeys(shares, 10.0)

    def stops(*ours: float) -> float | None:
        return stops_paying(shares, dict(zip(shares, ours, strict=True)), others)

    assert stops(5, 8, 9, 10) is None
    assert stops(5, 8, 11, 12) == 0.75
    assert stops(12, 8, 9, 11) == 1.0
    assert stops(11, 12, 13, 14) == 0.25


def test_where_exploration_pays_by_hand():
    # Dollars of an iteration: Spotlight 40 + 8 x 2 = 56, spot 50, reserved 48.
    answers = [
        answer("reserved", made(48, 0)), answer("spot", made(34, 80)), answer("spotlight", made(40, 80)),
        answer("sized", made(1, 0, wanted=[1])),
    ]  # fmt: skip
    worth = exploration_worth(answers[:3], CURVES_BY_HAND, 10.0)
    assert worth is not None and worth.cheapest == "reserved"
    assert worth.saving_needed.median == pytest.approx(1 - 48 / 56)
    # One of two explored runs ends just below 0.4, 75 %: of later scores nothing is known.
    assert worth.known_to == 0.7 and worth.known_to_score == pytest.approx(0.38)
    # To 0.38 they take 4 + 4 x 0.08/0.3 and 4 + 4 x 0.9 iterations, so 19/3 instead of 15.2.
    assert worth.stops_at is None
    # 19/3 x (40 + 8 p) <= 15.2 x 48 up to 9.4; <= 15.2 x (34 + 8 p) at any price.
    assert worth.pays_until_usd_per_hour is not None
    assert worth.pays_until_usd_per_hour.median == pytest.approx((15.2 * 48 / (19 / 3) - 40) / 8)
    # The cheapest over futures is one policy: 49 of 56 dollars, though the other one is cheaper in the first.
    futures = [
        answer("reserved", made(48, 0), made(52, 0)),
        answer("spot", made(35, 80), made(31, 80)),
        answer("spotlight", made(40, 80), made(40, 80)),
    ]
    two = exploration_worth(futures, None, 10.0)
    assert two is not None and two.cheapest == "spot"
    assert (two.saving_needed.low, two.saving_needed.high) == pytest.approx((1 - 51 / 56, 1 - 47 / 56))
    # `sized` is cheaper at the price asked for, and has no line.
    cheap = exploration_worth(answers, CURVES_BY_HAND, 10.0)
    assert cheap is not None and cheap.cheapest == "sized" and cheap.stops_at == pytest.approx(0.05)
    assert cheap.stops_at_score == pytest.approx(0.1 + 0.05 * 0.4)
    assert cheap.pays_until_usd_per_hour == worth.pays_until_usd_per_hour
    # Explored runs that end below the first level say nothing.
    low = CURVES_BY_HAND.arms | {"stale": (curve(0.1, 0.1, 0.1, 0.1),)}
    poor = CURVES_BY_HAND.model_copy(update={"arms": low})
    nothing = exploration_worth(answers[:3], poor, 10.0)
    assert nothing is not None and nothing.known_to is None and nothing.pays_until_usd_per_hour is None
    unknown = exploration_worth(answers[:3], None, 10.0)
    assert unknown is not None and unknown.pays_until_usd_per_hour is None
    assert exploration_worth(answers[:2], None, 10.0) is None
    # What no live run can follow is nothing to be compared with, however cheap.
    beside = exploration_worth([*answers[:3], answer("window", made(1, 0))], CURVES_BY_HAND, 10.0)
    assert beside == worth
    assert exploration_worth([answer("window", made(1, 0)), answers[2]], None, 10.0) is None


def test_of_drafts_that_are_not_made_nothing_is_credited():
    curves = CURVES_BY_HAND.model_copy(update={"more_per_sample": 3.0})
    spot, ours = answer("spot", made(48, 0)), answer("spotlight", made(40, 80))
    result = WhatIf([spot, ours], asked("glyphs"), "", curves)
    assert [row.iterations.median for row in result.milestones(ours)] == pytest.approx(
        [statistics.median(curves.iterations_to("stale", share)) for share in MILESTONES]
    )
    ours.runs[0].more_per_sample = 0.1  # a thirtieth of what the explored runs made
    assert result.milestones(ours) == []
    worth = result.exploration
    assert worth is not None and worth.known_to is None and worth.pays_until_usd_per_hour is None
    said = " ".join(conclusions(result))
    assert "spotlight makes 0.1 drafts per sample, but the exploring runs" in said
    ours.runs[0].more_per_sample = ours.runs[0].drafts = 0
    assert result.exploration is None
    ours_to, spot_to = ([row.iterations for row in result.milestones(each)] for each in (ours, spot))
    assert ours_to == spot_to
    assert "spotlight makes no drafts in such a run" in " ".join(conclusions(result))


def test_curves_of_another_model_than_the_bill_say_so():
    learned = CURVES_BY_HAND.model_copy(update={"model": "embedded:shapes", "learner": "a small model"})
    ours = answer("spotlight", made(40, 80))
    borrowed, own = (WhatIf([ours], asked(name), "", learned) for name in ("qwen-image-512", "shapes"))
    assert "measured on a small model, not on qwen-image 512x512" in conclusions(borrowed)[-1]
    assert borrowed.to_json()["other_learner"] in borrowed.to_json()["curves_in_words"]
    assert own.to_json()["other_learner"] == ""


def test_of_a_score_from_which_on_exploration_does_not_pay_no_price_is_named():
    answers = [answer("reserved", made(48, 0)), answer("spotlight", made(40, 80))]
    pays = WhatIf(answers, asked("glyphs"), "", CURVES_BY_HAND)
    window = WhatIf([replace(answers[0], best=True), answer("window", made(40, 0))], pays.asked, "")
    assert conclusions(window) == [
        "window would cost least, $400 instead of $480 of reserved, but is only simulated: no live run "
        "has a window in which trainers roll out."
    ]
    says, milestones = conclusions(pays)
    # An iteration takes an hour; Spotlight's costs 56 dollars, but one of its run seeds ends below 0.4.
    assert milestones == (
        "reserved takes 8.0 h / 12.0 h / 16.0 h / 20.0 h and $384 / $576 / $768 / $960 to 25 / 50 / 75 / "
        "100 % of the baseline's progress, by the curves by-hand."
    )
    best = replace(pays, answers=[answers[0], replace(answers[1], best=True)])
    assert conclusions(best)[1].startswith("spotlight takes 3.0 h / 5.0 h / ≥")
    assert conclusions(best)[2] == milestones
    assert "pays up to 70% of the baseline's progress, a score of 0.38 (most of their exploring" in says
    assert says.endswith("Up to there it pays up to $9.40 per spot device-hour (9.40 to 9.40).")
    # Two of three run seeds get to the end, or one of two.
    few = curve(0.1, 0.2, 0.45, 0.45)
    for explored, is_known in (
        (CURVES_BY_HAND.arms["stale"][:1] * 2, True),
        ((curve(0.1, 0.3, 0.6),), False),
    ):
        arms = CURVES_BY_HAND.arms | {"stale": (*explored, few)}
        said = conclusions(replace(pays, curves=CURVES_BY_HAND.model_copy(update={"arms": arms})))
        assert ("pays up to the baseline's last score, 0.5. Up to there" in said[0]) == is_known
        assert said[1].startswith("spotlight takes" if is_known else "reserved takes")
        assert said[1].endswith(", the cheapest of those that most run seeds complete.") == is_known
    dear = replace(pays, answers=[answer("reserved", made(90, 0)), answers[1]])
    assert "Up to there it pays at any spot price up to the reserved one." in conclusions(dear)[0]
    stops = replace(pays, answers=[*answers, answer("sized", made(1, 0, wanted=[1]))])
    says = conclusions(stops)[0]
    assert says.endswith("it stops paying from 5% of the baseline's progress on, a score of 0.12.")


@pytest.mark.parametrize("task", ["ocr", "shapes"])
def test_the_carried_curves_are_those_of_the_kept_results(task: str):
    kept = json.loads((RESULTS / f"exploration-{task}.json").read_text(encoding="utf-8"))["figures"]["arms"]
    arms = {
        "grpo": {"plain": "plain", "stale": "stale_grpo"},
        "nft": {"plain": "plain_nft", "stale": "stale", "fresh": "fresh", "larger_batch": "larger_batch"},
    }
    for objective, names in arms.items():
        curves = read_curves(CURVES / f"{task}-{objective}.json")
        assert (curves.name, curves.objective) == (f"{task}-{objective}", objective)
        assert {"plain", "stale"} <= set(curves.arms) == {arm for arm, name in names.items() if name in kept}
        for arm in curves.arms:
            found = [(list(each.iterations), list(each.values)) for each in curves.arms[arm]]  # type: ignore[index]
            assert found == [(each["iterations"], each["exact"]) for each in kept[names[arm]]["curves"]]


def curves_of(home: Home, config: RunConfig, name: str | None = None) -> LearningCurves | None:
    return find_curves(home, config.reward, config.algorithm.objective, name)


def test_the_curves_of_a_preset_are_those_of_its_reward_and_objective(tmp_path: Path):
    for preset, name in (("qwen-image-geneval-512", "shapes-grpo"), ("glyphs-stale", "ocr-nft")):
        curves = curves_of(Home(tmp_path), load_config(preset, [], {}))
        assert curves is not None and curves.name == name
    config = load_config("glyphs", ["reward.scorer=jpeg"], {})
    assert curves_of(Home(tmp_path), config) is None
    parts = ["reward.scorer=sum", "reward.options={parts = {jpeg = 1.0, ocr = 2.0}}"]
    curves = curves_of(Home(tmp_path), load_config("glyphs", parts, {}))
    assert curves is not None and curves.name == "ocr-grpo", "those of the heaviest part"


def test_the_curves_of_recorded_runs(tmp_path: Path):
    home = Home(tmp_path).ensure()
    store = RunStore(home)
    for run_id, strategy, evaluated in (
        ("base", "plain", (0, 10, 20)), ("explored", "stale", (0, 10)), ("short", "plain", (0,)),
        ("off", "off_policy", (0, 10)), ("exact", "plain", (0, 10)),
    ):  # fmt: skip
        changes = [
            f"exploration.strategy={strategy}",
            f"reward.signal={'exact' if run_id == 'exact' else 'graded'}",
        ]
        store.create_run(run_id, load_config("glyphs", changes, {}), {}, 1)
        for iteration in evaluated:
            record = evaluation_record(run_id, iteration, 100.0 * iteration, images=4, gallery=0)
            store.commit_evaluation(replace(record, score=0.1 + iteration / 100, exact=iteration / 50))
    curves = curves_of(home, load_config("glyphs", [], {}), "base, explored")
    assert curves is not None and curves.source == "runs base, explored" and curves.model == "embedded:glyphs"
    assert {arm: [each.iterations for each in found] for arm, found in curves.arms.items()} == {
        "plain": [(0, 10, 20)], "stale": [(0, 10)],
    }  # fmt: skip
    assert curves.arms["plain"][0].values == pytest.approx((0.1, 0.2, 0.3))
    store.create_run("other", load_config("shapes", [], {}), {}, 1)
    store.create_run("nft", load_config("glyphs", ["algorithm.objective=nft"], {}), {}, 1)
    for runs, said in (
        (["explored"], "all explored; also name one without exploration"),
        (["base", "base"], "one is named twice"),
        (["base", "other"], "have different tasks"),
        (["base", "nft"], "have different tasks; .*reward.scorer, algorithm.objective"),
        (["short"], "run short has 1 evaluations"),
        (["base", "off"], "run off trains on its drafts"),
        (["base", "exact"], "learned from exact and graded scores"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            recorded_curves(home, *runs)
