"""Runs cancelled in each phase as the Prefect UI does it: the time until they have ended.

Starts `spotlight up`, and in it a run of the embedded default that explores. In each phase in turn the run
is cancelled by REST, and then resumed for the next one. Seconds count from the request: until the run's state
is Cancelled (`state_s`), until its driver has ended the devices and scorers (`driver_s`), and until its last
process is gone (`processes_s`). `kept` counts runs whose ledger is balanced and whose newest checkpoint is
that of their last finished iteration, `resumed` those that went on from it and finished another one.

    python -m benchmarks.cancel [--trials 6] [--quick]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import add_keep_option, finish
from gpu_runtime.worker.history_tail import HistoryTail
from storage.environment import environment
from storage.errors import RuntimeFailure
from storage.home import Home
from storage.ledger.ledger import read_ledger
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunRow, RunStore
from tests.running_up import RunningUp, running_up, wait_until

PHASES = ("rollout", "start", "reward", "train", "explore", "commit")
"""`start` is while Ray and the workers of a resumed run start."""
SETTINGS = ("iterations=1000", "exploration.strategy=stale", "evaluation.every=0", "runtime.history=true")
LIMIT_S = 10.0
"""A cancelled run is to be over within it."""

_RUN = "cancelled"
_LOOK_S = 0.1
_START_S = 2.0
"""From the beginning of a run's start, with Ray's processes, to its cancellation."""

_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Trial:
    """One cancelled run.

    Attributes:
        phase: that it was in.
        state_s, processes_s: see the module.
        driver_s: see the module; None where there were no devices yet, or the driver was killed.
        iteration: the last one that is kept.
        kept: the ledger is balanced and the checkpoint is of that iteration.
        resumed: whether it went on from there; None where it was not asked to.
    """

    phase: str
    state_s: float
    processes_s: float
    driver_s: float | None
    iteration: int
    kept: bool
    resumed: bool | None = None


def trial(up: RunningUp, phase: str, before: Trial | None) -> tuple[Trial, bool | None]:
    """Start the run, or resume it, and cancel it in a phase.

    Args:
        up: where it runs.
        phase: of an iteration after the first that this start of it finishes.
        before: the trial before, which has left it cancelled.

    Returns:
        The trial, and whether the one before was resumed where it had ended.
    """
    form = {"resume": _RUN} if before else {"preset": "glyphs", "settings": list(SETTINGS)}
    own = {process.pid for process in up.processes()}
    tail = HistoryTail(up.home.history(_RUN))
    tail.new()
    answer = up.start_run("post-train", form, name=_RUN).json()
    store = RunStore(up.home)
    begun = before.iteration if before else 0
    # One iteration must be finished by then, and seeds are explored an iteration ahead.
    wait_for_phase(tail, phase, begun + (3 if phase == "explore" else 2))
    if phase == "start":
        time.sleep(_START_S)
    family = [process for process in up.processes() if process.pid not in own]
    asked_at, start = time.time(), time.monotonic()
    up.cancel(answer["id"])
    state, state_s, processes_s = "", 0.0, 0.0
    while not (state_s and processes_s):
        if time.monotonic() - start > _PATIENCE_S:
            raise RuntimeFailure(f"a run cancelled in phase {phase} was not over after {_PATIENCE_S:g} s")
        time.sleep(_LOOK_S)
        if not state_s:
            state = up.client.get(f"{up.api}/flow_runs/{answer['id']}").json()["state"]["type"]
            state_s = 0.0 if state in ("RUNNING", "CANCELLING") else time.monotonic() - start
        family = psutil.wait_procs(family, timeout=0)[1]
        if not processes_s and not family and all(each.pid in own for each in up.processes()):
            processes_s = time.monotonic() - start
    if state != "CANCELLED":
        raise RuntimeFailure(f"the run was cancelled in phase {phase} and is {state}")
    closed = [line.at for line in tail.new() if line.event == "closed" and line.at >= asked_at]
    row = store.run(_RUN)
    driver_s = closed[-1] - asked_at if closed else None
    made = Trial(phase, state_s, processes_s, driver_s, row.last_iteration or 0, is_kept(up.home, row))
    return made, goes_on_after(store, begun) if before and phase != "start" else None


def wait_for_phase(tail: HistoryTail, phase: str, iteration: int) -> None:
    """Wait until a run's driver enters a phase of an iteration, or of a later one."""

    def entered() -> bool:
        return any(
            phase == "start"
            or (
                line.event == "phase"
                and line.facts["phase"] == phase
                and line.facts["iteration"] >= iteration
            )
            for line in tail.new()
        )

    wait_until(f"phase {phase} of iteration {iteration}", entered, _PATIENCE_S)


def is_kept(home: Home, row: RunRow) -> bool:
    """Whether a cancelled run can be gone on with, and its bill is whole."""
    if row.status != "cancelled" or not row.last_iteration:
        return False
    checkpoints = CheckpointStore(home.run(row.run_id)).iterations()
    with RunStore(home).records.reading() as connection:
        balanced = read_ledger(connection, row.run_id).is_balanced
    return balanced and max(checkpoints) == row.last_iteration


def goes_on_after(store: RunStore, iteration: int) -> bool:
    """Whether the run's last start went on after this iteration, and finished another one."""
    with store.records.reading() as connection:
        rows = connection.execute(
            "SELECT message FROM events WHERE run_id = ? AND kind = 'resumed' ORDER BY event_id DESC", [_RUN]
        ).fetchall()
    further = (store.run(_RUN).last_iteration or 0) > iteration
    return further and bool(rows) and rows[0][0].startswith(f"goes on after iteration {iteration} ")


def figures_of(trials: Sequence[Trial], load: tuple[float, float]) -> dict[str, Any]:
    """What the trials came to."""
    resumed = [made.resumed for made in trials if made.resumed is not None]
    return {
        "trials": len(trials),
        "state_p50_s": statistics.median(made.state_s for made in trials),
        "state_max_s": max(made.state_s for made in trials),
        "processes_p50_s": statistics.median(made.processes_s for made in trials),
        "processes_max_s": max(made.processes_s for made in trials),
        "limit_s": LIMIT_S,
        "within_limit": sum(max(made.state_s, made.processes_s) <= LIMIT_S for made in trials),
        "kept": sum(made.kept for made in trials),
        "resumed": sum(resumed),
        "asked_to_resume": len(resumed),
        "load_before_and_after": load,
        "each": [asdict(made) for made in trials],
    }


def main() -> None:
    """Print one line a trial, and one JSON line last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=len(PHASES), help="phases in turn, over and over")
    parser.add_argument("--quick", action="store_true", help="two trials")
    add_keep_option(parser)
    arguments = parser.parse_args()
    count = 2 if arguments.quick else arguments.trials
    if count < 1:
        parser.error(f"--trials {count}: must be at least 1")
    commit, load = environment()["commit"], os.getloadavg()[0]
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as folder, running_up(Home(Path(folder)).ensure()) as up:
        for number in range(count):
            made, resumed = trial(up, PHASES[number % len(PHASES)], trials[-1] if trials else None)
            if trials:
                trials[-1] = Trial(**{**asdict(trials[-1]), "resumed": resumed})
            trials.append(made)
            print(made, flush=True)
    figures = figures_of(trials, (load, os.getloadavg()[0]))
    finish("cancel", figures, arguments.keep, began_at=commit)


if __name__ == "__main__":
    main()
