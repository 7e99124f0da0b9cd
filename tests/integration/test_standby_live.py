"""A worker of a live run is killed, and a standby takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_runtime.chaos.run_processes import RunProcesses
from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import plain_plan
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.worker.history import HistoryTail, read_history
from storage.config.loading import load_config
from tests.live_workers import kill_at_first_chunk, same_bits
from tests.running_up import wait_until

SETTINGS = [
    "sampling.batch_size=4", "sampling.rollout_steps=20", "runtime.spot_workers=1",
    "runtime.scorer_workers=1", "runtime.commit_steps=1",
    "runtime.history=true", "runtime.standby_workers=1", "runtime.cluster=local",
]  # fmt: skip
PLAN = plain_plan([0, 1, 2, 3], 8, 1)


def test_a_killed_worker_s_place_is_taken_by_the_standby_and_no_bit_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = load_config("smoke", SETTINGS, {})
    tail, cast = HistoryTail(tmp_path), RunProcesses()
    with open_cluster(config) as cluster, Runtime(config, cluster, tmp_path) as runtime:
        runtime.enter("rollout", 1)
        undisturbed = runtime.rollout(PLAN)
        wait_until(
            "a standby is ready",
            lambda: any(line.event == "standby_ready" for line in read_history(tmp_path)),
        )
        kill_at_first_chunk(monkeypatch, "spot-0")
        rolled = runtime.rollout(PLAN)
        done = runtime.collect()
        events = [(event.worker, event.kind) for event in done.device_events]
        states = {part.worker for part in done.intervals}
        paid = {part.worker for part in done.paid_time}
        standby, *_ = done.standby_time
        cast.read(tail.new())
        (successor,) = cast.spots()
    assert runtime.lost_workers == ["spot-0"] and runtime.lost_standbys == []
    assert events[-2:] == [("spot-0", "lost"), ("spot-0.1", "joined")]
    assert "spot-0.1" in {delivered.worker for delivered in rolled.delivered}
    assert states == paid == {"reserved-0", "spot-0", "spot-0.1"}, "a standby is no device"
    assert (standby.standby, standby.end) == ("standby-0", "taken")
    assert standby.cpu_s > 0 and standby.memory_bytes > 2**20
    assert same_bits(rolled, undisturbed)
    lines = read_history(tmp_path)
    pids = {line.facts["name"]: line.facts["pid"] for line in lines if line.event == "process"}
    assert successor.name == "spot-0.1" and successor.pid == pids["standby-0"] == pids["spot-0.1"]
    assert check_history(lines).broken() == []
