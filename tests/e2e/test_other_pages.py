"""The pages Runs, Cost, Images and Health as a person meets them, and each without anything to show."""

from __future__ import annotations

import io
import os
import time

import pytest
from rich.console import Console
from streamlit.testing.v1 import AppTest

from flows.progress import Reporter
from storage.config.run_config import RunConfig
from storage.record.results import run_result
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tasks.inputs import plugin_facts
from tests.dashboard_page import (
    CACHE_S,
    captions,
    figures,
    opened_page,
    pictures,
    ran,
    read_anew,
    sentences,
    titles,
)
from tests.sample_run import evaluation_record, iteration_record, write_sample_run
from tests.sample_spot import write_spot_run
from tests.tampering import damage, make_earlier_home, row_files, set_run
from ui.report.report import report_page

pytestmark = pytest.mark.xdist_group("recorded")

PAGES = ("runs", "convergence", "seeds", "spot", "cost", "images", "health")
FRAMES = ("runs", "convergence")  # a page of all runs and one of a run: what is around each page
TABLES = ("iterations", "samples", "candidates", "worker_states", "evaluation_images")


def charts(page: AppTest) -> list[str]:
    return [str(chart.proto) for chart in page.get("plotly_chart")]


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_home_says_how_to_start(store: RunStore, name: str):
    page = opened_page(name)
    assert page.title[0].value == "No runs yet"
    assert page.code[0].value == "spotlight train --preset glyphs"
    assert not any(store.home.path.iterdir()), "looking must not make anything"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("runs", "No listed run has been evaluated"),
        ("cost", "Costs appear with the first"),
        ("spot", "come with the first evaluation or iteration"),
        ("images", "Images appear with the first evaluation"),
        ("health", "The first findings appear with the first"),
    ],
)
def test_a_run_of_which_nothing_is_recorded_yet(store: RunStore, name: str, words: str):
    store.create_run("r", RunConfig(), {}, os.getpid())
    page = opened_page(name)
    assert words in sentences(page)
    assert not page.get("plotly_chart")


@pytest.mark.parametrize("name", FRAMES)
def test_a_home_of_an_earlier_version_is_explained(store: RunStore, name: str):
    make_earlier_home(store.home)
    assert "was made by an earlier version" in opened_page(name).error[0].value


@pytest.mark.parametrize("name", FRAMES)
def test_a_damaged_description_of_a_run_is_named(store: RunStore, name: str):
    store.create_run("r", RunConfig(), {}, os.getpid())
    file = store.home.run("r") / RUN_FILE
    file.write_bytes(os.urandom(2000))
    assert f"{file.name} is damaged" in opened_page(name).error[0].value.replace("\\", "")


@pytest.mark.parametrize("name", PAGES)
def test_of_damaged_rows_the_rest_is_shown(store: RunStore, name: str):
    write_sample_run(store, "r", iterations=3, status="running", exploring=True)
    for table in TABLES:
        damage(row_files(store, "r", table)[-1])
    page = opened_page(name)
    assert not [box for box in page.error if "DuckDB" in box.value]
    if name == "runs":
        assert page.dataframe[0].value["run"].tolist() == ["r"]
    else:
        assert "Rows are missing here" in sentences(page)
    if name == "convergence":
        assert figures(page)["Iterations"] == "2 of 40"


