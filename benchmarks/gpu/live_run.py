"""A live run without Prefect or database: local processes on one device, in a run's usual phases.

Exploration runs beside scoring and training, in a thread. Workers share the only device, which `spotlight
train` refuses for local processes, but a machine with a single GPU has no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from benchmarks.exploration.learning_curve import mean_by_prompt
from gpu_runtime.chaos.fault_injector import FaultInjector
from gpu_runtime.chaos.fault_schedule import Fault
from gpu_runtime.cluster.local_cluster import LocalCluster
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.strategies.strategy import TrainingEvidence
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.models.loading import device_of
from gpu_runtime.runtime import Runtime
from storage.config.run_config import RunConfig
from storage.record.records import StateInterval

_LOOK_S = 0.1


@dataclass
class LiveRun:
    """The outcome of a run.

    Attributes:
        blobs: final weights, moving average and optimiser.
        intervals: states of each device, without the run's start.
        started_s: seconds until all processes had loaded.
        iteration_s: seconds of each iteration, without evaluations.
        evaluations: by the iteration they follow, with the seconds since the first iteration began.
        faults: injected faults.
        lost: lost workers.
        peak_gib: peak memory of the device, over all processes; of the machine, without a GPU.
    """

    blobs: Mapping[str, bytes] = field(default_factory=dict)
    intervals: list[StateInterval] = field(default_factory=list)
    started_s: float = 0.0
    iteration_s: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float, Evaluation]] = field(default_factory=list)
    faults: int = 0
    lost: int = 0
    peak_gib: float = 0.0


def live_run(
    config: RunConfig,
    history: Path | None = None,
    faults: Sequence[Fault] = (),
    seconds: float = float("inf"),
    on_evaluation: Callable[[LiveRun], None] = lambda run: None,
) -> LiveRun:
    """Run a run's iterations.

    Args:
        config: the run's configuration.
        history: folder for its history; needed for faults.
        faults: faults to inject.
        seconds: budget; no iteration begins if less is left than the last one and an evaluation took.
        on_evaluation: called with the run so far after each evaluation.
    """
    run, began = LiveRun(), time.monotonic()
    with ExitStack() as opened:
        opened.enter_context(_memory_watched(run, device_of(config.model)))
        cluster = LocalCluster(config)
        opened.callback(cluster.shutdown)
        runtime = opened.enter_context(Runtime(config, cluster, history))
        run.started_s = time.monotonic() - began
        runtime.collect()
        injector = opened.enter_context(FaultInjector(history, faults)) if faults and history else None
        _Loop(runtime, run, began + seconds, on_evaluation).iterate()
        run.intervals = runtime.collect().intervals
        run.blobs = runtime.blobs()
        run.lost = len(runtime.lost_workers)
        run.faults = len(injector.done) if injector else 0
    return run


@contextmanager
def _memory_watched(run: LiveRun, device: torch.device) -> Iterator[None]:
    """Sample memory ten times a second: processes come and go, and each knows only its own."""

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            if device.type == "cuda":
                free, total = torch.cuda.mem_get_info(device)
            else:
                free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
            run.peak_gib = max(run.peak_gib, (total - free) / 2**30)

    ended = threading.Event()
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


class _Loop:
    """The iterations, and the evaluations due."""

    def __init__(
        self, runtime: Runtime, run: LiveRun, ends_at: float, on_evaluation: Callable[[LiveRun], None]
    ) -> None:
        self._runtime, self._run = runtime, run
        self._ends_at, self._on_evaluation = ends_at, on_evaluation
        self._held_out: dict[int, Mapping[int, float]] = {}
        self._evaluation_s = 0.0
        self._began = time.monotonic()

    def iterate(self) -> None:
        config, plan, last = self._runtime.config, None, 0
        if config.evaluation.every:
            self._evaluate(0)
        self._began = time.monotonic()
        with ThreadPoolExecutor(1) as beside:
            for iteration in range(1, config.iterations + 1):
                due = config.evaluation.every and last != iteration - 1
                left_s = self._ends_at - time.monotonic() - (self._evaluation_s if due else 0.0)
                if iteration > 1 and left_s < 1.2 * self._run.iteration_s[-1]:
                    break
                since = time.monotonic()
                plan = self._iteration(iteration, plan, beside, iteration == config.iterations)
                self._run.iteration_s.append(time.monotonic() - since)
                if config.evaluation.every and config.evaluates_after(iteration):
                    self._evaluate(iteration)
                    last = iteration
        if config.evaluation.every and last != len(self._run.iteration_s):
            self._evaluate(len(self._run.iteration_s))

    def _iteration(
        self, iteration: int, plan: SeedPlan | None, beside: ThreadPoolExecutor, last: bool
    ) -> SeedPlan | None:
        runtime = self._runtime
        if plan is None:
            plan = runtime.explore(iteration)
        elif plan.refused:
            plan = runtime.explore_anew(plan)
        ahead = None if last else runtime.ahead(iteration + 1)
        rolled = runtime.rollout(plan, ahead)
        exploring: Future[SeedPlan] | None = None
        if ahead is not None:
            exploring = beside.submit(runtime.explore, iteration + 1, ahead)
        scores = runtime.reward(rolled)
        trained = runtime.train(rolled, scores)
        next_plan = None if exploring is None else exploring.result()
        evidence = TrainingEvidence(trained.report.off_policy, lambda: self._held_out)
        return runtime.review(rolled, scores, next_plan, evidence).next_plan

    def _evaluate(self, iteration: int) -> None:
        began = time.monotonic()
        evaluation = self._runtime.evaluate(self._runtime.compared_prompts)
        self._evaluation_s = time.monotonic() - began
        self._held_out[iteration] = mean_by_prompt(evaluation)
        at_s = 0.0 if iteration == 0 else time.monotonic() - self._began
        self._run.evaluations.append((iteration, at_s, evaluation))
        self._on_evaluation(self._run)
