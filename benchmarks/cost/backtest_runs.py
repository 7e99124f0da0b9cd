"""The live runs of the backtest; each is run once and kept in the home."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.commands import sets
from benchmarks.cost.machine_speed import Look, watched
from flows.disturbed_run import DisturbedRun, disturb, start
from flows.progress import reporter
from gpu_runtime.chaos.fault_schedule import Fault
from gpu_runtime.spot.traces.generator import TraceShape, generate_trace
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import RunNotFoundError, RuntimeFailure
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.chaos.replayed_trace import TracePlan, replayed

_BUSY_FOR_S = 2.0
"""Seconds for which the machine is observed before a run begins."""

_ALL = ("evaluation.every=0", "evaluation.prompts=96", "runtime.reserved_workers=1",
        "runtime.scorer_workers=1", "runtime.start_timeout_s=600")  # fmt: skip
_LOCAL = ("runtime.cluster=local",)
_RAY = ("runtime.cluster=ray", "runtime.spot_workers=1", "runtime.history=true", "runtime.commit_steps=2",
        "runtime.lease_s=60")  # fmt: skip
"""Histories are kept and devices stop after each denoising step, as `spotlight chaos --trace` does it."""

_KEPT = ("runtime.history=true", "runtime.commit_steps=2", "runtime.lease_s=60")
"""As `_RAY`: workers are found by their histories."""

_SPOT_LIFE = TraceShape(
    capacity=1, length_s=600.0, mean_lifetime_s=30.0, multi_loss_share=0.0, zones=1, mean_reacquire_s=12.0,
    min_reacquire_s=8.0,
)  # fmt: skip
"""An instance lives for some iterations; another one comes a few seconds after its loss."""


@dataclass(frozen=True)
class LiveRun:
    """A planned run.

    Attributes:
        name: short name.
        kind: runs of one kind have as many devices and the same scorer, alike in what they do beside each
            other, so that the profile of one holds for the others, although all share the machine's cores.
        preset: preset to run.
        settings: settings on top of the preset's and the common ones.
        trace_seed: seed of the replayed trace; None for none.
        notice_s: seconds of notice before a loss.
        alone: kind of the runs that measure a step of a single device, if devices share samples. Under
            losses, no instances come and go then, as devices of different instances share no samples: the
            spot worker of the one instance is killed when the trace's instance goes, and replaced at once.
    """

    name: str
    kind: str
    preset: str
    settings: tuple[str, ...]
    trace_seed: int | None = None
    notice_s: float = 0.0
    alone: str = ""

    def all_settings(self, iterations: int) -> list[str]:
        """Return the differences from the preset."""
        return [f"iterations={iterations}", *_ALL, *self.settings]


def _spot(count: int, *more: str) -> tuple[str, ...]:
    return (*_LOCAL, f"runtime.spot_workers={count}", *more)


def _pair(*more: str) -> tuple[str, ...]:
    """Two devices that share samples."""
    return _spot(1, "sequence_parallel.rollout=2", "sequence_parallel.evaluate=2", *_KEPT, *more)


_WIDER = ("algorithm.prompts_per_iteration=24",)
_WIDE = ("algorithm.prompts_per_iteration=40", "exploration.prompts=60")

RUNS = (
    LiveRun("two-glyphs", "two glyphs", "glyphs", _spot(1)),
    LiveRun(
        "two-reserved",
        "two glyphs",
        "glyphs",
        (*_spot(0), "runtime.reserved_workers=2", "evaluation.every=3"),
    ),
    LiveRun("two-shapes", "two shapes", "shapes", _spot(1, *_WIDER)),
    LiveRun("two-shapes-2", "two shapes", "shapes", _spot(1, "seed=2")),
    LiveRun("three-glyphs", "three glyphs", "glyphs", _spot(2, *_WIDER)),
    LiveRun("three-glyphs-2", "three glyphs", "glyphs", _spot(2, "seed=2")),
    LiveRun("three-shapes", "three shapes", "shapes", _spot(2)),
    LiveRun("three-shapes-2", "three shapes", "shapes", _spot(2, "seed=2", *_WIDER)),
    LiveRun("stale-glyphs", "stale glyphs", "glyphs-stale", _spot(1)),
    LiveRun("stale-glyphs-2", "stale glyphs", "glyphs-stale", _spot(1, "seed=2", *_WIDE)),
    LiveRun("stale-shapes", "stale shapes", "shapes-stale", _spot(1, *_WIDE)),
    LiveRun("stale-shapes-2", "stale shapes", "shapes-stale", _spot(1, "seed=2")),
    LiveRun("ray-glyphs", "ray glyphs", "glyphs", _RAY),
    LiveRun("losses-glyphs", "ray glyphs", "glyphs", _RAY, trace_seed=5),
    LiveRun("losses-notice", "ray glyphs", "glyphs", (*_RAY, "seed=2"), trace_seed=3, notice_s=5.0),
    LiveRun("ray-glyphs-2", "ray glyphs", "glyphs", (*_RAY, "seed=2", *_WIDER)),
    LiveRun("ray-shapes", "ray shapes", "shapes", (*_RAY, *_WIDER)),
    LiveRun("losses-shapes", "ray shapes", "shapes", (*_RAY, *_WIDER), trace_seed=6),
    LiveRun("losses-shapes-2", "ray shapes", "shapes", (*_RAY, "seed=2"), trace_seed=5, notice_s=5.0),
    LiveRun("ray-shapes-2", "ray shapes", "shapes", (*_RAY, "seed=2")),
    LiveRun("one-glyphs", "one glyphs", "glyphs", _spot(0)),
    LiveRun("pair-glyphs", "pair glyphs", "glyphs", _pair()),
    LiveRun("pair-losses", "pair glyphs", "glyphs", _pair(), trace_seed=11, alone="one glyphs"),
    LiveRun("pair-losses-2", "pair glyphs", "glyphs", _pair("seed=2"), trace_seed=9, alone="one glyphs"),
    LiveRun("pair-glyphs-2", "pair glyphs", "glyphs", _pair("seed=2", *_WIDER)),
    LiveRun("one-glyphs-2", "one glyphs", "glyphs", _spot(0, "seed=2", *_WIDER)),
    LiveRun("one-shapes", "one shapes", "shapes", _spot(0, *_WIDER)),
    LiveRun("pair-shapes", "pair shapes", "shapes", _pair(*_WIDER)),
    LiveRun("pair-losses-shapes", "pair shapes", "shapes", _pair(*_WIDER), trace_seed=10, alone="one shapes"),
    LiveRun("pair-shapes-2", "pair shapes", "shapes", _pair("seed=2")),
    LiveRun("one-shapes-2", "one shapes", "shapes", _spot(0, "seed=2")),
)
"""The runs of a full backtest, in order. A run is between or next to those of its kind, and one under losses
between the two that time its steps, so that an hourly change of the machine's speed biases little."""

