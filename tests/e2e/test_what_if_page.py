"""The page What if as a person meets it: the form, the table, the time line, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from flows.cli.command_line import app
from storage.errors import ConfigurationError, RuntimeFailure
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.gpu_profile import GPUS
from tests.dashboard_page import figures, opened_page, ran, sentences, titles
from tests.sample_run import write_sample_run
from ui.elements.formatting import markdown_text
from ui.pages.what_if import question as asking
from ui.pages.what_if.data import FIGURES, Asked, in_words, policy_figures, policy_table, read_time_line
from ui.pages.what_if.question import Question, ask, trace_names

PRICES = "time,market,usd_per_hour,zone\n0,spot,1,a\n0,spot,3,b\n"
SMALL = Question(preset="smoke", reserved=1, spot=3, trainers=1, loss_rate=20.0, windows=2)
SMALL_ADDRESS = {"preset": "smoke", "spot": "3", "iterations": "4", "simulate": "1"}


def answered(options: list[str], home: Home, on_step: Callable[[int, int], None]) -> dict:
    """The command in this process: starting another one takes seconds."""
    on_step(1, 1)
    return json.loads(printed(*options, "--json"))


def printed(*options: str) -> str:
    return CliRunner().invoke(app, ["what-if", *options], catch_exceptions=False).stdout


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_run", answered)


def filled_page(**numbers: float) -> AppTest:
    """The form for a run of the small preset; more fields by their names in the address."""
    page = opened_page("what_if")
    page.selectbox(key="preset").select("smoke").run()
    for name, value in {"spot": 3, "iterations": 4, **numbers}.items():
        page.number_input(key=name).set_value(value)
    return page


def asked_page(**numbers: float) -> AppTest:
    return simulated(filled_page(**numbers))


def simulated(page: AppTest) -> AppTest:
    """The page after the button."""
    page.button[0].click()
    return ran(page)


def test_the_form_begins_with_the_preset_s_values(store: RunStore):
    page = opened_page("what_if")
    assert "Press Simulate" in sentences(page)
    assert not page.metric and not page.dataframe
    preset = page.selectbox(key="preset")
    assert "glyphs" in preset.options and preset.value == "qwen-image-geneval-512"
    for name in ("profile", "spot_profile"):
        assert {gpu.name for gpu in GPUS} <= set(page.selectbox(key=name).options), "which the command counts"
    assert {"bamboo-g4dn", "bamboo-p3"} <= set(page.selectbox(key="trace").options)
    assert in_grey(page) == ["4", "8", "40", "1"], "the cluster says how many, so four and eight"
    preset.select("glyphs-stale").run()
    assert in_grey(page) == ["1", "2", "32", "1"]
    assert page.number_input(key="spot_usd").placeholder == "2.51"
    prices = opened_page("what_if", profile="H200").number_input(key="spot_usd")
    assert prices.placeholder == "the GPU's"
    assert not any(store.home.path.iterdir()), "looking must not make anything"


def in_grey(page: AppTest) -> list[str]:
    names = ("reserved", "spot", "iterations", "trainers")
    return [page.number_input(key=name).placeholder for name in names]


def test_what_is_left_empty_is_the_preset_s_as_in_training(store: RunStore, in_process: None):
    answer = asked_page(reserved=2, windows=1).session_state["what_if"].answer
    assert (answer["reserved"], answer["trainers"], answer["spot"], answer["iterations"]) == (2, 1, 3, 4)
    page = opened_page("what_if", preset="smoke")
    answer = simulated(page).session_state["what_if"].answer
    assert (answer["reserved"], answer["trainers"], answer["spot"], answer["iterations"]) == (1, 1, 2, 2)


def test_the_address_gives_the_answer_again(store: RunStore, in_process: None):
    numbers = {"reserved_usd": 8.0, "spot_usd": 2.0, "loss_rate": 20.0, "windows": 2}
    first = asked_page(**numbers)
    assert first.query_params["simulate"] == "1"
    again = opened_page("what_if", **SMALL_ADDRESS, **{name: str(value) for name, value in numbers.items()})
    assert again.session_state["what_if"].question == first.session_state["what_if"].question
    assert again.success[0].value == first.success[0].value
    assert again.dataframe[0].value.equals(first.dataframe[0].value)
    goal = opened_page("what_if", preset="smoke", iterations="4", hours="4", simulate="1")
    assert "spot devices a run ends within 4 h: " in goal.success[0].value
    unknown = opened_page("what_if", **SMALL_ADDRESS, profile="gone")
    assert "profile='gone' in the page's address does not exist here; remove it" in sentences(unknown)
    assert not unknown.success, "no answer to another question than the link's"


def test_the_answer_is_the_command_s_sentence(store: RunStore, in_process: None):
    page = opened_page("what_if", **SMALL_ADDRESS)
    [said] = [box.value for box in page.success]
    assert said == markdown_text(printed("--preset=smoke", "--spot=3", "--iterations=4").partition("\n")[0])


def test_the_button_gives_a_table_of_policies_that_is_marked_as_simulated(store: RunStore, in_process: None):
    page = asked_page(loss_rate=20.0)
    table = page.dataframe[0].value
    policies = [name.removesuffix(" ★") for name in table["policy"]]
    assert {"reserved", "on-demand", "spot", "spotlight", "critical-path"} <= set(policies)
    assert sum(name.endswith("★") for name in table["policy"]) == 1
    assert {"time", "dollars", "× dollars", "idle", "losses"} <= set(table.columns)
    assert figures(page)["Time"] and figures(page)["Dollars"].startswith("$")
    marked = [part.value for part in [*page.header, *page.subheader, *page.success, *page.markdown]]
    assert [text for text in marked if "badge[" in text] == ["What if :orange-badge[simulated]"]
    drawn = titles(page)
    assert len(drawn) >= 4 and all(title.endswith("(simulated)") for title in drawn)
    milestones = page.dataframe[1].value
    assert [name.split("%")[0] for name in milestones.columns[1:5]] == ["25", "50", "75", "100"]
    assert all(", $" in cell for cell in milestones[milestones.columns[1]])
    [caption] = [one.value for one in page.caption if "share of the baseline" in one.value]
    [basis] = [one.value for one in page.markdown if one.value.startswith("- preset smoke")]
    for said in (caption, basis):
        assert "of 1.1 million parameters, not on embedded:glyphs" in said, "the curves are not of this model"
    again = ran(page)
    assert again.dataframe[0].value.equals(table), "the answer stays"


def test_what_cannot_be_is_refused_in_the_command_s_words(store: RunStore, in_process: None):
    page = asked_page()
    page.number_input(key="trainers").set_value(9)
    simulated(page)
    assert "runtime.trainer\\_workers is 9, above runtime.reserved\\_workers=1" in sentences(page)
    assert not page.dataframe, "an answer to another question is not shown"


def test_recorded_runs_are_offered_as_profiles(store: RunStore):
    write_sample_run(store, "recorded", iterations=2)
    assert "recorded" in opened_page("what_if").selectbox(key="profile").options


def test_a_trace_prices_and_a_serving_fleet_of_one_s_own(store: RunStore, in_process: None):
    page = filled_page()
    trace, prices = page.file_uploader
    trace.set_value(("mine.csv", b"0,add,a\n0,add,b\n9000,remove,b\n", "text/csv"))
    prices.set_value(("ours.csv", PRICES.encode(), "text/csv"))
    page.text_input(key="serving").set_value("0.4,0.2,3")
    simulated(page)
    assert sentences(page).startswith("price file prices.csv: it has no prices of zone ''"), (
        "and no path of this machine"
    )
    page.text_input(key="zone").set_value("b")
    simulated(page)
    assert not page.error, sentences(page)
    assert "simulate" not in page.query_params, "an address holds no files"
    answer = page.session_state["what_if"].answer
    assert answer["spot_usd_per_hour"] == pytest.approx(3.0)
    assert "trace.csv" in answer["market"]
    assert answer["serving"].startswith("lending: 40% of the serving fleet is busy")
    assert "lending" in [row["policy"] for row in answer["policies"]]


def test_a_question_is_the_command_s_options(tmp_path: Path):
    assert Question(preset="glyphs").arguments(tmp_path) == ["--preset=glyphs"]
    whole = Question(
        preset="glyphs", reserved=4, spot=2, trainers=1, iterations=9, reserved_usd=8.0, trace="bamboo-p3",
        notice=30.5, profile="--help", seed=3,
    )  # fmt: skip
    arguments = whole.arguments(tmp_path, windows=1)
    trace = next(one for one in arguments if one.startswith("--trace="))
    assert Path(trace.removeprefix("--trace=")).is_file() and "bamboo-p3" in trace_names()
    assert [one for one in arguments if one != trace] == [
        "--preset=glyphs", "--reserved=4", "--spot=2", "--trainers=1", "--iterations=9", "--profile=--help",
        "--notice=30.5", "--price=8,", "--windows=1", "--seed=3",
    ]  # fmt: skip


def test_the_command_answers_in_a_process_of_its_own(store: RunStore):
    steps: list[tuple[int, int]] = []
    answer, trace = ask(SMALL, store.home, lambda done, runs: steps.append((done, runs)))
    count = len(answer["policies"])
    assert steps == [(done, 2 * count) for done in range(1, 2 * count + 1)], "two futures"
    best = next(row for row in answer["policies"] if row["best"])
    line = read_time_line(best["policy"], trace)
    assert len(line.ends) == answer["iterations"]
    with pytest.raises(ConfigurationError, match=r"^--price is '8,'; give the dollars per hour"):
        ask(SMALL.model_copy(update={"reserved_usd": 8.0}), store.home, lambda done, runs: None)


def test_an_answer_that_takes_too_long_is_ended(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asking, "_LIMIT_S", 0.05)
    with pytest.raises(RuntimeFailure, match=r"took longer than 0\.05 s and was stopped"):
        ask(SMALL, store.home, lambda done, runs: None)


def row(policy: str, usd: float, wall_s: float, best: bool = False, **more: float) -> dict:
    spread = {"usd": usd, "wall_s": wall_s, **more}
    figures = {name: {"low": value / 2, "median": value, "high": value} for name, value in spread.items()}
    about = {"policy": policy, "summary": f"does {policy}", "evidence": "modelled", "live": True}
    return {**about, "best": best, **figures}


def small_trace() -> str:
    """Two iterations of 10 s: a reserved device, and a spot one that is lost at 15 s."""

    def device(name: str, process: int, iteration: int, began_s: float, ended_s: float) -> dict:
        args = {"iteration": iteration, "phase": "iteration", "usd": 0.5 * (ended_s - began_s)}
        return {
            "ph": "X", "cat": "device", "name": name, "pid": process, "tid": process, "ts": 1e6 * began_s,
            "dur": 1e6 * (ended_s - began_s), "args": args,
        }  # fmt: skip

    names = {1: "simulated run", 2: "simulated reserved devices", 3: "simulated spot devices"}
    threads = {1: "run", 2: "reserved-0", 3: "spot-0"}
    events: list[dict] = [
        {"ph": "M", "name": kind, "pid": process, "tid": process, "args": {"name": name}}
        for kind, named in (("process_name", names), ("thread_name", threads))
        for process, name in named.items()
    ]
    events += [
        {
            "ph": "X", "cat": "run", "name": f"iteration {number}", "pid": 1, "tid": 1,
            "ts": 1e7 * (number - 1), "dur": 1e7, "args": {"iteration": number},
        }
        for number in (1, 2)
    ]  # fmt: skip
    events += [
        device("rollout", 2, 1, 0, 6), device("train", 2, 1, 6, 10), device("rollout", 2, 2, 10, 20),
        device("rollout", 3, 1, 0, 6), device("explore", 3, 1, 6, 10), device("rollout", 3, 2, 10, 15),
        {"ph": "i", "s": "t", "cat": "happened", "name": "lost", "pid": 3, "tid": 3, "ts": 1.5e7},
    ]  # fmt: skip
    return json.dumps({"traceEvents": events})


def test_a_chrome_trace_is_read_back_as_what_devices_did():
    line = read_time_line("spot", small_trace())
    assert line.ends.to_dict("list") == {"iteration": [1, 2], "ended_at": [10.0, 20.0]}
    second = line.course(2, 2)
    assert second.intervals[["worker", "state", "started_at", "ended_at"]].values.tolist() == [
        ["reserved-0", "rollout", 10.0, 20.0], ["spot-0", "rollout", 10.0, 15.0],
    ]  # fmt: skip
    assert set(second.intervals["of"]) == {2}
    assert second.events[["worker", "kind", "happened_at"]].values.tolist() == [["spot-0", "lost", 15.0]]
    assert line.course(1, 1).events.empty


def rows(frame: pd.DataFrame) -> list[dict]:
    return frame.to_dict("records")


def test_the_ledger_of_a_time_line_sums_to_its_bill():
    line = read_time_line("spot", small_trace())
    spent = {(one["market"], one["state"]): (one["device_s"], one["usd"]) for one in rows(line.by_state())}
    assert spent == {
        ("reserved", "rollout"): (16, 8), ("reserved", "train"): (4, 2),
        ("spot", "rollout"): (11, 5.5), ("spot", "explore"): (4, 2),
    }  # fmt: skip
    shares = {(one["market"], one["first"], one["state"]): one["share"] for one in rows(line.utilisation())}
    assert shares == {
        ("reserved", 1, "rollout"): 0.6, ("reserved", 1, "train"): 0.4, ("reserved", 2, "rollout"): 1,
        ("spot", 1, "rollout"): 0.6, ("spot", 1, "explore"): 0.4, ("spot", 2, "rollout"): 1,
    }  # fmt: skip


def test_policies_beside_the_best_and_any_number_of_them():
    rows = [
        row("slow", 300.0, 7200.0),
        row("lean", 100.0, 3600.0, best=True, losses=4),
        row("dear", 150.0, 900.0) | {"live": False},
    ]
    line = read_time_line("lean", small_trace())
    asked = Asked(Question(preset="glyphs"), {"policies": rows}, line)
    table = policy_table(asked)
    assert table["policy"].tolist() == ["slow", "lean ★", "dear (no live run)"]
    assert table["× dollars"].tolist() == ["3.00", "1.00", "1.50"]
    assert table["× time"].tolist() == ["2.00", "1.00", "0.25"]
    assert table["dollars"].tolist()[1] == "$100.00 ($50.00 to $100.00)"
    assert in_words(rows[1], "losses") == "4 (2 to 4)" and "losses" in FIGURES
    figures = policy_figures(asked)
    assert set(figures["evidence"]) == {"modelled"}
    assert figures.loc[figures["best"], "usd_low"].tolist() == [50.0]
    assert len(policy_table(Asked(Question(preset="glyphs"), {"policies": [rows[1]]}, line))) == 1
