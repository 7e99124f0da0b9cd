"""The local Prefect server: found, started and stopped.

A real server rather than Prefect's ephemeral one, which has no UI and loses events at exit. It is
a child of the process that started it and ends with it, also after kill -9. A server that dies in the
middle is started again on the same port and database: a run computes on without it, and Prefect's
clients try again until it is back.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx

from flows.progress import reporter
from flows.server_loss import hand_over
from flows.up_state import read_state, supervisor_lives
from storage.errors import ServerError
from storage.home import Home

_START_LIMIT_S = 120.0
_PORT = 4200
_PR_SET_PDEATHSIG = 1

_LOOK_S = 0.5
"""How often a server is looked after."""

_RESTARTS = 6
"""As often in a row a dead server is started again, after 0, 1, 3, 7, 15 and 31 seconds."""

_STEADY_S = 600.0
"""A server that lived this long did not die of how it was started: counting begins anew."""

CLIENT_RETRIES = "4"
"""Of Prefect's clients; with Prefect's doubling pauses, 30 s in which a dead server may come back."""

# A launcher sets the signal, not `preexec_fn`: forking Python between the threads of Ray and torch can
# deadlock, and a server is also started while they run. A parent that was faster dead sends no signal.
_LAUNCHER = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGTERM.value})
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "prefect", "server", "start"])
"""


class LocalServer:
    """A Prefect server process of ours.

    Args:
        home: where its state and log lie.
        port: where it listens on 127.0.0.1.
    """

    def __init__(self, home: Home, port: int) -> None:
        self.api_url = f"http://127.0.0.1:{port}/api"
        self.ui_url = f"http://127.0.0.1:{port}"
        home.ensure()
        self.log = home.logs / "prefect-server.log"
        self._environment = server_environment(home, port)
        self._process = self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, str(os.getpid())],
                env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            ServerError: if it ends or stays silent; names its log.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(
                    f"the Prefect server ended with code {self._process.returncode} while starting; "
                    f"see {self.log}"
                )
            if is_healthy(self.api_url):
                return
            time.sleep(0.2)
        self.stop()
        raise ServerError(f"the Prefect server did not answer within {_START_LIMIT_S:g} s; see {self.log}")

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """While the context lasts, start it again whenever it dies; end it afterwards."""
        over = threading.Event()
        # A server started again gets its signal when the thread that started it ends: this one stays.
        keeper = threading.Thread(target=self._keep_alive, args=(over,), name="server-keeper", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()
            self.stop()

    def _keep_alive(self, over: threading.Event) -> None:
        deaths, launched_at = 0, time.monotonic()
        while not over.wait(_LOOK_S):
            if self._process.poll() is None:
                continue
            ended = f"the Prefect server ended with code {self._process.returncode} (see {self.log})"
            deaths = 1 if time.monotonic() - launched_at > _STEADY_S else deaths + 1
            if deaths > _RESTARTS:
                reporter().note(f"warning: {ended}, {deaths} times in a row; what runs goes on without it")
                return
            reporter().note(f"warning: {ended}; it is started again, and what runs goes on meanwhile")
            if over.wait(2 ** (deaths - 1) - 1):
                return
            self._process, launched_at = self._launch(), time.monotonic()

    def stop(self) -> None:
        """End it and its children."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            if self._process.poll() is not None:
                return
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(patience)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


def server_environment(home: Home, port: int, host: str = "127.0.0.1") -> dict[str, str]:
    """The environment of a server of ours: where its state lies, and where it listens."""
    environment = os.environ | {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    }
    environment.pop("PREFECT_API_URL", None)
    return environment


def is_healthy(api_url: str) -> bool:
    """Whether a Prefect server answers at the address."""
    try:
        return httpx.get(f"{api_url}/health", timeout=2).status_code == 200
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


@contextmanager
def prefect_server(home: Home, meanwhile: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Have a server while the context lasts; yields the address of its UI.

    The one that PREFECT_API_URL names is used as it is, and without that the one of a `spotlight up` of
    this home; where there is none, a local one is started, its address put into the environment, kept
    alive, and ended afterwards.

    Args:
        home: where a local server keeps its state.
        meanwhile: called while the local server starts, such as an import that takes seconds.

    Raises:
        ServerError: if the named one does not answer, or the local one does not start, or Prefect
            was imported before it: its settings are read then, and threads of its own would use an
            ephemeral server.
    """
    configured = os.environ.get("PREFECT_API_URL", "")
    if configured:
        if not is_healthy(configured):
            raise ServerError(
                f"no Prefect server answers at PREFECT_API_URL={configured}; start it, or unset the "
                "variable to have a local one started"
            )
        try:
            yield configured.removesuffix("/api")
        finally:
            hand_over()
        return
    if "prefect" in sys.modules:
        raise ServerError(
            "Prefect was imported before its local server was started; import it later, or start a server "
            "and set PREFECT_API_URL"
        )
    api_url = address_of_up(home)
    if api_url is not None:
        os.environ["PREFECT_API_URL"] = api_url
        try:
            meanwhile()
            yield api_url.removesuffix("/api")
        finally:
            hand_over()
            os.environ.pop("PREFECT_API_URL", None)
        return
    server = LocalServer(home, free_port(_PORT))
    os.environ["PREFECT_API_URL"] = server.api_url
    os.environ.setdefault("PREFECT_HOME", str(home.prefect))
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", CLIENT_RETRIES)
    try:
        meanwhile()
        server.wait_ready()
        with server.kept_alive():
            try:
                yield server.ui_url
            finally:
                hand_over()
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        server.stop()


def address_of_up(home: Home) -> str | None:
    """The API's address of a `spotlight up` of this home that answers; None where there is none.

    Raises:
        ServerError: what is noted of it is damaged.
    """
    state = read_state(home)
    there = state is not None and supervisor_lives(state) and is_healthy(state.api_url)
    return state.api_url if state is not None and there else None


def free_port(wanted: int) -> int:
    """The port, or one that the system chooses where it is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise ServerError("no free port on 127.0.0.1")


def close_orphaned_flow_runs(run_ids: Sequence[str]) -> None:
    """Mark flow runs of these names as crashed: their processes are gone.

    Without this they would run for ever, and one that was being cancelled would cancel its
    successor of the same name.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState
    from prefect.states import Crashed

    unfinished = FlowRunFilter(
        name=FlowRunFilterName(any_=list(run_ids)),
        state=FlowRunFilterState.model_validate({"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}),
    )
    with get_client(sync_client=True) as client:
        for orphan in client.read_flow_runs(flow_run_filter=unfinished):
            client.set_flow_run_state(orphan.id, Crashed(message="its process was killed"), force=True)


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In the child, before exec: get this signal when the parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
