"""What saving unfinished samples costs in CPU time, on one real Ray worker; for trace_replay.py.

Batches are generated in pairs by the product's own loop: one with a commit after every denoising step, one
without any. CPU seconds are those of this process and all below it (worker, raylets, Ray's servers), so that
what a commit costs on either side is in it. What Ray spends idling is in it too, a little more where a batch
takes longer: the figure is rather too high than too low.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.uneven_workers import UnevenFleet
from gpu_runtime.cluster.ray.ray_cluster import RayCluster
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.sample_phase import SamplePhase
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.run_config import RunConfig
from storage.prompts.of_a_run import load_run_prompts

_WEIGHTS = WeightsVersion(0)
_BATCHES_A_TURN = 4


@dataclass(frozen=True)
class CommitCost:
    """CPU seconds, over all processes.

    Attributes:
        commit_s: of saving a batch's unfinished samples once.
        step_s: of a denoising step of a batch, without commits.
    """

    commit_s: float
    step_s: float


def commit_cost(config: RunConfig, turns: int) -> CommitCost:
    """Measure it with a run's own batches; joins or starts the cluster that the configuration names.

    Args:
        config: the run's configuration.
        turns: pairs of four batches each; the medians are the result.
    """
    prompt = load_run_prompts(config)[0][0]
    size = config.sampling.batch_size * _BATCHES_A_TURN
    requests = [
        SampleRequest(
            RequestKind.ROLLOUT, config.seed, 1, prompt.prompt_id, seed, 0, prompt.text, source=prompt.source
        )
        for seed in range(size)
    ]
    cluster = RayCluster(config)
    try:
        worker = cluster.start("commit-cost", DeviceWorker, config, False, gpu=True)
        worker.call(Worker.use_training_weights, _WEIGHTS).result()
        device = Device(worker, "reserved", _WEIGHTS)
        _cpu_s_of(device, requests, config, 1)  # the first batches of a process are slow
        plain, saved, commits = [], [], 0
        for _ in range(turns):
            plain.append(_cpu_s_of(device, requests, config, config.sampling.rollout_steps)[0])
            cpu_s, commits = _cpu_s_of(device, requests, config, 1)
            saved.append(cpu_s)
    finally:
        cluster.shutdown()
    extra_s = statistics.median(saved) - statistics.median(plain)
    steps = config.sampling.rollout_steps * _BATCHES_A_TURN
    return CommitCost(extra_s / commits, statistics.median(plain) / steps)


def _cpu_s_of(
    device: Device, requests: Sequence[SampleRequest], config: RunConfig, commit_steps: int
) -> tuple[float, int]:
    """CPU seconds of some batches, and how many commits there were."""
    settings = config.runtime.model_copy(update={"commit_steps": commit_steps})
    dispatcher = Dispatcher(config.model_copy(update={"runtime": settings}))
    before = _cpu_s()
    dispatcher.run(UnevenFleet([device]), SamplePhase(requests, config.sampling))
    return _cpu_s() - before, dispatcher.counters.commits


def _cpu_s() -> float:
    """CPU seconds of this process and those below it."""
    total = 0.0
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
