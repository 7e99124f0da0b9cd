"""`spotlight chaos`: train briefly with and without faults, and check the promises."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from flows.cli.options import Preset, Sets
from flows.configuration import given_configuration, run_preflight
from flows.output import console
from flows.progress import reporter
from flows.run_identity import new_run_id
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RuntimeFailure
from storage.home import Home

if TYPE_CHECKING:  # they import the runtime
    from tasks.chaos.faults import Plan
    from tasks.chaos.replayed_trace import TracePlan

SETTINGS = (
    "iterations=6", "evaluation.every=0", "evaluation.prompts=8", "runtime.history=true",
    "runtime.commit_steps=2", "runtime.lease_s=30",
)  # fmt: skip
"""Settings that differ from the preset unless --set is given: short, frequent commits, hangs found early."""

_MOST_RUNS = 5
"""Maximum number of disturbed runs; faults that found no target in them are left over."""


def chaos(
    preset: Preset = None,
    set_: Sets = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the faults.")] = 0,
    faults: Annotated[int | None, typer.Option(help="Number of faults; one of each kind by default.")] = None,
    kinds: Annotated[str | None, typer.Option(help="Comma-separated fault kinds; all by default.")] = None,
    schedule: Annotated[Path | None, typer.Option(help="A JSON file that lists the faults instead.")] = None,
    degree: Annotated[int, typer.Option(min=1, help="Devices that share each sample of a rollout.")] = 1,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Replay a trace of spot instances instead; `generated` draws one."),
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, max=64, help="Most instances of the trace at a time; 4 by default.")
    ] = None,
    notice: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds of notice before each loss in the trace; 0 by default."),
    ] = None,
) -> None:
    """Test fault tolerance: inject faults into a short run and verify that nothing is lost or duplicated."""
    shared = [f"sequence_parallel.rollout={degree}"] if degree > 1 else []
    changes = [*SETTINGS, *shared, *(set_ or [])]
    config = given_configuration(preset, changes)
    # They import the runtime: a wrong setting is refused first.
    from flows.judges import judges_beside
    from tasks.chaos.faults import plan_faults
    from tasks.chaos.replayed_trace import plan_trace

    plan: Plan | TracePlan
    if trace is None:
        if most is not None or notice is not None:
            raise ConfigurationError("--most and --notice belong to a replayed trace; give --trace too")
        chosen = None if kinds is None else [kind.strip() for kind in kinds.split(",")]
        plan = plan_faults(config, seed, faults, chosen, schedule)
    else:
        if faults is not None or kinds is not None or schedule is not None:
            raise ConfigurationError("--trace decides every loss; leave out --faults, --kinds and --schedule")
        plan = plan_trace(config, trace, seed, most, notice)
        reporter().note(plan.describe())
    home = Home.from_environment().ensure()
    with judges_beside(config):
        run_preflight(config, here=False)
    arguments = [item for change in changes for item in ("--set", change)]
    arguments += [] if preset is None else ["--preset", preset]
    result = _disturbed(home, config, arguments, plan)
    show(result)
    typer.echo(json.dumps(result))
    raise typer.Exit(1 if result["broken_promises"] else 0)


def _disturbed(
    home: Home, config: RunConfig, arguments: Sequence[str], plan: Plan | TracePlan
) -> dict[str, Any]:
    """Train undisturbed, then under faults until they are used up or under a trace, and check the promises.

    Args:
        arguments: those of `spotlight train`.
    """
    from flows.disturbed_run import HANG_S, DisturbedRun, disturb, start
    from tasks.chaos.faults import Fault, digests, judged
    from tasks.chaos.replayed_trace import TracePlan, replayed, time_in_phases_s

    run_id = new_run_id(f"chaos-{config.name}")
    calm, began = f"{run_id}-calm", time.monotonic()
    if start(home, "train", "--run-id", calm, *arguments).wait() != 0:
        raise RuntimeFailure(f"the undisturbed run {calm} failed; see it with `spotlight runs`")
    length_s = time.monotonic() - began
    undisturbed = digests(home, calm)[config.iterations]
    ran: dict[str, DisturbedRun] = {}
    left: Sequence[Fault] = ()
    figures: dict[str, Any] = {}
    if isinstance(plan, TracePlan):
        name, length_s = f"{run_id}-trace", plan.stretch * time_in_phases_s(home, calm)
        with replayed(plan, config.runtime, length_s) as replay:
            settings = [f"--set={setting}" for setting in plan.settings(replay.instances.address)]
            ran[name] = disturb(home, name, [*arguments, *settings], (), replay)
        figures = plan.figures(replay, length_s)
    else:
        left = plan.faults(length_s, config.iterations, config.runtime.lease_s)
    while left and len(ran) < _MOST_RUNS and not any(run.hung for run in ran.values()):
        name = f"{run_id}-faults-{len(ran) + 1}"
        ran[name] = disturb(home, name, arguments, left)
        left = ran[name].left
        for done in ran[name].done:
            reporter().note(f"{done.fault.kind}: {', '.join(done.victims)}")
    result = judged(home, list(ran), undisturbed)
    if hangs := sum(run.hung for run in ran.values()):
        result["broken_promises"].append(f"{hangs} runs wrote nothing for {HANG_S:g} s and were ended")
    by_kind = dict(Counter(done.fault.kind for run in ran.values() for done in run.done))
    if figures:
        by_kind = {"instance_removed": figures["instances_removed"]}
    return {
        "run_id": run_id,
        "runs": len(ran),
        "faults": sum(by_kind.values()),
        "faults_left": len(left),
        "faults_by_kind": by_kind,
        "restarts": sum(run.restarts for run in ran.values()),
        "hangs": hangs,
        "commit_interval": config.runtime.commit_steps,
        "degree": config.sequence_parallel.largest,
        **result,
        **figures,
    }


def show(result: dict[str, Any]) -> None:
    """Print the result as a table: each promise, the observation, and the verdict."""
    with_notice, without = "redone_steps_with_notice_max", "redone_steps_without_notice_max"
    rows = (
        ("no sample is lost", result["lost"], result["lost"] == 0),
        ("none is accepted twice", result["duplicated_deliveries"], result["duplicated_deliveries"] == 0),
        ("nothing hangs", result["hangs"], result["hangs"] == 0),
        ("steps repeated after a notice: at most 1", result[with_notice], result[with_notice] <= 1),
        (
            f"without: at most {result['commit_interval']}, and a commit on its way",
            result[without],
            not any("cost a sample" in said for said in result["broken_promises"]),
        ),
        (
            "the weights are the undisturbed run's"
            + ("" if result.get("degree", 1) == 1 else " (not promised: devices share samples)"),
            result["identical_weights"],
            result["identical_weights"] or result.get("degree", 1) > 1,
        ),
        ("the ledger adds up", result["ledger_adds_up"], result["ledger_adds_up"]),
    )
    table = Table("promise", "seen", "kept", title=f"{result['faults']} faults, {result['faults_left']} left")
    for promise, seen, kept in rows:
        table.add_row(promise, str(seen), "yes" if kept else "NO")
    screen = console()
    screen.print(table)
    for said in result["broken_promises"]:
        screen.print(f"broken: {said}", soft_wrap=True)
