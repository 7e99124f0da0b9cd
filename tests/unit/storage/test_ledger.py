"""The account of a run against figures worked by hand: states, lives of workers, holes, overlaps, losses."""

from __future__ import annotations

import dataclasses
import os

import pytest

from storage.config.run_config import RunConfig
from storage.record.ledger import Ledger, Spent, StandbyAccount, UnjoinedDevice, WorkerAccount, read_ledger
from storage.record.queries import devices as device_queries
from storage.record.records import (
    DeviceEvent,
    DeviceEventKind,
    DeviceState,
    EvaluationRecord,
    IterationRecord,
    PaidTime,
    SampleRecord,
    StandbyTime,
    StateInterval,
)
from storage.record.results import run_result
from storage.record.run_store import RunStore
from tests.sample_run import paid_for

pytestmark = pytest.mark.usefixtures("run_r")


def reserved(state: DeviceState, start: float, end: float, worker: str = "reserved-0") -> StateInterval:
    return StateInterval(worker, "reserved", state, start, end, 36.0)  # one cent a second


def spot(state: DeviceState, start: float, end: float, worker: str = "spot-0") -> StateInterval:
    return StateInterval(worker, "spot", state, start, end, 3.6)  # a tenth of that


def event(worker: str, kind: DeviceEventKind, at: float, detail: str = "") -> DeviceEvent:
    return DeviceEvent(worker, "reserved" if worker.startswith("reserved") else "spot", kind, at, detail)


def sample(seed: int, advantage: float | None) -> SampleRecord:
    return SampleRecord(0, "a sign", seed, 0, 1.0, True, "", None, seed, None, advantage, "spot-0")


def commit(
    store: RunStore,
    iteration: int,
    intervals: list[StateInterval],
    events: list[DeviceEvent] | None = None,
    samples: list[SampleRecord] | None = None,
    paid: dict[str, float] | None = None,
) -> None:
    """Write an iteration; its meters say what the states do, unless `paid` says other seconds."""
    start, end = min(i.started_at for i in intervals), max(i.ended_at for i in intervals)
    store.commit_iteration(
        IterationRecord(
            "r", iteration, iteration, start, end, {}, samples or [], intervals=intervals,
            device_events=events or [],
            paid_time=paid_for(intervals) if paid is None else [metered(*one) for one in paid.items()],
        )
    )  # fmt: skip


def metered(worker: str, paid_s: float) -> PaidTime:
    return PaidTime(worker, "reserved" if worker.startswith("reserved") else "spot", paid_s)


def ledger(store: RunStore, run_id: str = "r") -> Ledger:
    with store.reading() as connection:
        return read_ledger(connection, run_id)


def as_pair(spent: Spent) -> tuple[float, float]:
    return spent.device_s, spent.usd


def two_iterations(store: RunStore) -> None:
    """An evaluation and two iterations; the spot device explores 4 s, idles 2 s and dies at 130."""
    store.commit_evaluation(
        EvaluationRecord(
            "r", 0, 0, 100, 110, 0.0, 0.0, [],
            intervals=[reserved("load", 100, 104), reserved("rollout", 104, 110), spot("load", 102, 110)],
            device_events=[event("reserved-0", "joined", 100), event("spot-0", "joined", 102)],
            paid_time=[metered("reserved-0", 10), metered("spot-0", 8)],
        )
    )  # fmt: skip
    commit(
        store, 1,
        [reserved("rollout", 110, 114), reserved("train", 114, 120),
         spot("rollout", 110, 114), spot("explore", 114, 118), spot("idle", 118, 120)],
        samples=[sample(0, 0.7), sample(1, -0.7), sample(2, None)],
    )  # fmt: skip
    commit(
        store, 2, [reserved("rollout", 120, 140), spot("rollout", 120, 130)],
        [event("spot-0", "lost", 130, "its process is gone")], [sample(seed, 0.1) for seed in range(6)],
    )  # fmt: skip


