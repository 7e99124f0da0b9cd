"""`spotlight metrics`: figures of the runs for Prometheus."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from flows.server.ports import LOOPBACK, reachable
from storage.home import Home


def metrics(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the endpoint.")] = 9464,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but 127.0.0.1 needs --token-file.")
    ] = LOOPBACK,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name by which it is reached, such as a service's; repeatable."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that Prometheus sends; only you may read it.")
    ] = None,
) -> None:
    """Serve /metrics for Prometheus: score, phases, devices and dollars of the runs; Ctrl-C ends it."""
    from flows.server.metrics import metrics_server

    server = metrics_server(Home.from_environment(), port, host, allow_host or (), token_file)
    typer.echo(f"metrics: http://{reachable(host)}:{port}/metrics", err=True)
    with suppress(KeyboardInterrupt):
        server.run()
