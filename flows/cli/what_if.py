"""`spotlight what-if`: what a run would take and cost on a fleet, by policy, before anything is rented."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from flows.cli.settings import preset_names, setting_names
from flows.configuration import given_configuration
from storage.errors import ConfigurationError, quoted
from storage.home import Home

if TYPE_CHECKING:  # it imports pandas
    from tasks.what_if import WhatIf

_DAY_H = 48.0


def what_if(
    preset: Annotated[
        str | None,
        typer.Option("--preset", "-p", help="A preset's name, or a TOML file.", autocompletion=preset_names),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="SECTION.KEY=VALUE",
            help="Override one setting; repeatable.",
            autocompletion=setting_names,
        ),
    ] = None,
    reserved: Annotated[int | None, typer.Option(help="Reserved devices; the preset's by default.")] = None,
    spot: Annotated[int | None, typer.Option(help="Spot devices; the preset's by default.")] = None,
    trainers: Annotated[
        int | None, typer.Option(help="Reserved devices that train; the preset's by default.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Of a run; the preset's by default.")] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="A recorded trace of spot instances.")
    ] = None,
    loss_rate: Annotated[
        float | None,
        typer.Option(min=0, max=3600, help="Without a trace: losses of a device an hour; 0.67 by default."),
    ] = None,
    joint: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Without a trace: share of them that take several; 0.77 by default."),
    ] = None,
    notice: Annotated[float, typer.Option(min=0, max=3600, help="Seconds of notice before a loss.")] = 0.0,
    price: Annotated[
        str | None,
        typer.Option(metavar="RESERVED,SPOT", help="Dollars an hour of a device; the settings' by default."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE|RUN", help="What the workload takes: a profile, a JSON file, a run."),
    ] = None,
    windows: Annotated[
        int, typer.Option(min=1, max=200, help="Windows of the trace, each with a draw of the profile.")
    ] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the windows.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Model what a run would take and cost: reserved, on demand, spot, exploring or not."""
    changes = [*(set_ or []), *_settings(reserved, spot, trainers, iterations, price)]
    config = given_configuration(preset, changes)
    from tasks.prices import with_prices
    from tasks.what_if import MarketQuestion, answer, find_profile, refuse_unfit, runs_of

    config = config if price else with_prices(config)
    refuse_unfit(config)
    chosen = find_profile(Home.from_environment(), config, profile)
    question = MarketQuestion(trace or "", loss_rate, joint, notice)
    bar = Progress(
        TextColumn("simulating"), BarColumn(), MofNCompleteColumn(),
        console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=runs_of(windows))
        result = answer(config, chosen, question, windows, seed, lambda: bar.advance(task))
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        show(result)


def show(result: WhatIf) -> None:
    """Print a table of policies, and what it rests on."""
    console = Console()
    table = Table(
        box=SIMPLE,
        pad_edge=False,
        title=f"Modelled: {result.iterations} iterations, {result.offer.reserved} reserved and "
        f"{result.offer.spot} spot devices",
        caption=f"medians; below them the lowest and highest of {result.futures} futures\n"
        "* least dollars; of equals the most drafts an iteration",
    )
    table.add_column("policy", no_wrap=True)
    for name in ("time", "dollars", "idle", "spot idle", "losses", "drafts"):
        table.add_column(name, justify="right", no_wrap=True)
    for answer in result.answers:
        row = answer.figures
        table.add_row(
            f"{answer.policy.name}{' *' if answer.best else ''}",
            _spread(row["wall_s"], *_time_unit(row["wall_s"].median)),
            _spread(row["usd"], "${:,.2f}" if row["usd"].median < 20 else "${:,.0f}"),
            _spread(row["idle_share"], "{:.0%}"),
            _spread(row["spot_idle_share"], "{:.0%}"),
            _spread(row["losses"], "{:.0f}"),
            _spread(row["drafts_per_iteration"], "{:.0f}"),
        )
    console.print(table)
    lines = [f"{answer.policy.name}: {answer.policy.summary}" for answer in result.answers]
    lines += [
        f"prices: ${result.offer.reserved_usd_per_hour:g} an hour reserved, "
        f"${result.offer.spot_usd_per_hour:g} spot; {result.offer.trainers} of the reserved devices train",
        f"spot: {result.market}",
        f"profile {result.profile.name}: {result.profile.summary}",
        *(f"  {evidence}: {', '.join(names)}" for evidence, names in result.profile.evidence.items()),
        "All policies do the same iterations: what exploration is worth to learning is not in these figures.",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _settings(
    reserved: int | None, spot: int | None, trainers: int | None, iterations: int | None, price: str | None
) -> list[str]:
    """The options that are settings, as settings: they are checked as those are.

    Args:
        reserved, spot, trainers: devices.
        iterations: of a run.
        price: of a reserved and of a spot device, as it was given.
    """
    given = {
        "runtime.reserved_workers": reserved,
        "runtime.spot_workers": spot,
        "runtime.trainer_workers": trainers,
        "iterations": iterations,
    }
    changes = [f"{name}={value}" for name, value in given.items() if value is not None]
    if price is None:
        return changes
    parts = [part.strip() for part in price.split(",")]
    if len(parts) != 2 or not all(parts):
        raise ConfigurationError(
            f"--price is {quoted(price)}; give the dollars an hour of a reserved and of a spot device, as in "
            "10.98,2.51"
        )
    names = ("price.reserved_usd_per_hour", "price.spot_usd_per_hour")
    return [*changes, "price.book=", "price.offer=", *(f"{n}={p}" for n, p in zip(names, parts, strict=True))]


def _time_unit(seconds: float) -> tuple[str, float]:
    """How a time is written, and the seconds of its unit."""
    if seconds < 7200:
        return ("{:.1f} s", 1.0) if seconds < 120 else ("{:.1f} min", 60.0)
    return ("{:.1f} h", 3600.0) if seconds < _DAY_H * 3600 else ("{:.1f} d", 86400.0)


def _spread(spread: object, form: str, unit: float = 1.0) -> str:
    """A figure, and below it its interval; alone where there is none."""
    low, median, high = (form.format(getattr(spread, name) / unit) for name in ("low", "median", "high"))
    bare = str.maketrans("", "", "$% minhds")
    return median if low == high else f"{median}\n{low.translate(bare)}–{high.translate(bare)}"
