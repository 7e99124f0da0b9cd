"""`spotlight up` in a process of its own, as a person starts it, and what can be asked of it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from flows.deployed.up import left_of, state_file
from flows.server.local_server import without_prefect
from flows.server.note import home_password
from storage.home import Home
from storage.processes import python_command

ROOT = Path(__file__).resolve().parents[1]
SERVER, DEPLOYMENTS, DASHBOARD = "flows.server.process", "flows.deployed.serving", "streamlit"
"""Words in the commands of the three."""

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PATIENCE_S = 200.0
"""On a busy machine everything takes long; nothing is judged by it."""


def wait_until(what: str, true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fail with its name."""
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.1)


def free_port() -> int:
    """An unused port, below the range from which Linux picks ports for outgoing connections."""
    while True:
        with socket.socket() as probe, suppress(OSError):  # it is taken
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_768)))
            return probe.getsockname()[1]


@contextmanager
def port_taken(port: int, patience_s: float = 0.0) -> Iterator[None]:
    """Listen there; go on if somebody else does, and has not stopped after some seconds."""
    deadline = time.monotonic() + patience_s
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                break
            except OSError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.2)
        yield


def spotlight(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.command_line", *arguments],
        cwd=ROOT, env=_environment(home), capture_output=True, text=True, timeout=PATIENCE_S, umask=0o022,
    )  # fmt: skip


def misleading(folder: Path) -> Path:
    """Fill a folder with modules and settings that nothing started there may read, and with `words.txt`."""
    for name in ("flows", "tasks", "gpu_runtime", "storage", "random", "queue", "numpy", "sqlite3"):
        (folder / f"{name}.py").write_text("raise SystemExit('the module of the current folder')")
    (folder / "prefect.toml").write_text("[torn")
    (folder / "words.txt").write_text("".join(f'a sign "{word}"\n' for word in ("FAR", "CAR", "TAR", "BAR")))
    return folder


def client_of(home: Home) -> httpx.Client:
    """A client that knows the password of a home's Prefect server."""
    user, _, secret = home_password(home).partition(":")
    return httpx.Client(auth=(user, secret), timeout=60)


class RunningUp:
    """A `spotlight up` of a home, ready to be used: its API, a client with the password, what it has printed.

    Args:
        options: more words of the command.
        folder: the current one.
        server_port: Prefect's; 0 takes a free one.
    """

    def __init__(self, home: Home, *options: str, folder: Path = ROOT, server_port: int = 0) -> None:
        server_port, ui_port = server_port or free_port(), free_port()
        self.home, self.folder, self.api = home, folder, f"http://127.0.0.1:{server_port}/api"
        self.dashboard = f"http://127.0.0.1:{ui_port}"
        self.log = home.path / "up.out"
        self.log.touch(0o600)
        ports = ("--server-port", str(server_port), "--ui-port", str(ui_port))
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                python_command("-m", "flows.cli.command_line", "up", *ports, *options),
                cwd=folder, env=_environment(home), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                umask=0o022,
            )  # fmt: skip
        wait_until(
            "up is ready", lambda: self.said("Ctrl-C ends all three") or self.process.poll() is not None
        )
        assert self.process.poll() is None, self.log.read_text()
        self.client = client_of(home)

    def said(self, words: str) -> bool:
        """Whether it has printed this."""
        return words in self.log.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """All of its own that live, without itself."""
        return left_of(self.home)

    def child(self, words: str) -> psutil.Process:
        """The one of the three that has these words in its command."""
        three = psutil.Process(self.process.pid).children() or self.processes()
        return next(each for each in three if words in each.cmdline())

    def end(self) -> int:
        """Ctrl-C; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def assert_nothing_is_left(self) -> None:
        """It has ended: no process, no state and no listener of its own is there."""
        assert [process.cmdline() for process in self.processes()] == []
        assert state_file(self.home).read_text() == ""
        for url in (self.api, self.dashboard):
            with pytest.raises(httpx.ConnectError):
                httpx.get(url, timeout=5)

    def start_run(
        self, deployment: str, form: dict[str, Any], name: str = "", **others: Any
    ) -> httpx.Response:
        """What the Prefect UI sends when its form is submitted; without a Run Name Prefect makes one up."""
        found = self.client.get(f"{self.api}/deployments/name/{deployment}/{deployment}").json()
        sent = {"parameters": {"form": form, **others}, "state": {"type": "SCHEDULED"}}
        sent |= {"name": name} if name else {}
        return self.client.post(f"{self.api}/deployments/{found['id']}/create_flow_run", json=sent)

    def cancel(self, flow_run_id: str) -> None:
        """What the Prefect UI sends when its Cancel is pressed."""
        address = f"{self.api}/flow_runs/{flow_run_id}/set_state"
        answer = self.client.post(address, json={"state": {"type": "CANCELLING"}})
        assert answer.json()["status"] == "ACCEPT", answer.text

    def flow_run_count(self) -> int:
        """How many flow runs there are, whatever their state."""
        return int(self.client.post(f"{self.api}/flow_runs/count", json={}).json())

    def flow_run(self, flow_run_id: str) -> dict[str, Any]:
        """A flow run as the API tells it."""
        return self.client.get(f"{self.api}/flow_runs/{flow_run_id}").json()

    def states(self, flow_run_id: str) -> list[str]:
        """Names of all states that it was in, in order."""
        answer = self.client.get(f"{self.api}/flow_run_states/", params={"flow_run_id": flow_run_id})
        return [state["name"] for state in sorted(answer.json(), key=lambda state: state["timestamp"])]

    def artifacts(self, flow_run_id: str) -> dict[str, Any]:
        """Its artefacts: key -> data."""
        wanted = {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}}
        answer = self.client.post(f"{self.api}/artifacts/filter", json=wanted)
        return {artifact["key"]: artifact["data"] for artifact in answer.json()}

    def task_names(self, flow_run_id: str) -> set[str]:
        """Names of the runs of its tasks."""
        wanted = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
        return {one["name"] for one in self.client.post(f"{self.api}/task_runs/filter", json=wanted).json()}

    def log_lines(self, flow_run_id: str) -> list[str]:
        """What its log says."""
        wanted = {"logs": {"flow_run_id": {"any_": [flow_run_id]}}}
        return [one["message"] for one in self.client.post(f"{self.api}/logs/filter", json=wanted).json()]

    def wait_for_end(self, flow_run_id: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Its final state."""

        def is_over() -> bool:
            return self.flow_run(flow_run_id)["state"]["type"] in FINAL

        wait_until("the flow run ends", is_over, patience_s)
        return self.flow_run(flow_run_id)["state"]


@contextmanager
def running_up(home: Home, *options: str, folder: Path = ROOT, server_port: int = 0) -> Iterator[RunningUp]:
    """Have one while the context lasts; whatever the test did to it, nothing is left."""
    running = RunningUp(home, *options, folder=folder, server_port=server_port)
    try:
        yield running
    finally:
        running.end()
        for process in running.processes():
            process.kill()


def _environment(home: Home) -> dict[str, str]:
    return without_prefect(os.environ) | {"SPOTLIGHT_HOME": str(home.path), "PYTHONPATH": str(ROOT)}
