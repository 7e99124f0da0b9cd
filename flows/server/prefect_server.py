"""The Prefect server for a command: the one that PREFECT_API_URL names, or the home's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import httpx

from flows.process.ended_flow_runs import close_flow_runs_of_ended_runs
from flows.progress import reporter
from flows.server.dashboards import living_dashboard
from flows.server.local_server import LocalServer, for_client
from flows.server.loss import hand_over
from flows.server.password import password_file
from storage.errors import ServerError
from storage.home import DASHBOARD_URL_VARIABLE, Home


def is_healthy(api_url: str) -> bool:
    """Return True if a Prefect server answers at the address."""
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
        ServerError: the named server does not answer, or the local one does not start.
    """
    configured = os.environ.get("PREFECT_API_URL", "")
    if configured:
        if not is_healthy(configured):
            raise ServerError(
                f"no Prefect server answers at PREFECT_API_URL={configured}; start it, or unset the "
                "variable to have a local one started"
            )
        meanwhile()
        close_flow_runs_of_ended_runs(home)
        try:
            yield configured.removesuffix("/api")
        finally:
            hand_over()
        return
    with files_ignored(), _own_server(home, meanwhile) as way_in:
        yield way_in


@contextmanager
def _own_server(home: Home, meanwhile: Callable[[], object]) -> Iterator[str]:
    server = LocalServer(home)
    before = dict(os.environ)
    address = living_dashboard(home)  # a run's links to the dashboard begin with it
    links = {DASHBOARD_URL_VARIABLE: address} if address else {}
    _replace_settings({**links, **for_client(before, server.client_environment)})
    imported_before = "prefect" in sys.modules
    try:
        if imported_before:
            # Events of earlier flows go to their own server; the next thread reads the new settings.
            hand_over()
            _read_settings_again()
        meanwhile()
        with reporter().stage("start the Prefect server"):
            server.wait_ready()
        close_flow_runs_of_ended_runs(home)
        with server.kept_alive():
            try:
                yield f"{server.note.ui_url} (log in with the line in {password_file(home)})"
            finally:
                hand_over()
    finally:
        _replace_settings(before)
        if imported_before:
            _read_settings_again()
        server.stop()


@contextmanager
def files_ignored() -> Iterator[None]:
    """Let Prefect's settings come only from the environment and its profiles while the context lasts.

    When it is imported, it reads `.env`, `prefect.toml` and `pyproject.toml` of the current folder, which a
    person has for other servers; no setting stops it.
    """
    from pydantic_settings.sources import ConfigFileSourceMixin, DotEnvSettingsSource

    with ExitStack() as replaced:
        for kind, name in ((DotEnvSettingsSource, "_read_env_files"), (ConfigFileSourceMixin, "_read_files")):
            replaced.enter_context(patch.object(kind, name, _nothing_for_prefect(getattr(kind, name))))
        yield


def _nothing_for_prefect(read: Any) -> Any:
    @wraps(read)
    def read_for_others(source: Any, *arguments: Any, **named: Any) -> Any:
        return {} if type(source).__module__.startswith("prefect.") else read(source, *arguments, **named)

    return read_for_others


def _read_settings_again() -> None:
    """Make Prefect read the environment again: it reads it on import, before a later server is known."""
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()


def _replace_settings(environment: Mapping[str, str]) -> None:
    """Copy another process's variables of Prefect and of the dashboard's address into this process."""
    for name in (*os.environ, *environment):
        if name.startswith("PREFECT_") or name == DASHBOARD_URL_VARIABLE:
            os.environ.pop(name, None)
            if name in environment:
                os.environ[name] = environment[name]
