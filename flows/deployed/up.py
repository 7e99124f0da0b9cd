"""`spotlight up`: Prefect server, deployments and dashboard as children, until one or a person ends it.

A home's `up` holds a lock on `up.json`, where it notes its machine and process. Its children carry the home's
path in their environment, and so do their descendants: what a crash leaves is found by it. `down` holds the
lock while it ends that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import psutil

from flows.deployed.schedule import Nightly
from flows.progress import reporter
from flows.server.children import Child
from flows.server.dashboards import (
    DASHBOARD_FOLDER,
    DEFAULT_PORT,
    check_login,
    dashboard_command,
    dashboard_environment,
    noted_dashboard,
)
from flows.server.local_server import LocalServer, for_client
from flows.server.note import FileLock, living_server
from flows.server.password import home_password, password_file
from flows.server.ports import (
    LOOPBACK,
    SERVER_PORT,
    check_address,
    is_loopback,
    reachable,
    refuse_taken_port,
)
from storage.clock import process_is_alive, process_start_s
from storage.errors import ConfigurationError, ServerError
from storage.home import DASHBOARD_URL_VARIABLE, FOLDER_VARIABLE, HOME_VARIABLE, UP_VARIABLE, Home
from storage.processes import SAFE_PATH, python_command

SERVING_MODULE = "flows.deployed.serving"
SERVER, DEPLOYMENTS, DASHBOARD = "Prefect server", "deployments", "dashboard"
"""Names of the three."""

_START_LIMIT_S = 180.0
_LOOK_S = 0.3
_PAGES = "/v2"
"""The path of the Prefect UI that its first page leads to; an address without it may open the other UI."""

_RUNS_END_S = 45.0
"""Seconds for the deployments to end their runs, which save what they hold."""


@dataclass(frozen=True)
class UpOptions:
    """The options of `up`.

    Attributes:
        server_port, dashboard_port: ports of Prefect and of the dashboard.
        host: address of this machine to listen on.
        names: further names that Prefect's server and the dashboard answer to, such as a proxy's.
        runs_at_once: flow runs that may run at the same time; more wait.
        nightly: schedule of the reproducibility runs.
    """

    server_port: int = SERVER_PORT
    dashboard_port: int = DEFAULT_PORT
    host: str = LOOPBACK
    names: tuple[str, ...] = ()
    runs_at_once: int = 1
    nightly: Nightly = field(default_factory=Nightly)

    @property
    def server_url(self) -> str:
        """The Prefect server's address as this machine sees it."""
        return f"http://{reachable(self.host)}:{self.server_port}"

    @property
    def dashboard_url(self) -> str:
        """The dashboard's address as this machine sees it."""
        return f"http://{reachable(self.host)}:{self.dashboard_port}"


def up(home: Home, options: UpOptions) -> int:
    """Start all three, print their addresses, and wait for Ctrl-C, SIGTERM or the death of one.

    Returns:
        Exit code: 0 if a person ended it, 1 if one of the three died.

    Raises:
        ConfigurationError, ServerError: an unusable value, port or home; or one of the three did
            not start. Nothing is left running then.
    """
    _check(home, options)
    with sole_supervisor(home, options.server_url), _ending_asked() as asked:
        ports = {"--ui-port": options.dashboard_port}
        if living_server(home) is None:  # runs of this home may have started it already
            ports["--server-port"] = options.server_port
        for name, port in ports.items():
            refuse_taken_port(port, f"choose another with `spotlight up {name}`", options.host)
        supervisor = _Supervisor(home, options, asked)
        with noted_dashboard(home, options.host, options.dashboard_port):
            try:
                if not supervisor.start():
                    return 0
                _say_where(home, options)
                return supervisor.watch()
            finally:
                supervisor.stop()


def down(home: Home) -> list[str]:
    """End a home's `spotlight up`, or the processes that a crashed one left.

    Returns:
        The ended processes, in words; empty if there were none.

    Raises:
        ServerError: it runs on another machine.
    """
    file, ended = state_file(home), []
    if not file.exists():
        return []
    lock = FileLock(file)
    try:
        machine = _state(file).get("machine", _MACHINE)
        if machine != _MACHINE:
            raise ServerError(
                f"`spotlight up` of {home.path} runs on {machine}; end it there, or, if that machine is "
                f"gone, delete {file}"
            )
        if not lock.attempt(exclusive=True):
            holder = _holder(_state(file))
            if holder is not None:
                ended.append(f"up (process {holder.pid})")
                _send(holder, signal.SIGTERM)
            lock.acquire(True, 2 * _RUNS_END_S, f"a `spotlight up` or `spotlight down` of {home.path}")
        left = {process: _in_words(process) for process in left_of(home)}
        # The process that serves the deployments ends its runs in order.
        _end([process for process, words in left.items() if SERVING_MODULE in words])
        _end(left_of(home))
        lock.rewrite("")
        return [*ended, *left.values()]
    finally:
        lock.close()


