"""The page of the seeds as a person meets it: without runs, plain, live, finished, and with gaps."""

from __future__ import annotations

import dataclasses
import io
import os
import time

import pandas as pd
import pytest
from rich.console import Console
from streamlit.testing.v1 import AppTest

from flows.progress import Reporter
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.results import run_result
from storage.record.run_store import RunStore
from tests.dashboard_page import (
    captions,
    figures,
    opened_page,
    pictures,
    ran,
    read_anew,
    sentences,
)
from tests.sample_run import iteration_record, write_sample_run
from tests.sample_seeds import explored, mark_as_exploring
from ui.pages.seeds.charts import draft_map

pytestmark = pytest.mark.xdist_group("recorded")


def titles(page: AppTest) -> list[str]:
    charts = [str(chart.proto) for chart in page.get("plotly_chart")]
    known = ("Same seed", "rank seeds well?", "Variance before", "Drafts against", "Drafts by prompt")
    return [next(title for title in known if title in chart) for chart in charts]


def live_run(store: RunStore, run_id: str = "live") -> None:
    store.create_run(run_id, RunConfig(), {}, os.getpid())
    mark_as_exploring(store, run_id)


def test_a_plain_run_is_told_what_exploring_is(store: RunStore):
    write_sample_run(store, iterations=2)
    page = opened_page("seeds")
    assert "does not explore" in page.info[0].value
    assert page.code[-1].value.endswith("--set exploration.strategy=stale")
    assert not page.get("plotly_chart")
    assert not page.metric


def test_a_finished_run(recorded: None, recorded_home: Home):
    page = opened_page("seeds")
    said = io.StringIO()
    Reporter(Console(file=said, width=200)).result(run_result(RunStore(recorded_home), "explored"))
    assert "ept groups have 1.7x the variance of random ones" in said.getvalue(), "as the page says"
    assert "explored :green-badge[finished]" in page.header[0].value
    assert "The last iteration's weights still rank seeds well: rank correlation 0.9" in page.success[0].value
    assert "(median of 20 iterations)" in page.success[0].value
    assert "Kept groups have 1.7x the variance of random ones." in page.success[0].value
    shown = figures(page)
    assert shown["Variance gain"].startswith("1.7")
    assert shown["Kept overlap"].endswith(" %")
    assert shown["Prompts without drafts"] == "0"
    assert titles(page) == [
        "Same seed", "rank seeds well?", "Variance before", "Drafts against", "Drafts by prompt",
    ]  # fmt: skip
    assert "alarm below 0.5" in str(page.get("plotly_chart")[1].proto)
    assert page.slider[0].value == (1, 40)
    assert "best: seed" in pictures(page)
    assert pictures(page).count("Iteration ") == pictures(page).count("data:image/png;base64,") / 2


def test_a_live_run_moves_on_keeps_what_was_chosen_and_ends(store: RunStore):
    live_run(store)
    page = opened_page("seeds")
    assert "appear with the first iteration" in sentences(page)
    begin = time.time()
    store.commit_iteration(explored(iteration_record("live", 1, begin)))
    read_anew()
    ran(page)
    assert "Not known yet" in sentences(page)
    assert "1.7x the variance" in sentences(page)
    assert "Pairs appear with the first" in captions(page)
    store.commit_iteration(explored(iteration_record("live", 2, begin + 18)))
    read_anew()
    ran(page)
    assert "(one iteration)" in sentences(page)
    page.slider[0].set_value((2, 2)).run()
    chosen = page.selectbox[1].options[3]
    page.selectbox[1].select(chosen).run()
    store.commit_iteration(explored(iteration_record("live", 3, begin + 36)))
    read_anew()
    ran(page)
    assert "(median of 2 iterations)" in sentences(page)
    assert page.slider[0].value == (2, 2)
    assert page.selectbox[1].options.index(chosen) != 3, "newer pictures have come before it"
    assert page.selectbox[1].value == int(chosen.rsplit("#", 1)[1].rstrip(")"))
    store.set_status("live", "finished")
    read_anew()
    assert ":green-badge[finished]" in ran(page).header[0].value


