"""Standbys take the place of workers that are lost, hung or under notice; processes are played."""

from __future__ import annotations

import json
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_runtime.cluster.slots import refuse_standbys_with_gpus
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker.history import HistoryLog, new_life
from gpu_runtime.worker.protocol import HostUsage
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import ConfigurationError, RuntimeFailure, WorkerLostError
from tests.fake_cluster import FakeCluster, FakeWorker
from tests.scripted import NOTICE
from tests.tiny_run import hurried, tiny_config

WEIGHTS = Weights(WeightsVersion(1), "digest of v1", {})
TRAINER, ONE, TWO, STANDBY = "reserved-0", "spot-0", "spot-1", "standby-0"


class Stage:
    """A fleet in the midst of a phase: a trainer, two spot workers and a standby."""

    def __init__(
        self, slow: bool = False, folder: Path | None = None, apart: bool = False, **settings: Any
    ) -> None:
        self.cluster = FakeCluster()
        self.cluster.tells_markets_apart = apart
        if slow:
            self.cluster.slow.add(STANDBY)
        self.folder = None if folder is None else new_life(folder)
        runtime = {"notices": "gcp", "spot_workers": 2, "standby_workers": 1} | settings
        config = hurried(tiny_config(runtime=runtime), start_timeout_s=settings.get("start_timeout_s", 60.0))
        self.fleet = Fleet(self.cluster, config, HistoryLog(self.folder, "driver"))
        self.fleet.await_ready()
        self.prepare()
        self.prepare()  # what came late is taken in
        self.started = self.fleet.collector.close()

    def prepare(self) -> None:
        self.fleet.prepare(WEIGHTS)
        self.await_starts()

    def await_starts(self) -> None:
        wait(self.fleet.standbys._starting)

    @property
    def standby(self) -> FakeWorker:
        return self.cluster.workers[STANDBY]

    def lose(self, name: str) -> None:
        (device,) = [device for device in self.fleet.workers(WeightsVersion(1)) if device.name == name]
        device.actor.kill()
        self.fleet.on_worker_lost(device, WorkerLostError(f"{name} is gone"))

    def holders(self) -> list[str]:
        return [device.name for device in self.fleet.workers(WeightsVersion(1))]

    def events(self) -> list[tuple[str, str]]:
        return [(event.worker, event.kind) for event in self.fleet.collector.close().device_events]

    def standbys(self) -> list[str]:
        return [name for name in self.cluster.workers if name.startswith("standby-")]


def settle(stage: Stage) -> None:
    """Welcome until nothing is under way any more."""
    for _ in range(4):
        stage.fleet.add_ready_workers()
        stage.await_starts()


def test_a_lost_worker_s_place_is_taken_by_the_standby_and_another_one_is_started():
    stage = Stage()
    stage.lose(ONE)
    stage.fleet.add_ready_workers()
    assert STANDBY in stage.standbys() and len(stage.standbys()) == 1, "it starts when the place is taken"
    settle(stage)
    assert stage.holders() == [TRAINER, TWO, "spot-0.1"]
    assert stage.standby.name == "spot-0.1" and stage.standby.watches
    assert "spot-0.1" not in stage.cluster.workers, "no process was started for the place"
    assert stage.standbys() == [STANDBY, "standby-1"]
    lost, joined = stage.fleet.collector.close().device_events
    assert (lost.worker, lost.kind, joined.worker, joined.kind) == (ONE, "lost", "spot-0.1", "joined")
    assert joined.detail.startswith("standby-0 took over in 0.")
    stage.lose(TWO)
    settle(stage)
    assert stage.holders() == [TRAINER, "spot-0.1", "spot-1.1"]


def test_a_standby_is_no_device_until_it_takes_a_place_and_is_paid_for_from_then_on():
    stage = Stage()
    stage.fleet.enter(TRAINER, "train")
    done = stage.fleet.collector.close()
    assert {part.worker for part in done.intervals} == {TRAINER, ONE, TWO}
    assert {paid.worker for paid in done.paid_time} == {TRAINER, ONE, TWO}
    assert stage.holders() == [TRAINER, ONE, TWO]
    stage.lose(ONE)
    settle(stage)
    done = stage.fleet.collector.close()
    intervals = [part for part in done.intervals if part.worker == "spot-0.1"]
    (paid,) = [paid for paid in done.paid_time if paid.worker == "spot-0.1"]
    booked_s = sum(part.ended_at - part.started_at for part in intervals)
    assert intervals[0].state == "load" and booked_s == pytest.approx(paid.paid_s, abs=1e-3)
    assert paid.paid_s < 30, "not since its process began, which was a minute before"