def test_seconds_and_dollars_by_state_phase_and_market_and_what_they_came_to(store: RunStore):
    two_iterations(store)
    account = ledger(store)
    whole = account.spent()
    assert (whole.device_s, whole.usd) == (68, pytest.approx(0.40 + 0.028))
    seconds = {"rollout": 6 + 4 + 20 + 4 + 10, "train": 6, "load": 4 + 8, "explore": 4, "idle": 2}
    assert {name: account.spent(state=name).device_s for name in seconds} == seconds
    assert account.spent(state="load").usd == pytest.approx(4 * 0.01 + 8 * 0.001)
    assert [account.spent(phase=name).device_s for name in ("iteration", "evaluation")] == [50, 18]
    assert as_pair(account.spent(market="spot")) == pytest.approx((28, 0.028))
    assert account.spent(market="spot", state="rollout", phase="iteration").device_s == 14
    assert account.spent(state="regroup") == Spent()
    assert account.spot_idle_share == pytest.approx(2 / 28)
    assert run_result(store, "r")["spot_idle"] == account.spot_idle_share, "pages and terminal agree"
    assert account.spot_idle_share_unexplored == pytest.approx((2 + 4) / 28)
    assert (account.samples, account.useful_samples) == (9, 8)
    assert account.goodput == pytest.approx(9 / 68)
    assert account.workers == (
        WorkerAccount("reserved-0", "reserved", 40, 40, 0), WorkerAccount("spot-0", "spot", 28, 28, 0),
    )  # fmt: skip
    assert (account.unaccounted_share, account.overlaps) == (0, ())
    assert account.is_measured and account.is_balanced


def test_a_hole_in_a_workers_time_is_unaccounted(store: RunStore):
    commit(
        store, 1, [reserved("rollout", 0, 500), reserved("train", 502, 1000), spot("rollout", 0, 1000)],
        paid={"reserved-0": 1000, "spot-0": 1000},
    )  # fmt: skip
    account = ledger(store)
    assert account.workers[0] == WorkerAccount("reserved-0", "reserved", 1000, 998, 0)
    assert account.workers[0].unaccounted_s == 2
    assert account.unaccounted_share == pytest.approx(2 / 2000)
    assert account.is_balanced, "a thousandth is within the limit"
    commit(store, 2, [reserved("rollout", 1001, 1002)], paid={"reserved-0": 2})
    assert ledger(store).unaccounted_share == pytest.approx(3 / 2002)
    assert not ledger(store).is_balanced


@pytest.mark.parametrize(
    ("intervals", "paid", "unaccounted_s", "share"),
    [
        # A jump of the clock made them longer: alone they look sound, contiguous and none missing.
        ([reserved("rollout", 0, 86_410), reserved("train", 86_410, 86_420)], {"reserved-0": 20},
         [-86_400], 86_400 / 20),
        ([reserved("rollout", 0, 10)], {"reserved-0": 20, "spot-0": 5}, [10, 5], 15 / 25),
        # Too much of one does not make up for too little of another.
        ([spot("rollout", 0, 10), spot("rollout", 0, 10, "spot-1")], {"spot-0": 9, "spot-1": 11}, [-1, 1],
         2 / 20),
        # A worker that no meter knows.
        ([spot("rollout", 0, 10), spot("rollout", 0, 10, "spot-1")], {"spot-0": 10}, [0, -10], 10 / 10),
    ],
)  # fmt: skip
def test_states_that_are_not_what_was_paid_do_not_balance(
    store: RunStore,
    intervals: list[StateInterval],
    paid: dict[str, float],
    unaccounted_s: list[float],
    share: float,
):
    commit(store, 1, intervals, paid=paid)
    account = ledger(store)
    assert [worker.unaccounted_s for worker in account.workers] == unaccounted_s
    assert account.unaccounted_share == pytest.approx(share)
    assert not account.is_balanced


def test_an_overlap_is_found_and_does_not_fill_a_hole(store: RunStore):
    commit(
        store, 3,
        [spot("rollout", 0, 10), spot("explore", 7, 9), spot("idle", 8, 12), spot("load", 15, 20)],
        [event("spot-0", "joined", 0)], paid={"spot-0": 20},
    )  # fmt: skip
    account = ledger(store)
    assert [(o.worker, o.iteration, o.state, o.at, o.double_s) for o in account.overlaps] == [
        ("spot-0", 3, "explore", 7, 2), ("spot-0", 3, "idle", 8, 2),
    ]  # fmt: skip
    [worker] = account.workers
    assert worker == WorkerAccount("spot-0", "spot", 20, 21, 4)
    assert worker.unaccounted_s == 3
    assert not account.is_balanced


