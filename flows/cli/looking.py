"""Commands that show runs, presets, settings, logs, evaluations and reports."""

from __future__ import annotations

import difflib
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flows.cli.options import AsJson, Evaluated, RunName, setting_names
from flows.output import console, reader_left
from storage.clock import now
from storage.config.errors import ALIASES
from storage.config.loading import list_presets
from storage.config.run_config import RunConfig
from storage.config.settings_table import list_settings, settings_page
from storage.environment import MODELLED, PRESET, is_modelled
from storage.errors import ConfigurationError, RunNotFoundError, quoted
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation, compare_evaluations
from storage.home import Home
from storage.record.results import results_so_far
from storage.record.run_folder import bare_folders
from storage.record.run_status import LIVE, Activity, activity_of, read_activity, shown_status
from storage.record.run_store import RunRow, RunStore
from storage.text import file_stem, one_line, writable_file

_POLL_S = 0.5
_LEAST_WIDTH, _UNLIMITED = 60, 10_000
"""Widths of a description: on a narrower terminal the terminal breaks the lines."""

_HEADINGS = (
    "run", "status", "started", "took", "preset", "reward", "iterations", "score before", "after", "cost",
)  # fmt: skip


def runs(
    as_json: AsJson = False,
    archived: Annotated[bool, typer.Option("--archived", help="Archived runs too.")] = False,
) -> None:
    """List runs, newest first; those that are archived on the dashboard are left out."""
    home = Home.from_environment()
    store = RunStore(home)
    store.reconcile()
    rows = store.runs()
    if bare := bare_folders(home):
        typer.echo(f"warning: {bare}", err=True)
    put_away = set() if archived else {key for key, note in store.notes().items() if note.archived}
    kept = [row for row in rows if row.run_id not in put_away]
    if left_out := len(rows) - len(kept):
        typer.echo(f"{left_out} archived not shown; `spotlight runs --archived` lists all", err=True)
    found = results_so_far(store)
    if as_json:
        for row in kept:
            typer.echo(json.dumps(_facts(row, found[row.run_id])))
    elif kept:
        print_whole(_HEADINGS, [_cells(row, found[row.run_id]) for row in kept])
    else:
        typer.echo("no runs yet; start one with `spotlight train --preset glyphs`")


def presets() -> None:
    """List the presets: name, what it was tried on (its evidence), purpose."""
    # Other programs get one line per preset.
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if sys.stdout.isatty() else _UNLIMITED
    found = list_presets()
    longest = max(len(preset.name) for preset in found)
    if sys.stdout.isatty():
        typer.secho(f"{'preset':{longest}} {'tried on':20} purpose", bold=True)
    for preset in found:
        columns = f"{preset.name:{longest}} {preset.evidence:20} "
        lines = textwrap.wrap(
            preset.summary, width, initial_indent=columns, subsequent_indent=" " * len(columns)
        )
        typer.echo("\n".join(lines))


def print_whole(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table, or two lines per row if the terminal would cut off the first column's identifiers."""
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    screen = console()
    needed = screen.measure(table, options=screen.options.update(max_width=_UNLIMITED)).maximum
    if needed <= screen.width or not sys.stdout.isatty():
        console(width=max(needed, screen.width)).print(table)
        return
    for identifier, *facts in rows:
        named = ", ".join(f"{name} {fact}" for name, fact in zip(headings[1:], facts, strict=True))
        typer.echo(f"{identifier}\n    {named}")


def _cells(row: RunRow, found: Mapping[str, Any]) -> tuple[str, ...]:
    facts, took = _facts(row, found), "-"
    if row.ended_at is not None or row.status == "running":  # including a resumed run's pauses
        lasted_s = (row.ended_at or now()) - row.created_at  # below 0 if the clock was set back since
        took = str(timedelta(seconds=round(max(0.0, lasted_s))))
    try:
        planned = str(row.config.iterations)
    except ConfigurationError:  # another version's settings
        planned = "?"
    return (
        row.run_id, row.status, time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created_at)), took,
        facts["preset"] or "-", facts["reward"], f"{row.last_iteration or 0}/{planned}",
        _figure(found["score_before"]), _figure(found["score_now"]),
        _figure(found["usd"] or None, "${:.2f}" + f" {MODELLED}" * facts["modelled"]),
    )  # fmt: skip


def _facts(row: RunRow, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "status": row.status,
        "created_at": row.created_at,
        "ended_at": row.ended_at,
        "preset": row.environment.get(PRESET, ""),
        "reward": str(row.settings.get("reward", {}).get("scorer", "-")),
        "iterations": row.last_iteration or 0,
        "error": row.error,
        "modelled": is_modelled(row.settings, row.environment),
        "score_before": found["score_before"],
        "score_after": found["score_now"],
        "cost_usd": found["usd"],
        **row.summary,
    }


def _figure(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def logs(
    run_id: RunName,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new lines until the run ends; Ctrl-C stops following."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a run's log: phases, messages, and events such as notices, losses and alarms."""
    home = Home.from_environment()
    store, log, position = RunStore(home), Activity(), 0
    status = _status(store, run_id)
    with suppress(KeyboardInterrupt):
        while True:
            lines, position = store.folder(run_id).lines(position)
            for line in lines:
                message = log.take(line)
                if as_json:
                    typer.echo(json.dumps(line))
                elif message is not None:
                    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message.at))
                    kind = f"{message.kind}: " if message.kind else ""
                    typer.echo(f"{at}  {one_line(kind + message.text)}")
            if not follow or status not in LIVE or reader_left():
                break
            time.sleep(_POLL_S)
            try:
                status = _status(store, run_id)  # read first, so that the lines of its end are printed too
            except RunNotFoundError:
                status = "refused"  # its process ended before it had a row
    if follow and not as_json:
        typer.echo(f"run {run_id} is {status}")


