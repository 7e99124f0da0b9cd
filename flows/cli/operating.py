"""Commands that operate Spotlight: `up`, `down`, `ui`, `metrics`, `reproduce` and `stop`."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from flows.cli.options import AllowHost, Port, RunName, run_argument, set_option
from flows.configuration import look_at_inputs
from flows.deployed.forms import NIGHTLY_CRON, NIGHTLY_ZONE, ReproductionForm
from flows.process.stopping import stops_in_order
from flows.progress import reporter
from flows.run_identity import check_run_id, new_run_id
from flows.server.dashboards import DEFAULT_PORT
from flows.server.note import LOOPBACK, SERVER_PORT, ServerNote, reachable
from storage.errors import ConfigurationError, DriftError, RunNotFoundError, quoted
from storage.home import Home
from storage.record.run_status import Process, RunLog, read_activity
from storage.record.run_store import RunStore
from storage.text import writable_file

_WAIT_S = 180.0


def up(
    server_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of Prefect's UI and API.")
    ] = SERVER_PORT,
    ui_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the dashboard.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but 127.0.0.1 needs a login for the dashboard.")
    ] = LOOPBACK,
    allow_host: AllowHost = None,
    runs_at_once: Annotated[
        int, typer.Option(min=1, max=16, help="Number of concurrent runs; others wait.")
    ] = 1,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Start the nightly reproductions on their schedule.")
    ] = False,
    cron: Annotated[
        str, typer.Option(help="Schedule: minute, hour, day, month, day of the week.")
    ] = NIGHTLY_CRON,
    timezone: Annotated[str, typer.Option(help="Time zone of --cron.")] = NIGHTLY_ZONE,
) -> None:
    """Start Prefect with all deployments, and the dashboard; Ctrl-C ends them all."""
    from flows.deployed.up import up as run_up

    own = ServerNote(host, server_port, tuple(allow_host or ()))
    raise typer.Exit(run_up(Home.from_environment(), own, ui_port, runs_at_once, (schedule, cron, timezone)))


def down() -> None:
    """End what `spotlight up` started, even if it crashed."""
    from flows.deployed.up import down as run_down

    home = Home.from_environment()
    ended = run_down(home)
    typer.echo(
        f"ended: {', '.join(ended)}" if ended else f"no process of `spotlight up` is left for {home.path}"
    )


def ui(
    port: Port = DEFAULT_PORT,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; any but 127.0.0.1 needs a login (docs/reference/dashboard.md)."
        ),
    ] = LOOPBACK,
    allow_host: AllowHost = None,
) -> None:
    """Open the dashboard on http://127.0.0.1:PORT; Ctrl-C ends it."""
    from flows.server.dashboards import serve

    raise typer.Exit(serve(Home.from_environment(), port, host, allow_host or ()))


def metrics(
    port: Port = 9464,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but 127.0.0.1 needs --token-file.")
    ] = LOOPBACK,
    allow_host: AllowHost = None,
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


def reproduce(
    reference: Annotated[
        str,
        run_argument("A finished run (or `last`), or a reference file (.json); empty: --preset's."),
    ] = "",
    preset: Annotated[
        str,
        typer.Option(
            "--preset", "-p", help="Preset whose reference run is repeated; recorded if there is none."
        ),
    ] = "glyphs",
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Only score the run's last checkpoint again.")
    ] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Make this run the preset's new reference.")] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Largest accepted difference in mean score if bits may differ, as on another device."
        ),
    ] = 0.05,
    set_: Annotated[list[str] | None, set_option("Change a setting on purpose; the result names it.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the run as a reference file for another machine; run nothing.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Identifier of the repeated run; generated by default.")
    ] = None,
) -> None:
    """Repeat a recorded run and compare: identical to the bit, or the differences (exit code 1)."""
    form = _form(
        reference=reference, preset=preset, how="evaluate" if evaluate else "train", renew=renew,
        tolerance=tolerance, settings=set_ or [],
    )  # fmt: skip
    home = Home.from_environment().ensure()
    if write is not None:
        _write(home, reference, write)
        return
    again = run_id or new_run_id(f"again-{Path(reference).stem or preset}"[:100])
    check_run_id(again)
    _check_reference(home, form, again)
    reporter().note(f"starting {again}")
    from flows.server.prefect_server import prefect_server

    with (
        stops_in_order(lambda: _compared_when_stopped(home, again)),
        nullcontext() if evaluate else RunLog(home, again).of_start(),
        prefect_server(home, lambda: importlib.import_module("flows.reproduce")),
    ):
        from flows.process.cancellation import cancellable
        from flows.reproduce import reproduce as flow
        from storage.evaluations.reproductions import reproduction_of

        try:
            with cancellable(again, "nothing was compared"):
                flow.with_options(flow_run_name=again)(form, again)
        except DriftError as error:
            typer.secho(f"drifted: {error}", err=True, fg="red")
        done = reproduction_of(home, again)
    typer.echo(json.dumps(done.summary()))
    raise typer.Exit(1 if done.verdict == "drifted" else 0)


