"""A simulated run as a Chrome trace: the events of a run that is worked by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from gpu_runtime.simulator.chrome_trace import chrome_trace
from tests.simulated import simulated, small_config, spot_trace

LOST = spot_trace((0.0, "add", "s"), (24.5, "remove", "s"))
"""The run of `test_simulated_run.py::test_a_spot_device_s_part`."""


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    run = simulated(small_config(iterations=1), 1, 1, LOST, keeps_intervals=True)
    return json.loads(json.dumps(chrome_trace(run, {"policy": "spot"})))


def tracks(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    named = [event for event in trace["traceEvents"] if event["name"] == "thread_name"]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def spans(trace: dict[str, Any], track: str) -> list[tuple[str, float, float]]:
    """Names, begins and ends of what lasts on a track, in seconds."""
    names = tracks(trace)
    return [
        (event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in trace["traceEvents"]
        if event["ph"] == "X" and names[event["pid"], event["tid"]] == track
    ]


def test_devices_and_the_run_have_tracks_and_a_loss_is_a_moment(trace: dict[str, Any]):
    assert spans(trace, "reserved-0") == [
        ("load", 0, 10), ("load", 10, 12), ("rollout", 12, 20), ("idle", 20, 21),
        ("rollout", 21, 43), ("idle", 43, 44), ("train", 44, 60),
        ("load", 60, 62), ("rollout", 62, 70), ("idle", 70, 71),
    ]  # fmt: skip
    assert spans(trace, "spot-0") == [
        ("load", 0, 10), ("load", 10, 12), ("idle", 12, 21), ("rollout", 21, 24.5),
    ]  # fmt: skip
    assert spans(trace, "run") == [
        ("evaluation after 0", 0, 21), ("iteration 1", 21, 60), ("evaluation after 1", 60, 71),
    ]  # fmt: skip
    moments = [event for event in trace["traceEvents"] if event["ph"] == "i"]
    assert [(event["name"], event["ts"] / 1e6) for event in moments] == [("joined", 10), ("lost", 24.5)]
    assert {tracks(trace)[event["pid"], event["tid"]] for event in moments} == {"spot-0"}
    assert trace["otherData"] == {"evidence": "simulated", "policy": "spot"}
    processes = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["simulated run", "simulated reserved devices", "simulated spot devices"]


def test_events_carry_iteration_phase_and_dollars_that_sum_to_the_bill(trace: dict[str, Any]):
    devices = [event for event in trace["traceEvents"] if event.get("cat") == "device"]
    # 71 s at 10 dollars an hour, and 24.5 s at 2.5.
    assert sum(event["args"]["usd"] for event in devices) == pytest.approx((71 * 10 + 24.5 * 2.5) / 3600)
    training = next(event["args"] for event in devices if event["name"] == "train")
    assert training == {"iteration": 1, "phase": "iteration", "usd": pytest.approx(16 * 10 / 3600)}
    first = next(event["args"] for event in devices if event["name"] == "load")
    assert (first["iteration"], first["phase"]) == (0, "evaluation")


def test_a_device_s_states_follow_each_other_without_a_gap_over_many_iterations():
    run = simulated(small_config(iterations=6, every=2), 2, keeps_intervals=True)
    made = chrome_trace(run, {})
    for track in ("reserved-0", "reserved-1", "run"):
        course = spans(made, track)
        assert course[0][1] == 0 and course[-1][2] == pytest.approx(run.wall_s)
        assert all(one[2] == pytest.approx(other[1]) for one, other in pairwise(course))


def test_evaluations_of_two_runs_that_share_devices_come_after_the_iteration_of_each():
    run = simulated(small_config(iterations=2, every=2), 2, keeps_intervals=True, ways={"runs": 2})
    named = [name for name, *_ in spans(chrome_trace(run, {}), "run")]
    before, after = ["evaluation after 0"] * 2, ["evaluation after 2"] * 2
    assert named == [*before, "iteration 1", "iteration 2", *after]


def test_devices_are_numbered_as_they_are_called():
    trace = spot_trace(*((0.0, "add", f"s{number}") for number in range(11)))
    run = simulated(small_config(iterations=1), 1, 11, trace, keeps_intervals=True)
    names = list(tracks(chrome_trace(run, {})).values())
    assert names == ["run", "reserved-0", *(f"spot-{number}" for number in range(11))]
