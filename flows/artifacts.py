"""The log, the progress and the result table of a run in the Prefect UI."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

import flows.progress as progress
from flows.progress import Reporter
from flows.run_identity import is_made_up
from storage.config.tracking import TrackingConfig
from storage.home import Home, dashboard_page
from storage.readers.mlflow_reader import LOCAL_SERVER, experiments_page, serve_command
from storage.record.records import IterationRecord


@contextmanager
def _server_may_be_away() -> Iterator[None]:
    """Let a run continue without its server; this report is lost."""
    try:
        yield
    except httpx.HTTPError as error:
        logging.getLogger(__name__).warning("the Prefect server cannot be reached: %s", error)


class PrefectReporter(Reporter):
    """Reports to the log of its flow run, and to a progress artefact there."""

    def __init__(self) -> None:
        super().__init__()
        self._log: logging.LoggerAdapter[Any] | logging.Logger = get_run_logger()
        self._artifact: UUID | None = None

    def note(self, message: str) -> None:
        """Write one line to the flow run's log, which also reaches the process's output."""
        self._log.info(message)

    def begin(self, run_id: str, total: int, done: int, gives_verdict: bool = True) -> None:
        """Show a progress bar for a run that starts or resumes."""
        super().begin(run_id, total, done, gives_verdict)
        with _server_may_be_away():
            said = f"{run_id}: iteration {done} of {total}"
            made = create_progress_artifact(100.0 * done / total, key="progress", description=said)
            self._artifact = cast("UUID", made)  # only asynchronous flows await it

    def iteration(self, record: IterationRecord) -> None:
        """Move the bar after an iteration. Called during the next rollout, which does not wait for it."""
        super().iteration(record)
        if self._artifact is None:
            return
        artifact, self._artifact = self._artifact, None  # a server that went away is asked once
        said = (
            f"{record.run_id}: iteration {record.iteration} of {self._total}, "
            f"reward {record.metrics['reward_mean']:.3f}"
        )
        with _server_may_be_away():
            update_progress_artifact(artifact, 100.0 * record.iteration / self._total, said)
            self._artifact = artifact


@contextmanager
def shown_in_prefect() -> Iterator[None]:
    """Send this process's reports to the current flow run while the context lasts."""
    before = progress.reporter()
    progress.use(PrefectReporter())
    try:
        yield
    finally:
        progress.use(before)


@_server_may_be_away()
def name_flow_run(name: str) -> None:
    """Give the current flow run the name of its Spotlight run, to find both by it."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.get_id()), name=name)


def name_given_in_prefect() -> str | None:
    """Return the flow run's name if a person chose it: it becomes the run's identifier.

    None for a name that Prefect made up, and for a rerun flow run: it keeps its first name.
    """
    name = flow_run.get_name()
    return None if not name or flow_run.get_run_count() > 1 or is_made_up(name) else name


@_server_may_be_away()
def show_links(run_id: str, home: Home, tracking: TrackingConfig) -> None:
    """Publish an artefact with one line for each other page of the run."""
    if server := tracking.uri:
        mlflow = f"[{server}]({experiments_page(server)}), after its first iteration"
    else:
        serve, then = serve_command(home.mlflow_uri), experiments_page(LOCAL_SERVER)
        mlflow = f"after its first iteration: `{serve}`, then <{then}>"
    page, by_hand = dashboard_page(run_id), f"`spotlight ui`, then `?run={run_id}` after its address"
    places = {
        "Dashboard": f"[{run_id}]({page})" if page else by_hand,
        "Report": f"the button *Report* of the dashboard, or `spotlight report {run_id}`",
    }
    if "mlflow" in tracking.to:
        places["MLflow"] = mlflow
    if own := flow_run_page():
        places["Prefect"] = f"[this flow run]({own})"
    lines = "\n".join(f"- {place}: {how}" for place, how in places.items())
    create_markdown_artifact(lines, key="links", description=f"Pages that show {run_id}")


def flow_run_page() -> str | None:
    """Return the address of this flow run in Prefect's UI; None outside of one, or without a server."""
    flow_run_id = flow_run.get_id()
    address = url_for("flow-run", obj_id=flow_run_id) if flow_run_id else None
    if address is None or urlsplit(address).hostname not in ("127.0.0.1", "localhost"):
        return address
    return address.replace("/runs/", "/v2/runs/", 1)  # the one of our server's two UIs in use


@_server_may_be_away()
def show_result(result: Mapping[str, Any]) -> None:
    """Publish a table of the named results, in the order given."""
    rows = [
        {"figure": name, "value": f"{value:.6g}" if isinstance(value, float) else str(value)}
        for name, value in result.items()
    ]
    create_table_artifact(rows, key="result", description="Result of the run")


@_server_may_be_away()
def show_differences(differences: list[dict[str, str]]) -> None:
    """Publish a table of the differences from the reference."""
    if differences:
        create_table_artifact(differences, key="differences", description="Differences from the reference")


@_server_may_be_away()
def show_simulated(result: Mapping[str, Any], tables: str) -> None:
    """Publish the answer of `spotlight what-if --json` with all figures: median, lowest and highest.

    Args:
        tables: the tables that the command prints.
    """
    policies = result["policies"]
    rows = [{name: _spread(each) for name, each in row.items() if name != "milestones"} for row in policies]
    create_table_artifact(rows, key="what-if", description="Simulated: time and cost of each policy")
    counted = [result["counted_in_words"]] if result["counted_in_words"] else []
    # Lines of text stay outside the fence, in which a page does not break them.
    lines = [result["answer"], "", "```", tables, "```", ""]
    lines += [f"- {line}" for line in [*counted, *result["conclusions"]]]
    reached = [(policy["policy"], each) for policy in policies for each in policy["milestones"]]
    if reached:
        names = list(reached[0][1])
        lines += ["", f"| policy | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        lines += [
            f"| {policy} | {' | '.join(_spread(each[name]) for name in names)} |" for policy, each in reached
        ]
    lines += ["", *(f"- {line}" for line in result["basis"])]
    create_markdown_artifact("\n".join(lines), key="what-if-answer", description="Simulated: conclusions")


def _spread(value: object) -> str:
    if isinstance(value, Mapping) and "learning" in value:  # an interval of each
        ends = "; ".join(
            f"{name} {_short(value[name]['low'])} to {_short(value[name]['high'])}"
            for name in ("learning", "system")
        )
        return f"{_short(value['median'])} ({ends})"
    if isinstance(value, Mapping):
        return f"{_short(value['median'])} [{_short(value['low'])}, {_short(value['high'])}]"
    return str(value)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
