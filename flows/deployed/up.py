"""`spotlight up`: Prefect server, deployments and dashboard as children, until one or a person ends it.

A home's `up` holds a lock on `up.json`, where it notes itself. Its children end with it. They carry the
home's path in their environment, and so do their descendants: one that hangs is found by it. `down` holds the
lock while it ends those.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from flows.deployed.schedule import Nightly
from flows.progress import reporter
from flows.server.children import ENDING_S, Child, end_processes
from flows.server.dashboards import (
    DASHBOARD_FOLDER,
    DEFAULT_PORT,
    check_login,
    dashboard_command,
    dashboard_environment,
    noted_dashboard,
)
from flows.server.local_server import LocalServer, for_client
from flows.server.note import ServerNote, living_note, living_server, read_note, sole_holder
from flows.server.password import home_password, password_file
from flows.server.ports import LOOPBACK, SERVER_PORT, check_address, is_loopback, reachable, refuse_taken_port
from flows.server.prefect_server import is_healthy
from storage.errors import ConfigurationError, ServerError
from storage.home import DASHBOARD_URL_VARIABLE, FOLDER_VARIABLE, HOME_VARIABLE, UP_VARIABLE, Home
from storage.processes import SAFE_PATH, python_command
from storage.record.files import locked

SERVING_MODULE = "flows.deployed.serving"

_START_LIMIT_S = 180.0
_LOOK_S = 0.3
_PAGES = "/v2"
"""The path of the Prefect UI that its first page leads to; an address without it may open the other UI."""


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
    def server(self) -> ServerNote:
        """The note of an `up`: where Prefect's server listens."""
        return ServerNote(self.host, self.server_port, self.names)

    @property
    def dashboard_url(self) -> str:
        """The dashboard's address as this machine sees it."""
        return f"http://{reachable(self.host)}:{self.dashboard_port}"


def up(home: Home, options: UpOptions) -> int:
    """Start all three, print their addresses, and wait for Ctrl-C, SIGTERM or the death of one.

    Returns:
        Exit code: 0 if a person ended it, 1 if one of the three died.

    Raises:
        ConfigurationError, ServerError: an unusable value, port or home; or one of the three did not start.
    """
    _check(home, options)
    with sole_supervisor(home, options), _ending_asked(home) as asked:
        ports = {"--ui-port": options.dashboard_port}
        if living_server(home) is None:  # a run of this home may have started it already
            ports["--server-port"] = options.server_port
        for name, port in ports.items():
            refuse_taken_port(port, f"choose another with `spotlight up {name}`", options.host)
        with noted_dashboard(home, options.host, options.dashboard_port), ExitStack() as ends:
            return _serve(home, options, asked, ends)


def _serve(home: Home, options: UpOptions, asked: threading.Event, ends: ExitStack) -> int:
    """Do the work of `up`; `ends` gets what ends the three: the deployments with their runs first."""
    ready = home.path / "up.ready"
    ready.unlink(missing_ok=True)
    ends.callback(ready.unlink, missing_ok=True)
    ends.callback(lambda: end_processes(left_of(home)))  # descendants of a killed child
    mark = {UP_VARIABLE: _mark(home), HOME_VARIABLE: str(home.path)}
    server = LocalServer(home, options.server_port, options.host, True, options.names, mark)
    ends.callback(server.stop)
    children: list[Child] = []

    def dead() -> str | None:
        return server.lost() or next(filter(None, (child.ended for child in children)), None)

    if not _wait(server.is_ready, asked, dead, home):
        return 0
    links = {DASHBOARD_URL_VARIABLE: options.dashboard_url}
    environment = links | for_client(os.environ, server.client_environment) | mark
    for child in _children(home, options, environment, ready):
        children.append(child)
        ends.callback(child.stop)
    if not _wait(
        lambda: ready.exists() and is_healthy(f"{options.dashboard_url}/_stcore"), asked, dead, home
    ):
        return 0
    _say_where(home, options)
    while not asked.wait(_LOOK_S):
        if said := dead():
            reporter().note(f"error: {said}\nending the others")
            return 1
    reporter().note("ending; runs that go on save what they hold (Ctrl-C again ends at once)")
    return 0


def _children(home: Home, options: UpOptions, environment: Mapping[str, str], ready: Path) -> Iterator[Child]:
    """Start the dashboard and the deployments, which make the file `ready` once runs can be started."""
    # SIGKILL: Streamlit's own shutdown hangs if its output is not read, and it only reads.
    yield Child(
        "dashboard", dashboard_command(options.dashboard_port, options.host, options.names),
        dashboard_environment(home, environment), home.logs / "dashboard.log",
        signal.SIGKILL, folder=DASHBOARD_FOLDER,
    )  # fmt: skip
    said = {"ready": str(ready), "runs_at_once": options.runs_at_once, "nightly": asdict(options.nightly)}
    # Prefect reads the settings of its current folder: it is not the person's, to which a run returns.
    yield Child(
        "deployments", python_command("-m", SERVING_MODULE, json.dumps(said)),
        {**environment, **SAFE_PATH, "PREFECT_LOGGING_LEVEL": "INFO", FOLDER_VARIABLE: os.getcwd()},
        home.logs / "deployments.log", patience_s=ENDING_S, folder=home.prefect,
    )  # fmt: skip