def _status(store: RunStore, run_id: str) -> str:
    try:
        row = store.run(run_id)
    except RunNotFoundError:
        if read_activity(store.home, run_id, 0).is_alive:
            return "starting"  # it has a log and no row yet
        raise
    return shown_status(row, activity_of(store.home, row, 0))


def report(
    run_id: RunName,
    out: Annotated[
        Path | None, typer.Option(help="File to write; RUN.html in this folder by default.")
    ] = None,
) -> None:
    """Write a run's charts, images and figures into one HTML file that needs no network."""
    from tasks.report import report_process

    home = Home.from_environment()
    RunStore(home).run(run_id)
    file = writable_file(f"{file_stem(run_id)}.html" if out is None else out, "--out")
    raise typer.Exit(report_process(home, run_id, file).returncode)


def settings(
    section: Annotated[
        str | None,
        typer.Argument(
            help="A section such as sampling, a setting, or a word to search for; all by default."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object with an entry for each setting.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all settings as docs/reference/settings.md.")
    ] = False,
) -> None:
    """List the settings of a run: default, bounds, description."""
    if as_markdown:
        if section or as_json:
            raise ConfigurationError("--markdown writes the whole page; leave SECTION and --json out")
        typer.echo(settings_page(), nl=False)
        return
    wanted, word = section or "", (section or "").lower()
    entries = (
        list_settings(wanted)
        or (word in ALIASES and list_settings(ALIASES[word]))
        or [entry for entry in list_settings() if word in f"{entry.name} {entry.description}".lower()]
    )
    if not entries:
        known = [*RunConfig.model_fields, *setting_names("")]
        near = difflib.get_close_matches(wanted, [one.rstrip("=") for one in known], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigurationError(
            f"no section or setting {quoted(wanted)}; {hint}there are {', '.join(RunConfig.model_fields)}"
        )
    if as_json:
        facts = {
            one.name: {"default": one.default, "bounds": one.bounds, "description": one.description}
            for one in entries
        }
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    table = Table("setting", "default", "bounds", "description")
    for entry in entries:
        table.add_row(entry.name, entry.default_text, entry.bounds, entry.description, end_section=True)
    console().print(table)


def show_evaluation(result: dict[str, Any]) -> None:
    """Print the result of `flows.start.evaluate` as tables."""
    show_figures(result, f"{result['evaluation_id']}: {result['run_id'] or result['model']}")
    if "difference" in result:
        _show_difference(result["difference"])


def evaluations(
    before: Evaluated = None,
    after: Evaluated = None,
    as_json: AsJson = False,
) -> None:
    """List evaluations by `evaluate`, newest first, or show one; of two, show the second minus the first."""
    home = Home.from_environment()
    if before is not None and after is not None:
        difference = compare_evaluations(home, before, after)
        if not as_json:
            _show_difference(difference)
        typer.echo(json.dumps(difference))
        return
    store = EvaluationStore(home)
    rows = store.all() if before is None else [store.find(before)]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(evaluation_facts(row)))
    elif rows:
        show_evaluations(rows)
    else:
        typer.echo("no evaluations yet; make one with `spotlight evaluate --preset glyphs`")


def _show_difference(difference: dict[str, Any]) -> None:
    has = " and ".join(str(difference[f"images_{side}"]) for side in ("before", "after"))
    shared = f"over the images that both judged, {difference['pairs']} (of {has})"
    show_figures(difference, f"{difference['after']} minus {difference['before']}, {shared}", signed=True)


def show_figures(figures: dict[str, Any], title: str, signed: bool = False) -> None:
    """Print a row per tag and the two overall rows of figures, or of signed differences, with intervals."""
    from storage.evaluations.figures import by_tag_and_overall  # imports scipy

    names = [name for name in ("score", "exact") if name in figures]
    headings = [heading for name in names for heading in (name, "95 %")]
    table, form = Table("tag", "prompts", *headings, title=title), "{:+.3f}" if signed else "{:.3f}"
    for name, row in by_tag_and_overall(figures).items():
        cells = []
        for figure in names:
            cells += [form.format(row[figure]), " to ".join(map(form.format, row[f"{figure}_interval"]))]
        table.add_row(name, str(row["prompts"]), *cells)
    console().print(table)


def show_evaluations(rows: Sequence[SeparateEvaluation]) -> None:
    """Print one row per evaluation, with whole identifiers."""
    verdicts = any(row.gives_verdict for row in rows)
    cells = [
        (
            row.evaluation_id, time.strftime("%Y-%m-%d %H:%M", time.gmtime(row.started_at)),
            row.run_id or "untouched model", str(row.iteration), str(row.images),
            _figure(row.score), *([_figure(row.exact if row.gives_verdict else None)] if verdicts else []),
        )
        for row in rows
    ]  # fmt: skip
    headings = ("evaluation", "when (UTC)", "of", "iteration", "images", "score", "exact")
    print_whole(headings if verdicts else headings[:-1], cells)


def evaluation_facts(row: SeparateEvaluation) -> dict[str, Any]:
    """Return one evaluation as JSON values."""
    names = ("evaluation_id", "run_id", "iteration", "started_at", "images", "score", "exact", "folder")
    return {name: getattr(row, name) for name in names if name != "exact" or row.gives_verdict}
