"""The `/metrics` of a home for Prometheus: read from the record at each request, served until Ctrl-C."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from flows.server.ports import LOOPBACK, check_address, is_loopback, refuse_taken_port
from storage.access.server_guard import ServerGuard
from storage.errors import ConfigurationError, StorageError
from storage.home import Home, is_open_to_others
from storage.record.queries.live_figures import LiveRun, live_runs
from storage.record.run_store import RunStore
from storage.text import read_text_file

_SHORTEST_TOKEN = 32

_Application = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]

_FIGURES = {
    "reward_mean": ("reward", "Mean score of the newest rollout's samples."),
    "loss": ("loss", "Loss of the newest iteration's training."),
    "kl": ("kl", "KL to the reference model in the newest iteration; 0 where it is not measured."),
    "clip_share": ("clip_share", "Share of the newest iteration's steps whose ratio was clipped."),
    "gradient_norm": ("gradient_norm", "Norm of the newest iteration's gradient."),
    "ratio_deviation": ("ratio_deviation", "How far the probability ratio was from 1 before training."),
    "groups_dropped": ("groups_dropped", "Prompts of the newest iteration without a difference in score."),
    "scorer_errors": ("scorer_errors", "Samples of the newest rollout that no scorer could judge."),
}


def families(runs: Iterable[LiveRun], now: float) -> list[Metric]:
    """Return the metrics of some runs for Prometheus, as of `now` (Unix seconds)."""
    listed = list(runs)
    return [*_progress(listed, now), *_figures(listed), *_fleet(listed)]


def _progress(runs: Sequence[LiveRun], now: float) -> list[Metric]:
    info = _gauge("run_info", "1 for each run that is shown, with its status.", "name", "status")
    iteration = _gauge("iteration", "Iterations that are committed.")
    planned = _gauge("iterations_planned", "Iterations of the run's settings.")
    score = _gauge("score", "Mean score of the newest held-out evaluation.")
    exact = _gauge("exact_share", "Share of the newest held-out images that satisfy their prompt completely.")
    newest = _gauge("last_commit_timestamp_seconds", "When the newest record was committed (Unix seconds).")
    lag = _gauge("commit_lag_seconds", "Seconds since the newest record of a run that goes on.")
    for run in runs:
        info.add_metric([run.run_id, run.name, run.status], 1)
        iteration.add_metric([run.run_id], run.iteration)
        planned.add_metric([run.run_id], run.planned)
        newest.add_metric([run.run_id], run.newest_at)
        if run.status == "running":
            lag.add_metric([run.run_id], max(0.0, now - run.newest_at))
        if run.score is not None and run.exact is not None:
            score.add_metric([run.run_id], run.score)
            exact.add_metric([run.run_id], run.exact)
    return [info, iteration, planned, score, exact, newest, lag]


def _figures(runs: Sequence[LiveRun]) -> list[Metric]:
    figures = {name: _gauge(*shown) for name, shown in _FIGURES.items()}
    phases = _gauge("phase_seconds", "Seconds of each phase that ended with the newest iteration.", "phase")
    for run in runs:
        for name, value in run.metrics.items():
            if name in figures:
                figures[name].add_metric([run.run_id], value)
            elif name.endswith("_s"):
                phases.add_metric([run.run_id, name.removesuffix("_s")], value)
    return [*figures.values(), phases]


def _fleet(runs: Sequence[LiveRun]) -> list[Metric]:
    devices = _gauge(
        "devices", "Mean number of devices in each state over the newest iteration.", "market", "state"
    )
    seconds = _counter("device_seconds", "Paid device-seconds, lost work included.", "market", "state")
    dollars = _counter("cost_usd", "Dollars for devices, lost work included.", "market", "state")
    judges = _counter("judge_cost_usd", "Dollars for judges that have a price.")
    events = _counter(
        "device_events", "Devices that joined, failed, had a notice, left or were lost.", "market", "kind"
    )
    for run in runs:
        for (market, state), mean in run.devices.items():
            devices.add_metric([run.run_id, market, state], mean)
        for (market, state), (device_s, usd) in run.spent.items():
            seconds.add_metric([run.run_id, market, state], device_s)
            dollars.add_metric([run.run_id, market, state], usd)
        judges.add_metric([run.run_id], run.judge_usd)
        for (market, kind), count in run.device_events.items():
            events.add_metric([run.run_id, market, kind], count)
    return [devices, seconds, dollars, judges, events]


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"spotlight_{name}", text, labels=["run", *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"spotlight_{name}", text, labels=["run", *labels])


class _HomeCollector(Collector):
    """A collector of a home's runs, which reads their folders at each request."""

    def __init__(self, home: Home) -> None:
        self._store = RunStore(home)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the home's runs.

        Raises:
            StorageError: a run's folder cannot be read.
        """
        with self._store.reading() as connection:
            runs = live_runs(connection)
        return families(runs, time.time())


def metrics_application(home: Home, token: str | None) -> _Application:
    """Return the ASGI application: it serves only `/metrics`, and only to requests with the token.

    Args:
        token: token that requests must bear; None for no check.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_HomeCollector(home))
    wanted = None if token is None else f"Bearer {token}".encode()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if wanted is not None and not hmac.compare_digest(given, wanted):
            await _send(send, 401, b"a token is needed: Authorization: Bearer TOKEN\n")
        elif scope["path"] != "/metrics":
            await _send(send, 404, b"there is /metrics only\n")
        elif scope["method"] not in ("GET", "HEAD"):
            await _send(send, 405, b"/metrics is read by GET\n")
        else:
            try:
                body = await asyncio.to_thread(generate_latest, registry)
            except StorageError as error:
                await _send(send, 503, f"{error}\n".encode())
            else:
                await _send(send, 200, b"" if scope["method"] == "HEAD" else body, CONTENT_TYPE_LATEST)

    return answer


async def _send(send: Any, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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
