"""What the fleet does with notices and with workers that do not answer; its workers are played."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.dispatch.devices import Device, Weights
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.scheduling.requests import UnderWay, WeightsVersion, WorkLeft
from gpu_runtime.worker.protocol import Worker, WorkerReady
from storage import clock
from storage.errors import DeviceFaultError, RuntimeFailure, WorkerLostError
from tests.fake_cluster import FakeCluster, FakeWorker
from tests.scripted import NOTICE
from tests.tiny_run import hurried, tiny_config

FIRST = Weights(WeightsVersion(1), "digest of v1", {})
SECOND = Weights(WeightsVersion(2), "digest of v2", {})
TRAINER, ONE, TWO = "reserved-0", "spot-0", "spot-1"


class Stage:
    """A fleet of a trainer and two spot workers that all hold the first weights."""

    def __init__(
        self, notices: str = "gcp", lease_s: float = 300.0, trainers: int = 1, leave: bool = False
    ) -> None:
        self.cluster = FakeCluster()
        settings: dict[str, Any] = {"notices": notices, "spot_workers": 2, "trainers_leave": leave}
        settings |= {"trainer_workers": trainers, "reserved_workers": trainers}
        config = hurried(tiny_config(runtime=settings), lease_s=lease_s)
        self.fleet = Fleet(self.cluster, config)
        self.fleet.await_ready()
        self.fleet.prepare(FIRST)
        self.fleet.collector.close()

    def events(self) -> list[tuple[str, str]]:
        return [(event.worker, event.kind) for event in self.fleet.collector.close().device_events]

    def holders(self, version: WeightsVersion) -> list[str]:
        return [device.name for device in self.fleet.workers(version)]

    def drafters(self, version: WeightsVersion) -> list[str]:
        return [device.name for device in self.fleet.drafters(version)]


def test_spot_workers_watch_and_are_asked_reserved_ones_are_not():
    workers = Stage().cluster.workers
    watching = {name: worker.watches for name, worker in workers.items()}
    assert watching == {TRAINER: False, ONE: True, TWO: True}
    assert "notice" in workers[ONE].called and "notice" not in workers[TRAINER].called
    unwatched = Stage("none")
    unwatched.drafters(WeightsVersion(1))
    assert all("notice" not in worker.called for worker in unwatched.cluster.workers.values())


def test_a_worker_under_notice_drafts_nothing_gets_no_weights_and_is_replaced():
    stage = Stage()
    stage.cluster.workers[ONE].notice = NOTICE
    stage.cluster.workers[ONE].drain_refused = "the head is busy"
    assert stage.drafters(WeightsVersion(1)) == [TWO]
    done = stage.fleet.collector.close()
    (event,) = done.device_events
    assert (event.worker, event.market, event.kind) == (ONE, "spot", "notice")
    assert event.detail == "gcp, in 30 s: preempted is TRUE"
    assert stage.cluster.workers[ONE].drained == [event.detail]
    assert done.notes == [f"the instance of {ONE} is not drained: the head is busy"]
    assert stage.fleet.collector.close().notes == []
    assert "spot-0.1" not in stage.cluster.workers, "its replacement starts with the next phase"
    stage.fleet.prepare(SECOND)
    assert stage.holders(WeightsVersion(2)) == [TRAINER, TWO]
    stage.fleet.prepare(SECOND)  # what has loaded meanwhile is taken in
    assert stage.holders(WeightsVersion(2)) == [TRAINER, TWO, "spot-0.1"]
    assert stage.events() == [("spot-0.1", "joined")]
    assert stage.holders(WeightsVersion(1)) == [ONE]
    stage.fleet.prepare(SECOND)
    assert list(stage.cluster.workers) == [TRAINER, ONE, TWO, "spot-0.1"], "it is replaced once"


def test_a_worker_whose_notice_is_withdrawn_is_a_worker_like_any_other():
    stage = Stage()
    stage.cluster.workers[ONE].notice = NOTICE
    assert stage.drafters(WeightsVersion(1)) == [TWO]
    stage.cluster.workers[ONE].notice = None
    assert stage.drafters(WeightsVersion(1)) == [ONE, TWO]
    stage.fleet.prepare(SECOND)
    assert stage.holders(WeightsVersion(2)) == [TRAINER, ONE, TWO]
    assert stage.events() == [(ONE, "notice"), (ONE, "withdrawn")]
    assert len(stage.cluster.workers[ONE].drained) == 1
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
    assert stage.holders(WeightsVersion(2)) == [TRAINER, TWO]
    (event,) = stage.fleet.collector.close().device_events
    assert (event.worker, event.kind) == (ONE, "lost")
    assert "hung and was killed" in event.detail and "runtime.lease_s=0.05 s" in event.detail
    stage.fleet.prepare(SECOND)
    stage.fleet.prepare(SECOND)
    assert "spot-0.1" in stage.holders(WeightsVersion(2))


class Times:
    """The machine's clocks, played: time passes when the test says so, and the wall clock can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic_s, self.ahead_s = 1000.0, 1.7e9
        monkeypatch.setattr("time.monotonic", lambda: self.monotonic_s)
        monkeypatch.setattr("time.time", lambda: self.monotonic_s + self.ahead_s)
        monkeypatch.setattr(clock, "_process_clock", clock.Clock())


