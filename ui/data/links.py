"""Where else a run can be looked at: Prefect's flow run, MLflow's run, its report."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import streamlit as st

from storage.evaluations.separate import EvaluationStore
from storage.home import Home
from storage.readers.mlflow_server import (
    LOCAL_SERVER,
    experiments_page,
    mlflow_identity,
    run_page,
    serve_command,
)
from storage.record.run_notes import NoteStore
from ui.data.run import RunView

_KEPT_S = 10
"""For so long a page does not look again whether a server answers."""

_ANSWERS_WITHIN_S = 0.5

_PLACES = {"mlflow": "MLflow", "wandb": "W&B"}
"""Readers whose pages a run notes, as people call them."""


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
def _recorded(home: Path, run_id: str) -> tuple[dict[str, str], tuple[str, str] | None]:
    """The addresses that the run noted, by place, and MLflow's identifiers in the home's file."""
    return NoteStore(Home(home)).links(run_id), mlflow_identity(Home(home), run_id)


@st.cache_data(ttl=_KEPT_S, max_entries=16, show_spinner=False)
def _evaluations(home: Path, run_id: str) -> int:
    """How many separate evaluations of the run there are."""
    return sum(row.run_id == run_id for row in EvaluationStore(Home(home)).all())


def load_links(home: Path, view: RunView) -> list[Link]:
    """The places of a run, in the order in which they are shown: on servers, and its separate evaluations.

    Raises:
        StorageError: a file of the record is damaged.
    """
    noted, identity = _recorded(home, view.row.run_id)
    links = [
        prefect_link(noted.get("prefect", ""), os.environ.get("PREFECT_API_URL", ""), is_prefect),
        *_reader_places(Home(home), view, noted, identity),
    ]
    if count := _evaluations(home, view.row.run_id):
        address = f"/evaluations?run={quote(view.row.run_id, safe='')}"
        links.append(Link("Evaluations", address, f"{count} by `spotlight evaluate`"))
    return links


def lasting_links(home: Home, view: RunView, noted: Mapping[str, str], dashboard: str) -> list[Link]:
    """The places of a run for a file that outlives servers: whether one answers now does not matter.

    Args:
        home: where the run is.
        view: the run.
        noted: as `NoteStore.links` gives them.
        dashboard: address of the run's page in the dashboard; empty where none is known.
    """
    after = f"`spotlight ui`, then `?run={view.row.run_id}` after its address."
    return [
        Link("Dashboard", dashboard, f"If it does not answer: {after}" if dashboard else after),
        prefect_link(noted.get("prefect", ""), "", lambda address: True),
        *_reader_places(home, view, noted, mlflow_identity(home, view.row.run_id)),
    ]


def _reader_places(
    home: Home, view: RunView, noted: Mapping[str, str], identity: tuple[str, str] | None
) -> list[Link]:
    """Return where readers copy the run to: pages that the run noted, or MLflow by its settings."""
    server, chosen = view.setting("tracking", "uri"), view.setting("tracking", "to")
    pages = {place: page for place, page in noted.items() if place != "prefect" and _is_web(page)}
    found = [Link(_PLACES.get(place, place), page) for place, page in sorted(pages.items())]
    if "mlflow" not in pages and (not isinstance(chosen, list) or "mlflow" in chosen):
        found.append(mlflow_link(home, view.row.run_id, identity, server if isinstance(server, str) else ""))
    return found


def prefect_link(recorded: str, api_url: str, answers: Callable[[str], bool]) -> Link:
    """The flow run, by the server that the dashboard knows, or else by the one that the run noted.

    Args:
        recorded: the address that the run noted; empty where it noted none.
        api_url: of the server that this process was given; empty without one.
        answers: whether a Prefect server answers for an address.
    """
    if not _is_web(recorded):
        return Link("Prefect", how="This run noted no flow run.")
    parts = urlsplit(recorded)
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
    if _is_web(server):
        return Link(
            "MLflow", experiments_page(server), f"The run has the tag `spotlight.run_id` {_code(run_id)}."
        )
    if identity is None:
        return Link("MLflow", how="MLflow has no run of this one yet.")
    return Link(
        "MLflow",
        how=f"Serve its file, then open `{run_page(LOCAL_SERVER, *identity)}`:",
        command=serve_command(home.mlflow_uri),
    )


def is_prefect(address: str) -> bool:
    """Whether a Prefect server answers for a page of its UI; one of another machine is taken at its word."""
    return not _is_here(address) or _is_healthy(re.split(r"/v2/|/runs/", address)[0])


@st.cache_data(ttl=_KEPT_S, max_entries=16, show_spinner=False)
def _is_healthy(server: str) -> bool:
    """Whether the server says so itself, which takes no password."""
    import httpx  # most pages have no link to check

    try:
        answer = httpx.get(f"{server}/api/health", timeout=_ANSWERS_WITHIN_S, trust_env=False)
        return answer.status_code == httpx.codes.OK and answer.json() is True
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # ValueError: no JSON
        return False


def _is_web(address: str) -> bool:
    """Whether an address that was recorded may become a link: no script, no file."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_here(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d+){3}", host))


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"
