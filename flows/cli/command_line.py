"""The `spotlight` command line: a thin layer; every command checks its input before anything starts."""

from __future__ import annotations

import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from flows import start
from flows.cli.evaluations import evaluations, show_evaluation
from flows.cli.listings import presets, runs
from flows.cli.logs import logs
from flows.cli.metrics import metrics
from flows.cli.operating import down, reproduce, up
from flows.cli.profile import profile
from flows.cli.prompts import prompts
from flows.cli.run_names import OptionalRunName, RunName
from flows.cli.score import score
from flows.cli.settings import preset_names, setting_names, settings, version_option
from flows.cli.stop import stop
from flows.cli.what_if import what_if
from flows.configuration import given_configuration, run_preflight
from flows.output import output_may_fail
from flows.process.stopping import stops_in_order
from flows.progress import reporter
from flows.run_identity import new_run_id
from flows.server.dashboards import DEFAULT_PORT
from flows.server.loss import leave
from flows.server.ports import LOOPBACK
from storage.errors import ConfigurationError, RunCancelledError, SpotlightError, shortened
from storage.home import Home
from storage.new_folder import claim_folder
from storage.text import one_line

app = typer.Typer(
    name="spotlight",
    help="Post-train diffusion transformers by reinforcement learning on reserved and spot GPUs.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(version_option)


START, RUNS, BEFORE, OPERATE = "Start here", "A run", "Before a run", "Operate"
"""The groups of commands in `spotlight --help`."""


class EmbeddedTaskName(StrEnum):
    """The tasks of the embedded models."""

    EDITS = "edits"
    GLYPHS = "glyphs"
    SHAPES = "shapes"


class ClusterName(StrEnum):
    """The clusters that can start the processes of a run."""

    RAY = "ray"
    LOCAL = "local"


Preset = Annotated[
    str | None,
    typer.Option("--preset", "-p", help="A preset's name, or a TOML file.", autocompletion=preset_names),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="SECTION.KEY=VALUE",
        help="Override one setting; repeatable.",
        autocompletion=setting_names,
    ),
]
RayAddress = Annotated[
    str | None, typer.Option(help="A running Ray cluster; without it a local one is started.")
]

ClusterKind = Annotated[
    ClusterName | None,
    typer.Option(help="What starts the processes: ray, or local, which forks them on this machine."),
]


@app.command(
    epilog="Example: spotlight train --preset glyphs --set iterations=20 --set optimizer.learning_rate=5e-5",
    rich_help_panel=START,
)
def train(
    preset: Preset = None,
    set_: Sets = None,
    ray_address: RayAddress = None,
    cluster: ClusterKind = None,
    run_id: Annotated[
        str | None, typer.Option(help="Identifier of the new run; made up where missing.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Of the run; the same as --set iterations=N.")
    ] = None,
) -> None:
    """Train a new run and print its result as one line of JSON."""
    changes = [*(set_ or []), *([] if iterations is None else [f"iterations={iterations}"])]
    summary = start.train(preset, changes, run_id=run_id, cluster=cluster, ray_address=ray_address)
    _print_json(summary)


@app.command(
    epilog="Example: spotlight resume glyphs-20261121-101500-a1b2",
    rich_help_panel=RUNS,
)
def resume(
    run_id: RunName,
    iterations: Annotated[
        int | None, typer.Option(help="How many it has in all: a finished run goes on to these.")
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(help="A new budget.usd: a run that ended at its budget goes on.")
    ] = None,
    budget_hours: Annotated[float | None, typer.Option(help="A new budget.hours.")] = None,
    ray_address: RayAddress = None,
    cluster: ClusterKind = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take over a run whose machine is gone or was renamed. Only where no process works on it "
            "any more.",
        ),
    ] = False,
) -> None:
    """Resume a run that was killed, cancelled or failed, from its last committed iteration."""
    _print_json(
        start.resume(
            run_id,
            iterations=iterations,
            budget_usd=budget_usd,
            budget_hours=budget_hours,
            cluster=cluster,
            ray_address=ray_address,
            take_over=take_over,
        )
    )


app.command(epilog="Example: spotlight logs last -f", rich_help_panel=RUNS)(logs)
app.command(epilog="Example: spotlight stop last", rich_help_panel=RUNS)(stop)


