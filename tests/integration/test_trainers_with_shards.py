"""Live trainers that share an update's shards give the bits of one alone, whichever of them are lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager

import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.runtime import Runtime
from storage.config.loading import load_config
from tests.live_workers import worker_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = [
    "adaptation.mode=lora", "algorithm.gradient_shards=4", "algorithm.objective=nft",
    "algorithm.updates_per_iteration=2", "algorithm.kl_weight=0.1", "exploration.strategy=plain",
    "runtime.cluster=local", "runtime.reserved_workers=3", "runtime.spot_workers=0",
    "runtime.scorer_workers=1", "runtime.commit_steps=1", "runtime.start_timeout_s=900", "iterations=4",
]  # fmt: skip


@contextmanager
def training_on(trainers: int, *settings: str) -> Iterator[Runtime]:
    config = load_config("smoke", [*SETTINGS, f"runtime.trainer_workers={trainers}", *settings], {})
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        yield runtime


Trained = tuple[TrainingReport, dict[str, bytes]]


def iteration(runtime: Runtime, number: int, victim: str = "") -> Trained:
    """Report and checkpoint of an iteration; a victim is killed before it has given a shard."""
    rolled = runtime.rollout(runtime.explore(number))
    scores = runtime.reward(rolled)
    if not victim:
        return runtime.train(rolled, scores).report, runtime.blobs()
    process, reports = worker_process(victim), []
    os.kill(process.pid, signal.SIGSTOP)  # so that the others wait for it
    training = threading.Thread(target=lambda: reports.append(runtime.train(rolled, scores).report))
    training.start()
    training.join(5)
    waited = training.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    training.join(400)
    assert waited and len(reports) == 1, "the others wait for it, and then go on without it"
    return reports[0], runtime.blobs()


@pytest.fixture(scope="module")
def alone() -> list[Trained]:
    with training_on(1) as runtime:
        return [iteration(runtime, number) for number in (1, 2, 3, 4)]


def test_several_trainers_give_the_bits_of_one(alone: list[Trained]):
    assert alone[0][0].training_steps == 2 and alone[0][0].kl > 0
    with training_on(3) as runtime:
        for number in (1, 2):
            assert iteration(runtime, number) == alone[number - 1]
        trained = {one.worker for one in runtime.collect().intervals if one.state == "train"}
        runtime.restore(alone[0][1], 1)
        assert iteration(runtime, 2) == alone[1], "resumed from the checkpoint of one"
    assert trained == {"reserved-0", "reserved-1", "reserved-2"}


def test_trainers_lost_in_mid_update_change_no_bit_and_their_replacements_train(alone: list[Trained]):
    with training_on(3) as runtime:
        fleet = runtime._fleet
        assert iteration(runtime, 1, victim="reserved-1") == alone[0]
        assert [device.name for device in fleet.trainers.devices] == ["reserved-0", "reserved-2"]
        assert iteration(runtime, 2, victim="reserved-0") == alone[1], "the one that answers for all"
        wait(fleet._provisioner.calls, timeout=300)
        assert iteration(runtime, 3) == alone[2]
        wait(fleet._provisioner.calls, timeout=300)
        fleet._take_in()
        assert iteration(runtime, 4) == alone[3]
        assert {device.name for device in fleet.trainers.devices} == {
            "reserved-2", "reserved-0.1", "reserved-1.1"
        }  # fmt: skip
        assert runtime.lost_workers == ["reserved-1", "reserved-0"]


def test_spot_devices_that_train_change_no_bit_and_one_lost_in_mid_update_ends_no_run(alone: list[Trained]):
    with training_on(3, "runtime.reserved_workers=1", "runtime.spot_workers=2") as runtime:
        fleet = runtime._fleet
        assert iteration(runtime, 1) == alone[0]
        assert [device.name for device in fleet.trainers.devices] == ["reserved-0", "spot-0", "spot-1"]
        assert iteration(runtime, 2, victim="spot-1") == alone[1]
        assert [device.name for device in fleet.trainers.devices] == ["reserved-0", "spot-0"]
        assert iteration(runtime, 3) == alone[2]
        wait(fleet._provisioner.calls, timeout=300)
        fleet._take_in()
        assert iteration(runtime, 4) == alone[3]
        assert [device.name for device in fleet.trainers.devices] == ["reserved-0", "spot-0", "spot-1.1"]
        assert runtime.lost_workers == ["spot-1"]
        booked = runtime.collect()
    trained = {one.worker for one in booked.intervals if one.state == "train" and one.market == "spot"}
    assert trained == {"spot-0", "spot-1", "spot-1.1"}
    for paid in booked.paid_time:
        in_states_s = sum(
            one.ended_at - one.started_at for one in booked.intervals if one.worker == paid.worker
        )
        assert in_states_s == pytest.approx(paid.paid_s, abs=0.01), paid.worker
