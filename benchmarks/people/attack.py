"""Requests that a web page can send to a real `up` and a real `train`, and which succeed.

A browser on the same machine sends any page's requests to 127.0.0.1: with the page's `Origin`, or, if the
page's own name resolves to 127.0.0.1 (DNS rebinding), with its name as `Host`. Every attempt is made as each
of these callers, without the password, over HTTP and websockets, and judged by its effect, not by the
answer's status. `written` counts attempts whose change the owner finds at the server, `started` flow runs and
commands that began, `read` answers with the owner's data, `preflights` permissions for a browser to continue.

    python -m benchmarks.attack [--unprotected]

`--unprotected` makes the same attempts at an unmodified Prefect server, where they succeed, which proves
them.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import websockets
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from benchmarks.commands import spotlight
from benchmarks.report import ROOT, finish, options
from flows.server.note import living_server
from storage.errors import RuntimeFailure
from storage.home import HOME_VARIABLE, Home
from storage.record.run_store import RunStore
from tests.listening import listening
from tests.running_up import client_of, free_port, running_up, wait_until

_FOREIGN = "evil.example"
_TIMEOUT_S = 10.0
_SETTLE_S = 5.0
"""Events are written some time after they are accepted."""


_SETTINGS = ("iterations=1000", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.every=0")


@dataclass(frozen=True)
class Caller:
    """Headers that a browser sends for the calling page; None sends nothing.

    Attributes:
        host: the server's name as the page calls it; the port is added.
    """

    name: str
    host: str = "127.0.0.1"
    origin: str | None = None

    def headers(self, port: int) -> dict[str, str]:
        """Return the headers for a server on this port."""
        origin = None if self.origin is None else self.origin.replace("PORT", str(port))
        return {"Host": f"{self.host}:{port}"} | ({} if origin is None else {"Origin": origin})


CALLERS = (
    Caller("foreign page", origin=f"https://{_FOREIGN}"),
    Caller("foreign name (rebinding)", _FOREIGN, f"http://{_FOREIGN}:PORT"),
    Caller("foreign name, no origin", _FOREIGN),
    Caller("no origin of its own", origin="null"),
    Caller("page of another port", origin="http://localhost:8888"),
    Caller("no page, no password"),
)


@dataclass(frozen=True)
class Outcome:
    """An attempt: its aim (write, start, read, preflight), and whether it succeeded."""

    what: str
    caller: str
    aim: str
    succeeded: bool


class Target:
    """A Prefect server with something worth attacking."""

    def __init__(self, url: str, owner: httpx.Client) -> None:
        self.url, self._owner = url, owner
        self.port = int(url.rpartition(":")[2])
        self.secret = f"secret-{secrets.token_hex(8)}"
        flow = self._ask("/flows/", {"name": f"flow-{self.secret}"})
        made = {"name": "server", "flow_id": flow["id"], "entrypoint": "flow.py:flow", "path": "."}
        self.deployment = str(self._ask("/deployments/", made)["id"])
        self._ask("/variables/", {"name": self.secret, "value": self.secret})
        self._owner.post(f"{url}/api/events", json=[event(self.secret)]).raise_for_status()
        wait_until("the event is kept", lambda: self.secret in self._events())

    def _ask(self, path: str, content: dict[str, Any]) -> Any:
        answer = self._owner.post(f"{self.url}/api{path}", json=content)
        answer.raise_for_status()
        return answer.json()

    def _events(self) -> str:
        return json.dumps(self._ask("/events/filter", {"filter": {}, "limit": 50}))

    def flow_run_names(self) -> set[str]:
        """Return the names of all flow runs."""
        return {run["name"] for run in self._ask("/flow_runs/filter", {})}

    def changes(self) -> str:
        """Return the writable state, as text."""
        target = self._owner.get(f"{self.url}/api/deployments/{self.deployment}").json()
        return json.dumps([target, self._ask("/variables/filter", {})]) + self._events()


def event(name: str) -> dict[str, Any]:
    """Return an event for Prefect's API."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    resource = {"prefect.resource.id": f"attack.{name}"}
    return {"occurred": now, "event": name, "resource": resource, "id": str(uuid.uuid4()), "payload": {}}