def test_folders_without_a_description_are_named(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    (store.home.run("r") / RUN_FILE).unlink()
    assert "has no run.json" in opened_page("runs").warning[0].value.replace("\\", "")


def test_runs_are_compared(store: RunStore):
    write_sample_run(store, "long", iterations=20)
    write_sample_run(store, "short", iterations=10)
    store.create_run("silent", RunConfig(), {}, os.getpid())
    page = opened_page("runs")
    table = page.dataframe[0].value
    assert table["run"].tolist() == ["silent", "short", "long"]
    assert table["at work"].tolist()[2] == "6 min 27 s", "20 iterations of 18 s and three evaluations of 9 s"
    assert page.multiselect("compared").options == ["short", "long"], "only what has scores can be compared"
    titles = ["Over iterations", "Cost so far"]
    assert all(title in chart for title, chart in zip(titles, charts(page), strict=True))
    page.segmented_control("compared_axis").select("Time").run()
    assert "Over time at work" in charts(page)[0]
    reached = page.dataframe[1].value.set_index("run")
    assert not reached["after iterations"].str.contains("not reached").any()
    page.number_input[0].set_value(1.0).run()
    assert not page.exception
    cells = page.dataframe[1].value["after iterations"].tolist()
    assert all(cell.startswith("not reached (best 0.") for cell in cells)
    page.multiselect("compared").set_value([]).run()
    assert "Choose the runs to compare" in captions(page)


def test_a_new_run_appears_in_the_table(store: RunStore):
    store.create_run("live", RunConfig(), {}, os.getpid())
    page = opened_page("runs")
    store.commit_evaluation(evaluation_record("live", 0, time.time()))
    time.sleep(CACHE_S)
    ran(page)
    assert page.multiselect("compared").options == ["live"]


def test_the_bill_and_what_it_would_be_on_demand_only(recorded: None):
    page = opened_page("cost", run="glyphs-1")
    seconds = 40 * 18 + 5 * 9
    shown = figures(page)
    assert shown["On demand only"] == f"${3 * seconds * 10.98 / 3600:.2f}"
    assert shown["Reserved"] == f"${seconds * 10.98 / 3600:.2f}"
    assert shown["Spot"] == f"${2 * seconds * 2.51 / 3600:.2f}"
    # (3 x 10.98 - 10.98 - 2 x 2.51) / (3 x 10.98)
    assert "(51 %)" in page.success[0].value
    assert "Assumption: the same devices for the same seconds" in captions(page)
    titles = (
        "Cost so far, by market", "What was paid for", "By phase and market", "The bill, and on demand only",
    )  # fmt: skip
    assert all(title in chart for title, chart in zip(titles, charts(page), strict=True))
    assert "modelled" not in sentences(page) + captions(page) + page.header[0].value, "they were rented"
    assert not [metric.label for metric in page.metric if "modelled" in metric.label]


def test_images_over_the_iterations(recorded: None):
    page = opened_page("images", run="glyphs-1")
    grid = pictures(page)
    assert grid.count("<details") == 8 * 5, "a page of eight prompts, five evaluations"
    assert grid.count("before training</div>") == 8
    large = [element.proto.body for element in page.get("html") if 'class="sl-large"' in element.proto.body]
    assert large[0].count("<img") == 5
    assert "after 40 iterations" in chosen_evaluation(page)
    page.select_slider[0].set_value(0).run()
    assert "before training" in chosen_evaluation(page)
    assert "Mean score of these 12 images" in captions(page)
    page.selectbox[1].select("most gained").run()
    gained = pictures(page)
    page.selectbox[1].select("most lost").run()
    assert not page.exception and pictures(page) != gained
    page.number_input[0].set_value(2).run()
    assert pictures(page).count("<details") == 4 * 5
    prompt = page.selectbox[2]
    prompt.select_index(7).run()
    assert not page.exception
    assert large[0] not in [element.proto.body for element in page.get("html")]
    page.text_input[0].input("no such words").run()
    assert "clear the field to see all" in captions(page)


def chosen_evaluation(page: AppTest) -> str:
    """The images of the evaluation that the slider chooses."""
    bodies = (element.proto.body for element in page.get("html"))
    found = next(body for body in bodies if "sl-evaluation" in body)
    assert found.count("<img") == 12
    return found


def test_the_health_of_a_run(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    write_spot_run(store, "r", iterations=6, start=1e9, lost_in=5)
    page = opened_page("health")
    text = "\n".join(part.value for part in page.markdown)
    assert "Idle spot devices" in text, "10 % idle is fine"
    assert "No problems" in sentences(page) or "other checks." in text
    record = iteration_record("r", 7, 1e9 + 108)
    record.metrics["clip_share"] = 17.0
    store.commit_iteration(record)
    read_anew()
    assert "Lower `optimizer.learning_rate` from 0.0001 to 5e-05" in "\n".join(
        box.value for box in ran(page).error
    )


def test_each_chart_stands_on_one_page_once(recorded: None):
    found = [title for name in PAGES if name != "runs" for title in titles(opened_page(name, run="explored"))]
    assert len(found) > 10
    assert sorted(found) == sorted(set(found))


def test_an_objective_without_clipping_shows_no_figure_of_it(store: RunStore):
    shown = {}
    for objective in ("grpo", "nft"):
        config = RunConfig.model_validate({"algorithm": {"objective": objective}})
        store.create_run(objective, config, plugin_facts(config), os.getpid())
        store.commit_evaluation(evaluation_record(objective, 0, time.time()))
        for iteration in (1, 2):
            store.commit_iteration(iteration_record(objective, iteration, time.time()))
        read_anew()
        page = opened_page("convergence", run=objective)
        shown[objective] = [*titles(page), *figures(page)]
    assert {"Clipped denoising steps", "Ratio deviation at the first update"} <= set(shown["grpo"]), shown
    assert not [text for text in shown["nft"] if "lipped" in text or "atio dev" in text]
    assert "Prompts without signal" in shown["nft"]


def on_cpu(store: RunStore, run_id: str) -> None:
    """A run of a machine without accelerators."""
    write_sample_run(store, run_id, iterations=10)
    set_run(store, run_id, environment={"accelerators": "none"})


@pytest.mark.parametrize("name", ["convergence", "spot", "cost", "health", "seeds", "images"])
def test_a_run_on_cpu_is_called_modelled_once_a_page(store: RunStore, name: str):
    on_cpu(store, "cpu")
    page = opened_page(name)
    assert page.header[0].value.endswith(" :gray-badge[dollars modelled]")
    texts = [*page.markdown, *page.caption, *page.subheader]
    assert "modelled]" not in sentences(page) + "".join(part.value for part in texts)
    assert not [metric.label for metric in page.metric if "modelled" in metric.label]
    assert all(chart.count("US dollars") == chart.count("US dollars (modelled)") for chart in charts(page))
    assert "saved" not in sentences(page)
    assert not [box for box in page.success if r"\$" in box.value and name == "cost"]


def test_every_sum_of_a_report_and_a_comparison_on_cpu_is_called_modelled(store: RunStore):
    on_cpu(store, "cpu")
    report = report_page(store, "cpu")
    for text in [report.rpartition("<body>")[2], *charts(opened_page("runs"))]:
        assert text.count("US dollars") == text.count("US dollars (modelled)")
    assert "<th>usd (modelled)</th>" in report
    assert "<th>usd</th>" not in report
    assert run_result(store, "cpu")["prices"] == "modelled"


@pytest.mark.parametrize(("prices", "mark"), [("modelled", " (modelled)"), ("as set", "")])
def test_the_command_line_marks_modelled_dollars_only(prices: str, mark: str):
    reporter = Reporter(Console(file=(said := io.StringIO()), width=200))
    figures = {"score_before": None, "drafts": 0, "spot_idle": None, "judge_usd": 0.0, "groups_dropped": 0}
    reporter.result({**figures, "cost_usd": 1.5, "prices": prices})
    assert said.getvalue().splitlines() == [f"cost at the prices of the settings: $1.50{mark}"]


def test_a_run_too_short_to_judge_says_so_on_the_command_line(store: RunStore):
    reporter = Reporter(Console(file=(said := io.StringIO()), width=200))
    for iterations in (10, 1):
        write_sample_run(store, "r", iterations=10) if iterations == 10 else None
        reporter.result(run_result(store, "r") | {"iterations": iterations})
    long, short = said.getvalue().split("held-out score")[1:]
    assert "too short to judge" not in long
    assert "too short to judge: 1 iteration; at least 5 are needed; the difference" in short