def test_a_worker_that_dies_while_it_loads_is_on_the_bill_until_then(monkeypatch: pytest.MonkeyPatch):
    times = Times(monkeypatch)
    stage = Stage("none")
    stage.cluster.slow.add("spot-0.1")
    stage.cluster.workers[ONE].dead = True
    stage.fleet.prepare(SECOND)
    stage.fleet.prepare(SECOND)
    times.monotonic_s += 7
    stage.cluster.workers["spot-0.1"].open_calls["ready"].set_exception(WorkerLostError("no memory"))
    times.monotonic_s += 2
    assert stage.fleet.add_ready_workers() == []
    assert "spot-0.2" not in stage.cluster.workers, "a phase is not spent on starting workers"
    assert stage.fleet.lost == [ONE]
    [failed] = stage.fleet.failed_starts
    assert failed.in_words == "spot-0 did not start: no memory; it will be retried with the next phase"
    done = stage.fleet.collector.close()
    (part,) = [part for part in done.intervals if part.worker == "spot-0.1"]
    (paid,) = [paid for paid in done.paid_time if paid.worker == "spot-0.1"]
    (event,) = [event for event in done.device_events if event.worker == "spot-0.1"]
    assert part.state == "load" and part.ended_at - part.started_at == 7 == paid.paid_s
    assert (event.kind, event.at, event.detail) == ("failed", part.ended_at, "no memory")
    stage.fleet.prepare(SECOND)
    stage.fleet.prepare(SECOND)
    assert stage.holders(WeightsVersion(2)) == [TRAINER, TWO, "spot-0.2"]


def test_what_cannot_start_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch):
    """Each time with a word, and no other place waits for it."""
    stage = Stage("none")
    stage.cluster.stillborn |= {f"spot-0.{number}" for number in range(1, 50)}
    stage.cluster.workers[ONE].dead = True
    for _ in range(40):
        stage.fleet.prepare(SECOND)
    tried = len(stage.fleet.failed_starts)
    assert 6 <= tried <= 8, "1, 1, 2, 4, 8, 16 phases apart"
    assert [start.in_a_row for start in stage.fleet.failed_starts] == list(range(1, tried + 1))
    assert "4 times in a row" in stage.fleet.failed_starts[3].in_words
    assert "it will be retried in 4 phases" in stage.fleet.failed_starts[3].in_words
    assert [kind for worker, kind in stage.events() if worker.startswith("spot-0.")] == ["failed"] * tried
    assert stage.holders(WeightsVersion(2)) == [TRAINER, TWO]


Seconds = dict[tuple[str, str], float]


