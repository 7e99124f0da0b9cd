"""What a run without a server comes to, and that Prefect does not keep its process from ending."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from flows.server.loss import leave, result_without_server
from storage.config.run_config import RunConfig
from storage.errors import CheckpointError, ServerError
from storage.home import Home
from storage.record.run_store import RunStore

GONE = httpx.ConnectError("Connection refused")

# A worker with one event for a server that nobody is; Prefect would try for long, and no exit would end it.
HOLDS_AN_EVENT = """
import flows, flows.server.loss as loss
from prefect.events import emit_event
loss._HAND_OVER_S = 0.5
emit_event("e", resource={"prefect.resource.id": "r"})
loss.hand_over()
print("said", end="")
loss.leave(7)
"""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Home(tmp_path).ensure())


def test_a_finished_run_has_its_result(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.set_summary("r", {"score_after": 0.5})
    store.set_status("r", "finished")
    assert result_without_server(store, "r", GONE) == {"score_after": 0.5}


def test_an_unfinished_run_says_how_to_go_on(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    store.set_status("r", "failed", "whatever")
    with pytest.raises(ServerError, match=r"refused.* is failed after iteration 0: .*`spotlight resume r`"):
        result_without_server(store, "r", GONE)


def test_what_ended_the_run_first_is_said_where_the_server_then_fails_too(store: RunStore):
    store.create_run("r", RunConfig(), {}, os.getpid())
    full = CheckpointError("cannot save checkpoint: No space left on device")
    failed = httpx.HTTPError("500 Internal Server Error")
    failed.__context__ = full
    with pytest.raises(CheckpointError) as raised:
        result_without_server(store, "r", failed)
    assert raised.value is full


def test_a_run_that_never_began_says_so(store: RunStore):
    with pytest.raises(ServerError, match="before run 'r' began"):
        result_without_server(store, "r", GONE)


def test_a_full_disk_is_named_where_the_server_only_fails(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=4096))
    with pytest.raises(ServerError, match=f"no space is left for {store.home.path}: free disk space"):
        result_without_server(store, "r", httpx.HTTPError("500 Internal Server Error"))


@pytest.mark.parametrize("code", [0, 2])
def test_leaving_with_nothing_held_is_an_ordinary_exit(code: int):
    with pytest.raises(SystemExit) as ended:
        leave(code)
    assert ended.value.code == code


def test_an_event_that_nobody_takes_does_not_hold_the_process(tmp_path: Path):
    environment = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_HOME": str(tmp_path)}
    started_at = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-c", HOLDS_AN_EVENT], env=environment, capture_output=True, text=True, timeout=60
    )
    print(f"{time.monotonic() - started_at:.1f} s")
    assert (answer.returncode, answer.stdout) == (7, "said"), answer.stderr


def test_a_ping_that_fails_as_the_server_goes_away_leaves_no_traceback(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("websockets.client")
    logger.error("keepalive ping failed", exc_info=(OSError, OSError("gone"), None))
    logger.error("something else")
    assert [record.message for record in caplog.records] == ["something else"]
