"""A fleet on rented instances: decided, taken in, drained, given back; workers and provider are fakes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from threading import Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime import runtime
from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.fleet import fleet, rented_capacity, scoring_pool, trainers
from gpu_runtime.fleet.capacity.protocol import Offer
from gpu_runtime.fleet.capacity.registry import CAPACITY, CapacityPlugin
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.fleet.rented_capacity import RentedCapacity
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.scheduling.capacity_decision import (
    CapacityDecision,
    IterationForecast,
    RentingTerms,
    TrainingTime,
    decide_capacity,
)
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.protocol import Worker
from storage.errors import RuntimeFailure, WorkerLostError
from tasks.iteration.session import close_runtime
from tests.fake_capacity import FakeCapacity
from tests.fake_cluster import FakeCluster
from tests.scripted import NOTICE
from tests.tiny_run import tiny_config

FIRST = Weights(WeightsVersion(1), "digest of v1", {})
MOST = 3


class Stage:
    """A fleet of a reserved worker, and a fake provider of spot instances."""

    def __init__(self, provider: FakeCapacity, offers: Sequence[Offer] = (), **settings: Any) -> None:
        self.provider = provider
        provider.offers = list(offers)
        self.cluster = FakeCluster()
        strategy = settings.pop("strategy", "plain")
        runtime = {"spot_workers": MOST, "capacity": "fake", **settings}
        price = {"reserved_usd_per_hour": 10.0, "spot_usd_per_hour": 2.0}
        self.fleet = Fleet(
            self.cluster, tiny_config(runtime=runtime, price=price, exploration={"strategy": strategy})
        )
        self.fleet.await_ready()
        rented = self.fleet._rented
        assert rented is not None
        self.rented = rented
        self.busy: set[str] = set()

    def prepare(self) -> list[str]:
        """The workers that hold the weights, once all that have loaded are taken in."""
        for _ in range(2):
            self.fleet.prepare(FIRST)
        return [device.name for device in self.fleet.workers(FIRST.version)]

    def call_back(self, place: int, reason: str = "serving needs it") -> None:
        self.provider.offers[place] = Offer("abc"[place], called_back=reason)

    def measured(self, batch_s: float, rest_s: float) -> None:
        for _ in range(5):
            self.rented.measured.add_batch_time(batch_s)
            self.rented.measured.add_rest(rest_s, None)

    def events(self) -> list[tuple[str, str, str]]:
        return [
            (event.worker, event.kind, event.detail) for event in self.fleet.collector.close().device_events
        ]

    def prices(self) -> dict[str, float | None]:
        return {part.worker: part.usd_per_hour for part in self.fleet.collector.close().intervals}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> FakeCapacity:
    fake = FakeCapacity()
    plugin = CapacityPlugin(lambda runtime, cluster, options: fake)
    monkeypatch.setitem(CAPACITY._own, "fake", plugin)
    return fake


@pytest.fixture
def stage(provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Three devices, which are looked at whenever there is a chance."""
    monkeypatch.setattr(rented_capacity, "_LOOK_EVERY_S", 0.0)
    made = Stage(provider, [Offer("a"), Offer("b"), Offer("c")])
    made.prepare()
    made.fleet.collector.close()
    monkeypatch.setattr(made.fleet._dispatcher, "busy", lambda worker: worker in made.busy)
    return made


def test_workers_follow_the_offers_up_to_the_settings(provider: FakeCapacity):
    stage = Stage(provider)
    assert provider.asked == [MOST] and stage.prepare() == ["reserved-0"]
    provider.offers = [Offer("a", devices=2)]
    assert stage.prepare() == ["reserved-0", "spot-0", "spot-1"]
    provider.offers = [Offer("a", devices=2), Offer("b", devices=2)]
    assert stage.prepare() == ["reserved-0", "spot-0", "spot-1", "spot-2"], "the most that the settings allow"