def test_an_overlap_counts_for_its_worker_alone(store: RunStore):
    states = [
        reserved("train", 0, 30), spot("rollout", 0, 10, "spot-1"), spot("idle", 9, 30, "spot-1"),
        spot("rollout", 0, 30), spot("rollout", 0, 5, "spot-2"), spot("explore", 3, 30, "spot-2"),
    ]  # fmt: skip
    commit(store, 1, states, paid=dict.fromkeys(("reserved-0", "spot-0", "spot-1", "spot-2"), 30))
    account = ledger(store)
    assert [(o.worker, o.state, o.at, o.double_s) for o in account.overlaps] == [
        ("spot-2", "explore", 3, 2), ("spot-1", "idle", 9, 1),
    ]  # fmt: skip
    assert [worker.double_s for worker in account.workers] == [0, 0, 1, 2]


def test_the_break_before_a_resume_is_not_paid(store: RunStore):
    commit(store, 1, [reserved("load", 0, 5), reserved("train", 5, 10)])
    again = [reserved("load", 90_000, 90_004), reserved("train", 90_006, 90_010)]
    commit(store, 2, again, paid={"reserved-0": 10})
    [worker] = ledger(store).workers
    assert (worker.paid_s, worker.booked_s, worker.unaccounted_s) == (20, 18, 2)


def test_a_simulated_run_measures_no_paid_time(store: RunStore):
    commit(store, 1, [spot("load", 0, 5), spot("rollout", 5, 10)], paid={})
    account = ledger(store)
    assert account.workers == () and not account.is_measured
    assert not account.has_device_events
    assert account.losses == ()


def test_devices_that_never_joined_and_why(store: RunStore):
    config = RunConfig.model_validate({"runtime": {"reserved_workers": 1, "spot_workers": 4}})
    store.create_run("s", config, {}, os.getpid())
    assert ledger(store, "s").unjoined == (), "nothing is recorded yet"
    happened = [
        event("reserved-0", "joined", 0),
        event("spot-0", "failed", 1, "no disk"),
        event("spot-0.1", "joined", 2),
        event("spot-2", "failed", 3, "no model"),
        event("spot-2.1", "failed", 4, "no model folder /x"),
    ]
    intervals = [reserved("train", 0, 10)]
    store.commit_iteration(
        IterationRecord("s", 1, 1, 0, 10, {}, [], intervals=intervals, device_events=happened)
    )
    account = ledger(store, "s")
    assert account.failed_starts == 3
    assert account.losses == (), "they were never there"
    assert account.unjoined == (
        UnjoinedDevice("spot-1", 0, "no spot instance had room for it"),
        UnjoinedDevice("spot-2", 2, "no model folder /x"),
        UnjoinedDevice("spot-3", 0, "no spot instance had room for it"),
    )
    result = run_result(store, "s")
    assert result["failed_starts"] == 3
    assert result["unjoined_devices"][1] == {
        "device": "spot-2", "failures": 2, "reason": "no model folder /x",
    }  # fmt: skip


def test_lost_workers_and_what_they_were_doing(store: RunStore):
    two_iterations(store)
    commit(
        store, 3, [reserved("rollout", 140, 150)],
        [event("spot-0.1", "lost", 145, "no memory"), event("spot-1", "notice", 146, "2 min")],
    )  # fmt: skip
    account = ledger(store)
    assert account.has_device_events
    assert [(x.worker, x.market, x.iteration, x.at, x.cut_state, x.cut_s) for x in account.losses] == [
        ("spot-0", "spot", 2, 130, "rollout", 10), ("spot-0.1", "spot", 3, 145, None, 0),
    ]  # fmt: skip
    assert account.losses[0].detail == "its process is gone"


def test_a_device_that_was_lost_while_it_was_idle_took_no_work_with_it(store: RunStore):
    two_iterations(store)
    intervals = [spot("rollout", 140, 142, "spot-3"), spot("idle", 142, 199, "spot-3")]
    commit(store, 3, intervals, [event("spot-3", "lost", 199)])
    latest = ledger(store).losses[-1]
    assert (latest.worker, latest.cut_state, latest.cut_s) == ("spot-3", "idle", 0)


