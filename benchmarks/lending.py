"""A serving fleet that lends devices to a run: whether its latency objective holds, and what the run gets.

The serving side is simulated (`benchmarks/serving_fleet.py`): a day of its load takes a minute, and it lends
by the reference server of `examples/lending_server.py`. The run is a real one of the embedded model, in
processes without Ray, by the runtime that `spotlight train` uses; it borrows through the provider `lending`,
over HTTP. Each of its devices sleeps for what is left of a set time (`benchmarks/paced_workers.py`), so that
devices do not share the machine's cores. The times from a call to a release are measured; the same requests
are then served by a fleet that lends nothing.

`violations_beyond`: windows that miss the objective (95 % of the requests within `objective_s`) with lending,
and not without. `lent_share` and `used_share`: device-seconds that were lent, and in which lent devices
generated, over those in which serving devices had no request.

    python -m benchmarks.lending [--quick] [--days N] [--keep]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.paced_workers import PacedCluster
from benchmarks.report import add_keep_option, finish, nearest_rank
from benchmarks.serving_fleet import DiurnalLoad, ServingFleet, ServingTerms, idle_device_s, serve_alone
from examples.lending_server import Lender, LendingServer, Loan
from gpu_runtime.runtime import Runtime
from storage.clock import now
from storage.config.loading import load_config
from storage.environment import environment
from storage.record.records import StateInterval

LOAD = DiurnalLoad(day_s=60.0, least=0.6, most=3.6, service_s=0.02)
TERMS = ServingTerms(
    objective_s=0.15, window_s=2.0, utilisation=0.7, lead_s=4.0, trend_s=10.0, warm_up_s=1.0
)  # fmt: skip
DEVICES = 6
MARGIN = 1
_BORROWED = 4
_TICK_S = 0.05
"""Seconds between two looks of the serving side at its load."""

_SETTINGS = (
    "runtime.cluster=local", "runtime.capacity=lending", f"runtime.spot_workers={_BORROWED}",
    "runtime.scorer_workers=1", "runtime.commit_steps=1", "iterations=1000",
)  # fmt: skip
"""Batches of four denoising steps. It ends with the days."""

_FULL, _QUICK = (4.0, 10), (0.2, 5)
"""Days of the load, and batches of an iteration."""

_SHOWN_S = 5.0
"""Seconds of a part of what is shown over time."""

_USES = frozenset({"rollout", "explore"})


@dataclass(frozen=True)
class LendingRun:
    """What a run did with what it was lent.

    Attributes:
        iterations: that it did.
        samples: of their rollouts, by market of the device that delivered them.
        intervals: of its devices, in Unix seconds.
        began_at: when the load began, in Unix seconds.
        lost: workers that were lost.
        steps_redone: denoising steps that were lost with them.
    """

    iterations: int
    samples: Counter[str]
    intervals: Sequence[StateInterval]
    began_at: float
    lost: int
    steps_redone: int

    def borrowed_s(self, until_s: float) -> dict[str, float]:
        """Seconds of borrowed devices in each state, from the start of the load on."""
        spent: defaultdict[str, float] = defaultdict(float)
        for part in self.intervals:
            began, ended = part.started_at - self.began_at, part.ended_at - self.began_at
            if part.market == "spot":
                spent[part.state] += max(0.0, min(ended, until_s) - max(began, 0.0))
        return dict(spent)


class ServingClock:
    """Seconds since the load began; 0 before that."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def begin(self) -> None:
        """The load begins now."""
        self._began_s = time.monotonic()

    def __call__(self) -> float:
        """Seconds."""
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s


@contextmanager
def _serving(fleet: ServingFleet, clock: Callable[[], float], until_s: float) -> Iterator[None]:
    """Let the fleet serve in a thread up to a moment of the clock; the context waits for its end."""
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            while (at_s := clock()) < until_s:
                fleet.advance(at_s)
                time.sleep(_TICK_S)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=serve, name="serving", daemon=True)
    thread.start()
    yield
    thread.join()
    if failed:
        raise failed[0]


def borrow(
    fleet: ServingFleet, lender: Lender, clock: ServingClock, until_s: float, prompts: int
) -> LendingRun:
    """Train on what the lender lends while its fleet serves.

    Args:
        fleet: that serves.
        lender: of its devices.
        clock: of both.
        until_s: when the load ends; the iteration that goes on then is the last one.
        prompts: of an iteration: a batch each.
    """
    iterations, samples = 0, Counter[str]()
    with LendingServer(lender) as server:
        chosen = [f"algorithm.prompts_per_iteration={prompts}", f"runtime.options.url={server.url}"]
        config = load_config("smoke", [*_SETTINGS, *chosen], {})
        cluster = PacedCluster(config)
        try:
            with Runtime(config, cluster) as runtime:
                clock.begin()
                began_at = now()
                with _serving(fleet, clock, until_s):
                    while clock() < until_s:
                        iterations += 1
                        rolled = runtime.rollout(runtime.explore(iterations))
                        samples.update(one.worker.split("-")[0] for one in rolled.delivered)
                        runtime.train(rolled, runtime.reward(rolled))
                intervals = runtime.collect().intervals
                lost, redone = len(runtime.lost_workers), runtime.steps_redone
        finally:
            cluster.shutdown()
    return LendingRun(iterations, samples, intervals, began_at, lost, redone)