def attack(server: Target, marker: Path) -> list[Outcome]:
    """Make every attempt as every caller, then check what each has achieved."""
    found: list[Outcome] = []
    aims: dict[str, tuple[str, str, str]] = {}
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": f"touch {marker}"}}]
    for caller in CALLERS:
        headers = caller.headers(server.port)
        target = f"/deployments/{server.deployment}"
        asked = headers | {"Access-Control-Request-Method": "PATCH"}
        answer = httpx.options(f"{server.url}/api{target}", headers=asked, timeout=_TIMEOUT_S)
        allowed = answer.headers.get("access-control-allow-origin") in ("*", headers.get("Origin", "*"))
        found.append(Outcome("preflight of a PATCH", caller.name, "preflight", allowed))
        for what, method, path, content, aim, kind in (
            ("plain POST", "POST", "/variables/", {"name": "NAME", "value": "1"}, "write", "text/plain"),
            ("POST", "POST", "/variables/", {"name": "NAME", "value": "1"}, "write", "application/json"),
            ("PATCH", "PATCH", target, {"pull_steps": steps, "description": "NAME"}, "write", None),
            ("start", "POST", f"{target}/create_flow_run", {"name": "NAME"}, "start", None),
            ("list", "POST", "/variables/filter", {}, "read", None),
            ("get", "GET", target, None, "read", None),
        ):
            name = f"attack-{secrets.token_hex(6)}"
            body = None if content is None else json.dumps(content).replace("NAME", name).encode()
            said = _request(server.url + "/api" + path, method, headers, body, kind or "application/json")
            if aim == "read":
                found.append(
                    Outcome(what, caller.name, aim, server.secret in said or server.deployment in said)
                )
            else:
                aims[name] = (what, caller.name, aim)
        for protocol in ("prefect", None):
            name = f"attack-{secrets.token_hex(6)}"
            with (
                suppress(OSError, websockets.WebSocketException),
                _websocket(server, "/events/in", caller, protocol) as to,
            ):
                to.send(json.dumps(event(name)))
                time.sleep(0.2)  # so that it is read before the end
            aims[name] = (f"event by websocket ({protocol})", caller.name, "write")
            received = _listen(server, caller, protocol)
            found.append(Outcome(f"listen by websocket ({protocol})", caller.name, "read", received))
    time.sleep(_SETTLE_S)
    written, started = server.changes(), server.flow_run_names()
    for name, (what, caller_name, aim) in aims.items():
        done = name in started if aim == "start" else name in written
        found.append(Outcome(what, caller_name, aim, done))
    found.append(Outcome("the script of a deployment", "any", "start", marker.exists()))
    return found


def _request(url: str, method: str, headers: dict[str, str], body: bytes | None, kind: str) -> str:
    typed = headers | ({"Content-Type": kind} if body is not None else {})
    try:
        return httpx.request(method, url, headers=typed, content=body, timeout=_TIMEOUT_S).text
    except httpx.HTTPError:
        return ""


def _connected(port: int, path: str, headers: dict[str, str], protocol: str | None = None) -> Connection:
    return connect(
        f"ws://{headers['Host']}{path}", sock=socket.create_connection(("127.0.0.1", port)),
        origin=headers.get("Origin"), subprotocols=[protocol] if protocol else None,  # pyright: ignore[reportArgumentType]
        open_timeout=_TIMEOUT_S, close_timeout=1,
    )  # fmt: skip


@contextmanager
def _websocket(server: Target, path: str, caller: Caller, protocol: str | None) -> Iterator[Connection]:
    """Open a caller's connection, with the greeting that Prefect's protocol wants."""
    with _connected(server.port, f"/api{path}", caller.headers(server.port), protocol) as opened:
        if protocol is not None:
            opened.send(json.dumps({"type": "auth", "token": None}))
            opened.recv(timeout=_TIMEOUT_S)
        yield opened


def _listen(server: Target, caller: Caller, protocol: str | None) -> bool:
    """Return True if the stream of events shows the planted one."""
    with (
        suppress(OSError, websockets.WebSocketException),
        _websocket(server, "/events/out", caller, protocol) as stream,
    ):
        stream.send(json.dumps({"type": "filter", "filter": {}}))
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            if server.secret in str(stream.recv(timeout=_TIMEOUT_S)):
                return True
    return False


def attack_dashboard(url: str) -> list[Outcome]:
    """Open the dashboard's stream, which sends a page's content, as a page of another site."""
    port = int(url.rpartition(":")[2])
    found = []
    for caller in CALLERS[:-1]:  # without a page it is open to this machine
        headers = caller.headers(port)
        if "Origin" not in headers:
            continue
        opened = False
        with suppress(OSError, websockets.WebSocketException), _connected(port, "/_stcore/stream", headers):
            opened = True
        found.append(Outcome("the dashboard's stream", caller.name, "read", opened))
    return found


