"""How much sooner a phase of generating ends when devices pull than when their shares are dealt beforehand.

Push: batches are dealt round-robin over the devices that are there when the phase begins; no device takes
from another's share; a lost device's is dealt again over those left. Pull: the product's scheduler. Leases,
commits and the size of the batches are the same in both. The makespan ratio is push over pull.

`makespan_ratio_modelled`: phases under a virtual clock, without devices. A reserved device stays; spot
devices come and go as a trace says, from a random moment on. Each has a speed of its own: its denoising step
takes a time drawn evenly from 1 to `--slowest` seconds. Both ways get the same trace, moment and speeds.

`makespan_ratio_measured`: phases on real Ray workers and the real model of the preset `glyphs`, by the
product's own loop; the median of some turns. Workers sleep until a step has taken them their time, which
makes them uneven; one is killed when a quarter of the samples is there.

    python -m benchmarks.push_or_pull [--trace FILE] [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.report import add_keep_option, finish
from benchmarks.simulated_phase import GenerationPhase, SimulatedDevice
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.work_items import WorkItem
from gpu_runtime.simulator.push_dispatch import PushDispatch
from gpu_runtime.spot.traces.files import read_trace
from gpu_runtime.spot.traces.generator import TraceShape, generate_trace
from gpu_runtime.spot.traces.replay import thinned
from gpu_runtime.spot.traces.trace import Trace

SPOT, BATCH, STEPS, COMMIT_STEPS = 8, 16, 10, 4
BATCHES = 128
_LEASE_S = 1e9  # no device hangs here


@dataclass(frozen=True)
class Phase:
    """The devices of one phase: one reserved, the others by a trace from a moment on."""

    devices: list[SimulatedDevice]
    losses: int


def phase_of(trace: Trace, seed: int, slowest: float) -> Phase:
    """Cut a phase out of a trace, and draw its devices' speeds."""
    chance = random.Random(seed)
    begins_s = chance.uniform(0, 0.8 * trace.length_s)
    part = trace.clipped(begins_s, trace.length_s)
    lives: list[list[Any]] = []
    alive: dict[str, list[Any]] = {}
    for event in part.events:
        if event.kind == "add":
            alive[event.instance] = [event.at_s, math.inf]
            lives.append(alive[event.instance])
        else:
            alive.pop(event.instance)[1] = event.at_s
    devices = [SimulatedDevice("reserved-0", chance.uniform(1, slowest))]
    devices += [
        SimulatedDevice(f"spot-{number}", chance.uniform(1, slowest), since_s, until_s)
        for number, (since_s, until_s) in enumerate(lives)
        if until_s > since_s
    ]
    return Phase(devices, sum(math.isfinite(device.until_s) for device in devices))


def makespans_s(phase: Phase) -> tuple[float, float]:
    """Seconds of the phase when devices pull, and when they are pushed to."""
    items = [WorkItem(number, RequestKind.ROLLOUT, STEPS, 1) for number in range(BATCHES * BATCH)]
    first = [device.name for device in phase.devices if device.since_s == 0]
    pull: PullScheduler[int] = PullScheduler(BATCH, _LEASE_S, BATCH)
    push: PushDispatch[int] = PushDispatch(BATCH, _LEASE_S, BATCH, first, 1)
    times = []
    for scheduler in (pull, push):
        scheduler.add(items)
        times.append(GenerationPhase(scheduler, phase.devices, 1, BATCH, COMMIT_STEPS).run())
    return times[0], times[1]


def modelled(traces: list[Trace], phases: int, slowest: float) -> dict[str, float | int]:
    """Ratios over phases cut out of some traces in turn."""
    ratios, pull_s, losses = [], [], 0
    for seed in range(phases):
        phase = phase_of(traces[seed % len(traces)], seed, slowest)
        pulled_s, pushed_s = makespans_s(phase)
        ratios.append(pushed_s / pulled_s)
        pull_s.append(pulled_s)
        losses += sum(device.until_s < pulled_s for device in phase.devices)
    ranked = sorted(ratios)
    return {
        "median": statistics.median(ratios),
        "p05": ranked[int(0.05 * phases)],
        "p95": ranked[min(phases - 1, int(0.95 * phases))],
        "least": ranked[0],
        "most": ranked[-1],
        "phases": phases,
        "pull_s_median": statistics.median(pull_s),
        "losses_per_phase": losses / phases,
    }


def generated(count: int, mean_lifetime_s: float) -> list[Trace]:
    """Traces with losses that come together."""
    shape = TraceShape(capacity=SPOT, length_s=20_000, mean_lifetime_s=mean_lifetime_s)
    return [generate_trace(shape, seed) for seed in range(count)]


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", help="a trace file for one more set of modelled phases")
    parser.add_argument("--slowest", type=float, default=2.0, help="seconds of the slowest step (default 2)")
    parser.add_argument(
        "--quick", action="store_true", help="40 modelled phases a set and 1 turn, not 100 and 3"
    )
    parser.add_argument("--modelled-only", action="store_true", help="without the live run")
    add_keep_option(parser)
    arguments = parser.parse_args()
    phases = 40 if arguments.quick else 100
    calm = generated(phases // 10, 5400.0)
    sets = {
        "calm": modelled(calm, phases, arguments.slowest),
        "rough": modelled(generated(phases // 10, 600.0), phases, arguments.slowest),
        "even_workers": modelled(calm, phases, 1.0),
    }
    if arguments.trace:
        trace = thinned(read_trace(arguments.trace), SPOT)
        sets["trace"] = modelled([trace], phases, arguments.slowest)
    live = None
    if not arguments.modelled_only:
        from benchmarks.uneven_workers import measured  # torch and Ray, which modelling does not need

        live = measured(turns=1 if arguments.quick else 3)
    figures = {
        "makespan_ratio_modelled": sets["trace" if arguments.trace else "calm"],
        "modelled_by_set": sets,
        "makespan_ratio_measured": statistics.median(live.ratios) if live else None,
        "measured": vars(live) if live else None,
        "model": {
            "spot_devices": SPOT,
            "reserved_devices": 1,
            "batches": BATCHES,
            "batch_size": BATCH,
            "steps": STEPS,
            "commit_steps": COMMIT_STEPS,
            "step_s": [1.0, arguments.slowest],
            "mean_lifetime_s": {"calm": 5400, "rough": 600},
        },
    }
    finish("push_or_pull", figures, arguments.keep)


if __name__ == "__main__":
    main()
