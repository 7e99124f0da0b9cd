"""The dashboard as a person meets it: nothing yet, a finished run, a live one, and trouble."""

from __future__ import annotations

import os
import shlex
import time

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.home import DASHBOARD_URL_VARIABLE
from storage.record.run_folder import EVENTS_FILE
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore
from tests.answering import answering
from tests.dashboard_page import CACHE_S, UI, figures, opened_page, pictures, ran, read_anew, sentences
from tests.sample_run import evaluation_record, iteration_record, write_sample_run
from tests.tampering import set_run
from ui.report.report import report_page

pytestmark = pytest.mark.xdist_group("recorded")

APP = UI / "server" / "app.py"


def opened(**query: str) -> AppTest:
    return opened_page(APP, **query)


def texts(page: AppTest) -> str:
    return "\n".join(part.value for part in page.markdown)


def test_a_finished_run(recorded: None):
    page = opened(run="glyphs-1")
    assert "glyphs-1" in page.header[0].value
    assert "finished" in page.header[0].value
    assert "Better: score 0.38 → 0.84 (+0.46 ± 0.08)" in page.success[0].value
    shown = figures(page)
    assert shown["Score now"] == "0.837"
    assert shown["Iterations"] == "40 of 40"
    assert shown["Time at work"] == "12.8 min"
    # 40 iterations of 18 s and 5 evaluations of 9 s, on one reserved and two spot devices.
    assert shown["Cost so far"] == f"${(40 * 18 + 5 * 9) * (10.98 + 2 * 2.51) / 3600:.2f}"
    assert shown["Spot share"] == "67 %"
    assert shown["Ratio deviation"].endswith("e-07")
    assert shown["Prompts without signal"].endswith("%")
    assert len(page.get("plotly_chart")) == 1 + 3 + 4, "score, quality, learning"
    assert "Only one run seed." in "".join(caption.value for caption in page.caption)
    gallery = pictures(page)
    assert gallery.count("data:image/png;base64,") == 24
    assert gallery.count("after 40 iterations</div>") == 12
    assert "read &quot;" in gallery


def test_the_exact_measure_and_another_run_can_be_chosen(store: RunStore):
    write_sample_run(store, "older", iterations=1)
    write_sample_run(store, "newer", iterations=2)
    page = opened()
    assert figures(page)["Iterations"] == "2 of 40"
    page.selectbox[0].select("older").run()
    assert figures(page)["Iterations"] == "1 of 40"
    assert page.query_params["run"] in ("older", ["older"])
    assert figures(opened(run="older"))["Iterations"] == "1 of 40"
    charts = str(page.get("plotly_chart")[0].proto)
    page.segmented_control[0].select("Exact matches").run()
    assert not page.exception
    exact = str(page.get("plotly_chart")[0].proto)
    page.segmented_control[1].select("Dollars").run()
    assert len({charts, exact, str(page.get("plotly_chart")[0].proto)}) == 3


def test_a_live_run_moves_on_and_ends(store: RunStore):
    store.create_run("live", RunConfig(), {}, os.getpid())
    page = opened()
    assert "scored before training" in sentences(page)
    assert figures(page)["Score now"] == "-"
    assert all("Nothing is recorded yet" in str(chart.proto) for chart in page.get("plotly_chart"))
    begin = time.time()
    store.commit_evaluation(evaluation_record("live", 0, begin))
    store.commit_iteration(iteration_record("live", 1, begin + 9))
    time.sleep(CACHE_S)
    page.run()
    assert "Score before training: 0.38" in sentences(page)
    assert figures(page)["Iterations"] == "1 of 40"
    assert [tile.delta for tile in page.metric[:2]] == ["before training"] * 2, "nothing to compare with yet"
    assert len(page.get("plotly_chart")) == 1 + 4, "score and learning: no change of the images' quality yet"
    assert "Image quality" not in [part.value for part in page.subheader]
    assert not any("Nothing is recorded yet" in str(chart.proto) for chart in page.get("plotly_chart"))
    assert ":blue-badge[running]" in page.header[0].value
    store.commit_evaluation(evaluation_record("live", 10, begin + 27))
    store.set_status("live", "failed", "out of memory; costs $5 to $6")
    read_anew()
    page.run()
    assert not page.exception
    assert "Better" in sentences(page)
    assert (
        r"The run failed: out of memory; costs \$5 to \$6. Resume with `spotlight resume live`"
        in sentences(page)
    )


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("RewardError: scorer 'ocr' failed on all 64 images.", 1),
        ("TrainingError: ratio off; `spotlight resume r` goes on", 1),
        ("ConfigurationError: seed = -1 must be at least 0", 0),
        (None, 1),
    ],
)
def test_how_to_go_on_is_said_once_and_only_where_it_helps(store: RunStore, error: str | None, advice: int):
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.set_status("r", "failed", error)
    text = sentences(opened())
    assert "The run failed" in text
    assert text.count("`spotlight resume r`") == advice