def test_a_worker_under_notice_is_replaced_by_the_standby():
    stage = Stage()
    stage.cluster.workers[ONE].notice = NOTICE
    stage.fleet.drafters(WeightsVersion(1))
    settle(stage)
    assert stage.holders() == [TRAINER, ONE, TWO, "spot-0.1"]
    assert stage.events() == [(ONE, "notice"), ("spot-0.1", "joined")]


def test_more_losses_than_standbys_are_replaced_by_processes_and_a_standby_may_be_under_notice_itself():
    stage = Stage()
    stage.lose(ONE)
    stage.lose(TWO)
    settle(stage)
    assert stage.holders() == [TRAINER, "spot-0.1", "spot-1.1"]
    assert "spot-1.1" in stage.cluster.workers and "spot-0.1" not in stage.cluster.workers
    stage.standby.notice = NOTICE
    assert [device.name for device in stage.fleet.drafters(WeightsVersion(1))] == ["spot-1.1"]
    settle(stage)
    assert stage.holders() == [TRAINER, "spot-0.1", "spot-1.1", "spot-0.2"]


def test_a_standby_that_still_loads_takes_the_place_when_it_has():
    stage = Stage(slow=True)
    stage.lose(ONE)
    (call,) = stage.fleet.add_ready_workers()
    assert stage.holders() == [TRAINER, TWO] and stage.fleet.add_ready_workers() == [call]
    assert stage.standbys() == [STANDBY], "its successor does not load beside it"
    stage.standby.silent.clear()
    call.set_result(stage.standby._take_place("spot-0.1", True, None))
    settle(stage)
    assert stage.holders() == [TRAINER, TWO, "spot-0.1"] and stage.standbys() == [STANDBY, "standby-1"]


@pytest.mark.parametrize("slow", [True, False])
def test_where_the_standby_dies_as_it_takes_the_place_a_process_is_started_at_once(slow: bool):
    stage = Stage(slow=slow)
    stage.standby.silent.add("take_slot")
    stage.lose(ONE)
    stage.fleet.add_ready_workers()
    stage.standby.kill()
    settle(stage)
    assert stage.holders() == [TRAINER, TWO, "spot-0.2"] and "spot-0.2" in stage.cluster.workers
    assert stage.events() == [(ONE, "lost"), ("spot-0.2", "joined")], "it says nothing of the place"
    assert stage.fleet.failed_starts == [] and stage.fleet.lost == [ONE]
    (death,) = stage.fleet.standbys.lost
    assert death.startswith("standby-0 died: ")
    assert len(stage.standbys()) == (1 if slow else 2), "what cannot load is not started again at once"
    stage.prepare()
    assert stage.standbys() == [STANDBY, "standby-1"]


@pytest.mark.parametrize("heard_before", [True, False])
def test_a_standby_that_dies_while_it_waits_is_replaced(heard_before: bool):
    stage = Stage()
    stage.standby.kill()
    if heard_before:
        stage.prepare()  # asks it
        stage.prepare()  # hears that it is gone
        assert stage.standbys() == [STANDBY, "standby-1"]
    stage.lose(ONE)
    settle(stage)
    assert len(stage.fleet.standbys.lost) == 1
    if heard_before:
        assert stage.cluster.workers["standby-1"].name == "spot-0.1"
    else:
        assert stage.holders() == [TRAINER, TWO, "spot-0.2"], "a process is started at once"
        assert stage.standbys() == [STANDBY, "standby-1"]
    stage.fleet.close()
    assert all(worker.dead for worker in stage.cluster.workers.values())


def test_what_cannot_load_is_tried_ever_less_often_and_ends_no_run():
    stage = Stage(standby_workers=0)
    stage.cluster.stillborn |= {f"standby-{number}" for number in range(50)}
    stage.fleet.standbys._config = tiny_config(runtime={"standby_workers": 1})
    for _ in range(40):
        stage.prepare()
        settle(stage)
    assert 6 <= len(stage.standbys()) <= 9, "1, 1, 2, 4, 8, 16 phases apart"
    assert stage.holders() == [TRAINER, ONE, TWO]