_TINY = ("algorithm.prompts_per_iteration=4", "evaluation.prompts=16")

_QUICK = ("one-glyphs", "two-glyphs", "two-reserved", "ray-glyphs", "losses-glyphs", "pair-glyphs",
          "pair-glyphs-2", "pair-losses")  # fmt: skip

QUICK = tuple(replace(run, settings=(*run.settings, *_TINY)) for run in RUNS if run.name in _QUICK)


@dataclass(frozen=True)
class KeptRun:
    """A finished live run.

    Attributes:
        live: the planned run.
        run_id: its identifier in the home.
        busy: share of the machine's cores that other processes used just before it.
        trace: instances as they came and went; None without a trace. Its times count from `began_at`.
        began_at: start of the replay (Unix seconds).
        speed: the machine's speed from the start of the run's processes to their end.
    """

    live: LiveRun
    run_id: str
    busy: float
    trace: Trace | None = None
    began_at: float = 0.0
    speed: tuple[Look, ...] = ()


def kept_runs(home: Home, runs: Iterable[LiveRun], iterations: int, prefix: str) -> list[KeptRun]:
    """Run each run that the home does not hold finished, one after another.

    An interrupted one is repeated under another name: a resumed run does not represent an undisturbed one.

    Raises:
        RuntimeFailure: one of them failed.
    """
    return [_find(home, live, iterations, prefix) or _do(home, live, iterations, prefix) for live in runs]


def _find(home: Home, live: LiveRun, iterations: int, prefix: str) -> KeptRun | None:
    wanted = load_config(live.preset, live.all_settings(iterations), {})
    for run_id in _names(home, live, prefix):
        facts = _facts(home, run_id)
        row = RunStore(home).run(run_id)
        if row.status != "finished" or not facts.is_file():
            continue
        if _work(row.config) != _work(wanted):  # its settings have changed since
            continue
        known = json.loads(facts.read_text(encoding="utf-8"))
        if "speed" not in known:  # written by an earlier version
            continue
        speed = tuple((at, seconds) for at, seconds in known["speed"])
        events = tuple(TraceEvent(at_s, kind, name) for at_s, kind, name in known["events"])
        trace = Trace(events, known["length_s"]) if live.trace_seed is not None else None
        return KeptRun(live, run_id, known["busy"], trace, known["began_at"], speed)
    return None