def _compared_when_stopped(home: Home, again: str) -> str:
    """Return the outcome of a reproduction whose process was stopped, perhaps after the comparison."""
    from storage.evaluations.reproductions import reproduction_of

    try:
        done = reproduction_of(home, again)
    except RunNotFoundError:
        return "Stopped; nothing was compared."
    return f"Stopped after the comparison: {done.verdict}: {done.message}"


def _check_reference(home: Home, form: ReproductionForm, again: str) -> None:
    """Refuse what cannot be repeated before a server starts; the flow checks again."""
    from flows.reproduction_inputs import config_again, find_reference

    store = RunStore(home)
    if any(row.run_id == again for row in store.runs()):
        raise ConfigurationError(f"run {again!r} exists already; give another --run-id, or none")
    store.reconcile()
    _, was = find_reference(store, form)
    look_at_inputs(config_again(form, was))


def _form(**values: Any) -> ReproductionForm:
    try:
        return ReproductionForm.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][0] == "settings":
            raise ConfigurationError(f"--set {quoted(first['input'])}: write section.key=value") from error
        name = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"--{name} {quoted(first['input'])}: {first['msg']}") from error


def _write(home: Home, run_id: str, file: Path) -> None:
    from storage.evaluations.reproductions import reference_of, write_reference

    if not run_id:
        raise ConfigurationError("--write needs a run: spotlight reproduce RUN --write FILE.json")
    if file.suffix != ".json":
        raise ConfigurationError(f"--write {file} must end in .json, as reference files do")
    write_reference(reference_of(RunStore(home), run_id), writable_file(file, "--write"))
    typer.echo(f"wrote {file}; repeat it anywhere with `spotlight reproduce {file}`")


def stop(run_id: RunName) -> None:
    """Stop a run on this machine; committed work stays, and it can be resumed."""
    store = RunStore(Home.from_environment())
    if (process := _at_work(store, run_id)) is None:
        status = store.run(run_id).status
        raise ConfigurationError(f"run {run_id!r} is {status}: there is nothing to stop")
    host, pid, _ = process
    if host != socket.gethostname():
        raise ConfigurationError(
            f"run {run_id!r} is running in process {pid} on {host}; stop it on that machine"
        )
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise ConfigurationError(
            f"process {pid} of run {run_id!r} belongs to another user; stop it as that user"
        ) from error
    except ProcessLookupError:
        pass  # it has just ended
    reporter().note(f"stopping run {run_id}, process {pid}")
    until = time.monotonic() + _WAIT_S
    while _at_work(store, run_id) is not None:
        if time.monotonic() > until:
            raise ConfigurationError(
                f"process {pid} of run {run_id!r} has not ended in {_WAIT_S:g} s; see its log, or end it "
                f"with `kill -9 {pid}`: committed work stays"
            )
        time.sleep(0.1)
    if not store.folder(run_id).exists:
        typer.echo(f"run {run_id} was stopped before it began; nothing is kept")
        return
    ended = store.run(run_id)
    go_on = "" if ended.status == "finished" else f"; continue with `spotlight resume {run_id}`"
    typer.echo(f"run {run_id} is {ended.status} after iteration {ended.last_iteration or 0}{go_on}")


def _at_work(store: RunStore, run_id: str) -> Process | None:
    """Return the process that works on a run, or starts or resumes it and has not recorded itself yet."""
    store.reconcile()
    if store.folder(run_id).exists and (row := store.run(run_id)).status == "running":
        return row.host, row.pid, row.process_started_at or 0.0
    activity = read_activity(store.home, run_id, 0)
    return activity.process if activity.is_starting and activity.is_alive else None