def _wait(
    ready: Callable[[], bool], asked: threading.Event, dead: Callable[[], str | None], home: Home
) -> bool:
    """Wait until children are ready; return False if the end is asked for."""
    deadline = time.monotonic() + _START_LIMIT_S
    while not ready():
        if said := dead():
            raise ServerError(said)
        if time.monotonic() > deadline:
            raise ServerError(f"not all answered within {_START_LIMIT_S:g} s; see the logs in {home.logs}")
        if asked.wait(_LOOK_S):
            return False
    return True


@contextmanager
def _ending_asked(home: Home) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set; a further one kills the children."""
    asked = threading.Event()

    def ask(_: int, __: FrameType | None) -> None:
        if asked.is_set():
            for process in left_of(home):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def down(home: Home) -> list[str]:
    """End a home's `spotlight up`, or the processes that a crashed one left.

    Returns:
        The ended processes, in words; empty if there were none.

    Raises:
        ServerError: it runs on another machine.
    """
    file, ended = state_file(home), []
    _refuse_other_machine(home)
    if (note := living_note(file)) is not None:
        ended.append(f"up (process {note.pid})")
        with suppress(ProcessLookupError):
            os.kill(note.pid, signal.SIGTERM)
    if not file.exists():
        return []
    with sole_holder(file, 2 * ENDING_S, f"a `spotlight up` or `spotlight down` of {home.path}"):
        file.write_text("")
        left = {process: _in_words(process) for process in left_of(home)}
        # The process that serves the deployments ends its runs in order, which tell the server.
        end_processes([process for process, words in left.items() if SERVING_MODULE in words])
        end_processes(left_of(home))
        return [*ended, *left.values()]


def state_file(home: Home) -> Path:
    """Return the file that a home's `up` has locked; whichever takes the lock replaces the note at once."""
    return home.path / "up.json"


@contextmanager
def sole_supervisor(home: Home, options: UpOptions) -> Iterator[None]:
    """Hold a home's lock, and note its `up`.

    Raises:
        ServerError: another `spotlight up` has this home, or an earlier one left processes.
    """
    file = state_file(home.ensure())
    with locked(file, wait=False) as is_ours:
        _refuse_other_machine(home)
        if not is_ours:
            note = read_note(file)
            holder = f" (process {note.pid}, {note.ui_url})" if note else ", or `spotlight down` ends it"
            raise ServerError(
                f"`spotlight up` runs already for {home.path}{holder}; use it, end it with `spotlight down`, "
                "or set SPOTLIGHT_HOME to another folder"
            )
        own = options.server
        own.write(file)
        try:
            if left := left_of(home):
                named = ", ".join(map(_in_words, left[:4]))
                raise ServerError(
                    f"an earlier `spotlight up` left {len(left)} processes ({named}); end them with "
                    "`spotlight down`"
                )
            yield
        finally:
            with suppress(OSError):  # the home may be gone, or another's by now
                if read_note(file) == own:
                    file.write_text("")


def _refuse_other_machine(home: Home) -> None:
    note = read_note(state_file(home))
    if note is not None and note.machine != socket.gethostname():
        raise ServerError(
            f"`spotlight up` of {home.path} runs on {note.machine}; end it there with `spotlight down`, or, "
            f"if that machine is gone, delete {state_file(home)}"
        )


def left_of(home: Home) -> list[psutil.Process]:
    """Return the living children of a home's `up` and their descendants, which carry its path."""
    found, mark = [], _mark(home)
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone meanwhile, or another user's
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(UP_VARIABLE) == mark:
                found.append(process)
    return found


def _mark(home: Home) -> str:
    """Return what the environment of an `up`'s processes holds, however a person spells the home's path."""
    return str(home.path.resolve())


def _in_words(process: psutil.Process) -> str:
    try:
        return f"{' '.join(process.cmdline()[1:4])[:60]} (process {process.pid})"
    except psutil.Error:
        return str(process.pid)


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
        f"Prefect UI: {options.server.ui_url}{_PAGES}/deployments (start, watch and cancel runs)\n"
        f"            log in with the line in {password_file(home)}\n"
        f"dashboard:  {options.dashboard_url} (look at runs)\n"
        f"nightly reproducibility runs: {options.nightly.in_words()}\n"
        "Ctrl-C ends all three"
    )
