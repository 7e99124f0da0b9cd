"""Run over hosts without a shared file system, under faults of the machines and their network.

The hosts are namespaces of this machine (`hosts_network.py`; root is needed): `head` has the driver
and Ray's head, `reserved` the trainer and the scorer, and spot hosts one worker each. Only `head` has the
run's files. In each trial, faults hit a run of `spotlight train`, each when its host has just been given
samples: another host joins; a host is powered off (without a packet); or it is cut off for `--cut` seconds,
and rejoins. Or a host's link has 50 ms of delay in each direction, carries 20 Mbit/s and loses 2 % of the
frames. Or a host's clock is five minutes ahead, and another's as much behind.

`identical` counts trials that end with the weights, the moving average and the optimiser of an undisturbed
run on `head` alone. `lost` and `twice` are samples, by the run's history, as `spotlight chaos` checks it;
`hangs` are trials in which nothing happened for five minutes. `noticed_p95_s` is the time from cutting or
powering off a host until the driver counts its worker as lost; null if it missed one. `cold_join_s` is the
time from the start of Ray on a host that joins in mid-iteration to its first samples, the longest of all
trials. `back` counts hosts that were cut off and got samples again in the same run.

    python -m benchmarks.hosts [--quick] [--cut SECONDS] [--answer SECONDS] [--keep]
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.commands import SHORT, final_state, spotlight
from benchmarks.fleet.hosts_network import Host, HostNetwork, refusal
from benchmarks.fleet.ray_hosts import ANSWER_S, RayHosts
from benchmarks.fleet.slow_link import Link
from benchmarks.report import finish, nearest_rank, options
from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER
from gpu_runtime.scheduling.history import HistoryLine, check_history
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.worker.history import HistoryTail, lives, read_history
from storage.prompts.files import resolve_prompt_path

_ITERATIONS = 90
"""Enough for a host that was cut off to come back: Ray takes half a minute to rejoin."""
_QUICK_ITERATIONS = 3
_HANG_S = 300.0
_START_LIMIT_S = 900.0
_LOOK_S = 0.05
_CLOCK_S = 300.0
_SLOW = Link(delay_s=0.05, bits_per_s=20e6, loss=0.02)
SETTINGS = (
    *SHORT, "sampling.batch_size=4", "evaluation.every=0", "runtime.spot_workers=2",
    "runtime.commit_steps=2", "runtime.history=true", "runtime.start_timeout_s=900",
)  # fmt: skip

FaultKind = Literal["join", "power_off", "cut"]


@dataclass(frozen=True)
class Fault:
    """A fault of a spot host, once it has been given samples of an iteration or a later one.

    Attributes:
        kind: another host joins, this one is powered off, or cut off for a while.
        iteration: from 1.
    """

    kind: FaultKind
    iteration: int


@dataclass(frozen=True)
class Trial:
    """A run and its faults, in order.

    Attributes:
        name: the trial's name.
        faults: at least one; none if only the link or the clock is disturbed.
        link: link of a spot host present from the start; None for an undisturbed one.
        clock_s: seconds that this host's clock is ahead, and those of the other spot hosts behind.
    """

    name: str
    faults: tuple[Fault, ...] = ()
    link: Link | None = None
    clock_s: float = 0.0


TRIALS = (
    Trial("join", (Fault("join", 2),)),
    Trial("power-off", (Fault("power_off", 2),)),
    Trial("cut", (Fault("cut", 2),)),
    Trial("slow-link", link=_SLOW),
    Trial("clocks", (Fault("power_off", 2),), clock_s=_CLOCK_S),
    Trial("all", (Fault("join", 2), Fault("cut", 3), Fault("power_off", 4)), _SLOW, _CLOCK_S),
)
QUICK_TRIALS = (Trial("quick", (Fault("join", 1), Fault("power_off", 2))),)


@dataclass
class HostLoss:
    """A host that was powered off or cut off.

    Attributes:
        at: time (Unix seconds).
        noticed_s: seconds until the driver counted its worker as lost.
        connected: True if it was cut off and is connected again.
        back: True if it then got samples again.
    """

    at: float
    noticed_s: float | None = None
    connected: bool = False
    back: bool = False


class Disturbance:
    """Injects a trial's faults, following the run's history.

    Attributes:
        left: faults still to inject.
        losses: losses by host name.
        joined_s: seconds from the start of Ray on each joining host to its first samples.
    """

    def __init__(self, hosts: RayHosts, trial: Trial, cut_s: float) -> None:
        self.left = list(trial.faults)
        self.losses: dict[str, HostLoss] = {}
        self.joined_s: list[float] = []
        self._hosts, self._cut_s, self._clock_s = hosts, cut_s, trial.clock_s
        self._iteration = 0
        self._rolls_out = False
        self._host_of: dict[str, str] = {}
        self._joining: dict[str, float] = {}
        self._cut: dict[str, float] = {}

    def read(self, lines: Sequence[HistoryLine]) -> None:
        """Process new lines of the driver's history, and inject what is due."""
        for line in lines:
            facts = line.facts
            host = self._host_of.get(facts.get("worker", ""), "")
            if line.event == "phase":
                self._iteration = facts["iteration"]
            elif line.event == "generate":
                self._rolls_out = facts["kind"] == RequestKind.ROLLOUT
            elif line.event == "joined":
                self._host_of[facts["worker"]] = facts["host"]
            elif line.event == "lost" and host in self.losses:
                loss = self.losses[host]
                loss.noticed_s = loss.noticed_s or line.at - loss.at
            elif line.event == "lease":
                self._on_lease(host, line.at)
        self.connect(time.monotonic())

    def connect(self, now_s: float = math.inf) -> None:
        """Reconnect the hosts whose cut is over at a monotonic time; by default all."""
        for name in [name for name, until_s in self._cut.items() if now_s >= until_s]:
            del self._cut[name]
            self._hosts.spots[name].connect()
            self.losses[name].connected = True

    def _on_lease(self, name: str, at: float) -> None:
        """Handle a lease: the host may have just joined, or be the next fault's target."""
        if name in self._joining:
            self.joined_s.append(at - self._joining.pop(name))
        if name in self.losses:
            self.losses[name].back |= self.losses[name].connected
        due = bool(self.left) and self.left[0].iteration <= self._iteration and self._rolls_out
        if not due or self._joining or name not in self._hosts.spots or name in self.losses:
            return
        fault = self.left.pop(0)
        if fault.kind == "join":
            self._joining[self._hosts.add_spot(clock_s=-self._clock_s).name] = time.time()
            return
        self.losses[name] = HostLoss(time.time())
        if fault.kind == "power_off":
            self._hosts.power_off(name)
        else:
            self._hosts.spots[name].disconnect()
            self._cut[name] = time.monotonic() + self._cut_s