def state_file(home: Home) -> Path:
    """Return the file that a home's `up` has locked; its note is empty once nothing is left."""
    return home.path / "up.json"


@contextmanager
def sole_supervisor(home: Home, url: str) -> Iterator[None]:
    """Hold a home's lock, which the system releases however this process ends.

    Raises:
        ServerError: another `spotlight up` has this home, or an earlier one left processes.
    """
    file = state_file(home.ensure())
    with ExitStack() as held:
        lock = FileLock(file)
        held.callback(lock.close)
        state = _state(file)
        if state.get("machine", _MACHINE) != _MACHINE:
            raise ServerError(
                f"{home.path} belongs to a `spotlight up` on {state['machine']}; end it there with "
                f"`spotlight down`, or, if that machine is gone, delete {file}"
            )
        if not lock.attempt(exclusive=True):
            state = _state(file)
            holder = _holder(state)
            if holder is None:
                raise ServerError(
                    f"another `spotlight up` of {home.path} is just starting, or `spotlight down` is ending "
                    "one; try again when it is done"
                )
            raise ServerError(
                f"`spotlight up` runs already for {home.path} (process {holder.pid}, {state['url']}); use "
                "it, end it with `spotlight down`, or set SPOTLIGHT_HOME to another folder"
            )
        if left := left_of(home):
            raise ServerError(
                f"an earlier `spotlight up` left {len(left)} processes ({', '.join(map(_in_words, left[:4]))}"
                "); end them with `spotlight down`"
            )
        me = {"pid": os.getpid(), "started_at": process_start_s(os.getpid())}
        lock.rewrite(json.dumps({"machine": _MACHINE, **me, "url": url}))
        held.callback(lock.rewrite, "")
        yield


def left_of(home: Home) -> list[psutil.Process]:
    """Return the living children of a home's `up` and their descendants, which carry its path."""
    found, mark = [], _mark(home)
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone meanwhile, or another user's
            if process.status() != psutil.STATUS_ZOMBIE and (process.environ().get(UP_VARIABLE) == mark):
                found.append(process)
    return found


_MACHINE = socket.gethostname()


def _mark(home: Home) -> str:
    """Return what the environment of an `up`'s processes holds, however a person spells the home's path."""
    return str(home.path.resolve())


