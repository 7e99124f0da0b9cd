"""The `/metrics` of a home for Prometheus: read from the record at each request, served until Ctrl-C."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from flows.server.note import LOOPBACK, check_address, refuse_taken_port
from storage.access.server_guard import ServerGuard
from storage.errors import ConfigurationError, StorageError
from storage.home import Home, is_open_to_others
from storage.record.results import LiveRun, live_runs
from storage.record.run_store import RunStore
from storage.text import is_loopback, read_text_file

_SHORTEST_TOKEN = 32
_FIGURES = {
    "reward_mean": ("reward", "Mean score of the newest rollout's samples."),
    "loss": ("loss", "Loss of the newest iteration's training."),
    "kl": ("kl", "KL to the reference model in the newest iteration; 0 where it is not measured."),
    "clip_share": ("clip_share", "Share of the newest iteration's steps whose ratio was clipped."),
    "gradient_norm": ("gradient_norm", "Norm of the newest iteration's gradient."),
    "ratio_deviation": ("ratio_deviation", "How far the probability ratio was from 1 before training."),
    "groups_dropped": (
        "groups_dropped",
        "Prompt groups of the newest iteration whose samples scored the same.",
    ),
    "scorer_errors": ("scorer_errors", "Samples of the newest rollout that no scorer could judge."),
}
"""Gauge and text of each figure of an iteration."""


def families(runs: Iterable[LiveRun], now: float) -> list[Metric]:
    """Return the metrics of some runs for Prometheus, as of `now` (Unix seconds)."""
    made: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    gauge, counter, fleet = GaugeMetricFamily, CounterMetricFamily, ("market", "state")
    for run in runs:
        lag_s = max(0.0, now - run.newest_at) if run.status == "running" else None
        figures = (
            ("iteration", "Committed iterations.", run.iteration),
            ("iterations_planned", "Iterations in the run's settings.", run.planned),
            ("score", "Mean score of the newest held-out evaluation.", run.score),
            ("exact_share", "Share of the newest held-out images that satisfy their prompt completely.",
             run.exact),
            ("last_commit_timestamp_seconds", "When the newest record was committed (Unix seconds).",
             run.newest_at),
            ("commit_lag_seconds", "Seconds since the newest record of a running run.", lag_s),
            *((name, text, run.metrics.get(figure)) for figure, (name, text) in _FIGURES.items()),
        )  # fmt: skip
        phases = {(name.removesuffix("_s"),): s for name, s in run.metrics.items() if name.endswith("_s")}
        device_s, usd = ({place: both[at] for place, both in run.spent.items()} for at in (0, 1))
        # Kind of a metric, its name, its text, its labels beside the run, and a value for each of those.
        for kind, name, text, labels, values in (
            *((gauge, name, text, (), {} if value is None else {(): value}) for name, text, value in figures),
            (gauge, "run_info", "1 for each run that is shown, with its status.", ("name", "status"),
             {(run.name, run.status): 1}),
            (gauge, "phase_seconds", "Seconds of each phase that ended with the newest iteration.",
             ("phase",), phases),
            (gauge, "devices", "Mean number of devices in each state over the newest iteration.", fleet,
             run.devices),
            # Gauges: a resumed run moves what it repeats to `lost`.
            (gauge, "device_seconds", "Paid device-seconds, lost work included.", fleet, device_s),
            (gauge, "cost_usd", "Dollars for devices, lost work included.", fleet, usd),
            (gauge, "judge_cost_usd", "Dollars for judges that have a price.", (), {(): run.judge_usd}),
            (counter, "device_events", "Devices that joined, failed, had a notice, left or were lost.",
             ("market", "kind"), run.device_events),
        ):  # fmt: skip
            family = made.setdefault(name, kind(f"spotlight_{name}", text, labels=["run", *labels]))
            for label, value in values.items():
                family.add_metric([run.run_id, *label], value)
    return list(made.values())


class _HomeCollector(Collector):
    def __init__(self, home: Home) -> None:
        self._store = RunStore(home)

    def collect(self) -> Iterable[Metric]:
        with self._store.reading() as connection:
            return families(live_runs(connection), time.time())


def metrics_application(home: Home, token: str | None) -> FastAPI:
    """Return the ASGI application: it serves only `/metrics`, and only to requests with the token.

    Args:
        token: token that requests must bear; None for no check.
    """
    application = FastAPI(openapi_url=None, redirect_slashes=False)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_HomeCollector(home))
    headers = {"cache-control": "no-store"}

    @application.api_route("/metrics", methods=["GET", "HEAD"])
    def metrics(authorization: Annotated[str, Header()] = "") -> Response:  # in a thread
        if token is not None and not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            return PlainTextResponse("a token is needed: Authorization: Bearer TOKEN\n", 401, headers)
        try:
            body = generate_latest(registry)
        except StorageError as error:
            return PlainTextResponse(f"{error}\n", 503, headers)
        return Response(body, headers=headers | {"content-type": CONTENT_TYPE_LATEST})

    @application.exception_handler(404)
    @application.exception_handler(405)
    def refused(request: Request, error: HTTPException) -> Response:
        said = "use GET for /metrics" if error.status_code == 405 else "only /metrics is served"
        return PlainTextResponse(f"{said}\n", error.status_code, headers)

    return application


def read_token(file: Path | None, host: str) -> str | None:
    """Return a file's token; None if no file is named and only this machine reaches the address.

    Args:
        file: file with one line.

    Raises:
        ConfigurationError: others reach the address without a token, or the file's token is not secret.
    """
    if file is None:
        if not is_loopback(host):
            raise ConfigurationError(
                f"--host {host} would show all runs to everyone who reaches this machine; name a file with a "
                f"token of {_SHORTEST_TOKEN} characters or more by --token-file, or stay on 127.0.0.1 and "
                "use `ssh -L`"
            )
        return None
    if is_open_to_others(file):
        raise ConfigurationError(
            f"--token-file {file} holds a secret, and others can read it; run `chmod 600 {file}`"
        )
    token = read_text_file(file, f"--token-file {file}", ConfigurationError).strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise ConfigurationError(
            f"--token-file {file} must hold one word of {_SHORTEST_TOKEN} characters or more, and has "
            f"{len(token)} characters; make one with `openssl rand -hex 32`"
        )
    return token


def metrics_server(
    home: Home, port: int, host: str = LOOPBACK, names: Sequence[str] = (), token_file: Path | None = None
) -> uvicorn.Server:
    """Return a server of `/metrics`; its `run` lasts until Ctrl-C or SIGTERM.

    Args:
        names: further host names to answer to, such as a service's in a cluster.
        token_file: file with the token that requests must bear.

    Raises:
        ConfigurationError: an invalid address or name, or no token where others reach the address.
        ServerError: the port is in use.
    """
    check_address(host, names)
    token = read_token(token_file, host)
    refuse_taken_port(port, "choose another with `spotlight metrics --port`", host)
    guarded = ServerGuard(metrics_application(home, token), host, names)
    return uvicorn.Server(uvicorn.Config(guarded, host=host, port=port, log_level="warning", lifespan="off"))
