"""The placement of a run's processes and whether they fit, for `spotlight doctor`, before any start."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from concurrent.futures import TimeoutError

import torch

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.cluster.slots import worker_counts
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.learning.registry import keeps_reference
from gpu_runtime.models.checks.memory_need import GIB
from gpu_runtime.models.loading import device_of, outline_model
from storage.config.exploration import ExplorationConfig
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import ConfigurationError, SpotlightError, WorkerLostError
from storage.record.records import Market

_ANSWER_S = 120.0
"""Seconds that a host may take to answer: a process starts there and imports torch."""


class HostProbe:
    """A cluster worker that inspects a host as the run's workers would see it."""

    def look(self, config: RunConfig, trains: bool, arrives: bool) -> tuple[str, str]:
        """Return a description of the host, and why a worker would fail there (empty if it would not).

        It looks at the model, an attention kernel, and memory.

        Args:
            arrives: True if a missing model folder is copied here; memory then cannot be checked.
        """
        problem, device = "", "processor"
        if device_of(config.model).type == "cuda":
            found = torch.cuda.get_device_properties(0)
            device = f"{found.name}, {found.total_memory / GIB:.0f} GiB"
        if arrives and not os.path.isdir(config.model.path):
            device += ", gets the base weights from the driver's host"
        else:
            try:
                outline = outline_model(config.model)
                outline.check_machine(
                    config if trains else None, keeps_reference(config.algorithm, config.evaluation)
                )
            except SpotlightError as error:
                problem = str(error)
        return f"{socket.gethostname()} ({device}, torch {torch.__version__})", problem


def describe_placement(config: RunConfig) -> str:
    """Describe a run's devices, which of them train, and their needs.

    Joins the cluster that `runtime.cluster` names by address, and inspects one host of each market.

    Raises:
        ConfigurationError: the run would not start, or its first workers would fail.
        RuntimeFailure: no cluster answers.
    """
    if not config.runtime.ray_address:
        return "; ".join(_on_this_machine(config))
    with open_cluster(config) as cluster:
        return "; ".join(_on_cluster(config, cluster))


def _on_this_machine(config: RunConfig) -> Iterator[str]:
    on_gpus = device_of(config.model).type == "cuda"
    gpus = torch.cuda.device_count() if on_gpus else 0
    scorers = config.runtime.scorer_workers * config.runtime.scorer_gpu
    seen: dict[Market, int] = {"reserved": math.floor(gpus - scorers) if gpus else 1}
    counts = worker_counts(config.runtime, seen, apart=False)
    if gpus:  # processes that stand in for devices share the CPU
        _refuse_too_few(config.runtime.reserved_trainers, seen)
    yield from _workers_in_words(
        config.runtime, config.exploration, counts, f"{gpus} GPUs" if gpus else "the CPU"
    )
    yield from _memory_in_words(config)


def _on_cluster(config: RunConfig, cluster: Cluster) -> Iterator[str]:
    seen, apart = cluster.devices(), cluster.tells_markets_apart
    counts = worker_counts(config.runtime, seen, apart)
    _refuse_too_few(config.runtime.reserved_trainers, seen)
    where = "by their label" if apart else "without the label ray.io/market-type, so all are reserved"
    yield from _workers_in_words(
        config.runtime, config.exploration, counts, f"{sum(seen.values())} devices there now, {where}"
    )
    missing = counts["spot"] - seen["spot"]
    if apart and missing > 0:
        yield f"{missing} of {counts['spot']} spot devices are not there yet; the run waits for them"
    yield from _memory_in_words(config)
    markets: list[Market] = ["reserved", "spot"] if apart and seen["spot"] else ["reserved"]
    for market in markets:
        host, problem = _ask(config, cluster, market)
        if problem:
            raise ConfigurationError(f"a {market} worker would fail on {host}: {problem}")
        yield f"a {market} host was checked and has everything: {host}"


def _ask(config: RunConfig, cluster: Cluster, market: Market) -> tuple[str, str]:
    probe = cluster.start(f"doctor-{market}", HostProbe, gpu=True, market=market)
    trains = market == "reserved" or config.runtime.spot_trainers > 0
    arrives = config.runtime.driver_is_on_cluster and os.path.isdir(config.model.path)
    try:
        return probe.call(HostProbe.look, config, trains, arrives).result(timeout=_ANSWER_S)
    except TimeoutError as error:
        raise ConfigurationError(
            f"no {market} device of the cluster was free within {_ANSWER_S:g} s to check its host; stop "
            "what runs there, or see `ray status`"
        ) from error
    except WorkerLostError as error:
        raise ConfigurationError(f"no worker starts on a {market} host: {error}") from error
    finally:
        probe.kill()


def _refuse_too_few(training: int, seen: dict[Market, int]) -> None:
    if training > 1 and training > seen["reserved"]:
        raise ConfigurationError(
            f"{training} reserved devices would train (runtime.trainer_workers), but there are "
            f"{max(0, seen['reserved'])}; lower it, or add reserved devices"
        )


def _workers_in_words(
    runtime: RuntimeConfig, exploration: ExplorationConfig, counts: dict[Market, int], where: str
) -> Iterator[str]:
    training = runtime.reserved_trainers
    workers = " and ".join(f"{count} {market}" for market, count in counts.items())
    yield f"{workers} workers on {where}"
    yield "reserved-0 trains" if training == 1 else f"reserved-0 to reserved-{training - 1} train together"
    if runtime.spot_trainers:
        yield f"up to {runtime.spot_trainers} spot devices also train while none drafts"
    if training < counts["reserved"] and not strategy_of(exploration).drafts:
        yield (
            f"the other {sum(counts.values()) - training} idle during training: raise "
            "runtime.trainer_workers, or let them explore (exploration.strategy)"
        )
    share = f"{runtime.scorer_gpu:g} of a GPU each" if runtime.scorer_gpu else "on the CPU"
    yield f"{runtime.scorer_workers} scorers, {share}"


def _memory_in_words(config: RunConfig) -> Iterator[str]:
    try:
        reference = keeps_reference(config.algorithm, config.evaluation)
        words = outline_model(config.model).memory_in_words(config, reference)
    except SpotlightError:  # the check of the model gives the reason
        return
    if words:
        yield words
