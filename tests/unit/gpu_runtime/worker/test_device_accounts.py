"""What a device is paid for and what it does are cut at the same moment, however slow the machine is."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet.device_accounts import DeviceAccounts
from gpu_runtime.worker.history import HistoryLog
from gpu_runtime.worker.protocol import WorkerReady
from storage.config.run_config import PriceConfig
from tests.fake_cluster import FakeWorker

PASSES_S = 0.25


@pytest.mark.parametrize(
    ("rented", "paid_s"),
    [
        (None, 5.0),
        (SimpleNamespace(usd_per_hour={"spot-0": 3.0}, names_instances=True), 100.0),
        (SimpleNamespace(usd_per_hour={}, names_instances=False), 5.0),
    ],
)
def test_a_rented_instance_is_paid_for_while_it_boots(rented: Any, paid_s: float):
    accounts = DeviceAccounts(Collector(), PriceConfig(), HistoryLog(None, "driver"), rented)
    asked_at_s = time.monotonic() - 100.0
    device = Device(FakeWorker("spot-0", watches=False), "spot", asked_at_s=asked_at_s)
    assert accounts.on_joined(device, WorkerReady(age_s=5.0)) == pytest.approx(paid_s, abs=1.0)


def test_nothing_is_lost_between_the_readings_of_a_slow_machine(monkeypatch: pytest.MonkeyPatch):
    worker = FakeWorker("spot-0", watches=False)
    readings = itertools.count(time.monotonic(), PASSES_S)
    monkeypatch.setattr(time, "monotonic", lambda: next(readings))
    collector = Collector()
    accounts = DeviceAccounts(collector, PriceConfig(), HistoryLog(None, "driver"), None)
    device = Device(worker, "spot", asked_at_s=time.monotonic())
    accounts.on_joined(device, WorkerReady(age_s=60.0))
    booked_s = paid_s = 0.0
    for state in ("rollout", "idle", "explore"):
        accounts.enter(device.name, state)
        collected = collector.close()
        booked_s += sum(part.ended_at - part.started_at for part in collected.intervals)
        paid_s += sum(part.paid_s for part in collected.paid_time)
        assert booked_s == pytest.approx(paid_s, abs=1e-4)
    assert paid_s > 6 * PASSES_S