def test_devices_above_the_wanted_number_are_given_back_with_the_reason(stage: Stage):
    stage.measured(batch_s=10.0, rest_s=5.0)
    stage.fleet.decide_capacity(8, 4, TrainingTime(), 0.0)  # two batches of four
    assert stage.provider.asked[-1] == 1 and stage.provider.released == ["b", "c"]
    done = stage.fleet.collector.close()
    (note,) = done.notes
    assert note.startswith("1 spot device instead of 3")
    events = [(event.worker, event.kind) for event in done.device_events]
    assert events == [("spot-1", "left"), ("spot-2", "left")]
    assert {paid.worker for paid in done.paid_time} == {"reserved-0", "spot-0", "spot-1", "spot-2"}
    assert stage.cluster.workers["spot-2"].dead and not stage.cluster.workers["spot-0"].dead
    assert stage.prepare() == ["reserved-0", "spot-0"] and stage.fleet.lost == []
    stage.fleet.collector.close()
    # The same again: nothing changes, and nothing is said.
    stage.fleet.decide_capacity(8, 4, TrainingTime(), 0.0)
    done = stage.fleet.collector.close()
    assert done.notes == [] and done.device_events == []


def test_a_busy_device_that_leaves_gets_nothing_more_and_ends_once_it_is_free(stage: Stage):
    stage.busy = {"spot-1"}
    for reason in ("serving needs it", ""):  # a call back that is withdrawn stays final
        stage.call_back(1, reason)
        assert stage.prepare() == ["reserved-0", "spot-0", "spot-2"]
        assert not stage.cluster.workers["spot-1"].dead and stage.provider.released == []
    stage.busy.clear()
    stage.prepare()
    assert stage.events() == [("spot-1", "left", "serving needs it")]
    assert stage.cluster.workers["spot-1"].dead and stage.provider.released == ["b"]


def test_a_worker_whose_instance_is_gone_is_lost_and_one_that_dies_gives_its_instance_back(stage: Stage):
    stage.provider.offers = stage.provider.offers[1:]
    assert stage.prepare() == ["reserved-0", "spot-1", "spot-2"]
    assert stage.events() == [("spot-0", "lost", "the instance of 'spot-0' is gone")]
    stage.provider.offers.append(Offer("d"))
    assert stage.prepare() == ["reserved-0", "spot-1", "spot-2", "spot-0.1"]
    stage.cluster.workers["spot-1"].dead = True
    stage.fleet.forget_weights()
    stage.prepare()
    assert stage.fleet.lost == ["spot-0", "spot-1"] and stage.provider.released[-1] == "b"


def test_an_instance_that_comes_for_one_that_was_called_back_is_used_in_the_same_phase(stage: Stage):
    """A phase may last an hour, and the instance is paid for from its offer on."""
    left = stage.fleet._dispatcher.work_left
    stage.call_back(1)
    assert not stage.fleet.regroups(left, False) and stage.provider.released == ["b"]
    stage.provider.offers.append(Offer("d"))
    assert stage.fleet.regroups(left, False)
    stage.fleet.add_ready_workers()
    assert "spot-1.1" in stage.cluster.workers
    assert not stage.fleet.regroups(left, False), "once"


def test_an_instance_above_the_settings_is_used_once_another_one_is_called_back(stage: Stage):
    left = stage.fleet._dispatcher.work_left
    stage.provider.offers.append(Offer("d"))
    assert not stage.fleet.regroups(left, False)
    stage.call_back(1)
    assert stage.fleet.regroups(left, False)
    stage.fleet.add_ready_workers()
    assert "spot-1.1" in stage.cluster.workers and stage.provider.released == ["b"]


def test_a_standby_that_dies_in_a_slot_leaves_its_instance_to_the_next_process(provider: FakeCapacity):
    stage = Stage(provider, standby_workers=1)
    stage.prepare()
    wait(stage.fleet.standbys._starting)
    standby = stage.cluster.workers["standby-0"]
    standby.silent.add("take_slot")
    provider.offers = [Offer("a")]
    stage.prepare()
    standby.open_calls["take_slot"].set_exception(WorkerLostError("no memory"))
    assert stage.prepare() == ["reserved-0", "spot-0.1"] and provider.released == []


