"""Where else a run can be looked at: Prefect's flow run, MLflow's run, its report."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st

from storage.database.database import Database
from storage.database.mlflow_curves import mlflow_identity
from storage.database.run_notes import read_links
from storage.home import Home
from ui.data.run import RunView

_KEPT_S = 10
"""For so long a page does not look again whether a server listens."""

_LISTENS_WITHIN_S = 0.2
_MLFLOW = "http://127.0.0.1:5000"


@dataclass(frozen=True)
class Link:
    """A place where a run can be looked at.

    Attributes:
        name: of the place.
        address: of the page; empty where none is known to answer.
        how: how to come there by hand, as Markdown of ours; empty where the address is known.
        command: what to type for that; empty for nothing.
    """

    name: str
    address: str = ""
    how: str = ""
    command: str = ""


@st.cache_data(ttl=_KEPT_S, max_entries=16, show_spinner=False)
def _recorded(home: Path, run_id: str) -> tuple[str, tuple[str, str] | None]:
    """The flow run's address as the run noted it, and MLflow's identifiers."""
    with Database(Home(home).database).reading() as connection:
        prefect = read_links(connection, run_id).get("prefect", "")
    return prefect, mlflow_identity(Home(home), run_id)


def load_links(home: Path, view: RunView) -> list[Link]:
    """The places of a run, in the order in which they are shown.

    Raises:
        StorageError: the database stayed locked, or is of another version.
    """
    prefect, mlflow = _recorded(home, view.row.run_id)
    server = view.setting("tracking", "uri")
    return [
        prefect_link(prefect, os.environ.get("PREFECT_API_URL", ""), listens),
        mlflow_link(Home(home), view.row.run_id, mlflow, server if isinstance(server, str) else ""),
        Link("Report", how="One HTML file with the charts of all pages:",
             command=f"spotlight report {shlex.quote(view.row.run_id)}"),
    ]  # fmt: skip


def prefect_link(recorded: str, api_url: str, answers: Callable[[str], bool]) -> Link:
    """The flow run, by the server that the dashboard knows, or else by the one that the run noted.

    Args:
        recorded: the address that the run noted; empty where it noted none.
        api_url: of the server that this process was given; empty without one.
        answers: whether something listens at an address.
    """
    parts = urlsplit(recorded)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return Link("Prefect", how="This run noted no flow run.")
    candidates = [recorded]
    if api_url and _is_here(recorded):  # the home's server may listen elsewhere than it did
        candidates.insert(0, f"{api_url.rstrip('/').removesuffix('/api')}{parts.path}")
    for address in candidates:
        if answers(address):
            return Link("Prefect", address)
    return Link(
        "Prefect", how=f"Its server does not run. Start it; the flow run is then at `{parts.path}` of it:",
        command="spotlight up",
    )  # fmt: skip


def mlflow_link(home: Home, run_id: str, identity: tuple[str, str] | None, server: str) -> Link:
    """The run in MLflow: of the server that the run copied its figures to, or of the home's own file.

    Args:
        home: where the file is.
        run_id: our run.
        identity: MLflow's identifiers of experiment and run in that file; None where it has none.
        server: `tracking.uri` of the run's settings; empty for the file.
    """
    if urlsplit(server).scheme in ("http", "https"):
        return Link("MLflow", server.rstrip("/"), f"The run has the tag `spotlight.run_id` {_code(run_id)}.")
    if identity is None:
        return Link("MLflow", how="MLflow has no run of this one yet.")
    experiment, mlflow_id = identity
    return Link(
        "MLflow",
        how=f"Serve its file, then open `{_MLFLOW}/#/experiments/{experiment}/runs/{mlflow_id}`:",
        command="mlflow ui --host 127.0.0.1 --port 5000 --backend-store-uri " + shlex.quote(home.mlflow_uri),
    )


def listens(address: str) -> bool:
    """Whether something listens at an address; one of another machine is taken at its word."""
    if not _is_here(address):
        return True
    return _listens(urlsplit(address).netloc)


@st.cache_data(ttl=_KEPT_S, max_entries=16, show_spinner=False)
def _listens(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTENS_WITHIN_S):
            return True
    except (OSError, ValueError):
        return False


def _is_here(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d+){3}", host))


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"
