"""The cost of the pull scheduler at few and many devices, and of the live loop around it.

The scheduler alone: no devices, no network. Every device holds a lease; in turn it commits half of its
steps, delivers, and pulls again, from the same number of waiting requests whatever the number of devices.
Rounds are timed in CPU seconds, single pulls in wall-clock time, so `p99_pull_ms` includes the machine's
other load. `growth_8_to_4096` is the CPU time of a round at 4,096 devices divided by that at 8, the median of
several turns.

Then the live coordinator, `live_*`: the loop and the fleet of a run over eight Ray workers whose samples cost
nothing, in wall-clock seconds. A worker's pull lasts from its delivery to its next lease.
`live_ray_alone_rounds_per_s` is Ray's rate with the same workers, without the loop and the fleet: as many
calls, as many bytes. `load_average` shows the machine's other load.

    python -m benchmarks.scheduler [--quick]
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import closing

from benchmarks.fleet.live_scheduler import CALLS_A_ROUND, LiveCoordinator
from benchmarks.report import finish, nearest_rank, options
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WorkItem

_FEW, _MANY = 8, 4096
_LIVE_WORKERS = 8
_STEPS = 10


def measure(devices: int, rounds: int, batch_size: int) -> tuple[float, list[float]]:
    """Let devices work through requests, one by one.

    Returns:
        CPU seconds for a pull, a commit and a delivery; wall-clock seconds of each pull.
    """
    queue: PullScheduler[SampleRequest] = PullScheduler()
    queue.add(
        WorkItem(request, request.kind, _STEPS, 1)
        for prompt_id in range((rounds + _MANY) * batch_size // 16 + 1)
        for request in (
            SampleRequest(RequestKind.ROLLOUT, 0, 1, prompt_id, seed_index, 1, "") for seed_index in range(16)
        )
    )
    names = [f"spot-{number}" for number in range(devices)]
    leases = [queue.pull(name, 1, batch_size, RequestKind.ROLLOUT) for name in names]
    pull_s: list[float] = []
    began = time.process_time()
    for number in range(rounds):
        device = number % devices
        lease = leases[device]
        assert lease is not None
        queue.commit(lease, {request: (_STEPS // 2, number) for request in lease.requests})
        queue.deliver(lease, lease.requests)
        asked = time.perf_counter()
        leases[device] = queue.pull(names[device], 1, batch_size, RequestKind.ROLLOUT)
        pull_s.append(time.perf_counter() - asked)
    return (time.process_time() - began) / rounds, pull_s


def measure_live(turns: int, rounds: int, batch_size: int) -> dict[str, float]:
    """Let live workers work through requests: in one call, and with a commit, in turn with Ray alone."""
    pulls, costs, alone = [], [], []
    for commits in (False, True):
        with closing(LiveCoordinator(_LIVE_WORKERS, batch_size, commits)) as live:
            live.measure(rounds // 10)
            for _ in range(turns):
                cost = live.measure(rounds)
                if commits:
                    costs.append(cost)
                    alone.append(live.calls_of_ray_alone(rounds * CALLS_A_ROUND) / CALLS_A_ROUND)
                else:
                    pulls.append(cost.rounds_per_s)
    waits = [second for cost in costs for second in cost.waits_s]
    rates = {"pulls": pulls, "rounds": [cost.rounds_per_s for cost in costs], "ray_alone_rounds": alone}
    return {
        **{f"live_{name}_per_s": statistics.median(found) for name, found in rates.items()},
        "live_workers": _LIVE_WORKERS,
        "live_p99_pull_ms": 1000 * nearest_rank(waits, 0.99),
        "live_median_pull_ms": 1000 * statistics.median(waits),
        "live_coordinator_cpu_ms": 1000 * statistics.median(cost.driver_s for cost in costs),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__, "2 short turns")
    parser.add_argument("--batch", type=int, default=4, help="requests in a lease (default 4)")
    arguments = parser.parse_args()
    turns, rounds = (2, 5_000) if arguments.quick else (5, 20_000)
    live_turns, live_rounds = (2, 1_000) if arguments.quick else (5, 3_000)
    few_s, many_s, pulls = [], [], []
    for _ in range(turns):
        few_s.append(measure(_FEW, rounds, arguments.batch)[0])
        round_s, pull_s = measure(_MANY, rounds, arguments.batch)
        many_s.append(round_s)
        pulls += pull_s
    figures = {
        "pulls_per_s": 1 / statistics.median(many_s),
        "devices": _MANY,
        "p99_pull_ms": 1000 * nearest_rank(pulls, 0.99),
        "median_pull_ms": 1000 * statistics.median(pulls),
        "growth_8_to_4096": statistics.median(many / few for few, many in zip(few_s, many_s, strict=True)),
        "batch_size": arguments.batch,
        "rounds": turns * rounds,
        **measure_live(live_turns, live_rounds, arguments.batch),
    }
    finish("scheduler", figures, arguments)


if __name__ == "__main__":
    main()