def test_a_standby_that_cannot_be_started_ends_no_run(monkeypatch: pytest.MonkeyPatch):
    start = FakeCluster.start

    def refuse(cluster: FakeCluster, name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("standby-"):
            raise RuntimeFailure("no memory")
        return start(cluster, name, *args, **options)

    monkeypatch.setattr(FakeCluster, "start", refuse)
    stage = Stage()
    stage.lose(ONE)
    settle(stage)
    assert stage.holders() == [TRAINER, TWO, "spot-0.1"] and stage.standbys() == []
    stage.prepare()  # tries again
    stage.prepare()
    assert stage.fleet.standbys.lost == [f"standby-{n} died: no memory" for n in (0, 1)]


def test_a_standby_that_hangs_with_a_place_is_ended_and_a_process_started():
    stage = Stage(start_timeout_s=1.0)
    stage.standby.silent.add("take_slot")
    stage.lose(ONE)
    stage.fleet.add_ready_workers()
    ((device, _),) = stage.fleet._provisioner._coming
    device.asked_at_s -= 2.0
    settle(stage)
    assert stage.standby.dead and stage.holders() == [TRAINER, TWO, "spot-0.2"]


def test_none_is_started_unless_it_is_asked_for():
    stage = Stage(standby_workers=0)
    stage.lose(ONE)
    settle(stage)
    assert stage.standbys() == [] and "spot-0.1" in stage.cluster.workers
    assert stage.fleet.collector.close().standby_time == []


def test_where_instances_say_their_market_standbys_are_for_reserved_places():
    stage = Stage(apart=True, reserved_workers=2)
    assert stage.cluster.markets[STANDBY] == "reserved"
    stage.lose(ONE)
    stage.lose("reserved-1")
    settle(stage)
    assert stage.standby.name == "reserved-1.1" and "spot-0.1" in stage.cluster.workers


def test_what_a_standby_takes_of_its_host_is_told_part_by_part():
    stage = Stage()
    (first,) = stage.started.standby_time
    assert (first.standby, first.cpu_s, first.memory_bytes, first.end) == (STANDBY, 3.0, 1000, "")
    stage.standby.usage = HostUsage(3.5, 1500)
    stage.prepare()
    stage.prepare()
    (second,) = stage.fleet.collector.close().standby_time
    assert (second.cpu_s, second.memory_bytes) == (0.5, 1500)
    stage.lose(ONE)
    settle(stage)
    taken, following = stage.fleet.collector.close().standby_time
    assert (taken.standby, taken.end, taken.cpu_s) == (STANDBY, "taken", 0.0)
    assert (following.standby, following.end) == ("standby-1", "")


def test_the_history_says_who_became_whom(tmp_path: Path):
    stage = Stage(folder=tmp_path)
    stage.lose(ONE)
    settle(stage)
    assert stage.folder is not None
    (path,) = stage.folder.glob("driver.*.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = [
        line for line in lines if line["event"] in ("standby", "standby_ready", "taken", "joined", "lost")
    ]
    assert [(line["event"], line.get("standby"), line.get("worker")) for line in told[3:]] == [
        ("standby", STANDBY, None), ("standby_ready", STANDBY, None), ("lost", None, ONE),
        ("taken", STANDBY, "spot-0.1"), ("joined", None, "spot-0.1"), ("standby", "standby-1", None),
        ("standby_ready", "standby-1", None),
    ]  # fmt: skip


def test_a_standby_makes_the_bits_of_any_worker_and_writes_the_history_of_its_place(tmp_path: Path):
    config = load_config("smoke", ["runtime.history=true"], {})
    place = HistoryLog(new_life(tmp_path), "driver").place
    standby = DeviceWorker(config, False, name=STANDBY, history=place)
    usage = standby.host_usage()
    assert usage.cpu_s > 0 and usage.memory_bytes > 2**20
    ready = standby.take_slot("spot-0.1", False, place)
    assert ready.history is not None and Path(ready.history).name.startswith("spot-0.1.")
    request = SampleRequest(RequestKind.ROLLOUT, config.seed, 1, 0, 0, 0, "a sign")

    def drawn(worker: DeviceWorker) -> GeneratedSample:
        worker.use_training_weights(WeightsVersion(0))
        first = worker.begin_samples(WeightsVersion(0), 7, [request], 2)
        (sample,) = worker.advance_samples(7, config.sampling.rollout_steps - first.states[0].step).samples
        assert isinstance(sample, GeneratedSample)
        return sample

    assert np.array_equal(drawn(standby).latents_SC, drawn(DeviceWorker(config, False)).latents_SC)
    lines = [json.loads(line) for line in Path(ready.history).read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines[:3]] == ["process", "begin", "chunk"]
    assert lines[0]["name"] == "spot-0.1" and lines[1]["lease"] == 7


def test_with_gpus_standbys_are_refused_in_one_line():
    with pytest.raises(ConfigurationError, match=r"runtime.standby_workers = 1, .* set it to 0") as raised:
        refuse_standbys_with_gpus(tiny_config(runtime={"standby_workers": 1}).runtime)
    assert "\n" not in str(raised.value)
    refuse_standbys_with_gpus(tiny_config().runtime)
