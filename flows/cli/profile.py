"""`spotlight profile`: a recorded run's workload as a file that `what-if` reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from flows.cli.run_names import RunNames
from flows.terminal import console
from storage.home import Home
from storage.new_folder import writable_file

if TYPE_CHECKING:  # it imports pandas
    from tasks.recorded_profile import Profile


def profile(
    run_ids: RunNames,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; RUN.json in this folder by default.")
    ] = None,
) -> None:
    """Write what a run's denoising steps, scores, training and starts took to a file for what-if."""
    from tasks.recorded_profile import recorded_profile

    found = recorded_profile(Home.from_environment(), *run_ids)
    # A name may hold path separators, which must not choose the folder.
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", found.name).strip("-.") or "profile"
    file = writable_file(f"{name}.json" if out is None else out, "--out")
    file.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    _show(found)
    typer.echo(str(file))


def _show(found: Profile) -> None:
    """Print each number with its spread and its evidence."""
    table = Table(box=SIMPLE, title=found.summary)
    for name in ("quantity", "value", "spread", "evidence", "source"):
        table.add_column(name, justify="right" if name in ("value", "spread") else "left")
    for step in found.steps:
        spread = found.step.uncertainty
        shared = f" on {step.degree} devices" if step.degree > 1 else ""
        what = f"step of {step.batch} samples{shared}, s"
        table.add_row(what, f"{step.seconds:.4g}", f"{spread:.0%}", found.step.evidence, found.step.source)
    for name, quantity in found.quantities.items():
        if name != "step":
            spread = f"{quantity.uncertainty:.0%}"
            table.add_row(name, f"{quantity.value:.4g}", spread, quantity.evidence, quantity.source)
    console(stderr=True).print(table)
