"""`spotlight chaos`: the same short training with and without faults, and whether the promises held."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from flows.disturbed_run import HANG_S, DisturbedRun, disturb, start
from flows.progress import reporter
from flows.terminal import console
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure
from storage.home import Home
from tasks.chaos.faults import Fault, Plan, Verdict, digests, judge
from tasks.chaos.replayed_trace import TracePlan, replayed, time_in_phases_s

SETTINGS = (
    "iterations=6", "evaluation.every=0", "evaluation.prompts=8", "runtime.history=true",
    "runtime.commit_steps=2", "runtime.lease_s=30",
)  # fmt: skip
"""Settings that differ from the preset unless --set is given: short, often committed, soon seen to hang."""

_MOST_RUNS = 5
"""The largest number of disturbed runs; faults that found no target in them are left."""


def chaos(
    home: Home, run_id: str, config: RunConfig, arguments: Sequence[str], plan: Plan | TracePlan
) -> dict[str, Any]:
    """Train undisturbed, then under faults until they are used up or under a trace, and check the promises.

    Args:
        run_id: beginning of their identifiers.
        arguments: those of `spotlight train`.

    Raises:
        RuntimeFailure: the undisturbed run failed.
    """
    calm = f"{run_id}-calm"
    began = time.monotonic()
    if start(home, "train", "--run-id", calm, *arguments).wait() != 0:
        raise RuntimeFailure(f"the undisturbed run {calm} failed; look at it with `spotlight runs`")
    length_s = time.monotonic() - began
    undisturbed = digests(home, calm)[config.iterations]
    ran: dict[str, DisturbedRun] = {}
    faults: Sequence[Fault] = ()
    figures: dict[str, Any] = {}
    if isinstance(plan, TracePlan):
        name, length_s = f"{run_id}-trace", plan.stretch * time_in_phases_s(home, calm)
        with replayed(plan, config.runtime, length_s) as replay:
            settings = [f"--set={setting}" for setting in plan.settings(replay.instances.address)]
            ran[name] = disturb(home, name, [*arguments, *settings], (), replay)
        figures = plan.figures(replay, length_s)
    else:
        faults = plan.faults(length_s, config.iterations, config.runtime.lease_s)
    while faults and len(ran) < _MOST_RUNS and not any(run.hung for run in ran.values()):
        name = f"{run_id}-faults-{len(ran) + 1}"
        ran[name] = disturb(home, name, arguments, faults)
        faults = ran[name].left
        for done in ran[name].done:
            reporter().note(f"{done.fault.kind}: {', '.join(done.victims)}")
    verdicts = [judge(home, name, undisturbed) for name in ran]
    return _result(run_id, config, list(ran.values()), verdicts, len(faults), figures)


def _result(
    run_id: str,
    config: RunConfig,
    ran: Sequence[DisturbedRun],
    verdicts: Sequence[Verdict],
    left: int,
    figures: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the outcome of all disturbed runs, with `figures` of a replayed trace."""
    reports = [verdict.report for verdict in verdicts]
    broken = [said for verdict in verdicts for said in verdict.broken]
    kinds = Counter(done.fault.kind for run in ran for done in run.done)
    by_kind = {"instance_removed": figures["instances_removed"]} if figures else dict(kinds)
    if hangs := sum(run.hung for run in ran):
        broken.append(f"{hangs} runs wrote nothing for {HANG_S:g} s and were ended")
    return {
        "run_id": run_id,
        "runs": len(verdicts),
        "faults": sum(by_kind.values()),
        "faults_left": left,
        "faults_by_kind": by_kind,
        "restarts": sum(run.restarts for run in ran),
        "samples": sum(report.requested for report in reports),
        "lost": sum(len(report.lost) for report in reports),
        "duplicated_deliveries": sum(len(report.duplicated) for report in reports),
        "late_deliveries_dropped": sum(report.dropped for report in reports),
        "hangs": hangs,
        "redone_steps_with_notice_max": max(report.most_redone(with_notice=True) for report in reports),
        "redone_steps_without_notice_max": max(report.most_redone(with_notice=False) for report in reports),
        "commit_interval": config.runtime.commit_steps,
        "degree": config.sequence_parallel.largest,
        "steps_needed": sum(report.steps_needed for report in reports),
        "steps_redone": sum(report.steps_redone for report in reports),
        "identical_weights": all(verdict.identical for verdict in verdicts),
        "ledger_adds_up": all(verdict.balanced for verdict in verdicts),
        "broken_promises": broken,
        **figures,
    }


def show(result: dict[str, Any]) -> None:
    """Print the result as a table: each promise, the observation, and the verdict."""
    with_notice, without = "redone_steps_with_notice_max", "redone_steps_without_notice_max"
    rows = (
        ("no sample is lost", result["lost"], result["lost"] == 0),
        ("none is accepted twice", result["duplicated_deliveries"], result["duplicated_deliveries"] == 0),
        ("nothing hangs", result["hangs"], result["hangs"] == 0),
        ("steps done again with a notice: at most 1", result[with_notice], result[with_notice] <= 1),
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
