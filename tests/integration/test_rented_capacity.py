"""Live runs on instances that a provider offers: processes of this machine, without Ray."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import plain_plan
from gpu_runtime.exploration.strategies.plain import Plain
from gpu_runtime.fleet import rented_capacity
from gpu_runtime.fleet.capacity.protocol import Offer
from gpu_runtime.fleet.capacity.registry import CAPACITY, CapacityPlugin
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.capacity_decision import CapacityDecision, RentingTerms
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.worker.history import read_history
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from tests.fake_capacity import FakeCapacity
from tests.live_workers import same_bits

SETTINGS = [
    "sampling.batch_size=4", "sampling.rollout_steps=20", "runtime.scorer_workers=1",
    "runtime.commit_steps=1", "runtime.cluster=local", "runtime.history=true", "runtime.spot_workers=2",
]  # fmt: skip
PLAN = plain_plan([0, 1, 2, 3], 8, 1)
LIMIT_S = 240.0


def rented(*more: str) -> RunConfig:
    return load_config("smoke", [*SETTINGS, *more], {})


def await_spot(runtime: Runtime, *workers: str) -> Rollout:
    """Roll out until these workers have joined; the last rollout."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        rolled = runtime.rollout(PLAN)
        if set(workers) <= {device.name for device in runtime._fleet._devices}:
            return rolled
        assert time.monotonic() < deadline


def test_instances_come_are_called_back_and_vanish_and_no_bit_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    provider = FakeCapacity()
    plugin = CapacityPlugin(lambda runtime, cluster, options: provider)
    monkeypatch.setitem(CAPACITY._own, "fake", plugin)
    # What is offered here does not depend on the machine's speed.
    used_beside: list[float] = []

    def all_of_them(forecast: object, terms: RentingTerms, held: int) -> CapacityDecision:
        used_beside.append(terms.used_beside)
        return CapacityDecision(terms.most, "the test wants all")

    monkeypatch.setattr(rented_capacity, "decide_capacity", all_of_them)
    monkeypatch.setattr(Plain, "used_beside_training", lambda self, runtime: 7.0)
    config = rented("runtime.capacity=fake")
    with open_cluster(config) as cluster, Runtime(config, cluster, tmp_path) as runtime:
        assert runtime._scoring._look == runtime._fleet.look, "also while scorers work"
        alone = runtime.rollout(PLAN)
        assert {one.worker for one in alone.delivered} == {"reserved-0"}
        assert provider.asked[0] == 2, "before anything is measured"
        assert used_beside[-1] == 7.0, "as the strategy says"

        provider.offers = [Offer("one", usd_per_hour=1.5)]
        with_one = await_spot(runtime, "spot-0")
        assert same_bits(alone, with_one)

        # Called back in the midst of a rollout: what it has is committed and goes on elsewhere.
        steps_redone = runtime.counters.redone_steps
        capacity, looks = runtime._fleet._rented, count(1)
        assert capacity is not None
        look = capacity.look

        def call_back(at_once: bool = False) -> None:
            if next(looks) == 6:
                provider.offers = [Offer("one", usd_per_hour=1.5, called_back="serving needs it")]
            look(at_once=True)

        monkeypatch.setattr(capacity, "look", call_back)
        assert same_bits(alone, runtime.rollout(PLAN))
        assert same_bits(alone, runtime.rollout(PLAN))
        assert runtime.counters.redone_steps == steps_redone, "a device that is called back loses nothing"
        assert provider.released == ["one"] and runtime.lost_workers == []
        before = runtime.collect()
        events = [(event.worker, event.kind, event.detail) for event in before.device_events]
        assert ("spot-0", "left", "serving needs it") in events
        prices = {part.usd_per_hour for part in before.intervals if part.worker == "spot-0"}
        assert prices == {1.5}, "the price of the offer"

        # An instance that is no longer offered is gone, and its worker with it.
        provider.offers = [Offer("two")]
        await_spot(runtime, "spot-0.1")
        provider.offers = []
        assert same_bits(alone, runtime.rollout(PLAN))
        assert runtime.lost_workers == ["spot-0.1"]
        after = runtime.collect()
        states = {part.worker for part in [*before.intervals, *after.intervals]}
        assert states == {part.worker for part in [*before.paid_time, *after.paid_time]}
    report = check_history(read_history(tmp_path))
    assert report.broken() == []