def course(monkeypatch: pytest.MonkeyPatch, by_s: float) -> tuple[Seconds, Seconds, list[float]]:
    """A run whose wall clock is set in its midst: device-seconds by state and by meter, and the jumps."""
    times = Times(monkeypatch)
    stage = Stage("none")
    times.monotonic_s += 3
    stage.fleet.enter(TRAINER, "train")
    times.monotonic_s += 10
    times.ahead_s += by_s
    times.monotonic_s += 2
    lose(stage, ONE)
    stage.cluster.slow.add("spot-0.1")
    stage.fleet.add_ready_workers()  # its replacement starts after the jump
    times.monotonic_s += 5
    stage.cluster.workers["spot-0.1"].open_calls["ready"].set_result(WorkerReady(4.0))
    times.monotonic_s += 1
    stage.fleet.prepare(FIRST)
    times.monotonic_s += 4
    states: Seconds = {}
    meters: Seconds = {}
    done = stage.fleet.collector.close()
    for part in done.intervals:
        key = (part.worker, part.state)
        states[key] = states.get(key, 0.0) + part.ended_at - part.started_at
    for paid in done.paid_time:
        meters[paid.worker, "paid"] = meters.get((paid.worker, "paid"), 0.0) + paid.paid_s
    return states, meters, [jump.by_s for jump in clock.process_clock().take_jumps()]


@pytest.mark.parametrize("by_s", [3600.0, -3600.0, 86_400.0, -86_400.0])
def test_a_jump_of_the_wall_clock_changes_no_bill(monkeypatch: pytest.MonkeyPatch, by_s: float):
    states, meters, jumps = course(monkeypatch, by_s)
    assert (states, meters, []) == course(monkeypatch, 0.0)
    assert jumps == [by_s]
    # 25 s pass; one dies after 15 s; its replacement's process begins at 16 s.
    assert meters == {(TRAINER, "paid"): 25, (TWO, "paid"): 25, (ONE, "paid"): 15, ("spot-0.1", "paid"): 9}
    assert states[TRAINER, "train"] == 22 and states["spot-0.1", "load"] == 9


def test_every_interval_has_the_price_of_its_device_s_market():
    parts = Stage().fleet.collector.close().intervals
    assert {(part.worker, part.market, part.usd_per_hour) for part in parts} == {
        (TRAINER, "reserved", 10.98), (ONE, "spot", 2.51), (TWO, "spot", 2.51),
    }  # fmt: skip


def test_a_trainer_that_hangs_ends_the_run_with_what_to_do():
    stage = Stage(lease_s=0.05)
    stage.cluster.workers[TRAINER].silent.add("load_weights")
    with pytest.raises(RuntimeFailure, match=r"hung and was killed.*nothing committed is lost"):
        stage.fleet.prepare(SECOND)


def lose(stage: Stage, name: str) -> None:
    (device,) = [device for device in stage.fleet.workers(WeightsVersion(1)) if device.name == name]
    stage.fleet.on_worker_lost(device, WorkerLostError(f"{name} is gone"))


def newcomer(stage: Stage) -> tuple[FakeWorker, Future[Any]]:
    """The replacement of a lost worker, once it has loaded, and the call that gives it the weights."""
    lose(stage, ONE)
    stage.cluster.slow.add("spot-0.1")
    (loaded,) = stage.fleet.add_ready_workers()
    assert stage.fleet.add_ready_workers() == [loaded], "it is started once"
    worker = stage.cluster.workers["spot-0.1"]
    worker.silent.add("load_weights")
    worker.open_calls["ready"].set_result(WorkerReady(1.0))
    (given,) = stage.fleet.add_ready_workers()
    assert stage.fleet.add_ready_workers() == [given], "it is given them once"
    assert stage.holders(WeightsVersion(1)) == [TRAINER, TWO], "it is not waited for"
    return worker, given


def test_a_lost_place_is_filled_in_the_midst_of_a_phase_and_its_worker_gets_the_phase_s_weights():
    stage = Stage()
    newcomer(stage)[1].set_result("digest of v1")
    assert stage.holders(WeightsVersion(1)) == [TRAINER, TWO, "spot-0.1"]
    assert stage.fleet.add_ready_workers() == []
    assert stage.events() == [(ONE, "lost"), ("spot-0.1", "joined")]


def test_a_device_that_fails_is_replaced_and_settings_that_never_fit_end_the_run():
    stage = Stage("none")

    def fail(name: str) -> None:
        (device,) = [one for one in stage.fleet.workers(WeightsVersion(1)) if one.name == name]
        stage.fleet.on_worker_lost(device, DeviceFaultError("OutOfMemoryError: 2 GiB are missing"))
        assert stage.cluster.workers[name].dead, "its process is not of use any more"
        for _ in range(2):
            stage.fleet.prepare(FIRST)

    for name in (ONE, "spot-0.1", "spot-0.2"):
        fail(name)
    (two,) = [one for one in stage.fleet.workers(WeightsVersion(1)) if one.name == TWO]
    stage.fleet.on_notice(two, None)  # it has done a chunk
    for name in ("spot-0.3", "spot-0.4", "spot-0.5"):
        fail(name)
    with pytest.raises(RuntimeFailure, match=r"4 devices failed.*2 GiB are missing; .*sampling.batch_size"):
        fail(TWO)


