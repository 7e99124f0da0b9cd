"""`spotlight what-if`: time and cost of a run on a fleet, by policy, before anything is rented."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flows.cli.options import Preset, Sets, takes_question
from flows.configuration import given_configuration
from flows.output import console
from flows.run_identity import new_run_id
from flows.what_if_tables import print_answer
from storage.config.what_if import WhatIfQuestion
from storage.errors import ConfigurationError, quoted
from storage.home import Home
from storage.record.run_store import RunStore
from storage.text import writable_file

_PRESETS = "the preset's"
_TIMES = "NAME|FILE|RUN"


@takes_question(
    reserved={"show_default": _PRESETS}, spot={"show_default": _PRESETS},
    trainers={"show_default": _PRESETS}, iterations={"show_default": _PRESETS},
    gpu={"metavar": "KIND[,SPOT]"}, degree={"metavar": "N|auto"}, trace={"metavar": "FILE"},
    price={"metavar": "RESERVED,SPOT"}, prices={"metavar": "FILE"}, serving={"metavar": "BUSY,SWING,SLACK"},
    profile={"metavar": _TIMES}, spot_profile={"metavar": _TIMES}, policies={"metavar": "NAME,NAME"},
    curve={"metavar": f"{_TIMES},RUN"},
)  # fmt: skip
def what_if(
    *,
    preset: Preset = None,
    set_: Sets = None,
    question: WhatIfQuestion,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Find the fewest spot devices with which a run ends within this many hours."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write one simulated run as a Chrome trace, for ui.perfetto.dev."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Policy whose run --timeline writes (default: the best) or --record adds (default: all).",
        ),
    ] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Add simulated runs to the home, marked, for the dashboard and the report.",
        ),
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress", hidden=True, help="A line on standard error for each run.")
    ] = False,
) -> None:
    """Model a run's time and cost: reserved, on demand, spot, exploring or not."""
    if hours is not None:
        given = {"--spot": question.given("spot"), "--policies": question.given("policies")}
        given |= {"--curve": question.given("curve"), "--serving": question.given("serving")}
        given |= {"--timeline": timeline, "--policy": policy, "--record": record or None}
        if named := [option for option, value in given.items() if value is not None]:
            raise ConfigurationError(
                f"--hours finds the number of spot devices for one policy; leave {', '.join(named)} out"
            )
        # A price book has spot prices only for a run with spot devices.
        question = question.model_copy(update={"spot": question.per_instance or 1})
    config = given_configuration(preset, [*(set_ or []), *question.as_settings()], needs_task=record)
    from tasks.what_if import Simulation, runs_of

    home = Home.from_environment()
    asked = Simulation(home, config, question)
    if hours is not None:
        _show_goal(asked.spot_for(hours), as_json)
        return
    compared = asked.policies()
    if timeline is None and policy is not None and not record:
        raise ConfigurationError(
            f"--policy {quoted(policy)} selects a time line to write; give its file with --timeline"
        )
    drawn = None if timeline is None else writable_file(timeline, "--timeline")
    if drawn is not None or (record and policy is not None):
        asked.refuse_time_line(policy, compared)
    if record:
        asked.refuse_long()
    with _progress(runs_of(question.windows, compared), progress) as on_run:
        result = asked.answer(compared, on_run)
    if drawn is not None:
        name = policy or next(row["policy"] for row in result["policies"] if row["best"])  # there is one
        drawn.write_text(json.dumps(asked.time_line(name)))
    entered: dict[str, str] = {}
    for one in [one for one in compared if record and policy in (None, one.name)]:
        entered[one.name] = run_id = new_run_id(f"simulated-{one.name}")
        asked.record(RunStore(home.ensure()), run_id, one)
    if as_json:
        typer.echo(json.dumps(result | ({"recorded": entered} if record else {})))
    else:
        print_answer(result, console())
    for run_id in entered.values():
        typer.echo(f"recorded as run {run_id}", err=True)


def _show_goal(answer: dict[str, Any], as_json: bool) -> None:
    """Print the fewest spot devices with which a run ends in time, and what was tried."""
    from tasks.what_if_answer import run_in_words

    if as_json:
        typer.echo(json.dumps(answer))
        return
    tried = [f"{row['spot']:>4} spot devices: {run_in_words(row)}" for row in answer["goal"]["tried"]]
    for line in (*tried, answer["answer"], *answer["basis"]):
        console().print(line, soft_wrap=True)


@contextmanager
def _progress(runs: int, in_lines: bool) -> Iterator[Callable[[], None]]:
    """Yield a callback for each simulated run: it moves a bar on a terminal, or writes a line."""
    if in_lines:
        done = itertools.count(1)
        yield lambda: typer.echo(f"simulated {next(done)} of {runs}", err=True)
        return
    screen = console(stderr=True)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=runs)
        yield lambda: bar.advance(task)