def _state(file: Path) -> dict[str, Any]:
    """Return the note of an `up`; empty where none has written one."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):  # it is writing, or was cut off
        return {}


def _holder(state: Mapping[str, Any]) -> psutil.Process | None:
    """Return the process of a note; None if it is gone, and the note is that of an `up` that crashed."""
    pid = state.get("pid")
    if not isinstance(pid, int) or not process_is_alive(pid, state.get("started_at")):
        return None
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _end(processes: list[psutil.Process]) -> None:
    """Send SIGTERM, wait, send SIGKILL; psutil checks the start time again, so a reused pid is safe."""
    for process in processes:
        _send(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=_RUNS_END_S)
    for process in alive:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=10)


def _in_words(process: psutil.Process) -> str:
    try:
        return f"{' '.join(process.cmdline()[1:4])[:60]} (process {process.pid})"
    except psutil.Error:
        return str(process.pid)


class _Supervisor:
    """A supervisor that starts the children, watches them, and ends them."""

    def __init__(self, home: Home, options: UpOptions, asked: threading.Event) -> None:
        self._home, self._options, self._asked = home, options, asked
        self._server: LocalServer | None = None
        self._children: list[Child] = []
        self._ready = home.path / "up.ready"
        self._ready.unlink(missing_ok=True)

    def start(self) -> bool:
        """Start all and wait until they answer; return False if a person ended it meanwhile."""
        options = self._options
        server = LocalServer(self._home, options.server_port, options.host, exact=True, names=options.names)
        self._server = server
        if not self._wait(SERVER, server.is_ready):
            return False
        child = {
            DASHBOARD_URL_VARIABLE: options.dashboard_url,
            **for_client(os.environ, server.client_environment),
            UP_VARIABLE: _mark(self._home),
            HOME_VARIABLE: str(self._home.path),
        }
        # Streamlit's own shutdown hangs if its output is not read, and it only reads.
        dashboard = Child(
            DASHBOARD, dashboard_command(options.dashboard_port, options.host, options.names),
            dashboard_environment(self._home, child), self._home.logs / f"{DASHBOARD}.log",
            signal.SIGKILL, folder=DASHBOARD_FOLDER,
        )  # fmt: skip
        self._children.append(dashboard)
        # Prefect reads the settings of its current folder: it is not the person's, to which a run returns.
        deployments = Child(
            DEPLOYMENTS,
            python_command(
                "-m", SERVING_MODULE, "--ready", str(self._ready),
                "--runs-at-once", str(options.runs_at_once), *options.nightly.arguments(),
            ),
            child | SAFE_PATH | {"PREFECT_LOGGING_LEVEL": "INFO", FOLDER_VARIABLE: os.getcwd()},
            self._home.logs / f"{DEPLOYMENTS}.log", patience_s=_RUNS_END_S,
            # If this process is killed, the deployments still end their runs, which tell the server.
            keeps=(server.users_lock,), folder=self._home.prefect,
        )  # fmt: skip
        self._children.append(deployments)
        return self._wait(DEPLOYMENTS, self._ready.exists) and self._wait(
            DASHBOARD, lambda: _answers(options.dashboard_url)
        )

    def watch(self) -> int:
        """Wait until a signal asks for the end, or a child dies."""
        while not self._asked.wait(_LOOK_S):
            dead = self._dead()
            if dead is not None:
                reporter().note(f"error: {dead}\nending the others")
                return 1
        reporter().note("ending; runs that go on save what they hold (Ctrl-C again ends at once)")
        return 0

    def stop(self) -> None:
        """End the living children: the deployments with their runs first, the server last."""
        self._asked.clear()
        for child in reversed(self._children):
            stopping = threading.Thread(target=child.stop, daemon=True)
            stopping.start()
            while stopping.is_alive():
                stopping.join(_LOOK_S)
                if self._asked.is_set():
                    child.stop(at_once=True)
        for process in left_of(self._home):  # descendants of a killed child
            _send(process, signal.SIGKILL)
        if self._server is not None:
            self._server.stop()
        self._ready.unlink(missing_ok=True)

    def _wait(self, name: str, answers: Callable[[], bool]) -> bool:
        """Wait until the one of that name answers; return False if the end is asked for.

        Raises:
            ServerError: a child died, or it took too long.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        while not answers():
            dead = self._dead()
            if dead is not None:
                raise ServerError(dead)
            if time.monotonic() > deadline:
                asked = f"; the last time, {self._server.silence}" if self._server and name == SERVER else ""
                raise ServerError(
                    f"the {name} did not answer within {_START_LIMIT_S:g} s; see {self._home.logs}{asked}"
                )
            if self._asked.wait(_LOOK_S):
                return False
        return True

    def _dead(self) -> str | None:
        """Describe how one of the three ended, with its last output; None while all live."""
        three = (*self._children, *([self._server] if self._server else []))
        return next((ended for one in three if (ended := one.ended) is not None), None)


@contextmanager
def _ending_asked() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set."""
    asked = threading.Event()

    def ask(_: int, __: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(home: Home, options: UpOptions) -> None:
    check_address(options.host, options.names)
    check_login(home, options.host)
    if options.server_port == options.dashboard_port:
        raise ConfigurationError(
            f"--server-port and --ui-port are both {options.server_port}; give them two ports"
        )
    configured = os.environ.get("PREFECT_API_URL")
    if configured:
        raise ConfigurationError(
            f"PREFECT_API_URL is {configured}, but `up` starts a server of its own; unset the variable, or "
            "serve the deployments there: see docs/reference/server.md"
        )
    home_password(home.ensure())
    if not is_loopback(options.host):
        reporter().note(
            f"warning: --host {options.host}: other machines reach the dashboard, which asks for its login, "
            f"and Prefect, which asks for the line in {password_file(home)}; neither encrypts what is sent"
        )


def _say_where(home: Home, options: UpOptions) -> None:
    reporter().note(
        f"Prefect UI: {options.server_url}{_PAGES}/deployments (start, watch and cancel runs)\n"
        f"            log in with the line in {password_file(home)}\n"
        f"dashboard:  {options.dashboard_url} (look at runs)\n"
        f"nightly reproducibility runs: {options.nightly.in_words()}\n"
        "Ctrl-C ends all three"
    )


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