def test_weights_still_on_their_way_when_the_next_phase_begins_are_not_sent_twice():
    stage = Stage()
    worker, given = newcomer(stage)
    worker.silent.clear()
    given.set_result("digest of v1")
    stage.fleet.prepare(FIRST)
    assert worker.called.count("load_weights") == 1
    stage.fleet.prepare(SECOND)
    assert worker.called.count("load_weights") == 2
    assert stage.holders(WeightsVersion(2)) == [TRAINER, TWO, "spot-0.1"]


def test_other_weights_than_sent_end_the_run_in_the_midst_of_a_phase_too():
    stage = Stage()
    newcomer(stage)[1].set_result("something else")
    with pytest.raises(RuntimeFailure, match="holds weights with checksum something else"):
        stage.fleet.add_ready_workers()


def test_a_newcomer_that_dies_while_it_takes_the_weights_is_lost_and_replaced():
    stage = Stage()
    newcomer(stage)[1].set_exception(WorkerLostError("gone"))
    stage.fleet.add_ready_workers()
    assert "spot-0.2" in stage.cluster.workers
    assert stage.events() == [(ONE, "lost"), ("spot-0.1", "joined"), ("spot-0.1", "lost")]


@pytest.mark.parametrize("comes_and_goes", [True, False])
def test_a_run_begins_without_its_spot_workers_where_their_instances_come_and_go(comes_and_goes: bool):
    cluster = FakeCluster()
    cluster.slow.add(ONE)
    cluster.tells_markets_apart = comes_and_goes
    fleet = Fleet(cluster, hurried(tiny_config(runtime={"spot_workers": 1}), start_timeout_s=0.05))
    if not comes_and_goes:
        with pytest.raises(RuntimeFailure, match=r"worker spot-0 did not start in runtime.start_timeout_s"):
            fleet.await_ready()
        return
    fleet.await_ready()
    fleet.prepare(FIRST)
    assert [device.name for device in fleet.workers(WeightsVersion(1))] == [TRAINER]
    cluster.workers[ONE].open_calls["ready"].set_result(WorkerReady(1.0))
    fleet.add_ready_workers()
    assert [device.name for device in fleet.workers(WeightsVersion(1))] == [TRAINER, ONE]
    assert cluster.markets == {TRAINER: "reserved", ONE: "spot"}


def test_a_trainer_that_hangs_in_its_training_steps_ends_the_run_with_what_to_do():
    stage = Stage()
    stage.fleet.trainers._limit_s = 0.01
    trainer = stage.cluster.workers[TRAINER]
    trainer.silent.add("train")
    with pytest.raises(
        RuntimeFailure, match=r"'train' within 0.01 s.*raise runtime.lease_s.*nothing committed is lost"
    ):
        stage.fleet.trainers.ask(Worker.train, [])
    assert trainer.dead


def test_devices_that_train_together_do_not_draft_and_have_numbers_to_meet_by():
    stage = Stage("none", trainers=2)
    assert stage.drafters(WeightsVersion(1)) == [ONE, TWO]
    assert [device.name for device in stage.fleet.trainers.devices] == [TRAINER, "reserved-1"]
    places = {name: worker.among for name, worker in stage.cluster.workers.items()}
    assert [places[TRAINER].rank, places["reserved-1"].rank] == [0, 1]
    assert places[TRAINER].address == places["reserved-1"].address
    assert places[ONE] is None and places[TWO] is None
    alone = Stage().cluster.workers
    assert alone[TRAINER].among is None, "a single one needs no rendezvous"
    assert {tuple(worker.reads) for worker in alone.values()} == {(tiny_config().model.path,)}