def _work(config: RunConfig) -> tuple[object, ...]:
    """Return the settings that a run's times depend on."""
    algorithm, evaluation, runtime = config.algorithm, config.evaluation, config.runtime
    return (
        config.seed, config.iterations, config.model.path, config.sampling, algorithm.prompts_per_iteration,
        algorithm.group_size, evaluation.every, evaluation.prompts, config.exploration.strategy,
        runtime.least_reserved, runtime.least_spot, runtime.scorer_workers, runtime.commit_steps,
        config.sequence_parallel,
    )  # fmt: skip


def _do(home: Home, live: LiveRun, iterations: int, prefix: str) -> KeptRun:
    run_id = f"{prefix}-{live.name}-{len(_names(home, live, prefix)) + 1}"
    settings = live.all_settings(iterations)
    arguments = ["--preset", live.preset, *sets(settings)]
    busy = psutil.cpu_percent(_BUSY_FOR_S) / 100
    reporter().note(f"{run_id}: other processes use {busy:.0%} of the machine")
    trace = None if live.trace_seed is None else generate_trace(_SPOT_LIFE, live.trace_seed)
    known: dict[str, object] = {"busy": busy, "events": [], "length_s": 0.0, "began_at": 0.0}
    with watched() as speed:
        if trace is None:
            if start(home, "train", "--run-id", run_id, *arguments).wait() != 0:
                raise RuntimeFailure(f"the run {run_id} failed; look at it with `spotlight runs`")
        elif live.alone:
            known |= _kill(home, run_id, arguments, trace)
        else:
            known |= _replay(home, run_id, live, arguments, trace, settings)
    known["speed"] = speed
    # Written last: a run without it is repeated.
    file = _facts(home, run_id)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(known), encoding="utf-8")
    found = _find(home, live, iterations, prefix)
    if found is None:
        raise RuntimeFailure(f"the run {run_id} did not finish; look at it with `spotlight runs`")
    return found


def _kill(home: Home, run_id: str, arguments: Sequence[str], trace: Trace) -> dict[str, object]:
    """Run while killing the spot worker whenever the trace's instance goes; return the observed trace.

    Its times count from the start of the first worker.
    """
    faults = [Fault(kind="kill", at_s=event.at_s) for event in trace.events if event.kind == "remove"]
    ran = disturb(home, run_id, arguments, faults)
    _refuse_restarts(run_id, ran)
    with RunStore(home).reading(run_id) as connection:
        row = connection.execute(
            "SELECT min(started_at) FROM worker_states WHERE run_id = ?", [run_id]
        ).fetchone()
    assert row is not None, "a finished run has had workers"
    began_at = float(row[0])
    events: list[tuple[float, str, str]] = [(0.0, "add", "worker-0")]
    for number, done in enumerate(ran.done, 1):
        at_s = max(0.0, done.at - began_at)
        events += [(at_s, "remove", f"worker-{number - 1}"), (at_s, "add", f"worker-{number}")]
    return {"events": events, "length_s": max(ran.wall_s, events[-1][0]), "began_at": began_at}


def _replay(
    home: Home, run_id: str, live: LiveRun, arguments: Sequence[str], trace: Trace, settings: Sequence[str]
) -> dict[str, object]:
    """Run under a trace, in the trace's own time; return what its instances did."""
    plan = TracePlan(live.name, trace, trace, most=1, notice_s=live.notice_s, stretch=1.0)
    with replayed(plan, load_config(live.preset, list(settings), {}).runtime, trace.length_s) as replay:
        joined = sets(plan.settings(replay.instances.address))
        _refuse_restarts(run_id, disturb(home, run_id, [*arguments, *joined], (), replay))
    events = [(one.at_s, one.kind, one.instance) for one in replay.happened if one.kind != "notice"]
    return {"events": events, "length_s": trace.length_s, "began_at": replay.began_at}


def _refuse_restarts(run_id: str, ran: DisturbedRun) -> None:
    if ran.restarts or ran.hung:
        raise RuntimeFailure(f"the run {run_id} had to be resumed, or hung; begin the backtest again")


def _names(home: Home, live: LiveRun, prefix: str) -> list[str]:
    """Return the identifiers under which a run was begun, oldest first."""
    found: list[str] = []
    while True:
        name = f"{prefix}-{live.name}-{len(found) + 1}"
        try:
            RunStore(home).run(name)
        except RunNotFoundError:
            return found
        found.append(name)


def _facts(home: Home, run_id: str) -> Path:
    return home.path / "backtest" / f"{run_id}.json"
