"""Made-up spot devices for the sample run: they explore while the reserved one trains, and one is lost."""

from __future__ import annotations

import dataclasses

from storage.record.records import DeviceEvent, IterationRecord, StateInterval
from storage.record.run_store import RunStore
from tests.sample_run import iteration_record, paid_for

EXPLORE_S = 6.0
"""Of the 8 s that a spot device of the sample run would idle in each iteration."""


def exploring(record: IterationRecord) -> IterationRecord:
    """The record with most of its idle spot time spent exploring."""
    intervals: list[StateInterval] = []
    for interval in record.intervals:
        if interval.market == "spot" and interval.state == "idle":
            end = interval.started_at + EXPLORE_S
            intervals.append(dataclasses.replace(interval, state="explore", ended_at=end))
            interval = dataclasses.replace(interval, started_at=end)
        intervals.append(interval)
    return dataclasses.replace(record, intervals=intervals)


def with_joined(record: IterationRecord) -> IterationRecord:
    """The record of a run's first iteration: its devices have joined."""
    first = {i.worker: i for i in reversed(record.intervals)}
    joined = [DeviceEvent(i.worker, i.market, "joined", i.started_at) for i in first.values()]
    return dataclasses.replace(record, device_events=joined)


def with_loss(
    record: IterationRecord, after_s: float, detail: str = "its process is gone"
) -> IterationRecord:
    """The record with `spot-1` lost `after_s` seconds after its beginning; `spot-1.1` joins 2 s later."""
    at = record.started_at + after_s
    intervals: list[StateInterval] = []
    for i in record.intervals:
        if i.worker == "spot-1" and i.started_at >= at:
            continue
        intervals.append(dataclasses.replace(i, ended_at=min(i.ended_at, at)) if i.worker == "spot-1" else i)
    spot = next(i for i in record.intervals if i.worker == "spot-1")
    again = dataclasses.replace(
        spot, worker="spot-1.1", state="load", started_at=at + 2, ended_at=record.ended_at
    )
    events = [
        DeviceEvent("spot-1", "spot", "lost", at, detail), DeviceEvent("spot-1.1", "spot", "joined", at + 2),
    ]  # fmt: skip
    whole = [*intervals, again]
    return dataclasses.replace(record, intervals=whole, paid_time=paid_for(whole), device_events=events)


def write_spot_run(store: RunStore, run_id: str, iterations: int, start: float, lost_in: int) -> None:
    """Write iterations of a run that exists, in which `spot-1` is lost in iteration `lost_in`."""
    for iteration in range(1, iterations + 1):
        record = exploring(iteration_record(run_id, iteration, start + 18.0 * (iteration - 1), samples=32))
        if iteration == 1:
            record = with_joined(record)
        if iteration == lost_in:
            record = with_loss(record, 6.0)
        if iteration > lost_in:
            named = {"spot-1": "spot-1.1"}
            intervals = [
                dataclasses.replace(i, worker=named.get(i.worker, i.worker)) for i in record.intervals
            ]
            record = dataclasses.replace(record, intervals=intervals, paid_time=paid_for(intervals))
        store.commit_iteration(record)