def test_the_loss_of_one_of_several_trainers_ends_them_all():
    stage = Stage("none", trainers=2)
    stage.cluster.workers["reserved-1"].dead = True
    with pytest.raises(RuntimeFailure, match=r"reserved-1.*nothing committed is lost"):
        stage.fleet.prepare(SECOND)
    assert stage.cluster.workers[TRAINER].dead
    assert not stage.cluster.workers[ONE].dead


def test_with_shards_a_lost_trainer_is_replaced_and_the_last_one_ends_the_run():
    cluster = FakeCluster()
    runtime = {"reserved_workers": 2, "trainer_workers": 2, "spot_workers": 0}
    fleet = Fleet(cluster, tiny_config(runtime=runtime, algorithm={"gradient_shards": 2}))
    fleet.await_ready()
    assert all(worker.among is None for worker in cluster.workers.values()), "they need no rendezvous"
    cluster.workers[TRAINER].dead = True
    fleet.prepare(FIRST)
    assert [device.name for device in fleet.trainers.devices] == ["reserved-1"]
    assert fleet.lost == [TRAINER]
    for _ in range(2):  # it is started, and has loaded
        fleet.prepare(FIRST)
    assert [device.name for device in fleet.workers(FIRST.version)] == ["reserved-1", "reserved-0.1"]
    events = [(event.worker, event.kind) for event in fleet.collector.close().device_events]
    assert events == [
        (TRAINER, "joined"), ("reserved-1", "joined"), (TRAINER, "lost"), ("reserved-0.1", "joined")
    ]  # fmt: skip
    cluster.workers["reserved-1"].dead = True
    with pytest.raises(RuntimeFailure, match=r"reserved-1.*nothing committed is lost"):
        fleet.prepare(SECOND)


def test_of_trainers_that_wait_for_each_other_the_one_that_dies_while_it_loads_is_heard_of_at_once():
    cluster = FakeCluster()
    cluster.slow.add(TRAINER)
    cluster.stillborn.add("reserved-1")
    settings = {"reserved_workers": 2, "trainer_workers": 2, "spot_workers": 0, "start_timeout_s": 300.0}
    fleet = Fleet(cluster, tiny_config(runtime=settings))
    with pytest.raises(RuntimeFailure, match="reserved-1 died while starting"):
        fleet.await_ready()


@pytest.mark.parametrize("leave", [False, True])
def test_trainers_leave_a_rollout_where_two_others_need_no_longer_than_training(leave, monkeypatch):
    stage = Stage(leave=leave)
    fleet, training = stage.fleet, SimpleNamespace(left_s=9.0)
    fleet._window.on_rolled_out([2.0])
    steps = stage.fleet._config.sampling.rollout_steps
    left = WorkLeft((steps,) * 5, {ONE: UnderWay(steps, steps)})
    monkeypatch.setattr(Dispatcher, "work_left", lambda dispatcher: left)
    by_name = {device.name: device for device in fleet.workers(FIRST.version)}

    def rolls_out(name: str, other: Any = training) -> bool:
        fleet.regroups(lambda: left, freed=False)  # as the loop does before it asks
        return fleet._rolls_out(FIRST.version, other, by_name[name])

    # Two devices need 6 s for six batches of 2 s, one needs 12 s; a batch and training take 11 s.
    assert rolls_out(TRAINER) != leave
    assert rolls_out(ONE) and rolls_out(TRAINER, None)
    fleet.on_notice(by_name[ONE], NOTICE)
    assert rolls_out(TRAINER)
    assert len(fleet.collector.close().notes) == leave


class SpotTrainers(Stage):
    """A fleet whose two spot devices may train beside a trainer; all of them or fewer."""

    def __init__(self, training: int = 3, kinds: dict[str, str] | None = None) -> None:
        self.cluster = FakeCluster()
        self.cluster.kinds = kinds or {}
        runtime = {"notices": "gcp", "spot_workers": 2, "trainer_workers": training}
        settings = {"algorithm": {"gradient_shards": 3}, "adaptation": {"mode": "lora"}}
        self.fleet = Fleet(self.cluster, tiny_config(runtime=runtime, **settings))
        self.fleet.await_ready()
        self.fleet.prepare(FIRST)

    @property
    def trainers(self) -> list[str]:
        return [device.name for device in self.fleet.trainers.devices]


