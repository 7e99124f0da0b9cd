"""What `spotlight evaluate` does once its settings are known, and the command `evaluations`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from storage.config.run_config import RunConfig
from storage.evaluations.separate import EvaluationStore
from storage.home import Home
from storage.new_folder import claim_folder


def look_at_outputs(
    home: Home, config: RunConfig, images: str | None, compare: str | None
) -> tuple[Path | None, str | None]:
    """Refuse a folder that is used, and an earlier evaluation that the new one would not compare with.

    Args:
        home: where everything lies.
        config: the new evaluation's settings.
        images: a new folder for the images; None keeps none.
        compare: an earlier evaluation, or a run that was evaluated; None compares with none.

    Returns:
        The folder, which is there now, and the identifier of the earlier evaluation.

    Raises:
        ConfigurationError: the folder is used, or the two would not compare.
        RunNotFoundError: there is no such earlier evaluation.
    """
    from storage.evaluations.pairs import comparable

    earlier = None if compare is None else comparable(home, config, compare)
    return None if images is None else claim_folder(images, "--images"), earlier


def evaluate_and_show(
    home: Home, config: RunConfig, run_id: str | None, folder: Path | None, compare: str | None
) -> dict[str, Any]:
    """Evaluate under a Prefect server, show the tables.

    Args:
        home: where everything lies.
        config: checked settings.
        run_id: the run whose newest checkpoint is scored; None scores the untouched model.
        folder: an empty one for the images; None keeps none.
        compare: identifier of an earlier evaluation; None compares with none.

    Returns:
        What `flows.evaluate.evaluate_model` returns.
    """
    # Prefect is imported by what is imported below, and reads its settings then: the server comes first.
    from flows.cli.evaluation_table import show_figures
    from flows.server.prefect_server import prefect_server

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
