"""What attack.py attacks: a run that trains, and Prefect's server as it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import psutil

from storage.errors import RuntimeFailure
from storage.home import Home
from storage.record.run_store import RunStore
from tests.running_up import ROOT, free_port, wait_until

_SETTINGS = ("iterations=1000", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.every=0")


@contextmanager
def training(home: Home) -> Iterator[psutil.Process]:
    """A real `spotlight train` that has finished an iteration and goes on."""
    environment = os.environ | {"SPOTLIGHT_HOME": str(home.path)}
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME"):
        environment.pop(name, None)
    command = ["train", "--preset", "smoke", "--run-id", "server"]
    command += [part for setting in _SETTINGS for part in ("--set", setting)]
    log = home.path / "train.out"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "flows.cli.command_line", *command],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        store = RunStore(home)
        wait_until(
            "an iteration is done",
            lambda: child.poll() is not None or any(row.last_iteration for row in store.runs()),
            patience_s=600,
        )
        if child.poll() is not None:
            raise RuntimeFailure(f"the run to be attacked ended: {log.read_text()[-2000:]}")
        yield psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(120)


@contextmanager
def unprotected(home: Home) -> Iterator[str]:
    """Prefect's server as it comes; yields its address."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    with (home.logs / "prefect-server.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start"],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{url}/api/health", timeout=5).status_code == httpx.codes.OK
        return False

    try:
        wait_until("Prefect answers", answers)
        yield url
    finally:
        child.terminate()
        child.wait(60)
