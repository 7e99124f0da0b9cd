"""One training run of devices that share samples, undisturbed or under faults, without Prefect and storage.

Each iteration begins with the same weights, which `spotlight train` does not do: the bits of shared samples
depend on faults. Reward, training and weights are those of a real run; there is no checkpoint.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.goodput import Course
from benchmarks.shared_samples import keep_iteration
from flows.disturbed_run import HANG_S
from gpu_runtime.chaos.fault_injector import FaultInjector
from gpu_runtime.chaos.fault_schedule import Fault
from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.history_check import check_history
from gpu_runtime.scheduling.history_report import HistoryReport
from gpu_runtime.spot.notices.simulated_service import SimulatedNotices
from gpu_runtime.worker.history_tail import read_history
from storage.config.run_config import RunConfig
from storage.config.runtime import WORKER_IN_URL
from storage.errors import RuntimeFailure

QUIET_ITERATIONS = 2
"""At the beginning of a disturbed run; the last of them says how fast it is."""


@dataclass(frozen=True)
class Outcome:
    """How a run went.

    Attributes:
        course: its history and its faults.
        report: what the history says of the promises.
        blobs: weights, moving average and optimiser at its end; empty where it did not get there.
        iterations: how many it did.
        wall_s: how long these took.
        left: faults that found no victim until the end.
        hung: it had to be ended because nothing happened any more.
        steps_redone: the run's own count, an upper bound.
    """

    course: Course
    report: HistoryReport
    blobs: dict[str, bytes]
    iterations: int
    wall_s: float
    left: int
    hung: bool
    steps_redone: int


def run(
    config: RunConfig,
    history: Path,
    iterations: int,
    draw: Callable[[float], Sequence[Fault]] | None = None,
    longest_s: float = 3600.0,
    kept: Path | None = None,
) -> Outcome:
    """Do some iterations; under faults as many more as it takes to do them all, and one to recover.

    Args:
        config: the run's configuration.
        history: an empty folder.
        iterations: at least so many.
        draw: the faults, for a run of which a quiet iteration takes so many seconds.
        longest_s: no further iteration begins after so many seconds.
        kept: folder for the samples of each iteration and the weights after it. Each iteration then begins
            with the same weights, so that what differs by rounding does not grow from one to the next.
    """
    with ExitStack() as opened:
        notices = opened.enter_context(SimulatedNotices(WORKER_IN_URL)) if draw else None
        if notices is not None:
            watched = config.runtime.model_copy(update={"notices": f"gcp@{notices.url}"})
            config = config.model_copy(update={"runtime": watched})
        cluster = opened.enter_context(open_cluster(config))
        runtime = opened.enter_context(Runtime(config, cluster, history))
        done_iterations, blobs, began, iteration_s = 0, {}, time.monotonic(), 0.0
        begun_with = runtime.blobs() if kept else None
        for quiet in range(1, QUIET_ITERATIONS + 1):
            since, done_iterations = time.monotonic(), quiet
            _iterate(runtime, quiet, kept, begun_with)
            iteration_s = time.monotonic() - since
        faults = draw(iteration_s) if draw else ()
        with FaultInjector(history, faults, notices) as injector, _watched(injector) as hung:
            try:
                for _ in _rounds(iterations - QUIET_ITERATIONS, injector, began + longest_s):
                    done_iterations += 1
                    _iterate(runtime, done_iterations, kept, begun_with)
                    runtime.collect()
                    _say(done_iterations, time.monotonic() - began, injector)
                blobs = runtime.blobs()
            except RuntimeFailure as error:
                print(f"the run ended early: {error}", file=sys.stderr, flush=True)
            redone, wall_s = runtime.steps_redone, time.monotonic() - began
            runtime.close()
        if injector.trouble is not None:
            raise RuntimeError("the faults were not all done") from injector.trouble
    lines = read_history(history)
    course = Course(lines, config.runtime.least_workers, injector.done)
    return Outcome(
        course, check_history(lines), blobs, done_iterations, wall_s, injector.left, hung.is_set(), redone
    )


def _rounds(least: int, injector: FaultInjector, last_moment: float) -> Iterator[int]:
    number, over = 0, 0
    while (number < least or over < 1) and time.monotonic() < last_moment:
        over += injector.left == 0
        number += 1
        yield number


def _iterate(
    runtime: Runtime, iteration: int, kept: Path | None, begun_with: Mapping[str, bytes] | None
) -> None:
    rolled = runtime.rollout(runtime.explore(iteration))
    runtime.train(rolled, runtime.reward(rolled))
    runtime.enter("commit", iteration)
    if kept is not None and begun_with is not None:
        keep_iteration(kept, iteration, rolled, runtime.blobs())
        runtime.restore(begun_with, 0)


@contextmanager
def _watched(injector: FaultInjector) -> Iterator[threading.Event]:
    """Kill the trainer of a run that hangs, which ends the call that the driver waits for."""
    hung, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            if time.monotonic() - injector.last_line_s > HANG_S:
                hung.set()
                injector.end_run()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield hung
    finally:
        over.set()
        thread.join()


def _say(iteration: int, seconds: float, injector: FaultInjector) -> None:
    print(
        f"iteration {iteration}, {seconds:.0f} s: {len(injector.done)} faults done, {injector.left} left",
        file=sys.stderr,
        flush=True,
    )