def test_no_change_and_change_for_the_worse(store: RunStore):
    begin = time.time()
    for run_id, first, second, last in (("same", 5, 5, 10), ("worse", 30, 0, 10), ("short", 30, 0, 2)):
        store.create_run(run_id, RunConfig(), {}, os.getpid())
        for place, skill in enumerate((first, second)):
            record = evaluation_record(run_id, skill, begin)
            store.commit_evaluation(type(record)(**{**vars(record), "iteration": last * place}))
        store.set_status(run_id, "finished")
    assert "No clear change yet" in sentences(opened(run="same"))
    assert "Worse: score" in sentences(opened(run="worse"))
    short = opened(run="short")
    assert "Too short to judge: 2 iterations; at least 5 are needed: score" in sentences(short)
    assert not short.error


def test_a_run_of_a_check_is_marked_and_gives_way(store: RunStore):
    store.create_run("own", RunConfig(), {}, os.getpid())
    for purpose in ("chaos", "reproduction"):
        store.create_run(purpose, RunConfig(), {"purpose": purpose}, os.getpid())
    assert opened().selectbox[0].value == "own"
    page = opened(run="chaos")
    marked = "chaos :blue-badge[running] :gray-badge[:material/labs: chaos]"
    assert page.header[0].value.startswith(marked)
    assert [option.split(" · ")[1] for option in page.selectbox[0].options] == [
        "reproduction", "chaos", "running"
    ]  # fmt: skip
    store.set_status("own", "finished")
    read_anew()
    assert opened().selectbox[0].value == "reproduction", "the newest at work"
    store.create_run("modelled", RunConfig(), {"simulated": "a fleet"}, os.getpid())
    set_run(store, "modelled", status="simulated")
    for purpose in ("chaos", "reproduction"):
        store.set_status(purpose, "finished")
    read_anew()
    page = opened()
    assert page.selectbox[0].value == "own", "the newest of a person"
    assert len(page.selectbox[0].options) == 1, "the others are left out"
    assert opened(run="modelled").selectbox[0].value == "modelled", "unless they are asked for"


def test_a_run_s_page_says_how_to_stop_and_to_clone_it(store: RunStore):
    given = ["seed=3", "optimizer.learning_rate=1e-3", 'tracking.to=["wandb"]']
    config = load_config("glyphs-stale", given, {})
    store.create_run("it's mine", config, {"preset": "glyphs-stale"}, os.getpid())
    stop, clone = (code.value for code in opened().code if code.value.startswith("spotlight "))
    assert shlex.split(stop) == ["spotlight", "stop", "it's mine"]
    words = shlex.split(clone.replace("\\\n", ""))
    assert words[:4] == ["spotlight", "train", "--preset", "glyphs-stale"]
    assert len(words) == 4 + 2 * len(given), "the preset's own settings are not repeated"
    assert load_config("glyphs-stale", words[5::2], {}) == config
    store.set_status("it's mine", "finished")
    set_run(store, "it's mine", environment={"preset": "gone.toml"})
    read_anew()
    [clone] = (code.value for code in opened().code if code.value.startswith("spotlight "))
    words = shlex.split(clone.replace("\\\n", ""))
    assert "--preset" not in words
    assert load_config(None, words[3::2], {}) == config


