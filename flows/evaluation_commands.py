"""What `spotlight evaluate` does once its settings are known, and the command `evaluations`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from storage.config import RunConfig
from storage.home import Home
from storage.separate_evaluations import EvaluationStore


def evaluate_and_show(
    home: Home, config: RunConfig, run_id: str | None, images: str | None, compare: str | None
) -> dict[str, Any]:
    """Refuse what cannot be, evaluate under a Prefect server, show the tables.

    Args:
        home: where everything lies.
        config: checked settings.
        run_id: the run whose newest checkpoint is scored; None scores the untouched model.
        images: a new folder for the images; None keeps none.
        compare: an earlier evaluation, or a run that was evaluated; None compares with none.

    Returns:
        What `flows.evaluate.evaluate_model` returns.

    Raises:
        ConfigurationError: the folder is used, or the two would not compare.
        RunNotFoundError: there is no such earlier evaluation.
    """
    # Prefect is imported by what is imported below, and reads its settings then: the server comes first.
    from flows.evaluation_table import show_figures
    from flows.prefect_server import prefect_server
    from storage.evaluation_pairs import comparable
    from tasks.image_folder import claim_folder

    if compare is not None:
        compare = comparable(home, config, compare)
    folder = None if images is None else claim_folder(images)
    with prefect_server(home):
        from flows.evaluate import evaluate_model

        result = evaluate_model(config, run_id, folder, compare)
    show_figures(result, f"{result['evaluation_id']}: {run_id or config.model.path}")
    if "difference" in result:
        show_figures(result["difference"], f"better than {compare} by", signed=True)
    return result


def evaluations(
    before: Annotated[str | None, typer.Argument(help="An evaluation, or a run: its newest one.")] = None,
    after: Annotated[str | None, typer.Argument(help="Another one, to compare with the first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines instead of a table.")] = False,
) -> None:
    """List what `evaluate` made, newest first; of two, say by how much the second is better."""
    from flows.evaluation_table import evaluation_facts, show_evaluations, show_figures

    home = Home.from_environment()
    if before is not None and after is not None:
        from storage.evaluation_pairs import compare_evaluations

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
