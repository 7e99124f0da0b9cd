"""Simulate whole runs of 10 to 10,000 devices: seconds, memory, and how the cost of an event grows.

A third of the devices is reserved and trains; the others are spot devices of a drawn trace (an instance lives
90 minutes on average, three of four losses take several) with 30 s of notice, and explore during training.
The work per device is the same at each size: four batches of Qwen-Image at 512x512 per iteration, by the
shipped profile. The decisions are those of live runs, as in `spotlight what-if`.

An event's time is CPU time (`clock`) of one process, without other load of the machine. Every phase is
simulated; `what-if` reuses phases that no event of the trace disturbs, and takes less. A run has 50
iterations, or 3 at the largest size. `wall_s` and `cpu_s` are those of the run at the largest size.
`growth_10_to_10000` compares its time of an event with that at the smallest, which is repeated until it has
done a hundredth of the events. `peak_gib` is the process's peak memory.

    python -m benchmarks.simulator [--quick] [--keep]
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import finish, options
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.simulator.comparison.what_if import trace_length_s
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.spot.traces.generator import TraceShape
from gpu_runtime.spot.traces.replay import Replay
from storage.config.loading import load_config
from tasks.gpu_profile import counted_profile, named_gpu

_PRESET = "qwen-image-geneval-512"
_BATCHES = 4  # per device and iteration
_NOTICE_S = 30.0
_ITERATIONS = {10: 50, 100: 50, 1_000: 50, 10_000: 3}


@dataclass(frozen=True)
class Cost:
    """A simulated run, and the cost of simulating it.

    Attributes:
        run: the simulated run.
        wall_s, cpu_s: elapsed and CPU seconds.
    """

    run: SimulatedRun
    wall_s: float
    cpu_s: float


def simulate(devices: int, iterations: int, seed: int = 0) -> Cost:
    """Simulate a run with the same batches per device at any size."""
    config = load_config(_PRESET, [f"iterations={iterations}"], {})
    images = _BATCHES * devices * config.sampling.batch_size
    prompts = max(1, images // config.algorithm.group_size)
    config = config.changed(algorithm={"prompts_per_iteration": prompts})
    reserved = max(1, devices // 3)
    offer = FleetPlan(reserved, devices - reserved, reserved, 10.0, 2.5)
    profile = counted_profile(config, named_gpu("H100"))
    # Scorers keep up with any number of devices.
    times = profile.times(config.sampling.batch_size, devices, reserved)
    market = SpotMarket(None, TraceShape(capacity=1, length_s=1.0), notice_s=_NOTICE_S)
    length_s = trace_length_s(config, times, reserved)
    trace = market.window(offer.spot, length_s, random.Random(f"trace {seed}"))
    plan = SimulatedPlan(offer, STALE)
    simulation = Simulation(config, plan, times, Replay(trace, _NOTICE_S), repeats=False)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    run = simulation.run()
    return Cost(run, time.perf_counter() - began_s, time.process_time() - began_cpu_s)


def of_size(devices: int, costs: Sequence[Cost]) -> dict[str, Any]:
    """Return the cost of an event over all runs of a size."""
    done, cpu_s = sum(cost.run.events for cost in costs), sum(cost.cpu_s for cost in costs)
    return {
        "devices": devices, "runs": len(costs), "iterations": len(costs[0].run.iterations),
        "cpu_s": cpu_s, "events": done, "events_per_s": done / cpu_s,
        "us_per_event": 1e6 * cpu_s / done, "losses": sum(cost.run.losses for cost in costs),
    }  # fmt: skip


def measure(devices: int, iterations: int, events: int) -> dict[str, Any]:
    """Return the cost of an event, over enough runs to have at least so many events."""
    costs = [simulate(devices, iterations)]
    while sum(cost.run.events for cost in costs) < events:
        costs.append(simulate(devices, iterations, seed=len(costs)))
    return of_size(devices, costs)


def main() -> None:
    """Print one JSON line."""
    arguments = options(__doc__, "3 iterations, to 100 devices").parse_args()
    iterations = {10: 3, 100: 3} if arguments.quick else _ITERATIONS
    sizes = list(iterations)
    simulate(sizes[0], 1)  # warm up imports and caches
    whole = simulate(sizes[-1], iterations[sizes[-1]])
    least = whole.run.events // 100
    rows = [measure(devices, iterations[devices], least) for devices in sizes[:-1]]
    rows.append(of_size(sizes[-1], [whole]))
    figures = {
        "devices": sizes[-1],
        "iterations": iterations[sizes[-1]],
        "wall_s": whole.wall_s,
        "cpu_s": whole.cpu_s,
        "clock": "seconds of the processor",
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        f"growth_{sizes[0]}_to_{sizes[-1]}": rows[-1]["us_per_event"] / rows[0]["us_per_event"],
        "events": whole.run.events,
        "events_per_s": whole.run.events / whole.cpu_s,
        "simulated_h": whole.run.wall_s / 3600,
        "losses": whole.run.losses,
        "batches": whole.run.batches,
        "drafts": whole.run.drafts,
        "sizes": rows,
    }
    finish("simulator", figures, arguments)


if __name__ == "__main__":
    main()
