"""The output of `spotlight evaluate`, and the command `evaluations`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from storage.evaluations.separate import EvaluationStore
from storage.home import Home


def show_evaluation(result: dict[str, Any]) -> None:
    """Print the result of `flows.start.evaluate` as tables."""
    from flows.cli.evaluation_table import show_figures

    show_figures(result, f"{result['evaluation_id']}: {result['run_id'] or result['model']}")
    if "difference" in result:
        difference = result["difference"]
        show_figures(difference, f"better than {difference['before']} by", signed=True)


def evaluations(
    before: Annotated[str | None, typer.Argument(help="An evaluation, or a run for its newest one.")] = None,
    after: Annotated[str | None, typer.Argument(help="Another one, to compare with the first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines instead of a table.")] = False,
) -> None:
    """List what `evaluate` made, newest first; of two, say by how much the second is better."""
    from flows.cli.evaluation_table import evaluation_facts, show_evaluations, show_figures

    home = Home.from_environment()
    if before is not None and after is not None:
        from storage.evaluations.pairs import compare_evaluations

        difference = compare_evaluations(home, before, after)
        if not as_json:
            show_figures(difference, f"{difference['after']} is better than {difference['before']} by", True)
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