def test_a_kept_instance_on_which_no_worker_joins_is_released(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    provider.unproven = {"a", "b"}
    stage = Stage(provider)
    stage.cluster.slow |= {"spot-0", "spot-2"}
    provider.offers = [Offer("a"), Offer("b"), Offer("new")]
    stage.prepare()
    assert provider.unproven == {"a"}
    stage.prepare()
    assert provider.released == []
    now_s, limit_s = time.monotonic(), stage.fleet._config.runtime.start_timeout_s
    monkeypatch.setattr(time, "monotonic", lambda: now_s + limit_s)
    stage.prepare()
    assert provider.released == ["a"] and not stage.cluster.workers["spot-2"].dead, "it may still boot"
    reason = (
        f"no worker joined on its kept instance in runtime.start_timeout_s={limit_s:g} s, so it is released"
    )
    assert ("spot-0", "failed", reason) in stage.events()


def test_a_worker_that_still_loads_is_given_back_and_paid_for(provider: FakeCapacity):
    stage = Stage(provider)
    stage.cluster.slow |= {"spot-0"}
    provider.offers = [Offer("a")]
    stage.prepare()
    stage.measured(batch_s=1.0, rest_s=1000.0)
    stage.fleet.decide_capacity(4, 4, TrainingTime(), 0.0)
    assert provider.released == ["a"]
    done = stage.fleet.collector.close()
    (event,) = [event for event in done.device_events if event.worker == "spot-0"]
    assert event.kind == "left" and event.detail.startswith("before it had loaded: 0 spot devices")
    assert "spot-0" in {paid.worker for paid in done.paid_time}


def test_a_device_under_notice_is_given_back(provider: FakeCapacity):
    stage = Stage(provider, [Offer("a")], notices="gcp")
    stage.prepare()
    stage.events()
    stage.cluster.workers["spot-0"].notice = NOTICE
    assert stage.prepare() == ["reserved-0"]
    assert [event[:2] for event in stage.events()] == [("spot-0", "notice"), ("spot-0", "left")]
    assert provider.released == ["a"]


def at_release(stage: Stage, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Have the provider do that once an instance is given back, and call one back."""
    release = stage.provider.release
    monkeypatch.setattr(stage.provider, "release", lambda instance: (release(instance), then()))
    stage.call_back(1)


def test_a_device_that_is_called_back_while_others_train_is_given_back_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Training takes minutes on real devices, and nothing else looks at the offers meanwhile."""
    monkeypatch.setattr(trainers, "LOOK_EVERY_S", 0.01)
    trainer = stage.cluster.workers["reserved-0"]
    trainer.silent.add("train")
    at_release(stage, monkeypatch, lambda: trainer.open_calls["train"].set_result("the report"))
    stage.fleet.trainers._limit_s = 5.0  # without a look, training would end with this
    assert stage.fleet.trainers.ask(Worker.train, []) == "the report"
    assert stage.provider.released == ["b"] and stage.cluster.workers["spot-1"].dead


def test_a_device_that_is_called_back_while_scorers_work_is_given_back_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scoring_pool, "LOOK_EVERY_S", 0.01)
    score = Future[Score]()
    at_release(stage, monkeypatch, lambda: score.set_result(Score(0.5, False, "in time")))
    too_late = Timer(3.0, lambda: score.set_result(Score(0.0, False, "too late")))
    too_late.start()
    config = tiny_config()
    sections = config.runtime, config.reward, config.evaluation
    pool = ScoringPool(stage.cluster, *sections, look=stage.fleet.look)
    assert [found.detail for found in pool.wait_for([score])] == ["in time"]
    too_late.cancel()
    assert stage.provider.released == ["b"]


def test_who_asks_the_trainers_beside_a_rollout_takes_no_device_from_it(stage: Stage):
    """A checkpoint is asked for in a thread of its own; two threads must not remove one device."""
    stage.call_back(1)
    look = stage.fleet.trainers._look
    beside = Thread(target=look)
    beside.start()
    beside.join()
    assert stage.provider.released == [] and len(stage.fleet._devices) == 4
    look()
    assert stage.provider.released == ["b"]


def test_only_drafts_beside_training_keep_the_training_thread_from_looking(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    stage = Stage(provider, [Offer("a"), Offer("b")], strategy="stale")
    stage.prepare()
    monkeypatch.setattr(rented_capacity, "_LOOK_EVERY_S", 0.0)
    stage.call_back(1)
    look = stage.fleet.look
    with stage.fleet.beside_training():
        look()
        assert stage.provider.released == [], "the drafting thread follows the capacity"
    look()
    assert stage.provider.released == ["b"]


def test_an_instance_that_is_called_back_before_it_has_a_worker_is_given_back(provider: FakeCapacity):
    stage = Stage(provider)
    stage.prepare()
    provider.offers = [Offer("a", called_back="serving needs it"), Offer("b")]
    assert stage.prepare() == ["reserved-0", "spot-0"]
    assert provider.released == ["a"]
    provider.offers = [Offer("b", called_back="serving needs it")]
    assert stage.prepare() == ["reserved-0"] and provider.released == ["a", "b"], "once each"


def test_an_offer_s_price_is_on_the_bill_also_where_it_vanishes_while_its_worker_loads(
    provider: FakeCapacity,
):
    stage = Stage(provider)
    stage.cluster.slow.add("spot-0")
    provider.offers = [Offer("a", usd_per_hour=1.25), Offer("b")]
    stage.prepare()
    provider.offers = []
    stage.prepare()
    assert stage.prices() == {"reserved-0": 10.0, "spot-0": 1.25, "spot-1": 2.0}


def test_how_many_pay_is_decided_by_the_median_of_the_offers_prices(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    asked = asked_terms(monkeypatch)
    prices = [Offer("a", usd_per_hour=9.0), Offer("b", usd_per_hour=1.0), Offer("c"), Offer("d", 3, 4.0)]
    stage = Stage(provider, prices)
    stage.fleet.decide_capacity(64, 10, TrainingTime(), 0.0)
    # Before there is an offer, by the settings; then the devices' prices are 1, 4, 4, 4 and 9.
    assert [terms.spot_usd_per_hour for _, terms in asked] == [2.0, 4.0]


def test_all_is_given_back_at_the_end_and_what_could_not_be_is_an_event(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    fleet = Stage(provider).fleet
    fleet.collector.close()
    monkeypatch.setattr(provider, "take_troubles", lambda: ["a may still be paid for"] * provider.closed)
    noted: list[tuple[str, str, str]] = []
    store: Any = type("Store", (), {"add_event": lambda self, *event: noted.append(event)})()
    runtime: Any = SimpleNamespace(close=fleet.close, collect=fleet.collector.close)
    unfinished: Any = SimpleNamespace(end=lambda left: None)
    close_runtime(runtime, store, "r", unfinished)
    assert noted == [("r", "capacity", "a may still be paid for")] and provider.closed


def test_all_is_given_back_at_the_end_whatever_fails_to_end(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    stage = Stage(provider, [Offer("a")])
    stage.prepare()

    def break_off() -> None:
        raise ConnectionError("the cluster does not answer")

    monkeypatch.setattr(stage.cluster.workers["spot-0"], "kill", break_off)
    with pytest.raises(ConnectionError):
        stage.fleet.close()
    assert provider.closed and provider.released == ["a"]


def test_all_is_given_back_if_the_fleet_cannot_be_built(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeFailure("no process")

    monkeypatch.setattr(FakeCluster, "start", refuse)
    with pytest.raises(RuntimeFailure, match="no process"):
        Stage(provider, [Offer("a")])
    assert provider.closed and provider.released == ["a"]


def test_the_whole_of_an_evaluation_is_no_part_of_an_iteration(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]

    def evaluate(*_: object) -> None:
        now[0] += 7.0  # to generate, to judge and to measure

    monkeypatch.setattr(runtime, "evaluate", evaluate)
    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: now[0]))
    evaluating: Any = object.__new__(runtime.Runtime)  # without processes
    evaluating.config, evaluating._fleet = stage.fleet._config, stage.fleet
    evaluating._current, evaluating._scoring = FIRST, None
    monkeypatch.setattr(stage.fleet.trainers, "publish_average", lambda version: FIRST)
    evaluating.evaluate([])
    assert stage.rented._evaluation_s == 7.0


def asked_terms(monkeypatch: pytest.MonkeyPatch) -> list[tuple[IterationForecast | None, RentingTerms]]:
    """What decisions are asked for, from now on."""
    asked: list[tuple[IterationForecast | None, RentingTerms]] = []

    def note(forecast: IterationForecast | None, terms: RentingTerms, held: int) -> CapacityDecision:
        asked.append((forecast, terms))
        return decide_capacity(forecast, terms, held)

    monkeypatch.setattr(rented_capacity, "decide_capacity", note)
    return asked


def rented_at(provider: FakeCapacity, now: list[float], **changed: Any) -> RentedCapacity:
    changed["runtime"] = {"spot_workers": MOST, "capacity": "fake"} | changed.get("runtime", {})
    return RentedCapacity(provider, tiny_config(**changed), clock=lambda: now[0])


def test_a_notice_while_workers_are_started_on_its_instance_ends_no_run(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    """The training thread asks the trainers for notices while another one replaces their neighbours."""
    stage = Stage(provider, [Offer("a", devices=3)])
    assert stage.prepare() == ["reserved-0", "spot-0", "spot-1", "spot-2"]
    for device in stage.fleet.workers(FIRST.version)[2:]:
        stage.fleet.on_worker_lost(device, WorkerLostError("gone"))
    told, start = list[Thread](), FakeCluster.start

    def asked(*args: Any, **options: Any) -> Any:
        told.append(Thread(target=stage.rented.leave, args=("spot-0", "it is taken")))
        told[-1].start()
        told[-1].join(0.5)
        return start(*args, **options)

    monkeypatch.setattr(FakeCluster, "start", asked)
    with stage.fleet.beside_training():
        stage.fleet.add_ready_workers()
        for thread in told:
            thread.join()
    assert len(told) == 2 and stage.prepare() == ["reserved-0"], "those that were started leave, too"


def test_a_start_while_a_lost_worker_is_booked_waits_for_its_instance(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """The training thread may lose a trainer, and frees its instance last, while another one fills slots."""
    ended, provider = stage.fleet.accounts.on_ended, stage.provider

    def booked(*about: Any) -> None:
        stage.fleet.add_ready_workers()
        ended(*about)

    monkeypatch.setattr(stage.fleet.accounts, "on_ended", booked)
    (device,) = (one for one in stage.fleet.workers(FIRST.version) if one.name == "spot-1")
    stage.fleet.on_worker_lost(device, WorkerLostError("gone"))
    assert provider.released == ["b"] and stage.prepare() == ["reserved-0", "spot-0", "spot-2"]


def test_a_start_while_an_instance_is_drained_puts_no_worker_on_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Draining is a call to a cluster, which takes seconds."""
    (device,) = (one for one in stage.fleet.workers(FIRST.version) if one.name == "spot-1")

    wanted: list[bool] = []

    def drained(*about: Any) -> str:
        wanted.append(stage.fleet.regroups(stage.fleet._dispatcher.work_left, False))
        stage.fleet.add_ready_workers()
        return ""

    monkeypatch.setattr(device.actor, "drain_instance", drained)
    stage.fleet.on_notice(device, NOTICE)
    assert wanted == [False], "the instance is given up before it is drained, so that no worker starts on it"
    assert stage.prepare() == ["reserved-0", "spot-0", "spot-2"]


def test_an_instance_that_is_given_back_while_offers_are_asked_for_gets_no_worker(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    """The training thread may lose a trainer while another one follows the capacity."""
    provider.offers = [Offer("a")]
    rented, losing, offered = rented_at(provider, [0.0]), list[Thread](), provider.offered
    rented.assign("spot-0")

    def asked() -> list[Offer]:
        found = offered()
        losing.append(Thread(target=rented.vacate, args=("spot-0",)))
        losing[0].start()
        losing[0].join(0.5)
        return found

    monkeypatch.setattr(provider, "offered", asked)
    rented.look(at_once=True)
    losing[0].join()
    assert provider.released == ["a"] and rented.devices == 0


def test_what_an_iteration_takes_beside_its_rollout_leaves_evaluations_out(provider: FakeCapacity):
    """One without a rollout is not measured: what it took is no rest of the iteration before."""
    now = [0.0]
    rented = rented_at(provider, now)
    rented.decide(8, 3, 1, TrainingTime(), 0.0)
    rented.on_rolled_out([4.0, 6.0, 5.0])
    now[0] = 17.0
    rented.on_evaluated(7.0)
    rented.measured.add_start(3.0)
    rented.decide(0, 2, 1, TrainingTime(), 0.0)
    now[0] = 100.0
    rented.decide(8, 2, 1, TrainingTime(), 0.0)
    forecast = rented.measured.forecast(2, 2)
    assert forecast is not None and len(rented.measured._rest_s) == 1
    assert (forecast.batch_s, forecast.rest_s, forecast.start_s) == (5.0, 10.0, 3.0)


def test_where_trainers_leave_what_they_train_beside_a_rollout_is_forecast_apart(
    provider: FakeCapacity, monkeypatch: pytest.MonkeyPatch
):
    """Of 10 s after the rollout 4 were training, 2 s of which had passed before."""
    now, asked = [0.0], asked_terms(monkeypatch)
    rented = rented_at(provider, now, runtime={"trainers_leave": True}, algorithm={"advantage_std": "group"})
    rented.on_rolled_out([5.0])
    now[0] = 10.0
    rented.decide(8, 2, 1, TrainingTime(whole_s=6.0, beside_s=2.0), math.inf)
    assert asked[-1][1].used_beside == math.inf
    assert asked[-1][0] == IterationForecast(2, 5.0, 6.0, 0.0, 2, trainers=1, train_s=6.0)


def test_spot_devices_are_of_use_beside_training_as_far_as_they_train():
    """With three trainers and one reserved device, two of the rented ones train; any number drafts."""
    lora = {"algorithm": {"gradient_shards": 4}, "adaptation": {"mode": "lora"}}
    trained_on = tiny_config(runtime={"spot_workers": MOST, "trainer_workers": 3}, **lora).runtime
    assert PLAIN.used_beside_training(tiny_config().runtime) == 0.0
    assert PLAIN.used_beside_training(trained_on) == 2.0
    assert STALE.used_beside_training(trained_on) == math.inf


def test_devices_of_an_autoscaler_are_drained_and_one_that_is_lost_costs_no_other():
    """The number of devices that the cluster has says neither which one is gone nor which one may go."""
    cluster = FakeCluster()
    cluster.tells_markets_apart = True
    cluster.has["spot"] = MOST
    runtime = {"spot_workers": MOST, "capacity": "ray"}
    fleet = Fleet(cluster, tiny_config(runtime=runtime))
    fleet.await_ready()

    def prepare() -> list[str]:
        for _ in range(2):
            fleet.prepare(FIRST)
        return [device.name for device in fleet.workers(FIRST.version)]

    assert prepare() == ["reserved-0", "spot-0", "spot-1", "spot-2"]
    cluster.workers["spot-0"].dead = True
    cluster.has["spot"] = 2
    fleet.forget_weights()
    assert prepare() == ["reserved-0", "spot-1", "spot-2"] and fleet.lost == ["spot-0"]
    rented = fleet._rented
    assert rented is not None
    rented.measured.add_batch_time(1.0)
    rented.measured.add_rest(1000.0, None)
    fleet.decide_capacity(4, 4, TrainingTime(), 0.0)
    assert prepare() == ["reserved-0"] and fleet.lost == ["spot-0"]
    left = [event.worker for event in fleet.collector.close().device_events if event.kind == "left"]
    assert sorted(left) == ["spot-1", "spot-2"] and cluster.requested == [MOST, 0]
