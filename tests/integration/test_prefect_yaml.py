"""`prefect.yaml` on a server and a work pool of somebody's own, as `deploy/compose.yaml` starts them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import httpx
import pytest

from storage.home import Home
from tests.own_servers import (
    OwnPrefect,
    Postgres,
    compose_service,
    postgres_programs,
    running_postgres,
    running_prefect,
)
from tests.running_up import FINAL, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres | None]:
    """None where it is not installed: Prefect then keeps a file."""
    programs = postgres_programs()
    with nullcontext() if programs is None else running_postgres(programs) as postgres:
        yield postgres


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres | None) -> Iterator[OwnPrefect]:
    home = Home(tmp_path_factory.mktemp("own")).ensure()
    with running_prefect(home.path, postgres) as own:
        own.run(*compose_service("deployments")["command"])
        yield own


def deployment(own: OwnPrefect, name: str, flow: str = "") -> dict[str, Any]:
    return own.client.get(f"{own.api}/deployments/name/{flow or name}/{name}").json()


def ask_for_a_run(own: OwnPrefect, *settings: str, preset: str = "smoke") -> httpx.Response:
    address = f"{own.api}/deployments/{deployment(own, 'post-train')['id']}/create_flow_run"
    form = {"preset": preset, "settings": list(settings)}
    return own.client.post(address, json={"parameters": {"form": form}, "state": {"type": "SCHEDULED"}})


def end_of(own: OwnPrefect, run: httpx.Response) -> dict[str, Any]:
    """The final state of a run, which a worker of the pool does."""
    own.run(
        sys.executable,
        "-m",
        "prefect",
        "--no-prompt",
        *["worker", "start", "--pool", "spotlight", "--run-once"],
    )
    flow_run = f"{own.api}/flow_runs/{run.json()['id']}"
    wait_until("the run ends", lambda: own.client.get(flow_run).json()["state"]["type"] in FINAL)
    return own.client.get(flow_run).json()["state"]


def test_the_password_is_asked_for(own: OwnPrefect):
    assert httpx.post(f"{own.api}/flow_runs/count", json={}).status_code == httpx.codes.UNAUTHORIZED


def test_all_are_there_with_their_forms_and_schedules_that_are_off(own: OwnPrefect):
    names = ("post-train", "evaluate", "reproduce", "pretrain", "what-if")
    found = {name: deployment(own, name) for name in names}
    nightly = {name: deployment(own, name, "reproduce") for name in ("nightly-ocr", "nightly-geneval")}
    found |= nightly
    assert {one["work_pool_name"] for one in found.values()} == {"spotlight"}
    assert all("form" in one["parameter_openapi_schema"]["properties"] for one in found.values())
    presets = [one["parameters"]["form"]["preset"] for one in nightly.values()]
    assert presets == ["glyphs", "shapes"]
    assert [schedule["active"] for one in found.values() for schedule in one["schedules"]] == [False, False]


def test_a_worker_refuses_what_cannot_be_run(own: OwnPrefect):
    assert ask_for_a_run(own, preset="nonsense").status_code == httpx.codes.CONFLICT
    said = end_of(own, ask_for_a_run(own, "sampling.noise_level=7"))["message"]
    assert "sampling.noise_level = 7 (from --set): must be at most 2.0; lower it" in said


def test_a_worker_runs_what_is_asked_for(own: OwnPrefect, postgres: Postgres | None):
    small = ("iterations=1", "runtime.scorer_workers=1", "runtime.cluster=local", "tracking.to=[]")
    run = ask_for_a_run(own, *small)
    state = end_of(own, run)
    assert state["type"] == "COMPLETED", state
    wanted = {"flow_runs": {"id": {"any_": [run.json()["id"]]}}}
    tasks = own.client.post(f"{own.api}/task_runs/filter", json=wanted).json()
    assert {"rollout 1", "reward 1", "train 1"} <= {one["name"] for one in tasks}
    if postgres is None:
        pytest.skip("Postgres is not installed: the run's books are in Prefect's own file")
    assert postgres.count("flow_run") >= 1
    assert postgres.count("task_run") >= len(tasks)
