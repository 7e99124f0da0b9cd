"""Real Ray instances that come and go: who is placed where, and what a loss is. Its workers do nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Protocol

import psutil
import pytest

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.cluster.ray.local_instances import LocalInstances
from gpu_runtime.cluster.ray.ray_cluster import RayCluster
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure, WorkerLostError
from storage.record.records import Market
from tests.local_ray_instances import local_ray_instances

LIMIT_S = 600.0
"""A guard against hanging on a machine that is busy."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def instances() -> Iterator[LocalInstances]:
    with local_ray_instances(reserved_cpus=1) as instances:
        yield instances


@pytest.fixture(scope="module")
def cluster(instances: LocalInstances) -> Iterator[RayCluster]:
    cluster = RayCluster(RunConfig.model_validate({"runtime": {"cluster": instances.address}}))
    yield cluster
    cluster.shutdown()


class Idling(Protocol):
    def where(self) -> tuple[int, int]: ...

    def hang(self) -> None: ...


def start(cluster: RayCluster, name: str, market: Market) -> RemoteActor[Idling]:
    class Idler:  # in here, so that its process need not import this file
        def where(self) -> tuple[int, int]:
            return os.getpid(), os.getpgid(0)

        def hang(self) -> None:
            import time

            time.sleep(3600)

    return cluster.start(name, Idler, gpu=False, market=market)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_workers_are_placed_by_market_wait_for_an_instance_and_are_lost_with_it(
    instances: LocalInstances, cluster: RayCluster
):
    """One course of events, because every start of an instance takes seconds."""
    assert cluster.tells_markets_apart
    # A spot worker waits, though the reserved instance has room.
    first, second = start(cluster, "spot-0", "spot"), start(cluster, "spot-1", "spot")
    starts = [actor.call(Idling.where) for actor in (first, second)]
    reserved = start(cluster, "reserved-0", "reserved")
    pid, _ = reserved.call(Idling.where).result(timeout=LIMIT_S)
    assert psutil.pid_exists(pid)
    assert not any(call.done() for call in starts)

    # An instance comes: it has room for one of them, in its own process group.
    instances.add("one")
    while not any(call.done() for call in starts):
        time.sleep(0.1)
    (placed,) = [place for place, call in enumerate(starts) if call.done()]
    pid, group = starts[placed].result()
    assert group == instances._process_group("one")

    # It goes, its worker with it, and what that was doing ends as lost.
    worker = psutil.Process(pid)
    hanging = (first, second)[placed].call(Idling.hang)
    instances.remove("one")
    while is_alive(worker):
        time.sleep(0.1)
    with pytest.raises(WorkerLostError, match=f"worker 'spot-{placed}' is gone"):
        hanging.result(timeout=LIMIT_S)
    reserved.call(Idling.where).result(timeout=LIMIT_S)  # it lives
    # The other one may have been queued there, and is lost with it then; a new one waits.
    assert not start(cluster, "spot-2", "spot").call(Idling.where).done()


@pytest.fixture
def emptied(instances: LocalInstances) -> Iterator[LocalInstances]:
    """Without spot instances before and after the test."""
    for name in instances.names:
        instances.remove(name)
    yield instances
    for name in instances.names:
        instances.remove(name)


def test_devices_are_counted_and_a_drained_instance_gets_no_further_worker_though_it_has_room(
    emptied: LocalInstances, cluster: RayCluster
):
    from ray._private.state import state  # not before the cluster's folder has set how Ray authenticates

    instances = emptied
    instances.add("leaving", gpus=2)
    first = start(cluster, "spot-3", "spot")
    leaving = first.instance().result(timeout=LIMIT_S)
    reserved = start(cluster, "reserved-1", "reserved")
    reserved.call(Idling.where).result(timeout=LIMIT_S)
    assert reserved.drain_instance("gcp, in 30 s: preempted", time.time() + 30) == ""
    assert first.drain_instance("gcp, in 30 s: preempted", time.time() + 30) == ""
    assert list(state.get_draining_nodes()) == [leaving], "an instance with reserved workers is left alone"
    assert cluster.devices() == {"reserved": 0, "spot": 2}, "GPUs, where there are any"
    second = start(cluster, "spot-4", "spot")
    first.call(Idling.where).result(timeout=LIMIT_S)  # a worker that is there goes on
    instances.add("coming", gpus=2)
    assert second.instance().result(timeout=LIMIT_S) != leaving
    assert cluster.devices() == {"reserved": 0, "spot": 4}


def test_an_instance_that_is_not_there_cannot_go(instances: LocalInstances):
    with pytest.raises(RuntimeFailure, match="no instance 'nine'; there are: none"):
        instances.remove("nine")
