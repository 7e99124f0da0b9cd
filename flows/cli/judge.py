"""`spotlight judge`: serve a judge from its own environment to any number of runs."""

from __future__ import annotations

import shlex
import socket
import time
from typing import Annotated

import typer

from flows.cli.options import Port
from flows.judges import judge_at
from flows.process.stopping import stops_in_order
from flows.server.ports import LOOPBACK, check_address, reachable


def judge(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [-- ARGS]", help="A file that begins with its dependencies, as in examples/judges."
        ),
    ],
    port: Port = 8190,
    host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = LOOPBACK,
    limit: Annotated[
        float, typer.Option(min=1, help="Seconds for the environment, the weights and the model.")
    ] = 3600,
) -> None:
    """Start a judge with packages of its own, and print how runs ask it; Ctrl-C ends it."""
    from tasks.checks.judges import judge_command

    check_address(host)
    url = f"http://{host}:{port}/score"
    typer.echo(f"starting {shlex.join(command)}; a first start fetches packages and weights", err=True)
    with (
        stops_in_order("The judge was ended."),
        judge_at(url, judge_command(shlex.join(command), url), limit) as started,
    ):
        name = host if reachable(host) == host else socket.gethostname()
        reached = f"http://{name}:{port}/score"
        typer.echo(f"it answers at {reached} and writes {started.log}; a run asks it with\n")
        typer.echo(f"    --set reward.scorer=remote --set reward.options.url={reached}")
        while started.code is None:
            time.sleep(0.2)
    raise typer.Exit(started.code)
