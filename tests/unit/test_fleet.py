"""What the fleet does with notices and with workers that do not answer; its workers are played."""

from __future__ import annotations

import pytest

from gpu_runtime.devices import Weights
from gpu_runtime.fleet import Fleet
from storage.errors import RuntimeFailure
from tests.fake_cluster import FakeCluster
from tests.fake_generators import NOTICE
from tests.tiny_run import tiny_config

FIRST = Weights("v1", "digest of v1", None)
SECOND = Weights("v2", "digest of v2", None)
TRAINER, ONE, TWO = "reserved-0", "spot-0", "spot-1"


class Stage:
    """A fleet of a trainer and two spot workers that all hold the first weights."""

    def __init__(self, notices: str = "gcp", lease_s: float = 300.0) -> None:
        self.cluster = FakeCluster()
        settings = {"notices": notices, "lease_s": lease_s, "spot_workers": 2}
        self.fleet = Fleet(self.cluster, tiny_config(runtime=settings))
        self.fleet.await_ready()
        self.fleet.prepare(FIRST)
        self.fleet.take_device_events()

    def events(self) -> list[tuple[str, str]]:
        return [(event.worker, event.kind) for event in self.fleet.take_device_events()]

    def holders(self, key: str) -> list[str]:
        return [device.name for device in self.fleet.workers(key)]

    def drafters(self, key: str) -> list[str]:
        return [device.name for device in self.fleet.drafters(key, with_trainer=False)]


def test_spot_workers_watch_and_are_asked_reserved_ones_are_not():
    stage = Stage()
    workers = stage.cluster.workers
    assert {name: worker.watches for name, worker in workers.items()} == {
        TRAINER: False,
        ONE: True,
        TWO: True,
    }
    assert "notice" in workers[ONE].called and "notice" not in workers[TRAINER].called


def test_nobody_is_asked_where_nobody_watches():
    stage = Stage("none")
    stage.drafters("v1")
    assert all("notice" not in worker.called for worker in stage.cluster.workers.values())


def test_a_worker_under_notice_drafts_nothing_gets_no_weights_and_is_replaced():
    stage = Stage()
    stage.cluster.workers[ONE].notice = NOTICE
    assert stage.drafters("v1") == [TWO]
    (event,) = stage.fleet.take_device_events()
    assert (event.worker, event.market, event.kind, event.at) == (ONE, "spot", "notice", NOTICE.received_at)
    assert event.detail == "gcp, in 30 s: preempted is TRUE"
    assert "spot-0.1" not in stage.cluster.workers, "its replacement starts with the next phase"
    stage.fleet.prepare(SECOND)
    assert stage.holders("v2") == [TRAINER, TWO]
    stage.fleet.prepare(SECOND)  # what has loaded meanwhile is taken in
    assert stage.holders("v2") == [TRAINER, TWO, "spot-0.1"]
    assert stage.events() == [("spot-0.1", "joined")]
    assert stage.holders("v1") == [ONE]
    stage.fleet.prepare(SECOND)
    assert list(stage.cluster.workers) == [TRAINER, ONE, TWO, "spot-0.1"], "it is replaced once"


def test_a_worker_whose_notice_is_withdrawn_is_a_worker_like_any_other():
    stage = Stage()
    stage.cluster.workers[ONE].notice = NOTICE
    assert stage.drafters("v1") == [TWO]
    stage.cluster.workers[ONE].notice = None
    assert stage.drafters("v1") == [ONE, TWO]
    stage.fleet.prepare(SECOND)
    assert stage.holders("v2") == [TRAINER, ONE, TWO]
    assert stage.events() == [(ONE, "notice"), (ONE, "withdrawn")]
    assert "spot-0.1" not in stage.cluster.workers


def test_a_worker_that_dies_under_notice_is_lost_and_not_replaced_again():
    stage = Stage()
    stage.cluster.workers[ONE].notice = NOTICE
    stage.fleet.prepare(SECOND)
    stage.cluster.workers[ONE].dead = True
    stage.fleet.prepare(SECOND)
    assert stage.fleet.lost == [ONE]
    assert stage.events() == [(ONE, "notice"), (ONE, "lost"), ("spot-0.1", "joined")]
    assert list(stage.cluster.workers) == [TRAINER, ONE, TWO, "spot-0.1"]


@pytest.mark.parametrize("method", ["notice", "load_weights"])
def test_a_worker_that_does_not_answer_is_killed_and_replaced(method: str):
    stage = Stage(lease_s=0.05)
    stage.cluster.workers[ONE].silent.add(method)
    stage.fleet.prepare(SECOND)
    assert stage.cluster.workers[ONE].dead
    assert stage.holders("v2") == [TRAINER, TWO]
    (event,) = stage.fleet.take_device_events()
    assert (event.worker, event.kind) == (ONE, "lost")
    assert "hung and was killed" in event.detail and "runtime.lease_s=0.05 s" in event.detail
    stage.fleet.prepare(SECOND)
    stage.fleet.prepare(SECOND)
    assert "spot-0.1" in stage.holders("v2")


def test_a_trainer_that_hangs_ends_the_run_with_what_to_do():
    stage = Stage(lease_s=0.05)
    stage.cluster.workers[TRAINER].silent.add("load_weights")
    with pytest.raises(RuntimeFailure, match=r"hung and was killed.*spotlight resume"):
        stage.fleet.prepare(SECOND)
