"""The whole road under Prefect: train, evaluate, resume, cancel. One Ray at a time a process."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from typing import Any, cast

import pytest

from flows.evaluate import evaluate_model
from flows.post_train import post_train
from flows.progress import Reporter
from gpu_runtime.cluster.fork_client import end_fork_server
from gpu_runtime.worker.history import read_history
from storage.clock import process_clock
from storage.config.loading import load_config
from storage.errors import ConfigurationError
from storage.record.ledger import read_ledger
from storage.record.results import held_out_curve, held_out_scores, run_result
from storage.record.run_store import RunStore
from tests.read_runs import mlflow_points, recorded_points
from tests.whole_runs import events, last_checkpoint, metrics, rows
from ui.data.run import read_quality, read_run
from ui.pages.convergence.charts import part_charts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]


@pytest.fixture(scope="module")
def config():
    settings = [
        "iterations=3", "runtime.spot_workers=1", "evaluation.every=2", "evaluation.prompts=4",
        "reward.scorer=sum", "reward.options.parts.ocr=0.7", "reward.options.parts.jpeg=0.3",
        "runtime.history=true",
    ]  # fmt: skip
    return load_config("smoke", settings, {})


JUMPS_S = {"start": 86_400.0, "rollout 1": -3600.0, "train 2": 3600.0, "rollout 3": -86_400.0}
"""By how much the wall clock is set in the midst of the run, and when: the workers start after the first."""

SHIM = """
import os, time
_real, _file = time.time, open({path!r}, "rb")
open({path!r} + str(os.getpid()), "w").close()
def _shifted():
    return _real() + float(os.pread(_file.fileno(), 64, 0) or b"0")  # forked processes share the position
time.time = _shifted
"""


@pytest.fixture(scope="module")
def took_s():
    """How long the run took, by a clock that nobody sets."""
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where processes read what the wall clock says, and leave a file `offsetPID` as they start."""
    return tmp_path_factory.mktemp("shim")


