"""`spotlight runs` and `spotlight presets`: lists of runs and presets."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.table import Table

from flows.terminal import console
from storage.clock import now
from storage.config.loading import list_presets
from storage.environment import PRESET
from storage.errors import ConfigurationError
from storage.home import Home
from storage.ledger.modelled import MODELLED, is_modelled
from storage.record.results import results_so_far
from storage.record.run_notes import NoteStore
from storage.record.run_store import RunRow, RunStore, bare_folders

_LEAST_WIDTH = 60
"""The smallest width of a description; on a narrower terminal the terminal breaks the lines."""

_UNLIMITED = 10_000

_HEADINGS = (
    "run", "status", "started", "took", "preset", "reward", "iterations", "score before", "after", "cost",
)  # fmt: skip


def runs(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    archived: Annotated[bool, typer.Option("--archived", help="Archived runs too.")] = False,
) -> None:
    """List runs, newest first; those that are archived on the dashboard are left out."""
    home = Home.from_environment()
    store = RunStore(home)
    store.reconcile()
    rows = store.runs()
    if bare := bare_folders(home):
        typer.echo(f"warning: {bare}", err=True)
    if not archived:
        rows = _not_archived(home, rows)
    found = results_so_far(store.records)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(_facts(row, found[row.run_id])))
        return
    if not rows:
        typer.echo("no runs yet; start one with `spotlight train --preset glyphs`")
        return
    print_whole(_HEADINGS, [_cells(row, found[row.run_id]) for row in rows])


def presets() -> None:
    """List the presets: name, what it was tried on (its evidence), purpose."""
    # Another program gets one line for each.
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if sys.stdout.isatty() else _UNLIMITED
    for preset in list_presets():
        columns = f"{preset.name:24} {preset.evidence:20} "
        lines = textwrap.wrap(
            preset.summary, width, initial_indent=columns, subsequent_indent=" " * len(columns)
        )
        typer.echo("\n".join(lines))


def print_whole(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table, or two lines per row if the terminal would cut off the identifiers.

    Args:
        headings: column headings; the first column holds the identifiers.
        rows: one cell per column.
    """
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    screen = console()
    needed = screen.measure(table, options=screen.options.update(max_width=_UNLIMITED)).maximum
    if needed <= screen.width or not sys.stdout.isatty():
        console(width=max(needed, screen.width)).print(table)
        return
    for identifier, *facts in rows:
        typer.echo(identifier)
        typer.echo(
            "    " + ", ".join(f"{name} {fact}" for name, fact in zip(headings[1:], facts, strict=True))
        )


def _cells(row: RunRow, found: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row.run_id, row.status, time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created_at)), _took(row),
        row.environment.get(PRESET, "") or "-", _reward(row), f"{row.last_iteration or 0}/{_planned(row)}",
        _figure(found["score_before"]), _figure(found["score_now"]),
        _figure(found["usd"] or None, "${:.2f}" + f" {MODELLED}" * _is_modelled(row)),
    )  # fmt: skip


def _took(row: RunRow) -> str:
    """Return the time from the run's start to its end, or to now; a resumed run's pauses are included."""
    if row.ended_at is None and row.status != "running":
        return "-"
    return str(timedelta(seconds=round((row.ended_at or now()) - row.created_at)))


def _reward(row: RunRow) -> str:
    return str(json.loads(row.config_json).get("reward", {}).get("scorer", "-"))


def _is_modelled(row: RunRow) -> bool:
    return is_modelled(json.loads(row.config_json), row.environment)


def _not_archived(home: Home, rows: list[RunRow]) -> list[RunRow]:
    notes = NoteStore(home).notes()
    kept = [row for row in rows if row.run_id not in notes or not notes[row.run_id].archived]
    if len(kept) < len(rows):
        typer.echo(
            f"{len(rows) - len(kept)} archived left out; `spotlight runs --archived` has all", err=True
        )
    return kept


def _planned(row: RunRow) -> str:
    try:
        return str(row.config.iterations)
    except ConfigurationError:  # the settings of another version
        return "?"


def _facts(row: RunRow, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "status": row.status,
        "created_at": row.created_at,
        "ended_at": row.ended_at,
        "preset": row.environment.get(PRESET, ""),
        "reward": _reward(row),
        "iterations": row.last_iteration or 0,
        "error": row.error,
        "modelled": _is_modelled(row),
        "score_before": found["score_before"],
        "score_after": found["score_now"],
        "cost_usd": found["usd"],
        **row.summary,
    }


def _figure(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)