def test_spot_devices_train_and_leave_at_a_notice_and_when_they_are_to_draft():
    stage = SpotTrainers()
    assert all(worker.trains for worker in stage.cluster.workers.values())
    stage.fleet.register_trainers(FIRST, spot=False)
    assert stage.trainers == [TRAINER] and stage.drafters(FIRST.version) == [ONE, TWO]
    stage.fleet.register_trainers(FIRST, spot=True)
    assert stage.trainers == [TRAINER, ONE, TWO]
    assert "restore" in stage.cluster.workers[ONE].called
    stage.cluster.workers[ONE].notice = NOTICE
    stage.fleet.trainers.wait_for(stage.fleet.trainers.begin_iteration())
    assert stage.trainers == [TRAINER, TWO]
    assert "begin_training" not in stage.cluster.workers[ONE].called
    stage.cluster.workers[ONE].notice = None
    stage.fleet.prepare(FIRST)
    stage.fleet.register_trainers(FIRST, spot=True)
    assert stage.trainers == [TRAINER, TWO, ONE], "its notice was withdrawn"
    stage.fleet.register_trainers(FIRST, spot=False)
    assert stage.trainers == [TRAINER]


def test_a_spot_trainer_that_is_lost_is_replaced_and_ends_no_run():
    stage = SpotTrainers()
    stage.fleet.register_trainers(FIRST, spot=True)
    stage.cluster.workers[ONE].dead = True
    fault = DeviceFaultError("CUDA error")
    by_name = {device.name: device for device in stage.fleet.workers(FIRST.version)}
    stage.fleet.on_worker_lost(by_name[ONE], fault)
    assert stage.trainers == [TRAINER, TWO] and stage.fleet.lost == [ONE]
    for _ in range(2):  # it is started, and has loaded
        stage.fleet.prepare(FIRST)
    stage.fleet.register_trainers(FIRST, spot=True)
    assert stage.trainers == [TRAINER, TWO, "spot-0.1"] and stage.cluster.workers["spot-0.1"].trains


def test_spot_devices_that_training_does_not_fit_go_on_generating():
    """Faults in training have their own count, which starts anew once a device has trained."""
    stage, fault = SpotTrainers(training=2), DeviceFaultError("2 GiB are missing")

    def fail(times: int) -> None:
        for _ in range(times):
            stage.fleet.register_trainers(FIRST, spot=True)
            (device,) = stage.fleet.trainers.spot
            stage.fleet.trainers.on_worker_lost(device, fault)
            (other,) = [one for one in stage.fleet._devices if one.market == "spot"]
            stage.fleet.on_notice(other, None)  # it has done a chunk
            for _ in range(2):
                stage.fleet.prepare(FIRST)

    fail(3)
    for _ in range(2):
        stage.fleet.register_trainers(FIRST, spot=True)
    assert len(stage.trainers) == 2, "one has trained"
    fail(4)
    stage.fleet.register_trainers(FIRST, spot=True)
    assert stage.trainers == [TRAINER] and len(stage.fleet.workers(FIRST.version)) == 3
    (note,) = stage.fleet.collector.close().notes
    assert note.startswith("spot devices stop training because 4 failed; the last, spot-")


def test_a_trainer_that_is_lost_while_free_slots_are_looked_for_gives_no_slot_two_workers(
    monkeypatch: pytest.MonkeyPatch,
):
    stage, lost = SpotTrainers(training=2), list[Thread]()
    stage.fleet.register_trainers(FIRST, spot=True)
    stays = vars(Device)["stays"].fget

    def asked(device: Device) -> bool:
        if device.name == ONE and not lost:  # the training thread loses it at this moment
            lost.append(
                Thread(target=stage.fleet.trainers.on_worker_lost, args=(device, WorkerLostError("gone")))
            )
            lost[0].start()
            lost[0].join(0.5)
        return stays(device)

    monkeypatch.setattr(Device, "stays", property(asked))
    with stage.fleet.beside_training():
        stage.fleet.add_ready_workers()
    lost[0].join()
    assert "spot-1.1" not in stage.cluster.workers, "spot-1 has a worker"
    assert stage.trainers == [TRAINER]


