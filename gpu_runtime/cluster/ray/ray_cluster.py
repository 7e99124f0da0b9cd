"""The Ray cluster: started or joined, its actors, and their calls as ordinary futures.

Ray stays inside this folder: calls return `concurrent.futures.Future`, a dead process is a
`WorkerLostError`, and an actor's exceptions arrive unchanged.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, Concatenate, cast

import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gpu_runtime.cluster.address import ray_folder, refuse_silent_address
from gpu_runtime.cluster.fork_client import end_fork_server, requesting_command, start_fork_server
from gpu_runtime.cluster.protocol import Cluster, P, R, RemoteActor, T, WorkerT
from gpu_runtime.cluster.ray import RAY_TOKEN, provide_token
from gpu_runtime.cluster.ray.model_folders import FolderSource, outermost
from gpu_runtime.cluster.ray.packing import Answering, pack_call, unpack
from gpu_runtime.cluster.ray.ray_internals import (
    LOOPBACK,
    drain_instance,
    found_address,
    is_on_loopback_alone,
    kept_signal_handlers,
    on_loopback_alone,
    ray_processes,
    without_api_server,
)
from gpu_runtime.cluster.slots import refuse_shared_gpus, refuse_standbys_with_gpus, worker_counts
from storage.config.run_config import RunConfig
from storage.config.runtime import FIXED_CAPACITY, OF_THE_CLUSTER
from storage.errors import CapacityError, ConfigurationError, RuntimeFailure, WorkerLostError
from storage.home import close_to_others
from storage.record.records import Market

MARKET_LABEL = "ray.io/market-type"
"""Ray's label for the market of an instance: `spot`, or another word if it is reserved."""

_LOCAL_OBJECT_STORE_BYTES = 512 * 1024**2
"""Size of Ray's object store without GPUs, enough for embedded models."""

_MOST_GPUS = 16
"""Largest number of GPUs of one machine."""

_MOST_WORKERS_A_CPU = 8

_SMALLEST_SHARE = 10_000
"""Parts in which Ray counts shares of a GPU: ten-thousandths."""

_PARTS_AT_ONCE = 4
"""Parts of files that are read for hosts at the same time."""