def test_work_that_is_done_again_is_lost_and_still_paid(store: RunStore):
    two_iterations(store)
    before = ledger(store)
    for _ in range(2):  # a resume may itself be killed and come again
        store.discard_after("r", 1)
    after = ledger(store)
    assert after.spent().usd == pytest.approx(before.spent().usd)
    assert as_pair(after.lost) == pytest.approx((30, 0.20 + 0.01))
    assert after.spent(phase="discarded") == after.lost
    assert after.samples == 3
    assert [(loss.worker, loss.at) for loss in after.losses] == [("spot-0", 130)], "it did happen"
    assert after.is_balanced


def test_standbys_have_accounts_of_their_own_and_change_no_other_figure(store: RunStore):
    two_iterations(store)
    without = ledger(store)
    for iteration, times in (
        (3, [StandbyTime("standby-0", 10, 4, 100), StandbyTime("standby-0", 5, 1, 300, "taken")]),
        (4, [StandbyTime("standby-1", 7, 2, 200, "lost"), StandbyTime("standby-10", 1, 0, 0)]),
    ):
        store.commit_iteration(IterationRecord("r", iteration, 1, 150, 150, {}, standby_time=times))
    expected = (
        StandbyAccount("standby-0", 15, 5, 300, 1, 0), StandbyAccount("standby-1", 7, 2, 200, 0, 1),
        StandbyAccount("standby-10", 1, 0, 0, 0, 0),
    )  # fmt: skip
    account = ledger(store)
    assert account.standbys == expected
    assert dataclasses.replace(account, standbys=()) == without
    for _ in range(2):
        store.discard_after("r", 2)
        assert ledger(store).standbys == expected, "what was used stays used"


def test_a_run_of_which_nothing_is_recorded(store: RunStore):
    account = ledger(store)
    assert (account.entries, account.workers, account.spent()) == ((), (), Spent())
    assert account.is_balanced
    assert (account.spot_idle_share, account.goodput, account.unaccounted_share) == (None, None, 0.0)


def test_the_time_line_of_chosen_iterations(store: RunStore):
    two_iterations(store)
    with store.reading() as connection:
        chosen = device_queries.device_intervals(connection, "r", 1, 1, 100)
        latest = device_queries.device_intervals(connection, "r", 0, 2, 3)
        events = device_queries.device_events(connection, "r", 1, 2, 100)
        assert device_queries.recorded_iterations(connection, "r") == [0, 1, 2]
    assert chosen[["worker", "state", "started_at"]].to_numpy().tolist() == [
        ["reserved-0", "rollout", 110], ["spot-0", "rollout", 110], ["reserved-0", "train", 114],
        ["spot-0", "explore", 114], ["spot-0", "idle", 118],
    ]  # fmt: skip
    assert chosen["usd"].tolist() == pytest.approx([0.04, 0.004, 0.06, 0.004, 0.002])
    assert latest["ended_at"].tolist() == [120, 140, 130]
    assert set(latest["of"]) == {10}
    assert events[["worker", "kind", "happened_at"]].to_numpy().tolist() == [["spot-0", "lost", 130]]


def test_utilisation_by_market_over_the_iterations(store: RunStore):
    two_iterations(store)
    with store.reading() as connection:
        each = device_queries.utilisation(connection, "r", 10)
        together = device_queries.utilisation(connection, "r", 1)
        assert device_queries.utilisation(connection, "nobody", 10).empty
    shares = {(row["first"], row["market"], row["state"]): row["share"] for row in each.to_dict("records")}
    assert shares == {
        (1, "reserved", "rollout"): 0.4, (1, "reserved", "train"): 0.6, (1, "spot", "rollout"): 0.4,
        (1, "spot", "explore"): 0.4, (1, "spot", "idle"): 0.2,
        (2, "reserved", "rollout"): 1.0, (2, "spot", "rollout"): 1.0,
    }  # fmt: skip
    assert set(together["first"]) == {1}
    assert set(together["last"]) == {2}
    spot_rollout = together[(together["market"] == "spot") & (together["state"] == "rollout")]
    assert spot_rollout["share"].tolist() == [pytest.approx(14 / 20)]
