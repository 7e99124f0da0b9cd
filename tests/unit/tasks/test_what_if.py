"""`spotlight what-if`: the table of policies, its profiles, and what it refuses."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from flows.cli.command_line import app
from gpu_runtime.simulator.comparison.learning_curves import read_curves
from gpu_runtime.simulator.comparison.what_if import Comparison, drawn_times
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.lent_devices import ServingLoad
from gpu_runtime.simulator.profile import Profile, Quantity, StepTime, read_profile
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.simulator.virtual_time import ticks
from gpu_runtime.spot.prices.price_history import PriceHistory
from gpu_runtime.spot.traces.generator import TraceShape
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.config.what_if import WhatIfQuestion
from storage.environment import SIMULATED
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.run_store import RunRow, RunStore
from tasks.gpu_profile import gpu_of_device, is_gpu_result, read_gpu_result
from tasks.market_question import market_of, offer_of, prices_in_words
from tasks.profiles import CURVES, PROFILES, find_profile
from tasks.recorded_profile import _score_s, recorded_profile
from tasks.what_if_answer import dollars, duration, number, run_in_words, time_unit, train_together
from tests.sample_run import write_sample_run
from tests.simulated import small_config, small_profile

SMALL = ("--preset", "smoke", "--windows", "2", "--spot", "3")
MARKET = SpotMarket(None, TraceShape(capacity=1, length_s=1.0, mean_lifetime_s=120.0))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (90, "90.0 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (172800, "2.0 d"),
        (432000, "5.0 d"),
    ],
)
def test_a_time_is_written_in_one_unit(seconds: float, text: str):
    assert duration(seconds) == text


def test_the_times_of_a_table_are_in_the_unit_of_the_longest():
    units = [time_unit(seconds) for seconds in (119, 120, 7200, 2 * 86400)]
    assert units == [("{:.1f} s", 1.0), ("{:.1f} min", 60.0), ("{:.1f} h", 3600.0), ("{:.1f} d", 86400.0)]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(2.4512, 3, "2.45"), (999.4, 3, "999"), (999.5, 3, "1,000"), (7486.2, 3, "7,486"), (151.2, 2, "151")],
)
def test_a_large_number_has_no_power_of_ten(value: float, digits: int, text: str):
    assert number(value, digits) == text


def test_hours_and_dollars_have_at_least_two_digits():
    said = [dollars(usd) for usd in (1234.4, 100, 99.5, 0.1, 0.0123)]
    assert said == ["$1,234", "$100", "$99.50", "$0.10", "$0.012"]
    row = {
        "wall_s": {"median": 1.2351 * 3600, "low": 3600, "high": 7200},
        "usd": {"median": 4, "low": 3, "high": 5},
    }
    assert run_in_words(row) == "1.24 h (1 to 2) and $4.00 ($3.00 to $5.00)"


def asked(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["what-if", *arguments], catch_exceptions=False, env={"COLUMNS": "120"})
    assert result.exit_code == 0
    return result.stdout


def answered(*arguments: str) -> dict[str, Any]:
    return json.loads(asked(*arguments, "--json"))


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        CliRunner().invoke(app, ["what-if", *arguments], catch_exceptions=False)
    return str(refused.value)


def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[RunRow]:
    """The runs in a new home after a question with `--record`."""
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    asked(*SMALL, "--record", *arguments)
    return RunStore(Home(tmp_path)).runs()


def test_what_says_that_nothing_is_given_gives_nothing():
    empty = {name: "" for name, field in WhatIfQuestion.model_fields.items() if field.annotation is str}
    question = WhatIfQuestion.checked({**empty, "trainers": 0, "iterations": 0, "joint": 0.0, "spot": 0})
    assert question.as_settings() == ["runtime.spot_workers=0"]
    assert {name for name in WhatIfQuestion.model_fields if question.given(name) is not None} == {
        "joint", "spot"
    }  # fmt: skip


def test_the_run_of_each_policy_is_entered_and_costs_what_the_answer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = recorded(tmp_path, monkeypatch, "--policies", "reserved,spotlight")
    assert sorted(row.name for row in rows) == ["simulated-reserved", "simulated-spotlight"]
    assert {row.status for row in rows} == {"simulated"}
    answer = answered(*SMALL[:-4], "--spot", "3", "--windows", "1", "--policies", "reserved")
    (reserved,) = [row for row in rows if row.name == "simulated-reserved"]
    assert reserved.summary["cost_usd"] == pytest.approx(answer["policies"][0]["usd"]["median"], rel=1e-6)
    said = {row.name: row.environment[SIMULATED] for row in rows}
    assert "1 of 1 reserved devices trains, at most 0 spot devices" in said["simulated-reserved"]
    assert "1 of 1 reserved devices trains, at most 3 spot devices" in said["simulated-spotlight"]
    assert "scores by the curves ocr-grpo: share of exact answers" in said["simulated-spotlight"]
    assert {row.name: row.config.exploration.strategy for row in rows} == {
        "simulated-reserved": "plain", "simulated-spotlight": "stale"
    }  # fmt: skip
    assert all(row.created_at < time.time() for row in rows)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("curve", [(), ("--curve", "ocr-grpo")], ids=["without a curve", "by a curve"])
def test_the_iterations_of_an_entered_run_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int, curve: tuple[str, ...]
):
    options = ("--policies", "spot", "--iterations", str(iterations), "--set", "reward.scorer=jpeg", *curve)
    [row] = recorded(tmp_path, monkeypatch, *options)
    with RunStore(Home(tmp_path)).reading(row.run_id) as connection:
        spans = connection.execute(
            "SELECT started_at, ended_at FROM iterations UNION SELECT started_at, ended_at FROM evaluations "
            "ORDER BY started_at"
        ).fetchall()
        taken = connection.execute(
            "SELECT value - (ended_at - started_at) FROM iteration_metrics JOIN iterations "
            "USING (run_id, iteration) WHERE name = 'iteration_s'"
        ).fetchall()
    assert [each for (each,) in taken] == pytest.approx([0.0] * iterations, abs=1e-3)
    assert len(spans) == iterations + 2 * bool(curve) and spans[0][0] == row.created_at
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))


def test_of_a_named_policy_the_run_alone_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = recorded(tmp_path, monkeypatch, "--policy", "spot")
    assert [row.name for row in rows] == ["simulated-spot"]
    long = refusal(*SMALL, "--record", "--iterations", "20000")
    assert "above 50,000" in long and len(RunStore(Home(tmp_path)).runs()) == 1


def test_the_table_names_every_policy_says_that_all_is_modelled_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    table = asked(*SMALL)
    assert not (tmp_path / "home").exists()
    assert "Modelled: 2 iterations, 1 reserved and 3 spot devices" in table
    for policy in ("reserved", "on-demand", "spot", "spotlight", "critical-path"):
        assert f"\n {policy} " in table
    assert sum(" * " in line for line in table.splitlines() if not line.lstrip().startswith("*")) == 1
    assert "measured: step, decode_s, score_s, train_sample_s" in table
    assert "generated traces: 0.67 losses per instance-hour, 77% of them joint" in table


def test_the_json_is_the_same_for_the_same_seed_and_follows_the_options():
    options = (*SMALL, "--price", "8,2", "--loss-rate", "20", "--joint", "0.5", "--notice", "30")
    answer = answered(*options)
    assert answer == answered(*options)
    assert answer["modelled"] is True
    assert (answer["reserved_usd_per_hour"], answer["spot_usd_per_hour"]) == (8.0, 2.0)
    assert "20.00 losses per instance-hour, 50% of them joint" in answer["market"]
    by_name = {row["policy"]: row for row in answer["policies"]}
    assert sum(row["best"] for row in answer["policies"]) == 1
    assert [row["policy"] for row in answer["policies"] if not row["live"]] == ["window"]
    reserved = by_name["reserved"]
    # One device at 8 dollars an hour: its time is its bill.
    assert reserved["usd"]["median"] == pytest.approx(reserved["wall_s"]["median"] * 8 / 3600)
    assert reserved["losses"]["high"] == 0 and reserved["drafts_per_iteration"]["high"] == 0
    for figure in by_name["spotlight"].values():
        assert not isinstance(figure, dict) or figure["low"] <= figure["median"] <= figure["high"]
    assert answered(*options, "--seed", "1") != answer


def test_named_policies_alone_are_compared_and_their_milestones_printed():
    table = asked(*SMALL, "--policies", "larger-batch,window,spot")
    rows = [line for line in table.splitlines() if line.startswith((" spot ", " window ", " larger"))]
    assert "\n window † " in table
    assert [row.split()[0] for row in rows] == ["spot", "window", "larger-batch", "spot", "window"]
    assert "\n spotlight" not in table and "\n reserved" not in table
    assert answered(*SMALL, "--policies", "window")["answer"].startswith("window: "), "the best there is"
    assert "To a share of the baseline's progress, by the curves ocr-grpo" in table
    summary = read_curves(CURVES / "ocr-grpo.json").summary
    assert f"\ncurves ocr-grpo: {summary}" in table


def test_the_answer_says_where_spot_devices_and_exploration_pay():
    answer = answered(*SMALL, "--windows", "1", "--price", "8,2")
    rows = {row["policy"]: row for row in answer["policies"]}
    spot_usd, demand_usd = (rows[name]["iteration_usd"]["median"] for name in ("spot", "on-demand"))
    discount = answer["break_even_discount"]["median"]
    # At that discount, an iteration with spot devices costs what one on demand does.
    without = answered(*SMALL, "--windows", "1", "--price", f"8,{8 * (1 - discount)}", "--policies", "spot")
    assert spot_usd < demand_usd
    assert without["policies"][0]["iteration_usd"]["median"] == pytest.approx(demand_usd)
    assert without["break_even_discount"] is None and without["exploration"] is None
    assert f"at discounts above {discount:.0%}" in answer["conclusions"][0]
    assert "the discount is 75%." in answer["conclusions"][0]
    worth = answer["exploration"]
    assert f" {worth['cheapest']}" in answer["conclusions"][1]
    assert ("costs no more than" in answer["conclusions"][1]) == (worth["saving_needed"]["high"] <= 0.005)
    milestones = rows["spotlight"]["milestones"]
    assert [each["share"] for each in milestones] == [0.25, 0.5, 0.75, 1.0]
    for each in milestones:
        for figure in (each["time_s"], each["usd"]):
            for what in ("learning", "system"):
                assert figure[what]["low"] <= figure["median"] <= figure[what]["high"]
    assert "/ 100 % of the baseline's progress, by the curves ocr-grpo" in answer["conclusions"][2]
    known = {name: row["milestones"][-1]["usd"]["median"] for name, row in rows.items() if row["milestones"]}
    [cheapest] = [line for line in answer["conclusions"] if "the cheapest of those" in line]
    assert cheapest.split()[0] == min(known, key=known.__getitem__)
    assert rows["critical-path"]["milestones"] == [], "no curve of fresh drafts with this objective"


def test_a_run_without_drafts_is_credited_with_none():
    fleet = (*SMALL[:-1], "0", "--reserved", "4")
    answer = answered(*fleet, "--trainers", "4")
    rows = {row["policy"]: row for row in answer["policies"]}
    assert rows["spotlight"]["drafts_per_iteration"]["high"] == 0 and answer["exploration"] is None
    assert rows["spotlight"]["milestones"] == rows["spot"]["milestones"] != []
    assert answer["other_learner"].endswith("of 1.1 million parameters, not on embedded:glyphs")
    assert "measured on the embedded model `glyphs-sparse` of 1.1 million parameters" in asked(*fleet)


def test_devices_that_could_train_and_do_not_are_named():
    options = ("--preset", "qwen-image-geneval-512", "--reserved", "8", "--spot", "0", "--iterations", "3")
    few, whole = (
        answered(*options, "--windows", "1", "--policies", "reserved", *more)
        for more in ((), ("--trainers", "8"))
    )
    [said] = [line for line in few["conclusions"] if "reserved devices train" in line]
    assert said.startswith("1 of 8 reserved devices trains.") and "(--trainers 8)" in said
    assert not any("reserved devices train" in line for line in whole["conclusions"])
    assert (few["trainers"], whole["trainers"]) == (1, 8), "as many as `spotlight train` starts"
    flags = said.rpartition("`spotlight train` ")[2].removesuffix(", and any other `--set`")
    named = "--preset qwen-image-geneval-512 --iterations 3 --set "
    assert flags.startswith(named)
    config = load_config(options[1], flags.removeprefix(named).split(" --set "), {})
    assert config.algorithm.gradient_shards == config.runtime.trainer_workers == 8
    as_started = answered("--windows", "1", "--policies", "reserved", *flags.split())
    assert as_started["policies"] == whole["policies"]
    shared = answered(
        *options, "--windows", "1", "--policies", "reserved", "--degree", "2", "--per-instance", "2"
    )
    assert shared["trainers"] == 1 and not any("devices train" in line for line in shared["conclusions"])
    assert f"reserved takes {run_in_words(whole['policies'][0])}: " in said
    assert whole["policies"][0]["usd"]["median"] < few["policies"][0]["usd"]["median"]


@pytest.mark.parametrize(("policy", "reserved"), [("sized", 4), ("on-demand", 40)])
def test_no_flags_are_printed_for_a_fleet_that_settings_cannot_give(policy: str, reserved: int):
    fleet = ("--reserved", str(reserved), "--spot", "30", "--iterations", "1", "--windows", "1")
    answer = answered("--preset", "qwen-image-geneval-512", *fleet, "--policies", policy)
    [said] = [line for line in answer["conclusions"] if "reserved devices train" in line]
    assert f"If all of them do (--trainers {reserved}), {policy} takes" in said
    assert said.endswith(").") and "--set" not in said


def test_training_takes_as_long_as_the_device_with_most_shards():
    def train_s(shards: int, trainers: int) -> int:
        config = load_config("qwen-image-ocr-512", [f"algorithm.gradient_shards={shards}"], {})
        return drawn_times(config, small_profile(), trainers, 0).train_sample

    assert [train_s(8, n) for n in (1, 4, 5, 7, 8)] == [train_s(1, n) for n in (1, 4, 4, 4, 8)]
    assert train_s(1, 5) < train_s(1, 4)
    options = ("--preset", "qwen-image-geneval-512", "--reserved", "5", "--spot", "0", "--windows", "1")
    options += "--policies", "reserved", "--iterations", "1"
    [even], [more] = (
        [line for line in answered(*options, *shards)["conclusions"] if "If all of them do" in line]
        for shards in ((), ("--set", "algorithm.gradient_shards=8"))
    )
    assert even == more and "algorithm.gradient_shards=5" in more


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ([], "--set runtime.trainer_workers=4 --set algorithm.gradient_shards=4"),
        (["algorithm.gradient_shards=8"], "--set runtime.trainer_workers=4"),
        (["algorithm.gradient_shards=6"],
         "--set runtime.trainer_workers=4 --set algorithm.gradient_shards=4"),
        (["sequence_parallel.rollout=2"], ""),
        (["adaptation.mode=full"], "--set runtime.trainer_workers=4"),
        (["adaptation.mode=full", "algorithm.gradient_shards=2"],
         "--set runtime.trainer_workers=4 --set algorithm.gradient_shards=4"),
    ],
)  # fmt: skip
def test_weights_are_divided_only_where_they_are_all_trained(settings: list[str], flags: str):
    config = load_config("qwen-image-ocr-512", ["runtime.reserved_workers=4", *settings], {})
    assert train_together(config, 4) == flags


def test_prices_that_change_are_read_from_a_file(tmp_path: Path):
    file = tmp_path / "prices.csv"
    file.write_text("time,market,usd_per_hour,zone\n0,spot,2,a\n36000,spot,2,a\n0,spot,4,b\n")
    options = (*SMALL, "--price", "8,2")
    changing, twice = (answered(*options, "--prices", str(file), "--zone", zone) for zone in "ab")
    constant = answered(*options)
    assert constant["prices"] == "$8 an hour reserved, $2 spot"
    assert changing["prices"] == "$8 an hour reserved, $2 to $2 ($2 on average over 10.0 h) spot"
    for ours, theirs in zip(changing["policies"], constant["policies"], strict=True):
        assert ours["usd"] == pytest.approx(theirs["usd"])
    spot = [next(row for row in one["policies"] if row["policy"] == "spot") for one in (constant, twice)]
    assert spot[1]["usd"]["median"] > spot[0]["usd"]["median"]
    assert twice["spot_usd_per_hour"] == 4.0 and "the discount is 50%." in " ".join(twice["conclusions"])
    changes = {"on_demand": (8, 10, 10), "spot": (1, 3, 3)}
    rows = [
        f"{18000 * at},{market},{usd},c" for market, usd_s in changes.items() for at, usd in enumerate(usd_s)
    ]
    file.write_text("\n".join(["time,market,usd_per_hour,zone", *rows]))
    offer = offer_of(RunConfig(), WhatIfQuestion(prices=str(file), zone="c"))
    assert (offer.reserved_usd_per_hour, offer.spot_usd_per_hour) == (9.0, 2.0), "their means over time"


def test_prices_that_change_are_told_by_their_bounds():
    changing = PriceHistory((0.0, 3600.0), (5.0, 3.0), 7200.0)
    said = prices_in_words(FleetPlan(1, 1, 1, 8.0, 4.0, prices={"spot": changing}))
    assert said == "$8 an hour reserved, $3 to $5 ($4 on average over 2.0 h) spot"


def test_losses_are_as_frequent_as_asked_for():
    usual = market_of(WhatIfQuestion())
    assert usual.shape == TraceShape(capacity=1, length_s=1.0) and usual.losses and usual.devices == 1
    often = market_of(WhatIfQuestion.checked({"loss_rate": 1.0, "joint": 0.5, "per_instance": 4}))
    assert (often.shape.mean_lifetime_s, often.shape.multi_loss_share, often.devices) == (3600.0, 0.5, 4)
    assert not market_of(WhatIfQuestion.checked({"loss_rate": 0.0})).losses
    for figure in ("loss_rate", "joint"):
        with pytest.raises(ConfigurationError, match="--trace decides which instances are lost"):
            market_of(WhatIfQuestion.checked({"trace": "zone.csv", figure: 0.5}))


@pytest.mark.parametrize(
    ("said", "load"),
    [
        ("0.5,0.25,2", ServingLoad(0.5, 0.25, 2.0)), ("0,0,0", ServingLoad(0.0, 0.0, 0.0)),
        ("1,1,3600", ServingLoad(1.0, 1.0, 3600.0)),
        *((said, None) for said in ("1.1,0,0", "-0.1,0,0", "0,1.1,0", "0,0,3600.5", "0.5,0.5")),
    ],
)  # fmt: skip
def test_a_load_has_shares_and_at_most_an_hour(said: str, load: ServingLoad | None):
    with nullcontext() if load else pytest.raises(ConfigurationError, match="give the share of busy devices"):
        assert offer_of(RunConfig(), WhatIfQuestion(serving=said)).serving == load


def test_lending_rests_on_a_load_that_is_marked_as_assumed():
    options = (*SMALL, "--policies", "reserved,astraflow,lending")
    answer = answered(*options)
    assert [row["policy"] for row in answer["policies"] if not row["live"]] == ["astraflow", "lending"]
    assert answer["serving"].endswith("give or take 30% over a day, and its requests can wait 2 s (assumed)")
    assert answer == answered(*options)
    assert "90% of the serving fleet is busy, give or take 0%" in asked(*options, "--serving", "0.9,0,2")
    assert "serving" not in answered(*SMALL, "--policies", "spot")


def shared_profile() -> Profile:
    """The small profile, with a step that two devices share; it takes 0.6 of one alone."""
    two = StepTime(batch=4, degree=2, seconds=0.6, evidence="published", source="a paper", uncertainty=0.2)
    alone = small_profile()
    return alone.model_copy(update={"steps": (*alone.steps, two), "regroup_s": Quantity(value=0.05)})


def test_devices_share_samples_and_static_groups_are_compared(tmp_path: Path):
    file = tmp_path / "shared.json"
    file.write_text(shared_profile().model_dump_json())
    options = (*SMALL, "--profile", str(file), "--loss-rate", "60", "--degree", "2", "--iterations", "6")
    answer = answered(*options)
    names = ["reserved", "on-demand", "spot", "spotlight", "critical-path", "static-sp"]
    assert [row["policy"] for row in answer["policies"]] == names
    assert answer["sharing"] == {"rollout": 2, "evaluate": 2, "explore": 1, "instance_devices": "all"}
    time = {row["policy"]: row["wall_s"]["median"] for row in answer["policies"]}
    assert time["spot"] < time["static-sp"], "a cold restart takes longer than another group"
    assert answer == answered(*options)
    table = asked(*options)
    assert "devices that share a sample: rollout 2, evaluate 2, explore 1; all devices are on one" in table
    assert "published: step of 2 devices" in table


def test_instances_of_several_devices_come_and_go_whole(tmp_path: Path):
    file = tmp_path / "shared.json"
    file.write_text(shared_profile().model_dump_json())
    options = (*SMALL, "--profile", str(file), "--spot", "4", "--iterations", "6", "--loss-rate", "20")
    instances = ("--per-instance", "2", "--policies", "spot")
    whole = answered(*options, "--degree", "2", *instances)
    assert whole["sharing"]["instance_devices"] == 2
    assert whole["policies"][0]["losses"]["high"] % 2 == 0
    alone = answered(*options, *instances)
    assert "sharing" not in alone and alone["policies"][0]["losses"]["high"] % 2 == 0


def test_what_is_not_known_of_sharing_changes_no_device_that_works_alone():
    known, shared = small_profile(0.3), shared_profile()
    data = known.model_dump() | {"steps": shared.model_dump()["steps"]}
    data["steps"] = (*known.model_dump()["steps"], shared.steps[-1].model_dump())
    both = Profile.model_validate(data).times(4, 1, 1, random.Random(3))
    alone = known.times(4, 1, 1, random.Random(3))
    assert (both.step, both.score, both.start) == (alone.step, alone.score, alone.start)
    assert both.shared[1] == both.step and abs(both.shared[2] - 0.6 * both.step) > 1
    with pytest.raises(ValueError, match="has an uncertainty but no evidence"):
        Profile.model_validate(data | {"steps": ({"batch": 4, "seconds": 1.0, "uncertainty": 0.1},)})
    old = StepTime(batch=4, seconds=1.0)
    assert old.model_dump() == {"batch": 4, "degree": 1, "seconds": 1.0}, "files keep their old form"


def test_each_question_about_eight_gpus_has_one_command_whose_answer_the_document_gives():
    text = (Path(__file__).parents[3] / "docs/explanation/what-if.md").read_text()
    section = text.partition("## What it should cost: four questions")[2].partition("\n## ")[0]
    commands = [line.split()[2:] for line in section.splitlines() if line.startswith("    spotlight what-if")]
    assert len(commands) == 4
    answer: dict[str, Any] = {}
    for command, row in zip(commands, section.partition("|---|---|\n")[2].splitlines(), strict=False):
        answer = answered(*command)
        if "--hours" in command:
            goal = answer["goal"]
            [found] = [tried for tried in goal["tried"] if tried["spot"] == goal["spot"]]
            assert found["wall_s"]["median"] <= 3600 * goal["hours"] and f"| {goal['spot']}: " in row
            earlier = [tried for tried in goal["tried"] if tried["spot"] < goal["spot"]]
            assert earlier and all(tried["wall_s"]["median"] > 3600 * goal["hours"] for tried in earlier)
            assert max(tried["spot"] for tried in earlier) == goal["spot"] - 1, "no smaller number is left"
            said = asked(*command)
            assert f"With {goal['spot']} spot devices a run ends within 3 h: " in said
            said = said.partition("ends within 3 h: ")[2].partition(";")[0]
        else:
            assert answer["answer"].endswith("simulated from measured steps.")
            said = answer["answer"].partition(": ")[2].partition(" for 40 iterations")[0]
        assert f" {said}" in row, "the document's answer"
        assert re.fullmatch(r"\S+ h \(\S+ to \S+\) and \$\S+ \(\$\S+ to \$\S+\)", said), "in one unit"
    assert answer["exploration"]["cheapest"] == "spot"
    assert any("Exploration" in line or "exploration" in line for line in answer["conclusions"])


def test_a_goal_that_no_number_of_spot_devices_reaches_and_its_prices_by_the_book():
    book = ("--set", "price.book=builtin:known", "--set", "price.offer=H100@gcp/us-east4")
    command = ("--preset", "smoke", "--windows", "1", "--hours", "0.01", "--iterations", "2000", *book)
    goal = answered(*command)["goal"]
    assert goal["spot"] is None and [each["spot"] for each in goal["tried"]] == [0, 1, 2, 4, 8, 16, 32, 64]
    said = asked(*command)
    assert "No tried number of spot devices, up to 64, ends within 0.01 h" in said
    assert "$2.51 spot" in said


def test_no_spot_device_is_asked_for_where_reserved_ones_end_in_time():
    fleet = ("--preset", "smoke", "--windows", "1", "--iterations", "2000", "--hours")
    alone_h = answered(*fleet, "100")["goal"]["tried"][0]["wall_s"]["median"] / 3600
    found = [answered(*fleet, repr(share * alone_h))["goal"]["spot"] for share in (1.0, 0.9998)]
    assert found[0] == 0 and found[1] > 0


def test_the_largest_number_that_is_allowed_is_tried_for_a_goal(tmp_path: Path):
    file = tmp_path / "shared.json"
    file.write_text(shared_profile().model_dump_json())
    devices = ("--reserved", "2", "--windows", "1")
    never = ("--preset", "smoke", "--profile", str(file), *devices, "--hours", "0.01", "--iterations", "2000")
    most = {"--per-instance=9": 63, "--degree=2": 14}
    for option, spot in most.items():
        assert answered(*never, option)["goal"]["tried"][-1]["spot"] == spot
    with pytest.raises(ConfigurationError, match="18 devices that may share samples would be on one machine"):
        asked(*SMALL, "--profile", str(file), *devices, "--spot", "16", "--degree", "2")


@pytest.mark.parametrize("policies", ["spotlight,spot", "critical-path,spot", "larger-batch,spot"])
def test_a_policy_that_drafts_nothing_gets_no_credit_for_exploration(policies: str):
    fleet = ("--preset", "smoke", "--reserved", "4", "--trainers", "4", "--spot", "0", "--windows", "2")
    answer = answered(*fleet, "--policies", policies)
    rows = {row["policy"]: row for row in answer["policies"]}
    plain = rows.pop("spot")
    assert answer["exploration"] is None and plain["milestones"]
    for row in rows.values():
        assert row["drafts_per_iteration"]["high"] == 0
        assert row["milestones"] == plain["milestones"], "the baseline's curve, and no other"


def test_dollars_to_a_score_say_beside_them_which_model_learned():
    fleet = ("--preset", "qwen-image-ocr-512", "--gpu", "H100", "--reserved", "2", "--spot", "8")
    options = (*fleet, "--iterations", "3", "--windows", "1")
    answer = answered(*options)
    other = "of 1.1 million parameters, not on qwen-image 512x512"
    assert other in answer["other_learner"]
    milestones = [each for row in answer["policies"] for each in row["milestones"]]
    assert milestones and all(other in each["other_learner"] for each in milestones)
    scores = [line for line in answer["conclusions"] if "by the curves" in line]
    assert scores and all(other in line for line in scores)
    lines = [line.strip() for line in asked(*options).splitlines()]
    title = next(place for place, line in enumerate(lines) if line.startswith("To a share of the baseline"))
    assert "not on qwen-image 512x512" in " ".join(lines[title : title + 3]), "the table's own title"


def test_a_trace_is_read_and_thinned(tmp_path: Path):
    trace = tmp_path / "zone.csv"
    trace.write_text("0,add,a\n0,add,b\n0,add,c\n20000,remove,a\n60000,remove,b\n90000,add,d\n")
    answer = answered(*SMALL, "--spot", "2", "--trace", str(trace))
    lost = "windows of zone.csv: 0.0 h, 2 losses, 42.35 per instance-hour, "
    assert answer["market"].startswith(lost), "170 s of instances in all"


def test_the_time_line_is_that_of_the_table_s_first_future(tmp_path: Path):
    file = tmp_path / "line.json"
    options = (*SMALL, "--windows", "1", "--loss-rate", "20", "--timeline", str(file))
    answer = answered(*options, "--policy", "spot")
    drawn = json.loads(file.read_text())
    assert drawn["otherData"] | {"evidence": "simulated", "policy": "spot"} == drawn["otherData"]
    figures = next(row for row in answer["policies"] if row["policy"] == "spot")
    spans = [event for event in drawn["traceEvents"] if event["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) / 1e6 == pytest.approx(figures["wall_s"]["median"])
    paid = sum(event["args"].get("usd", 0) for event in spans)
    assert paid == pytest.approx(figures["usd"]["median"])
    asked(*options)
    best = next(row["policy"] for row in answer["policies"] if row["best"])
    assert json.loads(file.read_text())["otherData"]["policy"] == best


def test_a_program_gets_a_line_for_each_run():
    result = CliRunner().invoke(app, ["what-if", *SMALL, "--progress"], catch_exceptions=False)
    lines = result.stderr.splitlines()
    assert lines == [f"simulated {number} of {len(lines)}" for number in range(1, len(lines) + 1)] != []


def test_policies_differ_as_they_should():
    config = small_config(iterations=12, prompts=8, exploration={"candidates": 8})
    offer = FleetPlan(1, 4, 1, 10.0, 2.0)
    figures = {
        answer.policy.name: answer.figures
        for answer in Comparison(config, offer, small_profile(), MARKET, 3).answers()
    }
    time = {name: row["wall_s"].median for name, row in figures.items()}
    assert time["on-demand"] <= time["spot"] <= time["reserved"]
    # Hidden drafts take no time, or a step's; the same drafts before the rollout do.
    assert time["spot"] <= time["spotlight"] <= 1.05 * time["spot"] < time["critical-path"]
    assert figures["spotlight"]["spot_idle_share"].median < figures["spot"]["spot_idle_share"].median
    drafts = figures["spotlight"]["drafts_per_iteration"].median
    assert drafts > 0
    assert figures["critical-path"]["drafts_per_iteration"].median == pytest.approx(drafts, abs=4)


def test_what_is_not_known_widens_the_answer():
    config, offer = small_config(), FleetPlan(1, 1, 1, 10.0, 2.0)
    sure, unsure = (
        Comparison(config, offer, small_profile(uncertainty), MARKET, 4).answers()[0].figures["wall_s"]
        for uncertainty in (0.0, 0.5)
    )
    assert sure.low == sure.high
    assert unsure.low < sure.median < unsure.high


def test_every_carried_profile_is_read_and_named_after_its_file():
    models: list[str] = []
    results = [path for path in PROFILES.glob("*.json") if is_gpu_result(path)]
    for path in results:
        gpu = gpu_of_device(read_gpu_result(path).device)
        assert gpu is not None and path.stem.endswith(gpu.name.lower())
    for path in set(PROFILES.glob("*.json")).difference(results):
        profile = read_profile(path)
        models += profile.models
        assert profile.name == path.stem and profile.device
        for name in profile.evidence.get("measured", ()):
            assert getattr(profile, name).source
    assert len(set(models)) == len(models) > 0, (
        "a model has one profile that is taken unless another is named"
    )


def test_spot_devices_may_be_of_another_kind():
    fleet = ("--reserved", "4", "--spot", "8", "--trainers", "4")
    qwen = ("--preset", "qwen-image-ocr-512", "--iterations", "3", "--windows", "1", *fleet)
    other = ("--gpu", "H200,A100", "--price", "10.98,1.60")
    same = answered(*qwen, "--gpu", "H200")
    kinds = answered(*qwen, *other)
    assert (same["profile"]["spot"], kinds["profile"]["spot"]["device"]) == (None, "A100")
    found = [{row["policy"]: row["wall_s"]["median"] for row in of["policies"]} for of in (same, kinds)]
    assert found[0].keys() - found[1].keys() == {"sized", "window"}
    assert found[0]["reserved"] == found[1]["reserved"]
    assert found[0]["spot"] < found[1]["spot"] < found[0]["reserved"]
    table = asked(*qwen, *other)
    for said in ("profile qwen-image-512x512-h200: ", "on spot devices qwen-image-512x512-a100: "):
        assert said in table
    assert "on H200 step_s " in table and "; on A100 step_s " in table


def test_a_preset_s_profile_is_that_of_its_model_size_and_frames(tmp_path: Path):
    config = load_config("qwen-image-ocr-1280", [], {})
    assert config.model.key == "qwen-image 1280x1280"
    found = find_profile(Home(tmp_path), config, None)
    assert found.name == "qwen-image-h100" and "at 1280x1280 on" in found.summary
    assert find_profile(Home(tmp_path), config, found.name) == found, "it can be named"
    keys = [load_config("wan2.2-ocr-480", [f"model.frames={n}"], {}).model.key for n in (0, 17, 33)]
    assert keys[0] == keys[1] and keys[2] == f"{keys[0]}x33"


def test_a_profile_from_a_recorded_run(tmp_path: Path):
    home = Home(tmp_path).ensure()
    write_sample_run(RunStore(home), "recorded", iterations=4)
    profile = recorded_profile(home, "recorded")
    # 27 device-seconds of rollout for 16 batches of 10 steps, 7 of training for 256 samples, loads of 1 s.
    assert profile.step_s(16) == pytest.approx(27 / 160)
    assert profile.train_sample_s.value == pytest.approx(7 / 256)
    assert profile.weights_s.value == pytest.approx(1.0, abs=1e-6)
    assert profile.step.evidence == "measured" and profile.step.source == "run recorded"
    assert profile.score_s.evidence == "modelled" and profile.score_s.source == "not recorded by run recorded"
    copy = tmp_path / "copy.json"
    copy.write_text(profile.model_dump_json())
    assert read_profile(copy) == profile


def test_the_profile_of_several_runs_is_written_to_a_file(tmp_path: Path):
    home = Home(tmp_path).ensure()
    for run_id in ("one", "two"):
        write_sample_run(RunStore(home), run_id, iterations=4)
    out = tmp_path / "mine.json"
    arguments = ["profile", "one", "two", "--out", str(out)]
    result = CliRunner().invoke(
        app, arguments, catch_exceptions=False, env={"SPOTLIGHT_HOME": str(tmp_path), "COLUMNS": "160"}
    )
    assert result.exit_code == 0 and str(out) in result.stdout
    profile = read_profile(out)
    assert profile == recorded_profile(home, "one", "two")
    assert profile.train_sample_s.value == pytest.approx(7 / 256)
    assert "2 runs: one, two" in profile.step.source


def test_the_wait_for_the_last_scores_says_what_a_score_takes():
    # 256 samples on one reserved and two spot devices: 16 batches in 6 turns, the last of one batch.
    row = {"samples": 256.0, "iteration_s": 20.0, "device_s": 59.9, "rollout_s": 13.0}
    work = pd.DataFrame([row | {"reward_s": waited_s} for waited_s in (0.4, 3.0, math.nan)])
    keeps_up, lags = _score_s(work, batch_size=16, scorers=2, waits_s=1.0)
    assert keeps_up == pytest.approx(0.4 * 2 / 16)
    # Behind from the first turn on: all images take from 2 s to 12 + 3 s.
    assert lags == pytest.approx(13.0 * 2 / 256)


def test_steps_between_two_batches_lie_on_a_line_and_beyond_them_in_proportion():
    data = small_profile().model_dump() | {
        "steps": (StepTime(batch=4, seconds=1.0), StepTime(batch=8, seconds=1.6))
    }
    profile = Profile.model_validate(data)
    assert [profile.step_s(batch) for batch in (2, 4, 6, 8, 16)] == pytest.approx([0.5, 1.0, 1.3, 1.6, 3.2])
    with pytest.raises(ConfigurationError, match="no denoising step time for degree 2"):
        profile.step_s(4, degree=2)
    times = profile.times(batch=4, scorers=2, trainers=2)
    assert (times.score, times.train_sample, times.decode) == (ticks(0.25), ticks(0.5), ticks(1.0))
    drawn = small_profile(0.3).times(4, 1, 1, random.Random(1))
    assert drawn != small_profile(0.3).times(4, 1, 1, random.Random(2))


def test_trainers_that_may_leave_shorten_iterations_also_where_the_number_of_devices_is_decided():
    options = (*SMALL, "--policies", "spot,sized", "--set", "algorithm.prompts_per_iteration=24")
    stay, leave = (
        answered(*options, "--set", f"runtime.trainers_leave={value}")["policies"]
        for value in ("false", "true")
    )
    for before, after in zip(stay, leave, strict=True):
        assert after["iteration_s"]["median"] < before["iteration_s"]["median"]
        assert after["iteration_usd"]["median"] < before["iteration_usd"]["median"]
