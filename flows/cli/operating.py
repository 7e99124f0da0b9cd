"""The commands that keep Spotlight going: `up`, `down` and `reproduce`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, get_args

import typer
from pydantic import ValidationError

from flows.cli.run_names import named_run, run_names
from flows.configuration import look_at_inputs
from flows.deployed.forms import PresetName, ReproductionForm
from flows.process.stopping import stops_in_order
from flows.progress import reporter
from flows.run_identity import check_run_id, new_run_id
from flows.server.dashboards import DEFAULT_PORT
from flows.server.ports import LOOPBACK, SERVER_PORT
from storage.errors import ConfigurationError, DriftError, quoted
from storage.home import Home
from storage.new_folder import writable_file


def up(
    server_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of Prefect's UI and API.")
    ] = SERVER_PORT,
    ui_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the dashboard.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but 127.0.0.1 needs a login for the dashboard.")
    ] = LOOPBACK,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name that both are reached by, such as a proxy's; repeatable."),
    ] = None,
    runs_at_once: Annotated[
        int, typer.Option(min=1, max=16, help="Runs that may go on at the same time; more wait.")
    ] = 1,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Let the nightly reproducibility runs run by themselves.")
    ] = False,
    cron: Annotated[str, typer.Option(help="When: minute, hour, day, month, day of the week.")] = "0 2 * * *",
    timezone: Annotated[str, typer.Option(help="The time zone that --cron is meant in.")] = "UTC",
) -> None:
    """Start Prefect with all deployments, and the dashboard; Ctrl-C ends them all."""
    from flows.deployed.schedule import Nightly
    from flows.deployed.up import UpOptions
    from flows.deployed.up import up as run_up

    nightly = Nightly(schedule, cron, timezone)
    options = UpOptions(server_port, ui_port, host, tuple(allow_host or ()), runs_at_once, nightly)
    raise typer.Exit(run_up(Home.from_environment(), options))


def down() -> None:
    """End what `spotlight up` started, also where it crashed."""
    from flows.deployed.up import down as run_down

    home = Home.from_environment()
    ended = run_down(home)
    typer.echo(
        f"ended: {', '.join(ended)}" if ended else f"nothing of `spotlight up` is left for {home.path}"
    )


def reproduce(
    reference: Annotated[
        str,
        typer.Argument(
            help="A finished run (or `last`), or a reference file (.json); empty: --preset's.",
            callback=named_run,
            autocompletion=run_names,
        ),
    ] = "",
    preset: Annotated[
        str, typer.Option("--preset", "-p", help="Whose recorded reference is done again; made if missing.")
    ] = "glyphs",
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Only score the run's last checkpoint again.")
    ] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Make this run the preset's new reference.")] = False,
    tolerance: Annotated[
        float,
        typer.Option(help="Of the mean score, where bits may differ: another device, measured degrees."),
    ] = 0.05,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Change on purpose; named as such."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Run nothing: write the run as a reference file for elsewhere.")
    ] = None,
    run_id: Annotated[str | None, typer.Option(help="Of the run that does it; made up by default.")] = None,
) -> None:
    """Do a recorded run again and compare: the same to the bit, or what differs (exit code 1)."""
    form = _form(reference, preset, evaluate, renew, tolerance, set_)
    home = Home.from_environment().ensure()
    if write is not None:
        _write(home, reference, write)
        return
    again = run_id or new_run_id(f"again-{Path(reference).stem or preset}"[:100])
    check_run_id(again)
    _look_at_reference(home, form, again)
    reporter().note(f"starting {again}")
    from flows.server.prefect_server import prefect_server

    with (
        stops_in_order("Stopped; nothing was compared."),
        prefect_server(home, lambda: importlib.import_module("flows.reproduce")),
    ):
        from flows.process.cancellation import cancellable
        from flows.reproduce import reproduce as flow
        from storage.evaluations.reproductions import reproduction_of

        try:
            with cancellable(again):
                flow.with_options(flow_run_name=again)(form, again)
        except DriftError as error:
            typer.secho(f"drifted: {error}", err=True, fg="red")
        done = reproduction_of(home, again)
    typer.echo(json.dumps(done.summary()))
    raise typer.Exit(1 if done.verdict == "drifted" else 0)


def _look_at_reference(home: Home, form: ReproductionForm, again: str) -> None:
    """Refuse what cannot be done again before a server starts; the flow looks once more."""
    from flows.reproduction_inputs import config_again, find_reference
    from storage.record.run_store import RunStore

    store = RunStore(home)
    if any(row.run_id == again for row in store.runs()):
        raise ConfigurationError(f"run {again!r} exists already; give another --run-id, or none")
    store.reconcile()
    _, was = find_reference(store, form)
    look_at_inputs(config_again(form, was))


def _form(
    reference: str, preset: str, evaluate: bool, renew: bool, tolerance: float, settings: list[str] | None
) -> ReproductionForm:
    values = {
        "reference": reference, "preset": preset, "how": "evaluate" if evaluate else "train", "renew": renew,
        "tolerance": tolerance, "settings": settings or [],
    }  # fmt: skip
    try:
        return ReproductionForm.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][0] == "settings":
            raise ConfigurationError(f"--set {quoted(first['input'])}: write section.key=value") from error
        name = ".".join(map(str, first["loc"]))
        hint = f"; there are {', '.join(get_args(PresetName))}" if name == "preset" else ""
        raise ConfigurationError(f"--{name} {quoted(first['input'])}: {first['msg']}{hint}") from error


def _write(home: Home, run_id: str, file: Path) -> None:
    from storage.evaluations.reproductions import reference_of, write_reference
    from storage.record.run_store import RunStore

    if not run_id:
        raise ConfigurationError("--write needs a run: spotlight reproduce RUN --write FILE.json")
    if file.suffix != ".json":
        raise ConfigurationError(f"--write {file} must end in .json, by which a reference file is known")
    write_reference(reference_of(RunStore(home), run_id), writable_file(file, "--write"))
    typer.echo(f"wrote {file}; do it again anywhere with `spotlight reproduce {file}`")