def test_alerts_stand_at_the_top(store: RunStore):
    live_run(store)
    store.commit_iteration(explored(iteration_record("live", 1, time.time())))
    page = opened_page("seeds")
    assert not page.warning
    store.add_event("live", "mlflow", "not for this page")
    for number in range(4):
        store.add_event("live", "staleness", f"alarm {number}; costs $1 to $2")
    store.add_event("live", "exploration", "three prompts had no drafts")
    read_anew()
    text = ran(page).warning[0].value
    assert text.index("three prompts") < text.index(r"alarm 3; costs \$1 to \$2") < text.index("alarm 2")
    assert "and 2 earlier" in text
    assert "alarm 1" not in text
    store.add_event("live", "strategy", "iteration 2: stale from here on")
    store.add_event("live", "strategy", "iteration 5: plain from here on: 1.2 times")
    store.add_event("live", "strategy", "iteration 5: plain from here on, as recorded")
    read_anew()
    told = [box.value for box in ran(page).info if "from here on" in box.value]
    assert len(told) == 1 and "iteration 5: plain from here on: 1.2 times" in told[0]
    assert "not for this page" not in text


def test_ranks_that_do_not_hold(store: RunStore):
    live_run(store)
    for iteration in (1, 2, 3, 4):
        record = explored(iteration_record("live", iteration, 18.0 * iteration), holds=0.0)
        store.commit_iteration(record)
    assert (
        "rank seeds badly: rank correlation 0.25** (median of 3 iterations), below 0.5"
        in opened_page("seeds").error[0].value
    )
    for iteration, spearman in ((2, 0.9), (3, 0.8), (4, 0.25)):
        record = explored(iteration_record("live", iteration, 18.0 * iteration))
        record.metrics["spearman"] = spearman
        store.commit_iteration(record)
    read_anew()
    assert "ranked seeds well, but not lately: rank correlation 0.80" in opened_page("seeds").warning[0].value
    mark_as_exploring(store, "live", min_spearman=0.2)
    read_anew()
    assert "rank seeds well: rank correlation 0.80" in opened_page("seeds").success[0].value
    mark_as_exploring(store, "live", min_spearman=None)
    read_anew()
    page = opened_page("seeds")
    assert "below 0.5" in page.warning[0].value
    assert "alarm below" not in str(page.get("plotly_chart")[1].proto)


@pytest.mark.parametrize(
    ("missing", "dashes", "said"),
    [
        (("spearman", "kendall", "kept_overlap", "draft_error"), ("Kept overlap", "Draft error"),
         "Not known yet"),
        (("spread_random", "spread_kept", "spread_rollout"), ("Variance gain",),
         "has not measured the spread"),
        (("spread_rollout",), (), "By their drafts, kept groups have"),
        (("drafts", "prompts_unexplored", "explore_wait_s"),
         ("Drafts", "Wait for exploration", "Prompts without drafts"), ""),
    ],
)  # fmt: skip
def test_metrics_that_are_missing(
    store: RunStore, missing: tuple[str, ...], dashes: tuple[str, ...], said: str
):
    live_run(store)
    for iteration in (1, 2):
        record = explored(iteration_record("live", iteration, 18.0 * iteration))
        for name in missing:
            record.metrics.pop(name, None)
        store.commit_iteration(record)
    page = opened_page("seeds")
    assert [figures(page)[name] for name in dashes] == ["-"] * len(dashes)
    assert said in sentences(page) + captions(page)
    assert ("variance of random ones" in sentences(page)) == ("spread_random" not in missing)


def test_an_exploring_run_whose_drafts_were_not_recorded(store: RunStore):
    live_run(store)
    record = explored(iteration_record("live", 1, 0.0))
    store.commit_iteration(dataclasses.replace(record, candidates=[], sample_images=[]))
    page = opened_page("seeds")
    assert "No drafts are recorded yet" in captions(page)
    assert "Pictures appear with the first iteration" in captions(page)


def test_a_run_that_trains_on_its_drafts_has_no_newer_scores_to_compare(store: RunStore):
    live_run(store)
    record = explored(iteration_record("live", 1, time.time()))
    for name in ("spearman", "kendall", "kept_overlap", "draft_error"):
        record.metrics.pop(name, None)
    record.metrics["off_policy_samples"] = 8.0
    store.commit_iteration(record)
    page = opened_page("seeds")
    assert "Trained on its drafts" in page.info[0].value and "1.7x the variance" in page.info[0].value
    assert "rank seeds well?" not in titles(page)


@pytest.mark.parametrize(("prompts_an_iteration", "drawn"), [(2, False), (20, True)])
def test_a_map_of_prompts_that_are_drafted_once_each_is_left_out(prompts_an_iteration: int, drawn: bool):
    rows = [
        {"iteration": place // prompts_an_iteration, "prompt_id": place, "prompt": f"sign {place}",
         "drafts": 8, "seeds": 8, "success_share": 0.5}
        for place in range(40)
    ]  # fmt: skip
    assert (draft_map(pd.DataFrame(rows)) is not None) == drawn
