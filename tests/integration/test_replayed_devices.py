"""A run's devices on real local instances that come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.cluster.ray.local_instances import LocalInstances
from gpu_runtime.cluster.ray.trace_replay import TraceReplay
from gpu_runtime.exploration.plan import plain_plan
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import TraceEvent
from storage.config.loading import load_config
from tests.live_workers import at_first_chunk, same_bits, worker_process
from tests.local_ray_instances import local_ray_instances
from tests.spot_traces import trace_of

SETTINGS = [
    "sampling.batch_size=4", "runtime.spot_workers=2", "runtime.scorer_workers=1", "runtime.commit_steps=1",
    "runtime.notices=kubernetes",
]  # fmt: skip
LIMIT_S = 600.0
"""A guard against hanging: two instances and several workers are started, on a machine that may be busy."""

PLAN = plain_plan([0, 1, 2, 3], 8, 1)


@pytest.fixture(scope="module")
def instances() -> Iterator[LocalInstances]:
    with local_ray_instances(reserved_cpus=2) as instances:
        yield instances


@pytest.fixture(scope="module")
def runtime(instances: LocalInstances) -> Iterator[Runtime]:
    config = load_config("smoke", [*SETTINGS, f"runtime.cluster={instances.address}"], {})
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        yield runtime


def workers_of(rolled: Rollout) -> set[str]:
    return {delivered.worker for delivered in rolled.delivered}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_devices_follow_the_instances_and_no_bit_changes(
    instances: LocalInstances, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
):
    """One course of events, because every start of an instance takes seconds."""
    # Without a spot instance none is waited for: the trainer works alone.
    alone = runtime.rollout(PLAN)
    assert workers_of(alone) == {"reserved-0"}

    # One comes while samples are generated. The trainer stands still: only the newcomer can go on.
    trainer = worker_process("reserved-0")
    trainer.suspend()
    with ThreadPoolExecutor(1) as beside, monkeypatch.context() as patched:
        at_first_chunk(patched, "spot", trainer.resume)
        rolling = beside.submit(runtime.rollout, PLAN)
        instances.add("one")
        joined = rolling.result(timeout=LIMIT_S)
    assert len(workers_of(joined)) == 2, "it joined in the midst of the phase"
    assert same_bits(alone, joined)
    (first,) = workers_of(joined) - {"reserved-0"}
    groups = {name: os.getpgid(worker_process(name).pid) for name in (first, "reserved-0")}
    assert len(set(groups.values())) == 2, "it is not placed on the trainer's instance"
    assert groups[first] == instances._process_group("one")

    # It is lost without a word.
    with monkeypatch.context() as patched:
        at_first_chunk(patched, "spot", lambda: instances.remove("one"))
        disturbed = runtime.rollout(PLAN)
    assert first in runtime.lost_workers and not instances.names
    assert same_bits(alone, disturbed)
    # A start that was queued at the instance may end with it.
    assert runtime.lost_workers.count(first) == 1
    assert runtime.counters.returned > 0

    # A trace brings another one; a notice stops it, and nothing is done again.
    replay = TraceReplay(Replay(trace_of([TraceEvent(0.0, "add", "two")])), instances)
    replay.start()
    deadline = time.monotonic() + LIMIT_S
    second: set[str] = set()
    while not second:
        assert time.monotonic() < deadline
        rolled = runtime.rollout(PLAN)
        assert same_bits(alone, rolled)
        second = workers_of(rolled) - {"reserved-0"}
    replay.stop()
    assert (replay.count("add"), instances.names) == (1, ["two"])
    redone = runtime.counters.redone_steps
    instances.warn("two")
    while runtime._fleet.drafters(WeightsVersion(0)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert workers_of(runtime.rollout(PLAN)) == {"reserved-0"}
    instances.remove("two")
    assert same_bits(alone, runtime.rollout(PLAN))
    assert runtime.counters.redone_steps == redone
    (name,) = second
    known = {"reserved-0", first, name}
    events = runtime.collect().device_events
    kinds = [(event.worker, event.kind) for event in events if event.worker in known]
    assert kinds[:4] == [("reserved-0", "joined"), (first, "joined"), (first, "lost"), (name, "joined")]
    assert (name, "notice") in kinds