def test_where_one_of_several_workers_cannot_be_started_the_others_are_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    start = FakeCluster.start

    def refuse(cluster: FakeCluster, name: str, *args: Any, **options: Any) -> Any:
        if name == "spot-1.1":
            raise RuntimeFailure("no memory")
        return start(cluster, name, *args, **options)

    stage = Stage("none")
    for name in (ONE, TWO):
        lose(stage, name)
        stage.cluster.workers[name].kill()
    monkeypatch.setattr(FakeCluster, "start", refuse)
    with pytest.raises(RuntimeFailure, match="no memory"):
        stage.fleet.prepare(FIRST)
    stage.fleet.close()
    assert [name for name, worker in stage.cluster.workers.items() if not worker.dead] == []


def test_where_a_run_cannot_begin_the_workers_that_were_started_are_ended(monkeypatch: pytest.MonkeyPatch):
    start, clusters = FakeCluster.start, list[FakeCluster]()

    def refuse(cluster: FakeCluster, name: str, *args: Any, **options: Any) -> Any:
        clusters.append(cluster)
        if name == TWO:
            raise RuntimeFailure("no memory")
        return start(cluster, name, *args, **options)

    monkeypatch.setattr(FakeCluster, "start", refuse)
    with pytest.raises(RuntimeFailure, match="no memory"):
        Stage("none")
    assert all(worker.dead for worker in clusters[0].workers.values()) and len(clusters[0].workers) > 1


def test_a_spot_trainer_may_be_reported_lost_by_each_of_its_calls():
    stage = SpotTrainers()
    stage.fleet.register_trainers(FIRST, spot=True)
    (device,) = [one for one in stage.fleet.workers(FIRST.version) if one.name == ONE]
    stage.cluster.workers[ONE].dead = True
    stage.fleet.trainers.wait_for(stage.fleet.trainers.begin_iteration())
    assert stage.trainers == [TRAINER, TWO]
    stage.fleet.on_worker_lost(device, DeviceFaultError("its chunk fails, too"))
    assert stage.fleet.lost == [ONE]
    assert [worker for worker, kind in stage.events() if kind == "lost"] == [ONE]


def test_no_more_spot_devices_train_than_settings_allow_and_none_of_another_kind():
    stage = SpotTrainers(training=2)
    stage.fleet.register_trainers(FIRST, spot=True)
    assert stage.trainers == [TRAINER, ONE]
    stage = SpotTrainers(kinds={ONE: "NVIDIA L4"})
    stage.fleet.register_trainers(FIRST, spot=True)
    assert stage.trainers == [TRAINER, TWO]
    (note,) = stage.fleet.collector.close().notes
    assert note.startswith("spot-0 computes on NVIDIA L4, the trainers on cpu: it does not train")


def test_a_kind_of_devices_other_than_the_trainers_is_noted_once_although_spot_devices_never_train():
    cluster = FakeCluster()
    cluster.kinds |= {ONE: "NVIDIA L4", TWO: "NVIDIA L4"}
    fleet = Fleet(cluster, hurried(tiny_config(runtime={"spot_workers": 2})))
    fleet.await_ready()
    (note,) = fleet.collector.close().notes
    assert note.startswith("spot-0 computes on NVIDIA L4") and "algorithm.ratio_tolerance" in note


def test_notices_that_joining_workers_could_not_read_are_noted_once_for_each_failure():
    stage = Stage()
    for device in (ONE, "spot-0.1", "spot-0.2"):
        lose(stage, device)
        number = int(device[-1]) + 1 if "." in device else 1
        name, failure = f"spot-0.{number}", "refused" if number == 3 else "no answer within 2 s"
        stage.cluster.slow.add(name)
        stage.fleet.prepare(FIRST)
        ready = WorkerReady(1.0, device="cpu", notices_fail=failure)
        stage.cluster.workers[name].open_calls["ready"].set_result(ready)
        stage.fleet.prepare(FIRST)
    first, second = stage.fleet.collector.close().notes
    assert first.startswith("spot-0.1 could not read preemption notices when it joined")
    assert first.endswith("no answer within 2 s") and second.startswith("spot-0.3 ")


def test_each_look_of_a_phase_and_of_a_wait_calls_what_follows_the_fleet():
    fleet, looks = Stage().fleet, list[str]()
    fleet.on_look = lambda: looks.append("look")
    fleet.look()
    assert len(looks) == 1
    fleet.regroups(lambda: WorkLeft((), {}), False)
    assert len(looks) == 2