def lent_over_time(loans: Sequence[Loan], until_s: float) -> list[float]:
    """Devices that were lent on average in each part of the time.

    Args:
        loans: all that there were.
        until_s: the end of the time.
    """

    def lent_s(begins_s: float, ends_s: float) -> float:
        return sum(
            max(0.0, min(ends_s, until_s if loan.returned_s is None else loan.returned_s)
                - max(begins_s, loan.lent_s))
            for loan in loans
        )  # fmt: skip

    begins = [number * _SHOWN_S for number in range(int(-(-until_s // _SHOWN_S)))]
    ends = [min(until_s, begin + _SHOWN_S) for begin in begins]
    return [round(lent_s(begin, end) / (end - begin), 2) for begin, end in zip(begins, ends, strict=True)]


def call_figures(loans: Sequence[Loan], until_s: float) -> dict[str, Any]:
    """The JSON values of calls up to a moment, and of how long the run took to release.

    Args:
        loans: all that there were.
        until_s: the moment.
    """
    called = [
        (loan.called_back_s, loan.returned_s)
        for loan in loans
        if loan.called_back_s is not None and loan.called_back_s <= until_s
    ]
    took = [returned - since for since, returned in called if returned is not None]
    return {
        "loans": len(loans),
        "calls": len(called),
        "not_released": len(called) - len(took),
        "release_p50_s": nearest_rank(took, 0.5) if took else None,
        "release_p95_s": nearest_rank(took, 0.95) if took else None,
        "release_most_s": max(took, default=None),
    }


def figures_of(
    lending: ServingFleet, alone: ServingFleet, loans: Sequence[Loan], run: LendingRun, idle_s: float,
    until_s: float,
) -> dict[str, Any]:  # fmt: skip
    """The JSON values.

    Args:
        lending: the fleet that lent.
        alone: the one that did not, with the same requests.
        loans: all that there were.
        run: that borrowed.
        idle_s: device-seconds without a request.
        until_s: when the load ended.
    """
    with_lending, without = lending.late_windows(), alone.late_windows()
    lent = lent_over_time(loans, until_s)
    borrowed = run.borrowed_s(until_s)
    lent_s = sum(max(0.0, min(until_s, loan.returned_s or until_s) - loan.lent_s) for loan in loans)
    return {
        "violations_beyond": len(with_lending - without),
        "violations_with": len(with_lending),
        "violations_without": len(without),
        "windows": len(alone.p95_by_window()),
        "objective_s": TERMS.objective_s,
        "worst_p95_with_s": max(lending.p95_by_window().values()),
        "worst_p95_without_s": max(alone.p95_by_window().values()),
        "requests": len(alone.latencies),
        "idle_device_s": idle_s,
        "lent_share": lent_s / idle_s,
        "used_share": sum(borrowed.get(state, 0.0) for state in _USES) / idle_s,
        "borrowed_s": borrowed,
        "lent_over_time": lent,
        "lent_part_s": _SHOWN_S,
        **call_figures(loans, until_s),
        "iterations": run.iterations,
        "samples": sum(run.samples.values()),
        "samples_on_lent": run.samples["spot"],
        "lost": run.lost,
        "steps_redone": run.steps_redone,
        "days": until_s / LOAD.day_s,
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the morning of one day, and smaller iterations")
    parser.add_argument("--days", type=float, help="so many days of the load, each of a minute")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the requests")
    add_keep_option(parser)
    chosen = parser.parse_args()
    days, prompts = _QUICK if chosen.quick else _FULL
    until_s = LOAD.day_s * (chosen.days or days)
    began_at, began_s = environment()["commit"], time.monotonic()
    requests = LOAD.requests(-TERMS.trend_s, until_s, chosen.seed)
    clock = ServingClock()
    lender = Lender(DEVICES, MARGIN, hold_s=TERMS.lead_s, clock=clock)
    lending = ServingFleet(requests, lender, TERMS)
    run = borrow(lending, lender, clock, until_s, prompts)
    lending.end()
    alone = serve_alone(requests, DEVICES, TERMS, until_s)
    idle_s = idle_device_s(requests, DEVICES, until_s)
    figures = figures_of(lending, alone, lender.loans, run, idle_s, until_s)
    finish("lending", figures | {"wall_s": time.monotonic() - began_s}, chosen.keep, began_at=began_at)


if __name__ == "__main__":
    main()