class RayActor(RemoteActor[WorkerT]):
    """A worker as a Ray actor.

    Args:
        alone: True if the cluster has only one instance.
        drains: True if its instance can be drained: it has only spot workers, and the driver is also on the
            cluster.
    """

    def __init__(self, name: str, handle: Any, alone: bool, drains: bool) -> None:
        super().__init__(name)
        self.handle = handle
        self._alone = alone
        # Requested now: after a notice the worker may have no time to answer.
        self._spot_instance = self.instance() if drains else None

    def call(
        self, method: Callable[Concatenate[WorkerT, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """See `RemoteActor`."""
        return self._answer(method.__name__, args, kwargs)

    def kill(self) -> None:
        """See `RemoteActor`."""
        ray.kill(self.handle, no_restart=True)

    def instance(self) -> Future[str]:
        """Return the Ray node that the process is on; empty if the cluster has only one."""
        if self._alone:
            return super().instance()
        return self._answer(Answering.instance.__name__, (), {})

    def drain_instance(self, reason: str, deadline: float | None) -> str:
        """See `RemoteActor`; uses Ray's drain, except for instances that may have reserved workers."""
        instance = self._spot_instance
        if instance is None:
            return ""
        if not instance.done() or instance.exception() is not None:
            return "the worker has not reported its location"
        return drain_instance(instance.result(), reason, deadline)

    def _answer(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future[Any]:
        reference = self.handle.answer.remote(*pack_call(method, args, kwargs))
        return _translated(reference.future(), self.name)


class RayCluster(Cluster):
    """A Ray cluster that this process started or joined."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._local = not config.runtime.ray_address
        self._forks = self._local and sys.platform == "linux"
        """True if its workers can be forked from a local process that has done their imports."""
        self._worker_options: dict[str, Any] = {}
        self._source: Any = None
        self._source_lock = threading.Lock()
        with kept_signal_handlers():
            self._connect()
        close_to_others(RAY_TOKEN)  # Ray creates it by the umask; with it, other users could run code here
        gpus = ray.cluster_resources().get("GPU", 0.0) if config.model.device != "cpu" else 0.0
        self.tells_markets_apart = not self._local and any(
            MARKET_LABEL in node["Labels"] for node in ray.nodes()
        )
        # If spot instances come and go, their current number does not predict later ones.
        counts = worker_counts(config.runtime, self.devices(), self.tells_markets_apart)
        may_grow = self.tells_markets_apart or config.runtime.capacity not in OF_THE_CLUSTER
        self._refuse_far_too_many(counts["reserved"] if may_grow else sum(counts.values()))
        workers = 1 if self.tells_markets_apart else sum(counts.values())
        if config.divides_weights and not self._local and config.runtime.capacity != FIXED_CAPACITY:
            # spot_workers is only the most, and spot devices may bring GPUs: trainers still take whole ones.
            workers = min(workers, counts["reserved"])
        scorers = config.runtime.scorer_workers * config.runtime.scorer_gpu
        self._gpu_share = worker_share(workers, gpus, scorers) if gpus else 0.0
        if self._forks and gpus:  # a fork of a process that has queried a GPU could not use it
            end_fork_server()
        elif self._forks:
            self._worker_options = {"runtime_env": {"py_executable": requesting_command()}}
        try:
            if self._gpu_share:
                refuse_standbys_with_gpus(config.runtime)
            if 0 < self._gpu_share < 1:
                refuse_shared_gpus(config, workers, gpus)
            if scorers and not self._gpu_share:
                raise ConfigurationError(
                    f"runtime.scorer_gpu={config.runtime.scorer_gpu:g} for {config.runtime.scorer_workers} "
                    f"scorers takes {scorers:g} GPUs, but the cluster has {gpus:g} for them and the workers; "
                    "lower it, or set it to 0 to judge on the CPU"
                )
        except ConfigurationError:
            self.shutdown()
            raise

    def _connect(self) -> None:
        if not self._local:
            address = self._config.runtime.ray_address
            refuse_silent_address(address)
            try:
                found = found_address(address)
                with on_loopback_alone() if is_on_loopback_alone(found) else nullcontext():
                    ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise RuntimeFailure(
                    f"no Ray cluster answers at runtime.cluster={address!r}: {error}; "
                    "start one with `ray start --head`, copy its ~/.ray/auth_token to this machine, or set "
                    "runtime.cluster=ray for one of this machine"
                ) from error
            return
        # Workers that stand for devices share the cores of this machine; Ray's count is only a limit.
        settings = self._config.runtime
        devices = settings.least_workers + (_MOST_GPUS if settings.counts_devices else 0)
        processes = devices + settings.standby_workers + settings.scorer_workers
        if self._forks:
            start_fork_server()
        provide_token()
        try:
            with on_loopback_alone(), without_api_server():
                ray.init(
                    address="local",
                    num_cpus=max(os.cpu_count() or 1, processes),
                    # Ray's default: in 512 MiB, weights of gigabytes wait for room and spill to disk.
                    object_store_memory=None if torch.cuda.is_available() else _LOCAL_OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    # Ray would prestart processes that are not forked, and end them again.
                    _system_config={"prestart_worker_first_driver": not self._forks},
                )
        except Exception as error:  # Ray raises the bare class if its processes do not start
            reason = str(error).partition("\n")[0].rstrip(". ")
            advice = "free CPU time and memory, then try again"
            if "timed out" not in reason:
                advice = f"see {ray_folder()}/session_latest/logs, or set runtime.cluster=local"
            raise RuntimeFailure(f"Ray did not start on this machine: {reason}; {advice}") from error

    def _refuse_far_too_many(self, workers: int) -> None:
        """Refuse far more workers than a joined cluster can start; an autoscaler may add some."""
        cpus = ray.cluster_resources().get("CPU", 0.0)
        if self._local or workers <= _MOST_WORKERS_A_CPU * max(1.0, cpus):
            return
        self.shutdown()
        raise ConfigurationError(
            f"the settings ask for {self._config.runtime.devices_in_words}, but the cluster has {cpus:g} "
            "CPUs, and each worker takes one; lower runtime.reserved_workers and runtime.spot_workers, or "
            "set them to auto"
        )

    def start(
        self,
        name: str,
        build: Callable[..., WorkerT],
        *args: Any,
        gpu: bool,
        market: Market = "reserved",
        gpu_share: float = 0.0,
        reads: Sequence[str] = (),
    ) -> RemoteActor[WorkerT]:
        """See `Cluster`."""
        # Ray's record of each call costs a tenth of the call; our record is the timeline.
        options: dict[str, Any] = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,
        } | self._worker_options
        share = self._gpu_share if gpu else gpu_share
        if share:
            options["num_gpus"] = share
        on_spot = self.tells_markets_apart and market == "spot"
        if self.tells_markets_apart:
            options["label_selector"] = {MARKET_LABEL: "spot" if on_spot else "!spot"}
        folders: list[str] = []  # those that are on the driver's host and possibly on no other
        if self._config.runtime.driver_is_on_cluster:  # otherwise the driver cannot send files
            folders = outermost([one for one in reads if os.path.isdir(one)], [self._config.model.path])
        # Ray titles a process by its class: with a class of the worker's name, `ps` distinguishes them.
        source = self._source_of_folders() if folders else None
        named = type(re.sub(r"\W", "_", name), (Answering,), {})
        handle = ray.remote(named).options(**options).remote(build, folders, source, *args)
        return RayActor(name, handle, self._local, on_spot and self._config.runtime.driver_is_on_cluster)

    def _source_of_folders(self) -> Any:
        """Return the actor on the driver's host that sends files; it reserves no CPU."""
        with self._source_lock:  # workers and scorers are started by several threads
            if self._source is None:
                here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
                source = ray.remote(FolderSource).options(
                    num_cpus=0, scheduling_strategy=here, max_concurrency=_PARTS_AT_ONCE
                )
                self._source = source.remote()
        return self._source

    @property
    def host(self) -> str:
        """Address at which workers reach this process."""
        return LOOPBACK if self._local else ray.util.get_node_ip_address()

    def needed_processes(self) -> dict[str, int]:
        """Return Ray's processes that this one cannot outlive, name -> pid; empty for a joined cluster."""
        return ray_processes() if self._local else {}

    def devices(self) -> dict[Market, int]:
        """See `Cluster`; counts whole GPUs, or instances with a CPU if the cluster has no GPU."""
        runtime, on_gpus = self._config.runtime, self._config.model.device != "cpu"
        gpus: dict[Market, float] = {"reserved": 0.0, "spot": 0.0}
        instances: dict[Market, int] = {"reserved": 0, "spot": 0}
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            spot = self.tells_markets_apart and node["Labels"].get(MARKET_LABEL) == "spot"
            market: Market = "spot" if spot else "reserved"
            gpus[market] += node["Resources"].get("GPU", 0.0) if on_gpus else 0.0
            instances[market] += node["Resources"].get("CPU", 0.0) >= 1
        if not any(gpus.values()):
            return instances
        # Scorers are on reserved instances, and workers share no GPU with them while there is another.
        scorers = runtime.scorer_workers * runtime.scorer_gpu
        return {"reserved": math.floor(gpus["reserved"] - scorers), "spot": math.floor(gpus["spot"])}

    def request_spot_devices(self, devices: int) -> None:
        """See `Cluster`; requests a bundle for each device, on instances labelled `spot`."""
        from ray.autoscaler.sdk import request_resources  # most runs ask no autoscaler

        bundle = {"CPU": 1.0} | ({"GPU": 1.0} if self._gpu_share else {})
        label = {MARKET_LABEL: "spot"}
        if not self.tells_markets_apart:  # the first instance with a label is yet to come
            self.tells_markets_apart = True
            self._gpu_share = min(1.0, math.ceil(self._gpu_share))
        try:
            request_resources(bundles=[bundle] * devices, bundle_label_selectors=[label] * devices)
        except (RayError, RuntimeError) as error:
            raise CapacityError(f"the Ray cluster's autoscaler cannot be reached: {error}") from error

    def share(self, value: T) -> T:
        """Put a value into Ray's object store; the stand-in is a reference."""
        return cast(T, ray.put(value))

    def describe(self) -> str:
        """Return the resources of the cluster, for messages."""
        total = ray.cluster_resources()
        return f"{total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs"

    def shutdown(self) -> None:
        """Leave the cluster; a local one ends with all its processes."""
        with kept_signal_handlers():
            ray.shutdown()


def worker_share(workers: int, gpus: float, scorers: float = 0.0) -> float:
    """Return the share of a GPU for each worker, beside the scorers.

    Workers get the remaining whole GPUs, with as many workers on each as needed. The scorers' shares stay
    free, on separate GPUs if there are several.

    Args:
        scorers: sum of the scorers' shares.

    Returns:
        The share; 0 if no GPU is left, as the scorers then need all of them.
    """
    left = gpus - scorers
    if left <= 0 or not workers:
        return 0.0
    if left < 1:  # one GPU for all
        return math.floor(left / workers * _SMALLEST_SHARE) / _SMALLEST_SHARE
    return 1 / math.ceil(workers / math.floor(left))


def _translated(future: Future[Any], name: str) -> Future[Any]:
    """Return a future of the unpacked outcome, with Ray's exceptions replaced by ours."""
    result: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        try:
            value = _outcome(done, name)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must get it
            result.set_exception(error)
        else:
            result.set_result(value)

    future.add_done_callback(settle)
    return result


def _outcome(done: Future[Any], name: str) -> Any:
    """Return the result of a call; raise its exception, or the loss of its actor."""
    error = done.exception() if not done.cancelled() else WorkerLostError(f"{name!r}: the call was dropped")
    if error is None:
        return unpack(done.result())
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        # Ray's message has the traceback in the worker.
        error.cause.add_note(f"in worker {name!r}:\n{error}")
        raise error.cause
    if isinstance(error, RayError):
        # A process, a machine or a result is gone: another worker can do the work. The last line of Ray's
        # message has the reason if a constructor failed, else the first.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        in_constructor = isinstance(error, RayActorError) and getattr(error, "actor_init_failed", False)
        raise WorkerLostError(f"worker {name!r} is gone: {lines[-1 if in_constructor else 0]}") from error
    raise error
