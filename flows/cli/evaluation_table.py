"""Tables of evaluations and their comparisons for a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from flows.cli.listings import print_whole
from flows.terminal import console
from storage.evaluations.separate import SeparateEvaluation


def show_figures(figures: dict[str, Any], title: str, signed: bool = False) -> None:
    """Print a row per tag and the two overall rows, each with its interval.

    Args:
        figures: figures from `storage.evaluations.figures`.
        title: heading of the table.
        signed: whether they are differences.
    """
    names = [name for name in ("score", "exact") if name in figures]
    headings = [heading for name in names for heading in (name, "95 %")]
    table = Table("tag", "prompts", *headings, title=title)
    rows = dict(figures.get("by_tag", {}))
    if "over_tags" in figures:
        rows["mean of the tags"] = figures["over_tags"] | {"prompts": figures["prompts"]}
    rows["all prompts"] = figures
    for name, row in rows.items():
        cells = [
            cell
            for figure in names
            for cell in (_number(row[figure], signed), _interval(row[f"{figure}_interval"], signed))
        ]
        table.add_row(name, str(row["prompts"]), *cells)
    console().print(table)


def show_evaluations(rows: Sequence[SeparateEvaluation]) -> None:
    """Print one row per evaluation, with whole identifiers."""
    verdicts = any(row.gives_verdict for row in rows)
    cells = [
        (
            row.evaluation_id, time.strftime("%Y-%m-%d %H:%M", time.gmtime(row.started_at)),
            row.run_id or "untouched model", str(row.iteration), str(row.images),
            _number(row.score), *([_number(row.exact) if row.gives_verdict else "-"] if verdicts else []),
        )
        for row in rows
    ]  # fmt: skip
    headings = ("evaluation", "when (UTC)", "of", "iteration", "images", "score", "exact")
    print_whole(headings if verdicts else headings[:-1], cells)


def evaluation_facts(row: SeparateEvaluation) -> dict[str, Any]:
    """Return one evaluation as JSON values."""
    names = ("evaluation_id", "run_id", "iteration", "started_at", "images", "score", "exact", "folder")
    return {name: getattr(row, name) for name in names if name != "exact" or row.gives_verdict}


def _number(value: float, signed: bool = False) -> str:
    return f"{value:+.3f}" if signed else f"{value:.3f}"


def _interval(bounds: Sequence[float], signed: bool) -> str:
    return f"{_number(bounds[0], signed)} to {_number(bounds[1], signed)}"
