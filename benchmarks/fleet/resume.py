"""kill -9 at every phase, resume, and compare the final state with an undisturbed run's.

A run in a child process announces its phases; at the chosen one a process is killed: the flow's own
(`driver`), or one of its children. Then `spotlight resume` continues, unless the run survived, as it should
when it loses a spot worker, a scorer or the Prefect server. `identical` counts kills after which weights,
moving average and optimiser equal the undisturbed run's to the bit. `lost_iterations` is the largest number
of committed iterations that a resumed run repeated; `redone_iterations` also counts trained but uncommitted
ones, as the commit runs beside the next rollout.

    python -m benchmarks.resume [--quick]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.commands import SHORT, final_state, sets
from benchmarks.report import finish, options
from flows.server.local_server import SERVER_MODULE
from storage.home import HOME_VARIABLE, Home
from storage.record.run_store import RunStore

ITERATIONS = 4
_SETTINGS = (
    *SHORT, f"iterations={ITERATIONS}", "evaluation.every=2", "prompts.evaluate=builtin:smoke-evaluate",
    "runtime.spot_workers=1",
)  # fmt: skip


@dataclass(frozen=True)
class Kill:
    """Kill `victim` when `phase` has begun for the `occurrence`-th time, `delay_s` later.

    The disturbed run commits every `every`-th iteration.
    """

    victim: str
    phase: str
    occurrence: int
    delay_s: float = 0.0
    every: int = 1


KILLS = (
    Kill("driver", "evaluate", 1, 0.1),
    Kill("driver", "rollout", 2, 0.05),
    Kill("driver", "reward", 2),
    Kill("driver", "train", 3, 0.05),
    Kill("driver", "commit", 2),
    Kill("driver", "rollout", 4, 0.05, every=2),
    Kill("driver", "evaluate", 2, 0.1),
    Kill("trainer", "train", 2, 0.05),
    Kill("spot", "rollout", 3, 0.05),
    Kill("scorer", "reward", 2, 0.02),
    Kill("raylet", "rollout", 2, 0.05),
    Kill("agent", "rollout", 2, 0.05),
    Kill("server", "train", 2),
)


def start(
    home: Path,
    run_id: str,
    command: str,
    every: int = 1,
    errors: int = subprocess.DEVNULL,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start or resume a run that announces its phases on standard output; `errors` as for `Popen`."""
    values = (*_SETTINGS, f"checkpoint.every={every}", *settings)
    new = ["--preset", "glyphs", "--run-id", run_id, *sets(values)]
    arguments = [run_id] if command == "resume" else new
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.announced_run", command, *arguments, *options],
        env=os.environ | {HOME_VARIABLE: str(home)}, stdout=subprocess.PIPE, stderr=errors, text=True,
    )  # fmt: skip


def find(victim: str, driver: subprocess.Popen[str]) -> int:
    """Return the process to kill."""
    if victim == "driver":
        return driver.pid
    marks = {
        "trainer": "ray::reserved_0", "spot": "ray::spot_0", "scorer": "ray::scorer_0",
        "raylet": "raylet/raylet", "server": SERVER_MODULE, "agent": "ray::DashboardAgent",
    }  # fmt: skip
    local = {"trainer": "reserved-0", "spot": "spot-0", "scorer": "scorer-0"}.get(victim)
    for process in psutil.Process(driver.pid).children(recursive=True):
        try:
            line, name = " ".join(process.cmdline()), process.name()
        except psutil.Error:
            continue
        if marks[victim] in line or name == local:
            return process.pid
    driver.kill()
    raise SystemExit(f"no process of kind {victim} to kill")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a kill; `lost` and `redone` are iterations (see the module)."""

    how: str
    lost: int
    redone: int


def disturb(home: Path, kills: Sequence[Kill], run_id: str, settings: Sequence[str] = ()) -> Outcome:
    """Start a run, kill as planned, one by one, and resume it unless it survived."""
    every = kills[0].every
    child = start(home, run_id, "train", every, settings=settings)
    assert child.stdout is not None
    seen, committed, left = Counter[str](), 0, list(kills)
    for line in child.stdout:
        word, _, rest = line.strip().partition(" ")
        if not left:
            continue
        if word == "ITERATION":
            committed = int(rest) - int(rest) % every
        elif word == "PHASE":
            seen[rest] += 1
            if rest == left[0].phase and seen[rest] == left[0].occurrence:
                kill = left.pop(0)
                time.sleep(kill.delay_s)
                os.kill(find(kill.victim, child), signal.SIGKILL)
    if left:
        raise SystemExit(f"the run ended before {left[0]} could strike")
    if child.wait() == 0:
        return Outcome("survived", 0, 0)
    again = start(home, run_id, "resume")
    said, _ = again.communicate()
    if again.returncode != 0:
        return Outcome("not resumed", committed, seen["commit"])
    begun = next(int(line.split()[1]) for line in said.splitlines() if line.startswith("BEGIN "))
    # A commit may have become durable just before the kill, without an announcement.
    return Outcome("resumed", max(0, committed - begun), max(0, seen["commit"] - begun))


def main() -> None:
    """Print one line per kill, and one JSON line last."""
    arguments = options(__doc__, "the first 6 kills only").parse_args()
    kills = KILLS[:6] if arguments.quick else KILLS
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        undisturbed = start(home, "undisturbed", "train")
        undisturbed.communicate()
        expected = final_state(home, "undisturbed")
        if undisturbed.returncode != 0 or not expected:
            raise SystemExit("the undisturbed run failed; see `spotlight doctor`")
        identical = 0
        outcomes: list[Outcome] = []
        for number, kill in enumerate(kills):
            run_id = f"killed-{number}"
            outcomes.append(disturb(home, (kill,), run_id))
            finished = RunStore(Home(home)).run(run_id).status == "finished"
            same = finished and final_state(home, run_id) == expected
            identical += same
            print(f"{kill}: {outcomes[-1]}, identical: {same}", flush=True)
    figures = {
        "kills": len(kills),
        "identical": identical,
        "lost_iterations": max(outcome.lost for outcome in outcomes),
        "redone_iterations": max(outcome.redone for outcome in outcomes),
        "survived": sum(outcome.how == "survived" for outcome in outcomes),
        "resumed": sum(outcome.how == "resumed" for outcome in outcomes),
    }
    finish("resume", figures, arguments)


if __name__ == "__main__":
    main()
