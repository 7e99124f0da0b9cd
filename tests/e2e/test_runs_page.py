"""The page Runs as a person meets it: filters, notes, which runs are compared, and time to a score."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from storage.config.run_config import RunConfig
from storage.record.results import run_result
from storage.record.run_store import RunNotes, RunStore
from tasks.inputs import plugin_facts
from tests.dashboard_page import opened_page, pictures, read_anew, sentences
from tests.sample_run import evaluation_record, iteration_record, write_sample_run
from tests.sample_seeds import explored
from tests.tampering import set_run
from ui.pages.runs.data import first_compared, load_table, of_one_scale, paid_chart
from ui.report.report import report_page

pytestmark = pytest.mark.xdist_group("recorded")


def begun(store: RunStore, run_id: str, preset: str | None = None, **settings: object) -> None:
    config = RunConfig.model_validate({"name": run_id.partition("-")[0], **settings})
    facts = {} if preset is None else {"preset": preset}
    store.create_run(run_id, config, facts, os.getpid())
    store.commit_evaluation(evaluation_record(run_id, 0, time.time(), images=4, gallery=0))
    store.set_status(run_id, "finished")


def listed(page: AppTest) -> list[str]:
    return page.dataframe[0].value["run"].tolist()


@pytest.fixture
def page(store: RunStore) -> AppTest:
    shapes = {"reward": {"scorer": "shapes"}, "prompts": {"evaluate": "builtin:shapes-evaluate"}}
    begun(store, "shapes-1", "shapes", **shapes)
    begun(store, "glyphs-1")
    begun(store, "shapes-2", "my/shapes.toml", **shapes, exploration={"strategy": "stale"})
    return opened_page("runs")


def test_the_table_says_what_was_trained_and_runs_of_one_task_are_compared_and_found(page: AppTest):
    table = page.dataframe[0].value.set_index("run")
    assert table.loc["shapes-2", ["preset", "reward", "strategy"]].tolist() == [
        "my/shapes.toml", "shapes", "stale"
    ]  # fmt: skip
    assert table.loc["glyphs-1", ["preset", "reward", "strategy"]].tolist() == ["–", "ocr", "plain"], (
        "its name is no preset"
    )
    assert set(table["prices"]) == {"modelled"}
    assert page.multiselect("compared").value == ["shapes-2", "shapes-1"]
    page.multiselect("run_reward").set_value(["ocr"]).run()
    assert page.multiselect("compared/reward=['ocr']").value == ["glyphs-1"]
    page.multiselect("run_reward").set_value(["shapes"]).run()
    assert listed(page) == ["shapes-2", "shapes-1"]
    page.text_input("run_words").input("STALE").run()
    assert listed(page) == ["shapes-2"]
    page.text_input("run_words").input("no such").run()
    assert not page.exception
    assert "No run matches" in "\n".join(caption.value for caption in page.caption)


def test_dollars_that_were_paid_need_no_column_of_prices_and_no_fraction_of_a_cent(recorded: None):
    table = opened_page("runs").dataframe[0]
    assert "prices" not in table.value and "exact now" in table.value
    assert '"$%.2f"' in table.proto.columns


def test_runs_of_checks_are_left_out_marked_and_found(store: RunStore):
    begun(store, "own")
    store.create_run("again", RunConfig(), {"purpose": "reproduction"}, os.getpid())
    store.create_run("modelled", RunConfig(), {"simulated": "a fleet"}, os.getpid())
    set_run(store, "modelled", status="simulated")
    page = opened_page("runs")
    assert listed(page) == ["own"], "checks and simulated runs are left out"
    page.toggle("run_checks").set_value(True).run()
    assert page.dataframe[0].value["purpose"].tolist() == ["", "reproduction", ""]
    page.text_input("run_words").input("reproduction").run()
    assert listed(page) == ["again"]


def test_a_run_whose_folder_was_renamed_is_not_silently_gone(store: RunStore):
    for run_id in ("kept", "renamed"):
        begun(store, run_id)
    assert not opened_page("runs").warning
    store.home.run("renamed").rename(store.home.runs / "best")
    read_anew()
    page = opened_page("runs")
    assert listed(page) == ["kept"]
    assert "rename the folder to renamed" in page.warning[0].value


def test_scores_of_other_rewards_and_base_models_are_not_drawn_beside_them(page: AppTest):
    page.multiselect("compared").set_value(["shapes-2", "glyphs-1", "shapes-1"]).run()
    assert not page.exception
    (told,) = (info.value for info in page.info)
    assert "Not drawn: glyphs-1" in told.replace("\\", "") and "compare them separately" in told
    table = pd.DataFrame({"run_id": ["a", "b", "c"], "scale": ["x", "y", "x"], "reward_file": ""})
    assert of_one_scale(table, ["b", "a", "c"]) == (["b"], ["a", "c"])


def test_two_versions_of_a_rewards_file_are_not_drawn_together_and_an_unknown_one_passes(store: RunStore):
    for run_id, digest in (("old", ""), ("one", "1" * 64), ("other", "2" * 64), ("again", "1" * 64)):
        facts = {"digest reward": digest} if digest else {}
        store.create_run(run_id, RunConfig(), facts, os.getpid())
    table = load_table(store.home)
    assert of_one_scale(table, ["old", "one", "other", "again"]) == (["old", "one", "again"], ["other"])
    assert of_one_scale(table, ["other", "old", "one"]) == (["other", "old"], ["one"])


def test_the_compared_runs_and_the_figure_are_kept_in_the_address(page: AppTest):
    assert page.query_params["compare"] in ("shapes-2,shapes-1", ["shapes-2,shapes-1"])
    page.multiselect("compared").set_value(["shapes-1"]).run()
    assert page.query_params["compare"] in ("shapes-1", ["shapes-1"])
    named = opened_page("runs", compare="glyphs-1,gone", figure="held-out exact matches")
    assert named.multiselect("compared").value == ["glyphs-1"]
    assert named.selectbox("compared_figure").value == "held-out exact matches"
    assert any("Not among the listed runs with a score: gone" in caption.value for caption in named.caption)


def test_compared_runs_have_their_settings_images_and_any_figure_side_by_side(store: RunStore):
    for run_id, rate in (("slow", 1e-5), ("fast", 1e-3)):
        store.create_run(run_id, RunConfig.model_validate({"optimizer": {"learning_rate": rate}}), {}, 1)
        store.commit_evaluation(evaluation_record(run_id, 0, time.time(), images=4, gallery=2))
        store.commit_iteration(iteration_record(run_id, 1, time.time(), samples=32))
        store.set_status(run_id, "finished")
    page = opened_page("runs", compare="slow,fast")
    settings = next(table.value for table in page.dataframe if "setting" in table.value)
    assert settings.to_dict("records") == [
        {"setting": "optimizer.learning_rate", "slow": "1e-05", "fast": "0.001"}
    ]
    assert pictures(page).count("data:image/png;base64,") == 4
    assert "slow, before training" in pictures(page)
    page.selectbox("compared_figure").select("gradient_norm").run()
    assert not page.exception
    assert "gradient_norm" in str(page.get("plotly_chart")[0].proto)


def test_runs_that_differ_in_their_strategy_get_an_answer(store: RunStore):
    for strategy, skill in (("plain", 1), ("off_policy", 40)):
        config = RunConfig.model_validate({"iterations": 5, "exploration": {"strategy": strategy}})
        store.create_run(strategy, config, {}, os.getpid())
        store.commit_evaluation(evaluation_record(strategy, 0, 1000.0))
        for iteration in range(1, 6):
            store.commit_iteration(iteration_record(strategy, iteration, 1000.0 + 18 * iteration, samples=32))
        record = evaluation_record(strategy, skill, 1200.0)
        store.commit_evaluation(replace(record, iteration=5))
        store.set_status(strategy, "finished")
    page = opened_page("runs", compare="off_policy,plain")
    text = page.success[0].value.replace("\\", "")
    assert "off_policy: scores clearly higher than plain at equal iterations, trained samples" in text
    captions = "\n".join(caption.value for caption in page.caption)
    assert "another run seed may give another answer" in captions
    assert opened_page("runs", compare="plain").success == []


def test_a_reward_without_verdict_has_no_exact_matches_on_any_page(store: RunStore):
    config = RunConfig.model_validate({"reward": {"scorer": "jpeg"}, "exploration": {"strategy": "stale"}})
    store.create_run("graded", config, plugin_facts(config), os.getpid())
    store.commit_evaluation(evaluation_record("graded", 0, time.time(), images=4, gallery=2))
    store.commit_iteration(explored(iteration_record("graded", 1, time.time())))
    store.commit_evaluation(evaluation_record("graded", 1, time.time(), images=4, gallery=2))
    store.set_status("graded", "finished")
    for name in ("runs", "convergence", "seeds", "images", "health", "cost", "spot"):
        page = opened_page(name, **({"run": "graded"} if name != "runs" else {}))
        assert "exact" not in shown(page).lower().replace("exactly", ""), name
    report = report_page(store, "graded").rpartition("<body>")[2]
    assert "exact" not in re.sub(r"<script.*?</script>", "", report, flags=re.S).lower().replace(
        "exactly", ""
    )
    assert "exact_after" not in run_result(store, "graded")


def shown(page: AppTest) -> str:
    """All texts, labels, choices, tables and charts of a page."""
    texts = [part.value for part in (*page.markdown, *page.caption, *page.header, *page.subheader)]
    texts += [sentences(page), str([[metric.label, metric.value] for metric in page.metric])]
    texts += [str(list(table.value.columns)) for table in page.dataframe]
    texts += [
        str(list(choice.options)) for choice in (*page.segmented_control, *page.selectbox, *page.multiselect)
    ]
    texts += [chart.proto.spec for chart in page.get("plotly_chart")]
    bodies = (
        re.sub(r"base64,[^\"]+|<style>.*?</style>", "", h.proto.body, flags=re.S) for h in page.get("html")
    )
    return "\n".join([*texts, *bodies])


def test_a_run_is_tagged_noted_and_archived(page: AppTest, store: RunStore):
    page.multiselect("noted").set_value(["glyphs-1"]).run()
    page.text_input("tags-glyphs-1").input("paper, good")
    page.text_area("note-glyphs-1").input("a word, <b>$1</b>")
    page.button[0].click().run()
    assert not page.exception
    assert store.notes() == {"glyphs-1": RunNotes(("paper", "good"), "a word, <b>$1</b>")}
    assert page.dataframe[0].value.set_index("run").loc["glyphs-1", "note"] == "a word, <b>$1</b>"
    page.text_input("run_words").input("paper").run()
    assert listed(page) == ["glyphs-1"]
    page.text_input("run_words").input("")
    page.checkbox("archived-glyphs-1").check()
    page.button[0].click().run()
    assert listed(page) == ["shapes-2", "shapes-1"]
    page.toggle("run_archived").set_value(True).run()
    assert "glyphs-1" in listed(page)
    page.multiselect("noted").set_value(["glyphs-1", "shapes-1"]).run()
    page.text_input("tags-glyphs-1+shapes-1").input("x" * 41)
    page.button[0].click().run()
    assert "at most 40 are kept" in page.error[0].value
    page.text_input("tags-glyphs-1+shapes-1").input("new")
    page.button[0].click().run()
    assert {run: notes.tags for run, notes in store.notes().items()} == {
        "glyphs-1": ("paper", "good", "new"), "shapes-1": ("new",),
    }  # fmt: skip


def test_the_time_to_a_score_begins_with_training(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.commit_evaluation(evaluation_record("r", 0, 1000.0))
    for iteration in range(1, 11):
        store.commit_iteration(iteration_record("r", iteration, 1009.0 + 18 * (iteration - 1), samples=32))
    store.commit_evaluation(evaluation_record("r", 10, 1189.0))
    store.set_status("r", "finished")
    page = opened_page("runs")
    [row] = page.dataframe[1].value.to_dict("records")
    assert row["after iterations"] == "10"
    assert row["training for"] == "3 min 9 s", "ten iterations of 18 s and one evaluation of 9 s, not two"
    assert row["paid for it"] == f"${189 * (10.98 + 2 * 2.51) / 3600:.2f} (modelled)"
    page.number_input[0].set_value(0.1).run()
    assert page.dataframe[1].value["after iterations"].tolist() == ["before training"]


def test_names_of_runs_leave_room_for_the_bars_of_their_cost():
    names = ["smoke-20261201-030610-b715", "short"]
    table = pd.DataFrame({"run_id": names, "modelled": [True, False], "usd": [1.0, 2.0]})
    mixed: Any = paid_chart(table).layout
    assert mixed.yaxis.ticktext == ("smoke-2…030610-b715 (modelled)", "short")
    assert mixed.yaxis.tickvals == (f"{names[0]} (modelled)", "short"), (
        "whole names keep two runs' bars apart"
    )
    alike: Any = paid_chart(table.assign(modelled=True)).layout
    assert alike.yaxis.ticktext == ("smoke-2…030610-b715", "short")
    assert alike.xaxis.title.text == "US dollars (modelled)"


def test_a_large_bill_has_no_exponent_under_the_pointer(recorded: None):
    """Plotly writes 12345.678 in the format `.4g` as 1.235e+4."""
    table = pd.DataFrame({"run_id": ["a"], "modelled": [False], "usd": [12345.678]})
    bills = [str(chart.proto) for chart in opened_page("cost").get("plotly_chart")]
    shown = [
        found for text in [*bills, str(paid_chart(table))] for found in re.findall(r"\$%{[xy]:(.*?)}", text)
    ]
    assert len(shown) > 4 and {*shown} == {",.4r"}


def test_no_more_runs_are_compared_at_first_than_fit():
    table = pd.DataFrame({"run_id": list("abcd"), "score_now": [0.5] * 4, "task": ["x", "y", "x", "x"]})
    assert first_compared(table, 2) == ["a", "c"]


def test_the_run_box_leaves_archived_runs_out_but_for_the_one_of_the_address(store: RunStore):
    for number in range(3):
        store.create_run(f"r-{number}", RunConfig(), {}, os.getpid())
    store.change_notes("r-2", tags=["paper", "a_b"], note="see *this* $1", archived=True)
    read_anew()

    def offered(**query: str) -> list[str]:
        page = opened_page("health", **query)
        return [option.partition(" ")[0] for option in page.selectbox[0].options]

    assert offered() == ["r-1", "r-0"], "the newest that is not archived is shown"
    assert offered(run="r-2") == ["r-2", "r-1", "r-0"]
    page = opened_page("health", run="r-2")
    text = "\n".join(part.value for part in [*page.markdown, *page.caption])
    assert all(words in text for words in ("archived]", "-badge[paper]", r"a\_b", r"see \*this\* \$1"))
    report = report_page(store, "r-2")
    assert "running, archived; started" in report
    assert "paper, a_b" in report
    assert "see *this* $1" in report
    for number in range(2):
        store.change_notes(f"r-{number}", archived=True)
    read_anew()
    assert offered() == ["r-2", "r-1", "r-0"], "all are archived"


def test_a_run_that_is_archived_is_not_called_one_without_a_score(store: RunStore):
    write_sample_run(store, "glyphs-1", iterations=2)
    store.change_notes("glyphs-1", archived=True)
    page = opened_page("runs")
    assert "No listed run has been evaluated" in page.info[0].value
