"""Links to other views of a run (Prefect's flow run, MLflow's run, its report), and commands about it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import streamlit as st

from storage.config.loading import assignments, load_config
from storage.config.run_config import RunConfig
from storage.environment import PRESET
from storage.errors import ConfigurationError
from storage.evaluations.separate import EvaluationStore
from storage.home import Home
from storage.readers import mlflow_reader
from storage.record.run_store import RunStore
from storage.text import is_loopback, web_address
from ui.data.run import RunView

_KEPT_S = 10  # seconds for which a page does not check again whether a server answers
_ANSWERS_WITHIN_S = 0.5

_PLACES = {"mlflow": "MLflow", "wandb": "W&B"}  # display names of the readers whose pages a run records


@dataclass(frozen=True)
class Link:
    """A place where a run can be viewed.

    Attributes:
        address: address of the page; empty if none is known to answer.
        how: instructions to get there by hand, in our Markdown; `command` is what to type for that.
    """

    name: str
    address: str = ""
    how: str = ""
    command: str = ""


@st.cache_data(ttl=_KEPT_S, max_entries=16, show_spinner=False)
def _recorded(home: Home, run_id: str) -> tuple[dict[str, str], tuple[str, str] | None, int]:
    """Return the addresses that the run recorded, its identifiers in MLflow, and its count of evaluations."""
    evaluations = sum(row.run_id == run_id for row in EvaluationStore(home).all())
    return RunStore(home).links(run_id), mlflow_reader.mlflow_identity(home, run_id), evaluations


def load_links(view: RunView) -> list[Link]:
    """Return the places of a run, in display order: pages on servers, then its separate evaluations."""
    noted, identity, evaluations = _recorded(view.home, view.row.run_id)
    prefect = prefect_link(noted.get("prefect", ""), os.environ.get("PREFECT_API_URL", ""), is_prefect)
    links = [prefect, *_reader_places(view, noted, identity)]
    if evaluations:
        address = f"/evaluations?run={quote(view.row.run_id, safe='')}"
        links.append(Link("Evaluations", address, f"{evaluations} by `spotlight evaluate`"))
    return links


def lasting_links(view: RunView, noted: Mapping[str, str], dashboard: str) -> list[Link]:
    """Return the places of a run for a file that outlives servers: no server has to answer now.

    `noted` comes from `RunStore.links`; `dashboard` is the run's page there, empty if unknown.
    """
    after = f"`spotlight ui`, then `?run={view.row.run_id}` after its address."
    return [
        Link("Dashboard", dashboard, f"If it does not answer: {after}" if dashboard else after),
        prefect_link(noted.get("prefect", ""), "", lambda address: True),
        *_reader_places(view, noted, mlflow_reader.mlflow_identity(view.home, view.row.run_id)),
    ]


def _reader_places(view: RunView, noted: Mapping[str, str], identity: tuple[str, str] | None) -> list[Link]:
    server, chosen = str(view.setting("tracking", "uri") or ""), view.setting("tracking", "to")
    pages = {place: page for place, page in noted.items() if place != "prefect" and web_address(page)}
    found = [Link(_PLACES.get(place, place), page) for place, page in sorted(pages.items())]
    if "mlflow" not in pages and (not isinstance(chosen, list) or "mlflow" in chosen):
        found.append(mlflow_link(view.home, view.row.run_id, identity, server))
    return found


def prefect_link(recorded: str, api_url: str, answers: Callable[[str], bool]) -> Link:
    """Return a link to the flow run on the dashboard's server, or else on the one that the run recorded.

    Args:
        recorded: address that the run recorded, and `api_url` the server of this process; empty if none.
        answers: returns True if a Prefect server answers for an address.
    """
    parts = web_address(recorded)
    if parts is None:
        return Link("Prefect", how="This run recorded no flow run.")
    candidates = [recorded]
    if api_url and is_loopback(parts.hostname or ""):  # the home's server may listen elsewhere now
        candidates.insert(0, f"{api_url.rstrip('/').removesuffix('/api')}{parts.path}")
    for address in candidates:
        if answers(address):
            return Link("Prefect", address)
    return Link(
        "Prefect", how=f"Its server is not running. Start it; the flow run is then at `{parts.path}` of it:",
        command="spotlight up",
    )  # fmt: skip


def mlflow_link(home: Home, run_id: str, identity: tuple[str, str] | None, server: str) -> Link:
    """Return a link to the run in MLflow: on the server that it copied its figures to, or in the home's file.

    `identity` names its experiment and run in that file; `server` is the run's `tracking.uri`, empty for the
    file.
    """
    if web_address(server):
        named = run_id.replace("`", "'")
        return Link(
            "MLflow",
            mlflow_reader.experiments_page(server),
            f"The run has the tag `spotlight.run_id` `{named}`.",
        )
    if identity is None:
        return Link("MLflow", how="MLflow has no copy of this run yet.")
    return Link(
        "MLflow",
        how=f"Serve its file, then open `{mlflow_reader.run_page(mlflow_reader.LOCAL_SERVER, *identity)}`:",
        command=mlflow_reader.serve_command(home.mlflow_uri),
    )


def is_prefect(address: str) -> bool:
    """Return True if a Prefect server answers for a page of its UI; one on another machine is assumed to."""
    host = urlsplit(address).hostname or ""
    return not is_loopback(host) or _is_healthy(re.split(r"/v2/|/runs/", address)[0])


@st.cache_data(ttl=_KEPT_S, max_entries=16, show_spinner=False)
def _is_healthy(server: str) -> bool:
    import httpx  # most pages have no link to check

    try:
        answer = httpx.get(f"{server}/api/health", timeout=_ANSWERS_WITHIN_S, trust_env=False)
        return answer.status_code == httpx.codes.OK and answer.json() is True
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # ValueError: no JSON
        return False


def clone_command(view: RunView) -> str:
    """Return the command that starts a run with the same settings and, if still readable, preset.

    Raises:
        ConfigurationError: the settings are of another version.
    """
    wanted, preset = view.row.config, view.row.environment.get(PRESET)
    try:
        base = load_config(preset, (), {})
    except ConfigurationError:  # its file is gone, or was changed
        base, preset = RunConfig(), None
    parts = ["spotlight train", *([f"--preset {shlex.quote(preset)}"] if preset else [])]
    parts += [f"--set {shlex.quote(assignment)}" for assignment in assignments(wanted, base)]
    return " \\\n    ".join(parts)
