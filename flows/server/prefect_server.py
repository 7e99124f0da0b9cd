"""The Prefect server for a command: the one that PREFECT_API_URL names, or the home's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext

import httpx

from flows.process.ended_flow_runs import close_flow_runs_of_ended_processes
from flows.progress import reporter
from flows.server.dashboards import living_dashboard
from flows.server.local_server import LocalServer, for_client
from flows.server.loss import CHECK_THE_SERVER, hand_over
from flows.server.note import password_file
from storage.errors import ServerError
from storage.home import DASHBOARD_URL_VARIABLE, Home
from storage.processes import without_collections


def is_healthy(api_url: str) -> bool:
    """Return True if a server is healthy: Prefect's at the address of its API, Streamlit's at `/_stcore`."""
    try:
        return httpx.get(f"{api_url}/health", timeout=2).status_code == 200
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


@contextmanager
def prefect_server(home: Home, meanwhile: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Provide a server while the context lasts; yield the address of its UI, and how to log in.

    A server that PREFECT_API_URL names is used as it is. Otherwise it is the home's: the one that a
    `spotlight up` or another run of this home uses, or a new one, kept alive meanwhile. Its address and
    password are put into the environment.

    Args:
        meanwhile: function called while the local server starts, such as checks or imports that take seconds.

    Raises:
        ServerError: the named server does not answer or refuses requests, or the local one does not start.
    """
    named = os.environ.get("PREFECT_API_URL", "")
    if named and not is_healthy(named):
        raise ServerError(
            f"no Prefect server answers at PREFECT_API_URL={named}; start it, or unset the variable to have "
            "a local one started"
        )
    with nullcontext(named.removesuffix("/api")) if named else _own_server(home, meanwhile) as way_in:
        if named:
            meanwhile()
        close_flow_runs_of_ended_processes(home)
        try:
            yield way_in
        except httpx.HTTPError as error:
            raise ServerError(
                f"the Prefect server could not be used: {error}; if it is not the home's own, "
                f"{CHECK_THE_SERVER}"
            ) from error
        finally:
            hand_over()


@contextmanager
def _own_server(home: Home, meanwhile: Callable[[], object]) -> Iterator[str]:
    server = LocalServer(home)
    before = dict(os.environ)
    address = living_dashboard(home)  # a run's links to the dashboard begin with it
    links = {DASHBOARD_URL_VARIABLE: address} if address else {}
    _replace_settings({**links, **for_client(before, server.client_environment)})
    imported_before = "prefect" in sys.modules
    try:
        hand_over()  # events of earlier flows go to their own server
        _read_settings(home)
        meanwhile()
        with reporter().stage("start the Prefect server"):
            server.wait_ready()
        with server.kept_alive():
            yield f"{server.note.ui_url} (log in with the line in {password_file(home)})"
    finally:
        _replace_settings(before)
        if imported_before:
            _read_settings(home)
        server.stop()


def _read_settings(home: Home) -> None:
    """Make Prefect read its settings now, from the environment alone.

    It also reads `.env`, `prefect.toml` and `pyproject.toml` of the current folder, which a person has for
    other servers; no setting stops it.
    """
    with chdir(home.prefect), without_collections():
        from prefect.context import refresh_global_settings_context  # the first import reads them, too

        refresh_global_settings_context()


def _replace_settings(environment: Mapping[str, str]) -> None:
    """Copy another process's variables of Prefect and of the dashboard's address into this process."""
    for name in (*os.environ, *environment):
        if name.startswith("PREFECT_") or name == DASHBOARD_URL_VARIABLE:
            os.environ.pop(name, None)
            if name in environment:
                os.environ[name] = environment[name]
