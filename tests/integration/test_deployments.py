"""Runs started as the Prefect UI starts them, by its API, under a real `spotlight up`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.people.attack import Target, attack, attack_dashboard
from storage.evaluations.reproductions import reference_of
from storage.record.ledger import read_ledger
from storage.record.run_store import RunStore
from tasks.comparison import compare
from tests.listening import beyond_this_machine, kinds_of_ray, listening
from tests.private_files import open_to_others
from tests.running_up import DASHBOARD, DEPLOYMENTS, SERVER, RunningUp, spotlight, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("up")]

SETTINGS = (
    "evaluation.prompts=4", "evaluation.every=0", "runtime.spot_workers=1",
    "runtime.scorer_workers=1", "runtime.history=true", "runtime.cluster=local", "tracking.to=[]",
    "reward.scorer=jpeg",
)  # fmt: skip


@pytest.mark.parametrize(
    ("deployment", "form", "beside", "reason"),
    [
        ("post-train", {"preset": "nonsense"}, {}, "'nonsense' is not one of ['edits', 'flux-1280', "),
        ("post-train", {"iterations": -1}, {}, "-1 is less than the minimum of 0"),
        ("post-train", {"settings": ["iterations"]}, {}, "form.settings[0]"),
        ("post-train", {"iteratoins": 3}, {}, "'iteratoins' was unexpected"),
        ("post-train", {"resume": "../outside"}, {}, "form.resume"),
        ("evaluate", {"preset": 3}, {}, "form.preset"),
        ("pretrain", {"model": "glyphs"}, {}, "'out' is a required property"),
        ("pretrain", {"model": "glyphs", "out": "anywhere"}, {"seed": 3}, "('seed' was unexpected)"),
        ("reproduce", {"tolerance": 2}, {}, "2 is greater than the maximum of 1"),
    ],
)
def test_bad_parameters_are_refused_in_words(
    up: RunningUp, deployment: str, form: dict[str, Any], beside: dict[str, Any], reason: str
):
    answer = up.start_run(deployment, form, **beside)
    assert answer.status_code == 409 and reason in answer.json()["detail"]


def test_runs_asked_for_at_the_same_moment_wait_for_each_other(up: RunningUp):
    """Before, most were answered with 503: "database is locked"."""
    found = up.client.get(f"{up.api}/deployments/name/pretrain/pretrain").json()
    address = f"{up.api}/deployments/{found['id']}/create_flow_run"
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2999-01-01T00:00:00Z"}}
    sent = {"parameters": {"form": {"model": "glyphs", "out": "anywhere"}}, "state": later}
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda _: up.client.post(address, json=sent), range(24)))
    assert {answer.status_code for answer in answers} == {201}


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            {"preset": "smoke", "settings": ["sampling.noise_level=7"]},
            "sampling.noise_level = 7 (from --set): must be at most 2.0; lower it",
        ),
        ({"resume": "nowhere"}, "RunNotFoundError: no run 'nowhere'"),
    ],
)
def test_what_only_we_can_judge_fails_the_run_at_once(up: RunningUp, form: dict[str, Any], reason: str):
    before = RunStore(up.home).runs()
    state = up.wait_for_end(up.start_run("post-train", form).json()["id"])
    assert state["type"] == "FAILED" and reason in state["message"]
    assert RunStore(up.home).runs() == before


def test_the_schedules_are_there_and_off(up: RunningUp):
    for name, preset in {"nightly-ocr": "glyphs", "nightly-geneval": "shapes"}.items():
        found = up.client.get(f"{up.api}/deployments/name/reproduce/{name}").json()
        (schedule,) = found["schedules"]
        assert (schedule["active"], schedule["schedule"]["timezone"]) == (False, "UTC")
        assert found["parameters"]["form"]["preset"] == preset


def test_a_run_waits_for_another(up: RunningUp):
    form = {"preset": "smoke", "iterations": 400, "settings": SETTINGS}
    first = up.start_run("post-train", form, name="first").json()
    wait_until("it goes on", lambda: up.flow_run(first["id"])["state"]["type"] == "RUNNING")
    second = up.start_run("post-train", form, name="second").json()
    wait_until("it is due", lambda: up.flow_run(second["id"])["state"]["name"] == "Late")
    up.cancel(first["id"])
    wait_until("it goes on", lambda: up.flow_run(second["id"])["state"]["type"] == "RUNNING")
    up.cancel(second["id"])
    assert up.wait_for_end(second["id"])["type"] == "CANCELLED"


def test_the_three_listen_on_this_machine_alone(up: RunningUp):
    heard = {
        name: listening([up.child(name), *up.child(name).children(recursive=True)])
        for name in (SERVER, DASHBOARD, DEPLOYMENTS)
    }
    assert up.api.split("/")[2] in heard[SERVER]
    assert up.dashboard.split("/")[2] in heard[DASHBOARD]
    assert [beyond_this_machine(places) for places in heard.values()] == [{}, {}, {}]


def test_a_foreign_page_writes_starts_and_reads_nothing(up: RunningUp, tmp_path: Path):
    server = Target(up.api.removesuffix("/api"), up.client)
    tries = attack(server, tmp_path / "started-by-an-attack") + attack_dashboard(up.dashboard)
    assert {one.aim for one in tries} == {"write", "start", "read", "preflight"}
    assert [one for one in tries if one.succeeded] == []


def test_a_run_by_the_api_and_one_by_the_command_line_come_to_the_same_bits(up: RunningUp):
    """The run by the API reads only the named file in the folder where `up` was started."""
    form = {"preset": "smoke", "iterations": 1, "settings": [*SETTINGS, "prompts.train=words.txt"]}
    flow_run = up.start_run("post-train", form, name="by-api").json()
    assert flow_run["state"]["name"] == "Scheduled"
    assert up.wait_for_end(flow_run["id"])["type"] == "COMPLETED"
    states = up.states(flow_run["id"])
    assert states[0] == "Scheduled"
    assert states[-2:] == ["Running", "Completed"]
    assert up.flow_run(flow_run["id"])["name"] == "by-api"
    shown = up.artifacts(flow_run["id"])
    assert float(shown["progress"]) == 100.0
    assert f"- Dashboard: [by-api]({up.dashboard}/?run=by-api)" in shown["links"]
    assert f"/runs/flow-run/{flow_run['id']})" in shown["links"]
    named = {"explore 1", "rollout 1", "reward 1", "train 1", "commit 1", "evaluate 0", "evaluate 1"}
    evaluations = {"record-evaluation 0", "record-evaluation 1"}
    wait_until("all tasks are recorded", lambda: up.task_names(flow_run["id"]) == named | evaluations)
    wait_until("the log is there", lambda: any("Finished" in line for line in up.log_lines(flow_run["id"])))
    ends = [line for line in up.log_lines(flow_run["id"]) if line.startswith("Finished in state")]
    assert ends == ["Finished in state Completed()"], "that of the run, and none of its tasks"
    row = RunStore(up.home).run("by-api")
    table = {line["figure"]: line["value"] for line in json.loads(shown["result"])}
    assert table["run_id"] == "by-api"
    assert float(table["score_after"]) == pytest.approx(row.summary["score_after"], abs=1e-5)

    settings = ("iterations=1", *SETTINGS, f"prompts.train={up.folder}/words.txt")
    sets = [part for setting in settings for part in ("--set", setting)]
    done = spotlight(up.home, "train", "--preset", "smoke", "--run-id", "by-hand", *sets)
    assert done.returncode == 0, done.stderr
    assert up.api.removesuffix("/api") in done.stdout, "the command uses the server of `up`"
    store = RunStore(up.home)
    assert [store.run(name).environment["preset"] for name in ("by-api", "by-hand")] == ["smoke", "smoke"]
    said = compare(reference_of(store, "by-api"), reference_of(store, "by-hand"), 0)
    assert said.verdict == "identical", said.message
    assert said.causes == []


def test_a_cancelled_run_ends_in_order_and_goes_on_when_resumed(up: RunningUp):
    before = set(up.processes())
    on_ray = [*SETTINGS, "runtime.cluster=ray", 'tracking.to=["mlflow"]']
    form = {"preset": "smoke", "iterations": 20, "settings": on_ray}
    flow_run = up.start_run("post-train", form, name="c").json()
    store = RunStore(up.home)
    wait_until(
        "an iteration is recorded",
        lambda: any(row.run_id == "c" and row.last_iteration for row in store.runs()),
    )
    running = up.processes()
    heard = listening(running)
    assert kinds_of_ray(heard) >= {"gcs_server", "raylet", "ray::"}
    assert beyond_this_machine(heard) == {}, "a run, too, listens on this machine alone"
    up.cancel(flow_run["id"])
    assert up.wait_for_end(flow_run["id"])["type"] == "CANCELLED"
    _, alive = psutil.wait_procs(set(running) - before, timeout=60)
    assert alive == [], "none outlives it"
    row = store.run("c")
    assert row.status == "cancelled"
    assert row.last_iteration is not None and 1 <= row.last_iteration < 20
    with store.reading() as connection:
        assert read_ledger(connection, "c").is_balanced
    again = up.start_run("post-train", {"resume": "c"}).json()
    assert up.wait_for_end(again["id"])["type"] == "COMPLETED"
    assert (store.run("c").last_iteration, store.run("c").status) == (20, "finished")


def test_nothing_of_a_home_is_readable_by_others(up: RunningUp):
    """After runs by the API and by the command line, cancelled and resumed, under the usual umask."""
    for kind in [
        "spotlight.duckdb",
        "mlflow.db",
        "prefect.db",
        "up.json",
        "weights.safetensors",
        "driver.*.jsonl",
    ]:
        assert next(up.home.path.rglob(kind), None), f"{kind} is there"
    assert open_to_others(up.home.path) == []
