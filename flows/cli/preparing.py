"""Commands before a run: `prompts`, `score`, `judge`, `profile` and `pretrain`."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from flows.cli.options import Port, RunNames, set_option
from flows.configuration import given_configuration
from flows.deployed.forms import EmbeddedModelName
from flows.output import console
from flows.process.stopping import stops_in_order
from flows.progress import reporter
from flows.run_identity import new_run_id
from flows.server.note import LOOPBACK, check_address, reachable
from storage.errors import ConfigurationError
from storage.home import Home
from storage.prompts.files import prompt_of
from storage.text import claim_folder, file_stem, writable_file

if TYPE_CHECKING:  # it imports pandas
    from tasks.recorded_profile import Profile


def prompts(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="geneval, or signs (a text to write).")],
    count: Annotated[int, typer.Argument(max=1_000_000, help="How many.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help=".jsonl for geneval, .txt for signs.")],
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the prompts.")] = 0,
) -> None:
    """Generate a longer file of training prompts, none of which is in the evaluation file."""
    from tasks.prompt_files import draw_prompts

    content = draw_prompts(kind, count, seed, path)
    writable_file(path, "FILE").write_text(content, encoding="utf-8")
    typer.echo(f"wrote {count} prompts to {path}; train with --set prompts.train={path}")


def score(
    scorer: Annotated[
        str, typer.Argument(help="As reward.scorer: ocr, my_rewards:blue, path/to/blue.py:blue.")
    ],
    image: Annotated[Path, typer.Argument(help="A file that Pillow can read; an animated one is a clip.")],
    prompt: Annotated[str, typer.Argument(help="A text, or a row of a .jsonl file of prompts.")],
    set_: Annotated[list[str] | None, set_option("An option, such as reward.options.scale=sigmoid.")] = None,
) -> None:
    """Score one image with a reward, and print the score as one line of JSON."""
    from flows.judges import judges_beside
    from storage.pictures import read_frames
    from tasks.checks.quick_checks import judge_image

    with _prints_to_stderr():
        config = given_configuration(None, [f"reward.scorer={scorer}", *(set_ or [])])
        try:
            image_HWC = read_frames(image.read_bytes())
        except OSError as error:
            raise ConfigurationError(f"{image} is not an image that Pillow can read: {error}") from error
        with judges_beside(config):
            judged = judge_image(config.reward, image_HWC, prompt_of(prompt, "PROMPT"))
    typer.echo(json.dumps(judged))
    raise typer.Exit(0 if judged["error"] is None else 1)


@contextmanager
def _prints_to_stderr() -> Iterator[None]:
    """Redirect the output of a reward's code, its C libraries and its child processes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C libraries buffer output to a pipe or a file
        os.dup2(kept, 1)
        os.close(kept)


def judge(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [-- ARGS]", help="A file that begins with its dependencies, as in examples/judges."
        ),
    ],
    port: Port = 8190,
    host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = LOOPBACK,
    limit: Annotated[
        float, typer.Option(min=1, help="Seconds for installing, fetching weights and loading the model.")
    ] = 3600,
) -> None:
    """Start a judge in its own environment, and print how runs use it; Ctrl-C ends it."""
    from flows.judges import judge_at
    from tasks.checks.judges import judge_command

    check_address(host)
    url = f"http://{host}:{port}/score"
    typer.echo(f"starting {shlex.join(command)}; a first start fetches packages and weights", err=True)
    with (
        stops_in_order("The judge was stopped."),
        judge_at(url, judge_command(shlex.join(command), url), limit) as started,
    ):
        name = host if reachable(host) == host else socket.gethostname()
        reached = f"http://{name}:{port}/score"
        typer.echo(f"it answers at {reached} and writes {started.log}; a run uses it with\n")
        typer.echo(f"    --set reward.scorer=remote --set reward.options.url={reached}")
        while (code := started.process.poll()) is None:
            time.sleep(0.2)
    raise typer.Exit(code)


def profile(
    run_ids: RunNames,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; RUN.json in this folder by default.")
    ] = None,
) -> None:
    """Write the times of a run's denoising steps, scores, training and starts to a file for what-if."""
    from tasks.recorded_profile import recorded_profile

    found = recorded_profile(Home.from_environment(), *run_ids)
    file = writable_file(f"{file_stem(found.name)}.json" if out is None else out, "--out")
    file.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    show_profile(found)
    typer.echo(str(file))


def show_profile(found: Profile) -> None:
    """Print each number of a profile with its spread and its evidence."""
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


def pretrain(
    model: Annotated[EmbeddedModelName, typer.Argument(help="By its task; -guided takes model.guidance.")],
    out: Annotated[str, typer.Option(help="Folder for the weights; must be new or empty.")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
) -> None:
    """Make an embedded model: render images, train by flow matching, save."""
    home = Home.from_environment().ensure()
    folder = str(claim_folder(out, "--out"))
    reporter().note(f"making the model {model}")
    from flows.server.prefect_server import prefect_server

    with stops_in_order(lambda: _saved_when_stopped(folder)), prefect_server(home):
        from flows.pretrain import pretrain as pretrain_flow
        from flows.process.cancellation import cancellable

        name = new_run_id(f"pretrain-{model}")
        with cancellable(name, f"saved models are in {folder}"):
            made = pretrain_flow.with_options(flow_run_name=name)(model, folder, seed)
            typer.echo(json.dumps(made))


def _saved_when_stopped(folder: str) -> str:
    """Return which models were saved before the process was stopped, perhaps after the work's end."""
    saved = sorted(weights.parts[-3] for weights in Path(folder).glob("*/transformer/*.safetensors"))
    return f"Stopped; saved in {folder}: {', '.join(saved)}." if saved else "Stopped; no model was saved."
