"""A home's Prefect server: the one that runs, or a child of this process that ends with it.

A real server rather than Prefect's ephemeral one, which has no UI and loses events at exit. Every process
that uses it follows one rule: a server that has ended, by itself or with the process that started it, is
restarted on the same port and database, as a child of the first process to notice. Meanwhile runs continue,
and Prefect's clients retry.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from flows.progress import reporter
from flows.server.children import Child
from flows.server.note import LOOPBACK, SERVER_PORT, ServerNote, home_password, living_server, reachable
from storage.errors import ServerError
from storage.home import Home
from storage.processes import keep_from_proxy, python_command

SERVER_MODULE = "flows.server.process"

_START_LIMIT_S = 300.0
_PATIENCE_S = 10.0
"""Seconds after which a waiting user learns why the server is not ready."""

_LISTEN_LIMIT_S = 60.0
_LOOK_S = 0.5
"""Seconds between checks of a server."""

_STEADY_S = 60.0
"""Seconds for which a server must live after a restart, and the longest pause between restarts in a row."""

_PERSONS_OWN = ("PREFECT_HOME", "PREFECT_CLIENT_MAX_RETRIES", "PREFECT_LOGGING_")
"""Prefect settings that a person may choose for a client of a home's server: names, or prefixes."""


class LocalServer:
    """A home's Prefect server as one of its users sees it; it is started if none is running.

    Args:
        wanted: where it must listen, and further names it must answer to; None allows any port.
        environment: further variables of its process, if it must be started.

    Raises:
        ServerError: it cannot be started; or a running one listens elsewhere than `wanted`.
    """

    def __init__(
        self,
        home: Home,
        wanted: ServerNote | None = None,
        environment: Mapping[str, str] | None = None,
        first_port: int = SERVER_PORT,
    ) -> None:
        _refuse_unusable_proxy()
        self._home = home.ensure()
        self.log = home.logs / "prefect-server.log"
        self._password, self._environment = home_password(home), dict(environment or {})
        self._child: Child | None = None  # if this process has started it
        self._silence = ""  # why it was not ready when last asked
        self.note = living_server(home) or self._start(
            wanted or ServerNote(LOOPBACK, first_port), exact=wanted is not None
        )
        note = self.note
        if wanted and (note.host, note.port, note.names) != (wanted.host, wanted.port, wanted.names):
            raise ServerError(
                f"the Prefect server of {home.path} (process {note.pid}) is already running and listens "
                f"on {note.host}:{note.port}, not on {wanted.host}:{wanted.port} with the names "
                f"asked for; use `--server-port {note.port} --host {note.host}`, or wait until its "
                "runs have ended"
            )
        keep_from_proxy(reachable(note.host))

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment that a process needs to use it."""
        return {
            "PREFECT_API_URL": self.note.api_url,
            "PREFECT_UI_URL": self.note.ui_url,
            "PREFECT_API_AUTH_STRING": self._password,
            "PREFECT_HOME": str(self._home.prefect),
            # Else a file in the current folder may name others.
            "PREFECT_PROFILES_PATH": str(self._home.prefect / "profiles.toml"),
            # With Prefect's doubling pauses, 30 s in which a dead server may come back.
            "PREFECT_CLIENT_MAX_RETRIES": "4",
            # A failed phase must not be retried.
            "PREFECT_FLOWS_DEFAULT_RETRIES": "0",
            "PREFECT_TASKS_DEFAULT_RETRIES": "0",
        }

    @property
    def ended(self) -> str | None:
        """How it ended, as text; None while it lives."""
        if living_server(self._home) is not None:
            return None
        if self._child is None:
            return f"the Prefect server ended with the process that had started it (log: {self.log})"
        return self._child.ended

    def lost(self) -> str | None:
        """Return how our child ended; restart a server that ended with another process.

        Raises:
            ServerError: it cannot be started.
        """
        ended = self.ended
        if ended is None or self._child is not None:
            return ended
        self._renew()
        return None

    def _renew(self) -> None:
        """Restart it at its old address as our child, unless another process was faster."""
        self.note = living_server(self._home) or self._start(self.note, exact=True)

    def _start(self, wanted: ServerNote, exact: bool) -> ServerNote:
        """Start a server; return once one listens, seconds before it answers.

        Args:
            exact: True to accept only the wanted port.
        """
        about = (str(self._home.path), wanted.host, str(wanted.port), "exact" if exact else "any")
        command = python_command("-m", SERVER_MODULE, *about, *wanted.names)
        environment = without_prefect(os.environ) | self._environment
        # Not in a folder with a person's `prefect.toml`, `pyproject.toml` or `.env`.
        child = Child("Prefect server", command, environment, self.log, folder=self._home.prefect)
        deadline = time.monotonic() + _LISTEN_LIMIT_S
        while (note := living_server(self._home)) is None:
            if child.ended is not None:
                raise ServerError(f"while starting, {child.ended}")
            if time.monotonic() > deadline:
                child.stop()
                raise ServerError(f"no Prefect server listened within {_LISTEN_LIMIT_S:g} s; see {self.log}")
            time.sleep(0.05)
        self._child = child if note.pid == child.process.pid else None
        if self._child is None:  # that of another process was quicker, and holds the lock on the note
            child.stop()
        return note

    def is_ready(self) -> bool:
        """Return True if it answers, asks for the password, and accepts ours.

        Raises:
            ServerError: it answers without a password, and must not be used.
        """
        address = f"{self.note.api_url}/admin/version"
        user, _, secret = self._password.partition(":")
        try:
            # Without a proxy, and without TLS, whose certificates take longer to read than everything else.
            with httpx.Client(verify=False, timeout=5, trust_env=False) as client:
                known = client.get(address, auth=(user, secret)).status_code
                if known != httpx.codes.OK:
                    self._silence = f"{address} answered {known}"
                    return False
                stranger = client.get(address).status_code
        except httpx.HTTPError as error:
            self._silence = f"{address} failed: {error or type(error).__name__}"
            return False
        if stranger != httpx.codes.UNAUTHORIZED:
            self.stop()
            raise ServerError(
                f"the Prefect server answered {stranger} to a request without a password; this version of "
                "Prefect does not ask for one: install the one in constraints.txt"
            )
        return True

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            ServerError: it ended or stayed silent; the message names its log.
        """
        began, noted = time.monotonic(), False
        while time.monotonic() < began + _START_LIMIT_S:
            if (ended := self.lost()) is not None:
                raise ServerError(f"while starting, {ended}")
            if self.is_ready():
                return
            if not noted and time.monotonic() > began + _PATIENCE_S:
                noted = True
                reporter().note(f"the Prefect server is not ready yet: {self._silence} (log: {self.log})")
            time.sleep(0.2)
        self.stop()
        raise ServerError(
            f"the Prefect server did not answer within {_START_LIMIT_S:g} s; see {self.log}; "
            f"the last time, {self._silence}"
        )

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Start it again when it ends while the context lasts; end it afterwards if it is our child."""
        over = threading.Event()
        keeper = threading.Thread(target=self._keep_alive, args=(over,), name="server-keeper", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()
            self.stop()

    def _keep_alive(self, over: threading.Event) -> None:
        pause_s = next_s = _LOOK_S
        restarted = time.monotonic()
        while not over.wait(pause_s):
            if (ended := self.ended) is None:
                if time.monotonic() >= restarted + _STEADY_S:
                    pause_s = next_s = _LOOK_S
                continue
            # One that dies as soon as it listens, as with a broken database, is restarted with pauses.
            pause_s, next_s = next_s, min(2 * next_s, _STEADY_S)
            reporter().note(f"warning: {ended}; it is being restarted; runs continue meanwhile")
            try:
                self._renew()
            except (ServerError, OSError) as error:
                reporter().note(f"warning: {error}; retrying in {pause_s:g} s")
            restarted = time.monotonic()

    def stop(self) -> None:
        """End it if this process has started it; other processes that use it start it again."""
        if self._child is not None:
            self._child.stop()


def without_prefect(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without its Prefect settings: a person's are for other servers."""
    return {name: value for name, value in environ.items() if not name.startswith("PREFECT_")}


def for_client(environ: Mapping[str, str], server: Mapping[str, str]) -> dict[str, str]:
    """Return a person's environment for a process that uses a home's server (its `client_environment`)."""
    chosen = {name: value for name, value in environ.items() if name.startswith(_PERSONS_OWN)}
    return without_prefect(environ) | dict(server) | chosen


def _refuse_unusable_proxy() -> None:
    """Refuse a proxy in the environment that no client can use; Prefect's client would end in a traceback."""
    try:
        httpx.Client(verify=False).close()
    except (ValueError, httpx.InvalidURL) as error:
        names = [name for name in os.environ if name.lower() in ("all_proxy", "http_proxy", "https_proxy")]
        raise ServerError(
            f"the proxy that {', '.join(names)} names cannot be used: {error}; give it as http://HOST:PORT, "
            "https://HOST:PORT or socks5://HOST:PORT, or unset the variable"
        ) from error
