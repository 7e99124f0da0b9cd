"""`prefect.yaml` on a Prefect server and a work pool of somebody's own, as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from flows.server.local_server import LocalServer
from storage.home import Home
from tests.running_up import ROOT, client_of, wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 200.0


@dataclass(frozen=True)
class OwnServer:
    """A server, and what is said to it on the command line."""

    server: LocalServer
    home: Home
    client: httpx.Client

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            **self.server.client_environment,
            "SPOTLIGHT_HOME": str(self.home.path),
            "SPOTLIGHT_ROOT": str(ROOT),
        }

    def prefect(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def deployment(self, name: str) -> dict:
        return self.client.get(f"{self.server.api_url}/deployments/name/{name}/{name}").json()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    home = Home(tmp_path_factory.mktemp("own")).ensure()
    own = OwnServer(LocalServer(home, 0), home, client_of(home))
    try:
        own.server.wait_ready()
        own.prefect("work-pool", "create", "spotlight", "--type", "process")
        own.prefect("deploy", "--all")
        yield own
    finally:
        own.server.stop()


def test_all_are_there_with_their_forms_and_schedules_that_are_off(own: OwnServer):
    names = ("post-train", "evaluate", "reproduce", "pretrain", "what-if")
    found = {name: own.deployment(name) for name in names}
    assert {one["work_pool_name"] for one in found.values()} == {"spotlight"}
    assert all("form" in one["parameter_openapi_schema"]["properties"] for one in found.values())
    schedules = {one["slug"]: one for one in found["reproduce"]["schedules"]}
    assert {slug: one["parameters"]["form"]["preset"] for slug, one in schedules.items()} == {
        "nightly-ocr": "glyphs", "nightly-geneval": "shapes",
    }  # fmt: skip
    assert not any(one["active"] for one in schedules.values())


def test_a_worker_runs_what_is_asked_for(own: OwnServer):
    address = f"{own.server.api_url}/deployments/{own.deployment('post-train')['id']}/create_flow_run"
    form = {"preset": "smoke", "settings": ["sampling.noise_level=7"]}
    refused = own.client.post(address, json={"parameters": {"form": {"preset": "nonsense"}}})
    assert refused.status_code == httpx.codes.CONFLICT
    run = own.client.post(address, json={"parameters": {"form": form}, "state": {"type": "SCHEDULED"}})
    own.prefect("worker", "start", "--pool", "spotlight", "--run-once")
    flow_run = f"{own.server.api_url}/flow_runs/{run.json()['id']}"
    wait_until("the run ends", lambda: own.client.get(flow_run).json()["state"]["type"] == "FAILED")
    said = own.client.get(flow_run).json()["state"]["message"]
    assert "sampling.noise_level = 7 (from --set): must be at most 2.0; lower it" in said