@pytest.fixture(scope="module")
def finished(home, config, took_s, folder):
    """A run, undisturbed but for the wall clock, which is set four times, for the driver and the workers."""
    ahead_s, entered = 0.0, Counter()
    offset, real, phase = folder / "offset", time.time, Reporter.phase

    def jump(when: str) -> None:
        nonlocal ahead_s
        ahead_s += JUMPS_S.get(when, 0.0)
        offset.write_text(f"{ahead_s:020.1f}")

    def enter(self: Reporter, name: str) -> None:
        entered[name] += 1
        jump(f"{name} {entered[name]}")
        phase(self, name)

    process_clock().take_jumps()
    (folder / "sitecustomize.py").write_text(SHIM.format(path=str(offset)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.syspath_prepend(str(folder))
        end_fork_server()  # workers have the clock of the one that they are forked from
        patch.setattr(time, "time", lambda: real() + ahead_s)
        patch.setattr(Reporter, "phase", enter)
        jump("start")
        began_s = time.monotonic()
        result = post_train(config, "run-a", "mine.toml")
        took_s.append(time.monotonic() - began_s)
    end_fork_server()
    return result


def test_the_ends_have_the_whole_file_and_what_is_between_a_part_of_it(home, finished):
    asked = rows(
        home,
        "SELECT iteration, list(prompt_id ORDER BY prompt_id) FROM evaluation_images "
        "WHERE run_id = 'run-a' GROUP BY iteration ORDER BY iteration",
    )
    stored = dict(rows(home, "SELECT iteration, score FROM evaluations WHERE run_id = 'run-a'"))
    part = asked[1][1]
    assert [(at, len(ids)) for at, ids in asked] == [(0, 8), (2, 4), (3, 8)]
    assert rows(home, "SELECT count(*) > 0 FROM evaluation_image_figures") == [(True,)]
    scores = held_out_scores(RunStore(home), "run-a")
    assert all(list(of_prompt) == part for of_prompt in scores.values())
    for iteration, of_prompt in scores.items():
        assert stored[iteration] == pytest.approx(statistics.fmean(of_prompt.values()))
    assert finished["held_out_prompts"] == 8


def test_jumps_of_the_wall_clock_change_no_bill_and_are_events(home, config, finished, took_s):
    store = RunStore(home)
    with store.reading() as connection:
        ledger = read_ledger(connection, "run-a")
    messages = [message for kind, message in events(home, "run-a") if kind == "clock_jump"]
    lasted = [seconds for (seconds,) in rows(home, "SELECT ended_at - started_at FROM iterations")]
    took = metrics(home, "run-a", "iteration_s").values()
    moved = [float(message.split("moved by ")[1].split(" s")[0]) for message in messages]
    assert moved == pytest.approx(list(JUMPS_S.values()), abs=1)
    assert ledger.is_measured and ledger.is_balanced, (ledger.unaccounted_share, ledger.overlaps)
    # What it would have cost undisturbed: the meters, which no wall clock can reach, times the prices.
    prices = {"reserved": config.price.reserved_usd_per_hour, "spot": config.price.spot_usd_per_hour}
    undisturbed_usd = sum(worker.paid_s * prices[worker.market] / 3600 for worker in ledger.workers)
    assert finished["cost_usd"] == pytest.approx(undisturbed_usd, rel=0.01)
    assert len(ledger.workers) == 2
    # Devices are paid for from their start on, which is before the first iteration.
    assert all(sum(took) < worker.paid_s < took_s[0] for worker in ledger.workers)
    assert all(0 < seconds < took_s[0] for seconds in [*lasted, *took])
    row = store.run("run-a")
    assert row.ended_at is not None and 0 < row.ended_at - row.created_at < took_s[0]


def test_the_history_s_times_are_those_of_one_clock(home, finished, took_s, folder):
    """Whatever its process's wall clock said when it started."""
    lines = [line for line in read_history(home.history("run-a")) if line.life == 1]
    assert {line.by.split("-")[0] for line in lines} == {"driver", "reserved", "spot", "scorer"}
    assert list(folder.glob("offset?*")), "the process that workers are forked from has that clock"
    assert max(line.at for line in lines) - min(line.at for line in lines) < took_s[0]


def test_the_parts_of_a_sum_are_on_the_dashboard_one_by_one(home, finished):
    store = RunStore(home)
    view = read_run(store, "run-a")
    with store.reading() as connection:
        quality = read_quality(connection, "run-a")
    assert sorted(quality.parts) == ["jpeg", "ocr"]
    charts = part_charts(view, quality)
    assert {cast(Any, chart).layout.title.text for chart in charts} == {
        "Part of the score: jpeg", "Part of the score: ocr",
    }  # fmt: skip
    for name, chart in zip(quality.parts, charts, strict=True):
        lines = {line["name"]: list(line["y"]) for line in cast(Any, chart.data)}
        assert len(lines["training samples, mean"]) == 3 and len(lines["held-out prompts"]) == 3, name
    sums = 0.7 * quality.means["part_ocr"] + 0.3 * quality.means["part_jpeg"]
    assert sums.tolist() == pytest.approx(view.scores["score"].tolist())


def test_a_run_leaves_its_result_rows_and_checkpoint(home, config, finished):
    store = RunStore(home)
    assert store.run("run-a").status == "finished"
    assert finished == store.run("run-a").summary == run_result(store, "run-a")
    assert finished["iterations"] == 3 and finished["prices"] == "modelled"
    assert store.run("run-a").environment["devices"] == "cpu"
    assert finished["max_ratio_deviation"] <= config.algorithm.ratio_tolerance
    assert finished["cost_usd"] > 0
    assert dict(held_out_curve(store, "run-a")).keys() == {0, 2, 3}
    assert last_checkpoint(home, "run-a").iteration == 3
    assert rows(home, "SELECT count(*), count(DISTINCT iteration) FROM samples") == [(3 * 4 * 4, 3)]
    states = {state for (state,) in rows(home, "SELECT DISTINCT state FROM worker_states")}
    assert {"rollout", "train", "load", "idle"} <= states
    assert rows(home, "SELECT count(*) FROM evaluation_images WHERE png IS NOT NULL") == [(3 * 4,)]


def test_spot_devices_generate_a_part_of_each_rollout(home, finished):
    """What is tested with this preset tests spot devices too."""
    query = (
        "SELECT iteration, count(*), count(*) FILTER (starts_with(worker, 'spot-')) > 0 FROM samples "
        "WHERE run_id = 'run-a' GROUP BY iteration ORDER BY iteration"
    )
    assert rows(home, query) == [(1, 16, True), (2, 16, True), (3, 16, True)]


def test_the_parts_of_a_weighted_sum_are_recorded_apart(home, finished):
    names = ("reward_mean", "reward_part_ocr", "reward_part_jpeg")
    parts = "SELECT DISTINCT name FROM iteration_metrics WHERE starts_with(name, 'reward_part_')"
    assert set(rows(home, parts)) == {(name,) for name in names[1:]}
    figures = [metrics(home, "run-a", name) for name in names]
    for iteration in (1, 2, 3):
        mean, ocr, jpeg = (figure[iteration] for figure in figures)
        assert mean == pytest.approx(0.7 * ocr + 0.3 * jpeg)
        assert 0 < jpeg < 1


def test_mlflow_has_the_runs_metrics_and_weights(home, finished):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=home.mlflow_uri)
    experiment = client.get_experiment_by_name("spotlight")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["optimizer.learning_rate"] == "0.0001"
    last = held_out_scores(RunStore(home), "run-a")[3]
    assert run.data.metrics["score/evaluation_score"] == pytest.approx(statistics.fmean(last.values()))
    assert run.data.metrics["cost/total_usd"] == pytest.approx(finished["cost_usd"])
    assert len(client.get_metric_history(run.info.run_id, "score/reward_mean")) == 3
    spent = [one.value for one in client.get_metric_history(run.info.run_id, "cost/total_usd")]
    assert spent == sorted(spent) and spent[0] > 0
    facts = RunStore(home).run("run-a").environment
    assert run.data.tags["spotlight.commit"] == facts["commit"]
    assert run.data.tags["spotlight.preset"] == facts["preset"] == "mine.toml"
    assert mlflow_points(home.mlflow_uri, "run-a") == recorded_points(home, "run-a")
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files >= {"weights.safetensors", "report.html", "images"}
    pictures = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    assert len(pictures) >= 2 * 4, "of the held-out prompts, before and after"


def test_a_run_cut_off_after_its_checkpoint_resumes_to_the_same_bits(home, config, finished):
    """As after a kill between the checkpoint and the rows: the newest rows are missing."""
    expected = last_checkpoint(home, "run-a").blobs
    store = RunStore(home)
    shutil.rmtree(home.run("run-a") / "iteration-000003")
    store.discard_after("run-a", 1)
    store.set_status("run-a", "interrupted")
    without_ray = config.changed(runtime={"cluster": "local"})  # its workers start sooner
    resumed = post_train(without_ray, "run-a")
    assert last_checkpoint(home, "run-a").blobs == expected
    assert resumed["score_after"] == finished["score_after"]
    assert dict(held_out_curve(store, "run-a")).keys() >= {2, 3}
    assert store.run("run-a").status == "finished"
    assert rows(home, "SELECT iteration FROM iterations ORDER BY iteration") == [(1,), (2,), (3,)]


def test_a_run_that_cannot_go_on_is_refused_and_left_as_it_was(home, config, finished):
    store = RunStore(home)
    with pytest.raises(ConfigurationError, match="is finished"):
        post_train(config, "run-a")
    store.set_status("run-a", "interrupted")
    with pytest.raises(ConfigurationError, match="a different configuration"):
        post_train(config.model_copy(update={"seed": 1}), "run-a")
    assert store.run("run-a").status == "interrupted"
    store.set_status("run-a", "finished")


def test_evaluating_the_checkpoint_gives_the_runs_last_score(home, config, finished):
    """On a local cluster, whose workers start sooner and come to the same bits."""
    config = config.changed(runtime={"cluster": "local"}, evaluation={"prompts": 8})
    result = evaluate_model(config, "run-a")
    assert result["score"] == finished["score_after"]
    assert result["exact"] == finished["exact_after"]
    untouched = evaluate_model(config, compare=result["evaluation_id"])
    assert untouched["score"] == finished["score_before"]
    from mlflow import MlflowClient

    change = untouched["difference"]
    assert change["score"] == pytest.approx(untouched["score"] - result["score"])
    assert (change["pairs"], change["same_noise"], change["settings_that_differ"]) == (8, True, [])
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    experiment = client.get_experiment_by_name("spotlight")
    assert experiment is not None
    tag = f"tags.`spotlight.run_id` = '{result['evaluation_id']}'"
    (tracked,) = client.search_runs([experiment.experiment_id], tag)
    assert tracked.data.metrics["score/evaluation_score"] == pytest.approx(result["score"])
    assert tracked.data.tags["spotlight.evaluates"] == "run-a"
