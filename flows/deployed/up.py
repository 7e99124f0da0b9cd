"""`spotlight up`: Prefect server, deployments and dashboard as children, until one or a person ends it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import httpx

from flows.deployed.schedule import Nightly
from flows.process.prefect_settings import command_without_files
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
from flows.server.local_server import LocalServer, end_unused_server, for_client
from flows.server.note import living_server
from flows.server.password import home_password, password_file
from flows.server.ports import (
    LOOPBACK,
    SERVER_PORT,
    check_host,
    check_name,
    is_loopback,
    reachable,
    refuse_taken_port,
)
from flows.server.up_state import (
    DASHBOARD,
    DEPLOYMENTS,
    SERVER,
    Member,
    UpState,
    end_all,
    forget_state,
    left_of,
    new_token,
    read_state,
    sole_supervisor,
    state_file,
    write_state,
)
from storage.errors import ConfigurationError, ServerError
from storage.home import DASHBOARD_URL_VARIABLE, UP_TOKEN_VARIABLE, Home
from storage.processes import SAFE_PATH

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
    def api_url(self) -> str:
        """The API's address as this machine sees it."""
        return f"http://{reachable(self.host)}:{self.server_port}/api"

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
    with sole_supervisor(home), _ending_asked() as asked:
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
        Names of the ended processes; empty if there were none.

    Raises:
        ServerError: it runs on another machine, or its note is damaged.
    """
    state = read_state(home)
    if state is None:
        return [SERVER] if end_unused_server(home) else []
    if state.host != socket.gethostname():
        raise ServerError(
            f"`spotlight up` of {home.path} runs on {state.host}; end it there, or, if that machine is gone, "
            f"delete {state_file(home)}"
        )
    ended = end_all(state)
    if end_unused_server(home):
        ended.append(SERVER)
    forget_state(home)
    return ended


class _Supervisor:
    """A supervisor that starts the children, watches them, and ends them."""

    def __init__(self, home: Home, options: UpOptions, asked: threading.Event) -> None:
        self._home, self._options, self._asked = home, options, asked
        self._server: LocalServer | None = None
        self._children: list[Child] = []
        self._ready = home.path / "up.ready"
        self._ready.unlink(missing_ok=True)
        me = Member.of("up", os.getpid())
        self._state = UpState(
            socket.gethostname(), new_token(), options.api_url, me, dashboard_url=options.dashboard_url
        )

    def start(self) -> bool:
        """Start all and wait until they answer; return False if a person ended it meanwhile."""
        options = self._options
        server = LocalServer(self._home, options.server_port, options.host, exact=True, names=options.names)
        self._server = server
        self._note(Member.of(SERVER, server.pid))
        if not self._wait(server.is_ready):
            return False
        child = for_client(os.environ, server.client_environment)
        dashboard = dashboard_command(options.dashboard_port, options.host, options.names)
        self._launch(DASHBOARD, dashboard, dashboard_environment(self._home, child), DASHBOARD_FOLDER)
        serving = command_without_files(
            "flows.deployed.serving", "--ready", str(self._ready),
            "--runs-at-once", str(options.runs_at_once), *options.nightly.arguments(),
        )  # fmt: skip
        self._launch(DEPLOYMENTS, serving, child | SAFE_PATH | {"PREFECT_LOGGING_LEVEL": "INFO"})
        return self._wait(self._ready.exists) and self._wait(lambda: _answers(options.dashboard_url))

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
        order = {DEPLOYMENTS: 0, DASHBOARD: 1}
        for child in sorted(self._children, key=lambda child: order[child.name]):
            stopping = threading.Thread(target=child.stop, daemon=True)
            stopping.start()
            while stopping.is_alive():
                stopping.join(_LOOK_S)
                if self._asked.is_set():
                    child.stop(at_once=True)
        for process in left_of(self._state):  # descendants of a killed child
            process.kill()
        if self._server is not None:
            self._server.stop()
        self._ready.unlink(missing_ok=True)
        forget_state(self._home)

    def _launch(
        self, name: str, command: list[str], environment: dict[str, str], folder: Path | None = None
    ) -> None:
        log = self._home.logs / f"{name.lower().replace(' ', '-')}.log"
        # Streamlit's own shutdown hangs if its output is not read, and it only reads.
        parting = signal.SIGKILL if name == DASHBOARD else signal.SIGTERM
        marked = {DASHBOARD_URL_VARIABLE: self._options.dashboard_url} | environment
        marked |= {UP_TOKEN_VARIABLE: self._state.token, "SPOTLIGHT_HOME": str(self._home.path)}
        patience_s = _RUNS_END_S if name == DEPLOYMENTS else 15.0
        # Noted first: after a crash in between the next `up` still finds the child by the token.
        write_state(self._home, self._state)
        # If this process is killed, the deployments still end their runs, which tell the server.
        keeps = (self._server.users_lock,) if self._server and name == DEPLOYMENTS else ()
        child = Child(name, command, marked, log, parting, patience_s, keeps, folder)
        self._children.append(child)
        self._note(Member.of(name, child.pid))

    def _note(self, member: Member) -> None:
        self._state = replace(self._state, members=(*self._state.members, member))
        write_state(self._home, self._state)

    def _wait(self, true: Callable[[], bool]) -> bool:
        """Wait until `true` holds; return False if the end is asked for.

        Raises:
            ServerError: a child died, or it took too long.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        while not true():
            dead = self._dead()
            if dead is not None:
                raise ServerError(dead)
            if time.monotonic() > deadline:
                name = self._children[-1].name if self._children else SERVER
                asked = f"; the last time, {self._server.silence}" if self._server and name == SERVER else ""
                raise ServerError(
                    f"the {name} did not answer within {_START_LIMIT_S:g} s; see {self._home.logs}{asked}"
                )
            if self._asked.wait(_LOOK_S):
                return False
        return True

    def _dead(self) -> str | None:
        """Describe how one of the three ended, with its last output; None while all live."""
        for child in self._children:
            if child.code is not None:
                ended = f"the {child.name} ended with code {child.code} (log: {child.log})"
                return _with_last_words(ended, child.tail())
        ended = self._server.ended if self._server else None
        return _with_last_words(ended, self._server.tail()) if self._server and ended else None


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
    check_host(options.host)
    for name in options.names:
        check_name(name)
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
    server = options.api_url.removesuffix("/api")
    reporter().note(
        f"Prefect UI: {server}{_PAGES}/deployments (start, watch and cancel runs)\n"
        f"            log in with the line in {password_file(home)}\n"
        f"dashboard:  {options.dashboard_url} (look at runs)\n"
        f"nightly reproducibility runs: {options.nightly.in_words()}\n"
        "Ctrl-C ends all three"
    )


def _with_last_words(ended: str, tail: str) -> str:
    return f"{ended}; it said last:\n{tail}" if tail else ended


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