def attack_ray(processes: Iterable[psutil.Process], marker: Path) -> list[Outcome]:
    """Ask each of Ray's HTTP servers to run a command, or to list its jobs."""
    found = []
    job = {"entrypoint": f"touch {marker}", "runtime_env": {}, "metadata": {}}
    for place in listening(processes):
        port = int(place.rpartition(":")[2])
        url = f"http://127.0.0.1:{port}"
        try:
            httpx.get(url, timeout=3)
        except httpx.HTTPError:
            continue  # gRPC, or not at this address
        for caller in CALLERS:
            for path in ("/api/jobs/", "/api/job_agent/jobs/", "/get_or_create_runtime_env"):
                body = json.dumps(job).encode()
                _request(url + path, "POST", caller.headers(port), body, "application/json")
                found.append(Outcome(f"Ray: POST {path}", caller.name, "start", marker.exists()))
            listed = _request(url + "/api/jobs/", "GET", caller.headers(port), None, "")
            found.append(Outcome("Ray: list jobs", caller.name, "read", "submission_id" in listed))
    return found


def _start(command: list[str], log: Path, more: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command without Prefect settings from the environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env=kept | more, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


@contextmanager
def training(home: Home) -> Iterator[psutil.Process]:
    """Yield a real `spotlight train` that has finished an iteration and continues."""
    command = spotlight("train", "--preset", "smoke", "--run-id", "server", settings=_SETTINGS)
    log = home.path / "train.out"
    child = _start(command, log, {HOME_VARIABLE: str(home.path)})
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
    """Start an unmodified Prefect server; yield its address."""
    port = free_port()
    more = {
        "PREFECT_HOME": str(home.prefect), "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }  # fmt: skip
    command = [sys.executable, "-m", "prefect", "server", "start"]
    child = _start(command, home.logs / "prefect-server.log", more)
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


def figures_of(outcomes: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Return the attempts' counts, in total and by target, and those that succeeded."""
    every = [outcome for found in outcomes.values() for outcome in found]
    done = Counter(outcome.aim for outcome in every if outcome.succeeded)
    return {
        "tries": len(every),
        "written": done["write"],
        "started": done["start"],
        "read": done["read"],
        "preflights": done["preflight"],
        "tries_by_kind": dict(Counter(outcome.what for outcome in every)),
        "tries_by_target": {target: len(found) for target, found in outcomes.items()},
        "succeeded": sorted(
            {f"{target}: {each.what}, {each.caller}" for target, found in outcomes.items() for each in found
             if each.succeeded}
        ),
    }  # fmt: skip


def attack_up(home: Home, marker: Path) -> list[Outcome]:
    """Attack a real `spotlight up`: its Prefect server and its dashboard."""
    with running_up(home) as up:
        server = Target(up.api.removesuffix("/api"), up.client)
        return attack(server, marker) + attack_dashboard(up.dashboard)


def attack_train(home: Home, marker: Path) -> list[Outcome]:
    """Attack a real `spotlight train`: its Prefect server and Ray's servers."""
    with training(home) as run:
        server = living_server(home)
        if server is None:
            raise RuntimeFailure(f"the run has no Prefect server; see {home.logs}")
        target = Target(server.ui_url, client_of(home))
        ray = [each for each in run.children(recursive=True) if each.pid != server.pid]
        return attack(target, marker) + attack_ray([run, *ray], marker)


def main() -> None:
    """Print the attempts that succeeded, and one JSON line last."""
    parser = options(__doc__)
    parser.add_argument("--unprotected", action="store_true", help="attack an unmodified Prefect instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        homes = [Home(Path(folder) / name).ensure() for name in ("up", "train", "unprotected")]
        marker = Path(folder) / "started-by-an-attack"
        if arguments.unprotected:
            with unprotected(homes[2]) as url, httpx.Client(timeout=60) as owner:
                outcomes = {"unprotected": attack(Target(url, owner), marker)}
        else:
            outcomes = {}
            for name, strike, home in (("train", attack_train, homes[1]), ("up", attack_up, homes[0])):
                outcomes[name] = strike(home, marker)
                made = Counter(outcome.aim for outcome in outcomes[name])
                done = Counter(outcome.aim for outcome in outcomes[name] if outcome.succeeded)
                print(f"{name}: tries {dict(made)}, of which succeeded {dict(done)}", flush=True)
    figures = figures_of(outcomes)
    for line in figures["succeeded"]:
        print(line)
    name = "attack_unprotected" if arguments.unprotected else "attack"
    finish(name, figures, arguments, module="attack")


if __name__ == "__main__":
    main()