@dataclass(frozen=True)
class Outcome:
    """Outcome of a trial.

    Attributes:
        disturbance: its faults and their effects.
        state: final weights, moving average and optimiser; empty if it did not finish.
        lost: samples never accepted, or accepted without all their steps.
        twice: samples accepted twice, or held by two workers at once.
        hung: True if nothing happened for five minutes and it was ended.
        hosts: number of hosts, including `head`.
        wall_s: seconds that the run took.
    """

    disturbance: Disturbance
    state: dict[str, bytes]
    lost: int
    twice: int
    hung: bool
    hosts: int
    wall_s: float

    @property
    def in_words(self) -> str:
        """The outcome as text."""
        losses = {name: (one.noticed_s, one.back) for name, one in self.disturbance.losses.items()}
        return (
            f"{self.hosts} hosts, {self.wall_s:.0f} s, {self.lost} samples lost, {self.twice} twice, "
            f"hung: {self.hung}, noticed in seconds and back: {losses}, joined in seconds: "
            f"{self.disturbance.joined_s}, faults left: {len(self.disturbance.left)}"
        )


def put_inputs(head: Host) -> list[str]:
    """Put base weights and prompts on the head alone; return the settings that name them."""
    shutil.copytree(WEIGHTS_FOLDER / "glyphs", head.files / "base")
    settings = ["model.path=/tmp/base"]
    for kind, name in (("train", "glyphs-train"), ("evaluate", "smoke-evaluate")):
        shutil.copy(resolve_prompt_path(f"builtin:{name}"), head.files / f"{kind}.txt")
        settings.append(f"prompts.{kind}=/tmp/{kind}.txt")
    return settings


def reference(hosts: RayHosts, settings: Sequence[str]) -> dict[str, bytes]:
    """Return the final state of an undisturbed run on the head alone."""
    run_id = "undisturbed"
    process = hosts.start(_command(run_id, ["--cluster", "local"], settings), hosts.head.files / "run.log")
    code = process.wait()
    state = {} if code else final_state(hosts.head.home, run_id)
    if not state:  # it would equal that of a failed trial
        raise SystemExit(f"the undisturbed run failed:\n{(hosts.head.files / 'run.log').read_text()[-4000:]}")
    return state