def test_scorer_errors_and_hostile_text(store: RunStore):
    begin = time.time()
    store.create_run("r", RunConfig(), {}, os.getpid())
    record = iteration_record("r", 1, begin)
    record.metrics["scorer_errors"] = 3.0
    store.commit_iteration(record)
    evaluation = evaluation_record("r", 0, begin)
    image = evaluation.images[0]
    hostile = type(image)(**{**vars(image), "prompt": "<script>alert(1)</script>", "error": "<b>boom</b>"})
    evaluation.images[0] = hostile
    store.commit_evaluation(evaluation)
    page = opened()
    assert "failed on 3 images" in sentences(page)
    gallery = pictures(page)
    assert "<script>" not in gallery
    assert "not scored: &lt;b&gt;boom" in gallery


def test_a_kl_that_was_not_measured_is_not_shown_as_zero(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    record = iteration_record("r", 1, time.time())
    record.metrics["kl"] = 0.0
    store.commit_iteration(record)
    assert "KL to the reference" not in figures(opened())
    record.metrics["kl"] = 0.25
    store.commit_iteration(record)
    read_anew()
    assert figures(opened())["KL to the reference"] == "0.25"


def test_a_run_that_is_not_there_is_not_replaced_by_another(store: RunStore):
    write_sample_run(store, "glyphs-1", iterations=1)
    page = opened(run="glyphs-2")
    assert page.title[0].value == "No such run"
    assert "did you mean glyphs-1?" in page.error[0].value
    assert page.query_params["run"] in ("glyphs-2", ["glyphs-2"]), "the address stays as it was"
    assert not page.metric
    page.selectbox[0].select("glyphs-1").run()
    assert figures(page)["Iterations"] == "1 of 40"
    assert page.query_params["run"] in ("glyphs-1", ["glyphs-1"])


def test_a_run_that_has_no_row_yet_is_shown_as_starting(store: RunStore):
    write_sample_run(store, "older", iterations=1)
    log = RunLog(store.home, "new")
    log.starting()
    page = opened(run="new")
    assert page.header[0].value == "new :violet-badge[starting]"
    assert not page.error
    store.create_run("new", RunConfig(), {}, os.getpid())
    read_anew()
    assert "starting" in ran(page).header[0].value
    log.ready()
    read_anew()
    assert ":blue-badge[running]" in ran(page).header[0].value


def test_the_log_of_a_process_that_is_gone_starts_no_run(store: RunStore):
    write_sample_run(store, "older", iterations=1)
    file = store.home.run("new") / EVENTS_FILE
    file.parent.mkdir(parents=True)
    file.write_text(
        '{"log":"started","happened_at":1.0,"host":"here","pid":4000000,"process_started_at":1.0}\n'
        '{"log":"begin","happened_at":1.0,"message":"start"}\n'
    )
    assert opened(run="new").title[0].value == "No such run"


def test_a_run_s_page_says_where_else_it_can_be_looked_at(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    write_sample_run(store, "r", iterations=1)
    page = opened()
    assert "This run recorded no flow run." in texts(page)
    assert "MLflow has no copy of this run yet." in texts(page)
    assert [button.proto.label for button in page.get("download_button")][:1] == ["Report"]
    with answering(200, "true") as server:
        address = f"{server}/v2/runs/flow-run/1"
        store.link("r", "prefect", address)
        st.cache_data.clear()
        assert address in str(ran(page).get("link_button")[0].proto)
    st.cache_data.clear()
    assert not ran(page).get("link_button"), "its server is gone"
    assert "spotlight up" in [code.value for code in page.code]
    monkeypatch.setenv(DASHBOARD_URL_VARIABLE, "http://127.0.0.1:8600")
    report = report_page(store, "r")
    assert f'<a href="{address}"' in report, "a report outlives servers"
    assert '<a href="http://127.0.0.1:8600/?run=r"' in report