@app.command(
    epilog="Example: spotlight evaluate glyphs-20261121-101500-a1b2 --images my-images --compare OTHER-RUN",
    rich_help_panel=RUNS,
)
def evaluate(
    run_id: OptionalRunName = None,
    preset: Preset = None,
    set_: Sets = None,
    ray_address: RayAddress = None,
    cluster: ClusterKind = None,
    images: Annotated[
        str | None, typer.Option(help="Keep the images in this new folder, in GenEval's own layout.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="WITH", help="An earlier evaluation, or a run: by how much is this one better?"),
    ] = None,
) -> None:
    """Score a run's newest checkpoint, or an untouched model, on held-out prompts, per tag and overall."""
    result = start.evaluate(
        run_id, preset, set_ or [],
        cluster=cluster, ray_address=ray_address, images=images, compare=compare,
    )  # fmt: skip
    show_evaluation(result)
    _print_json(result)


app.command(epilog="Example: spotlight evaluations RUN OTHER-RUN", rich_help_panel=RUNS)(evaluations)


@app.command(
    epilog="Example: spotlight compare-strategies --preset glyphs-stale --iterations 20 --seeds 3",
    rich_help_panel=RUNS,
)
def compare_strategies(
    iterations: Annotated[int, typer.Option(help="Of each run; more than before: its runs go on.")],
    preset: Preset = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="The first is compared with; plain and the preset's own by default, or off_policy.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Run seeds, from the preset's on.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="Beginning of the runs' identifiers; the same name goes on with them.")
    ] = None,
    set_: Sets = None,
    ray_address: RayAddress = None,
    cluster: ClusterKind = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as one line of JSON.")] = False,
) -> None:
    """Train with and without exploration, seed by seed, and say which scores higher, and how sure that is."""
    from flows.cli.compare_strategies import Comparison

    Comparison(preset, set_ or (), iterations, strategies, seeds, name, cluster, ray_address).run(as_json)


@app.command(
    epilog="Example: spotlight export glyphs-20261121-101500-a1b2 --out my-lora",
    rich_help_panel=RUNS,
)
def export(
    run_id: RunName,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the weights; must not exist or be empty.")
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Upload to the Hugging Face hub; --out is then NAME by default."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --push: write the folder alone.")] = False,
) -> None:
    """Write a run's weights as diffusers loads them, with a model card; upload them."""
    from tasks.export import export_run, export_to_hub

    home = Home.from_environment()
    if push is not None:
        _print_json(export_to_hub(home, run_id, push, out, dry_run))
    elif out is None or dry_run:
        raise ConfigurationError(
            "--dry-run says what --push would upload; add --push NAME"
            if dry_run
            else "name a folder by --out, or a repository of the hub by --push"
        )
    else:
        _print_json(export_run(home, run_id, out))


@app.command(
    epilog="Example: spotlight chaos --preset smoke --faults 5 --kinds kill,notice_then_kill",
    rich_help_panel=OPERATE,
)
def chaos(
    preset: Preset = None,
    set_: Sets = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the faults.")] = 0,
    faults: Annotated[int | None, typer.Option(help="How many; one of each kind by default.")] = None,
    kinds: Annotated[str | None, typer.Option(help="Comma-separated fault kinds; all by default.")] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A file with the faults instead: a JSON list of objects.")
    ] = None,
    degree: Annotated[int, typer.Option(min=1, help="Devices that share each sample of a rollout.")] = 1,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Replay a trace of spot instances instead; generated draws one."),
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, max=64, help="Its instances at once; 4 by default.")
    ] = None,
    notice: Annotated[float | None, typer.Option(min=0, help="Its seconds of notice; 0 by default.")] = None,
) -> None:
    """Test fault tolerance: inject faults into a short run, verify that nothing is lost or duplicated."""
    from flows.cli.chaos import SETTINGS, show
    from flows.cli.chaos import chaos as run_chaos

    shared = [f"sequence_parallel.rollout={degree}"] if degree > 1 else []
    changes = [*SETTINGS, *shared, *(set_ or [])]
    config = given_configuration(preset, changes, None)
    chosen = None if kinds is None else [kind.strip() for kind in kinds.split(",")]
    if trace is None:
        from tasks.chaos.faults import plan_faults

        if most is not None or notice is not None:
            raise ConfigurationError("--most and --notice say how a trace is replayed; give --trace too")
        plan = plan_faults(config, seed, faults, chosen, schedule)
    else:
        from tasks.chaos.replayed_trace import plan_trace

        if faults is not None or kinds is not None or schedule is not None:
            raise ConfigurationError("--trace says all: leave --faults, --kinds and --schedule out")
        plan = plan_trace(config, trace, seed, most, notice)
        reporter().note(plan.describe())
    home = Home.from_environment().ensure()
    run_preflight(config, here=False)
    arguments = [item for change in changes for item in ("--set", change)]
    arguments += [] if preset is None else ["--preset", preset]
    result = run_chaos(home, new_run_id(f"chaos-{config.name}"), config, arguments, plan)
    show(result)
    _print_json(result)
    raise typer.Exit(1 if result["broken_promises"] else 0)