def run_trial(hosts: RayHosts, trial: Trial, settings: Sequence[str], cut_s: float) -> Outcome:
    """Run under faults, after starting the hosts needed at the beginning."""
    joins = any(fault.kind == "join" for fault in trial.faults[:1])
    hosts.renew_spots(1 if joins else 2, trial.link, trial.clock_s)
    log = hosts.head.files / f"{trial.name}.log"
    disturbance = Disturbance(hosts, trial, cut_s)
    began_s = time.monotonic()
    process = hosts.start(_command(trial.name, ["--ray-address", hosts.address], settings), log)
    history = hosts.head.home / "runs" / trial.name / "history"
    hung = not _follow(process, history, disturbance)
    wall_s = time.monotonic() - began_s
    disturbance.connect()
    if process.returncode:
        print(f"{trial.name} failed:\n{log.read_text()[-4000:]}", file=sys.stderr, flush=True)
    # Lines left by workers on their hosts, even powered-off ones, belong to the history.
    for host in hosts.all[1:]:
        for life in lives(host.home / "runs" / trial.name / "history"):
            for file in life.glob("*.jsonl"):
                shutil.copy(file, history / life.name / f"{host.name}.{file.name}")
    report = check_history(read_history(history))
    return Outcome(
        disturbance,
        {} if process.returncode else final_state(hosts.head.home, trial.name),
        len(report.lost) + len(report.incomplete) + len(report.missing),
        len(report.duplicated) + len(report.held_twice),
        hung,
        len(hosts.all),
        wall_s,
    )


def _command(run_id: str, cluster: Sequence[str], settings: Sequence[str]) -> list[str]:
    return spotlight("train", "--preset", "glyphs", "--run-id", run_id, *cluster, settings=settings)


def _follow(process: subprocess.Popen[bytes], history: Path, disturbance: Disturbance) -> bool:
    """Follow a run until it ends; return True if it ended by itself."""
    tail, last_s, limit_s = HistoryTail(history), time.monotonic(), _START_LIMIT_S
    while process.poll() is None:
        lines = tail.new()
        if lines:
            last_s, limit_s = time.monotonic(), _HANG_S
        disturbance.read(lines)
        if time.monotonic() - last_s > limit_s:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
        time.sleep(_LOOK_S)
    return True


def main() -> None:
    """Print one line per trial, and one JSON line last."""
    parser = options(__doc__, "one trial of three iterations")
    parser.add_argument("--cut", type=float, default=30.0, help="seconds that a host is cut off (default 30)")
    answer = "seconds without an answer after which a host is lost (default 4; more on a busy machine)"
    parser.add_argument("--answer", type=float, default=ANSWER_S, help=answer)
    arguments = parser.parse_args()
    if reason := refusal():
        raise SystemExit(f"no hosts: {reason}")
    trials = QUICK_TRIALS if arguments.quick else TRIALS
    iterations = _QUICK_ITERATIONS if arguments.quick else _ITERATIONS
    with HostNetwork() as network:
        hosts = RayHosts(network, arguments.answer)
        settings = [f"iterations={iterations}", *SETTINGS, *put_inputs(hosts.head)]
        expected = reference(hosts, settings)
        outcomes: list[Outcome] = []
        for trial in trials:
            outcomes.append(outcome := run_trial(hosts, trial, settings, arguments.cut))
            same = outcome.state == expected
            print(f"{trial.name}: {outcome.in_words}, identical: {same}", flush=True)
    finish("hosts", figures(outcomes, expected, arguments.answer), arguments)


def figures(outcomes: Sequence[Outcome], expected: dict[str, bytes], answer_s: float) -> dict[str, Any]:
    """Return the figures of the benchmark."""
    losses = [loss for one in outcomes for loss in one.disturbance.losses.values()]
    noticed_s = [loss.noticed_s for loss in losses if loss.noticed_s is not None]
    all_noticed = bool(losses) and len(noticed_s) == len(losses)
    joined_s = [seconds for one in outcomes for seconds in one.disturbance.joined_s]
    return {
        "answer_s": answer_s,
        "hosts": min(one.hosts for one in outcomes),
        "trials": len(outcomes),
        "identical": sum(one.state == expected for one in outcomes),
        "lost": sum(one.lost for one in outcomes),
        "twice": sum(one.twice for one in outcomes),
        "hangs": sum(one.hung for one in outcomes),
        "hosts_lost": len(losses),
        "noticed": len(noticed_s),
        "noticed_p95_s": nearest_rank(noticed_s, 0.95) if all_noticed else None,
        "cold_join_s": max(joined_s, default=None),
        "back": sum(loss.back for loss in losses),
        "faults_left": sum(len(one.disturbance.left) for one in outcomes),
        "wall_s": sum(one.wall_s for one in outcomes),
    }


if __name__ == "__main__":
    main()