@app.command(
    epilog="Example: spotlight pretrain glyphs --out my-glyphs",
    rich_help_panel=BEFORE,
)
def pretrain(
    task: Annotated[EmbeddedTaskName, typer.Argument(help="What it learns to draw.")],
    out: Annotated[str, typer.Option(help="Folder for the weights; must not exist or be empty.")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
) -> None:
    """Make an embedded model: render images, train by flow matching, save."""
    home = Home.from_environment().ensure()
    folder = str(claim_folder(out, "--out"))
    reporter().note(f"making the models of task {task.value}")
    from flows.server.prefect_server import prefect_server

    with stops_in_order("Stopped; no model was saved."), prefect_server(home):
        from flows.pretrain import pretrain as pretrain_flow
        from flows.process.cancellation import signals_cancel

        with signals_cancel():
            _print_json(pretrain_flow(task.value, folder, seed))


@app.command(
    epilog="Example: spotlight ui --port 8600",
    rich_help_panel=START,
)
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the dashboard.")] = DEFAULT_PORT,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; any but 127.0.0.1 needs a login (docs/reference/dashboard.md)."
        ),
    ] = LOOPBACK,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name that it is reached by, such as a proxy's; repeatable."),
    ] = None,
) -> None:
    """Open the dashboard on http://127.0.0.1:PORT; Ctrl-C ends it."""
    from flows.server.dashboards import serve

    raise typer.Exit(serve(Home.from_environment(), port, host, allow_host or ()))


@app.command(
    epilog="Example: spotlight report glyphs-20261121-101500-a1b2 --out report.html",
    rich_help_panel=RUNS,
)
def report(
    run_id: RunName,
    out: Annotated[Path | None, typer.Option(help="The file; RUN.html in this folder by default.")] = None,
) -> None:
    """Write a run's charts, images and figures into one HTML file that needs no network."""
    from flows.cli.report import write_report

    raise typer.Exit(write_report(Home.from_environment(), run_id, out))


app.command(epilog="Example: spotlight metrics --port 9464", rich_help_panel=OPERATE)(metrics)
app.command(epilog="Example: spotlight up --schedule --timezone Europe/Berlin", rich_help_panel=OPERATE)(up)
app.command(epilog="Example: spotlight down", rich_help_panel=OPERATE)(down)
app.command(epilog="Example: spotlight reproduce glyphs-20261121-101500-a1b2", rich_help_panel=RUNS)(
    reproduce
)
app.command(epilog="Example: spotlight runs --json", rich_help_panel=START)(runs)
app.command(epilog="Example: spotlight presets", rich_help_panel=START)(presets)
app.command(epilog="Example: spotlight settings sampling", rich_help_panel=BEFORE)(settings)
app.command(epilog="Example: spotlight prompts geneval 50000 my-train.jsonl", rich_help_panel=BEFORE)(prompts)
app.command(
    epilog="Example: spotlight score my_rewards.py:blue image.png 'a blue sign'", rich_help_panel=BEFORE
)(score)
app.command(
    epilog="Example: spotlight profile glyphs-20261121-101500-a1b2 --out mine.json", rich_help_panel=BEFORE
)(profile)
app.command(
    epilog="Example: spotlight what-if --preset qwen-image-geneval-512 --reserved 4 --spot 8",
    rich_help_panel=BEFORE,
)(what_if)


@app.command(
    epilog="Example: spotlight doctor --preset flux-ocr-512 --model /models/FLUX.1-dev",
    rich_help_panel=START,
)
def doctor(
    preset: Preset = None,
    set_: Sets = None,
    model: Annotated[str | None, typer.Option(help="Folder of the model's weights (model.path).")] = None,
    ray_address: RayAddress = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Size the run on an RTX4090, A100, H100 or H200 instead, without model or GPU."),
    ] = None,
) -> None:
    """Check this machine, its home and runs, a model with its scorer, and what would run where."""
    from flows.cli.doctor import examine, size_up

    changes = [*(set_ or []), *([] if model is None else [f"model.path={model}"])]
    if gpu is not None:
        raise typer.Exit(0 if size_up(given_configuration(preset, changes, ray_address), gpu) else 1)
    raise typer.Exit(0 if examine(given_configuration(preset, changes, ray_address)) else 1)


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value))


_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit codes of a process that ends by these signals."""


@output_may_fail()
def main() -> None:
    """Run the command line; refused input gives one clear message and exit code 2, not a traceback."""
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="spotlight", standalone_mode=False)
    except RunCancelledError:
        leave(_TERMINATED, at_once=True)
    except SystemExit as ended:
        if ended.code == _TERMINATED:
            leave(_TERMINATED, at_once=True)
        raise
    except SpotlightError as error:
        _refuse(str(error))
    except typer.TyperException as error:  # an unknown option or command
        context = getattr(error, "ctx", None)
        problem = " ".join(getattr(error, "format_message", error.__str__)().split()).rstrip(".")
        _refuse(f"{shortened(problem)}; see `{context.command_path if context else 'spotlight'} --help`")
    leave(code if isinstance(code, int) else 0, at_once=code == _INTERRUPTED)


def _refuse(message: str) -> NoReturn:
    lines = (one_line(line) for line in message.split("\n"))  # several settings have one line each
    typer.secho("error: " + "\n".join(lines), err=True, fg="red")
    leave(2)


if __name__ == "__main__":
    main()
