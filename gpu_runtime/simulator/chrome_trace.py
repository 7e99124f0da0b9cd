"""A simulated run as a Chrome trace, the JSON that https://ui.perfetto.dev and chrome://tracing open. Pure.

The format is "Trace Event Format" (Google, 2016): complete events (`X`) for intervals, instant events (`i`)
for moments, and metadata (`M`) that names the tracks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from gpu_runtime.simulator.run import SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from storage.record.records import Market

_TICKS_PER_US = TICKS_PER_S // 1_000_000
_RUN = 1
_PROCESSES: dict[Market, int] = {"reserved": 2, "spot": 3}
"""The format's processes stand for markets, and its threads for devices."""


def chrome_trace(run: SimulatedRun, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return every device's states and events, and the run's iterations, in microseconds of the run.

    Args:
        run: a run that kept its intervals.
        about: further metadata, such as the policy.

    Returns:
        JSON values. Events in category `device` are named after a state; their `args` hold the iteration,
        the phase (`iteration` or `evaluation`) and dollars. Category `run` holds iterations and evaluations,
        and `happened` a device's events, such as a loss.
    """
    devices: dict[str, Market] = {one.worker: one.market for one in (*run.intervals, *run.device_events)}
    numbers = {name: number for number, name in enumerate(sorted(devices, key=_by_number), 1)}
    ends = [end for _, _, end in run.ends]
    events = _names(devices, numbers)
    began = 0
    for iteration, phase, end in run.ends:
        name = f"iteration {iteration}" if phase == "iteration" else f"evaluation after {iteration}"
        events.append(_span(name, "run", _RUN, 1, began, end) | {"args": {"iteration": iteration}})
        began = end
    for one in run.intervals:
        # Intervals are cut at the ends, except a device's start, which is booked once it has joined.
        iteration, phase, _ = run.ends[bisect_left(ends, one.ended_at)]
        process, thread = _PROCESSES[one.market], numbers[one.worker]
        span = _span(one.state, "device", process, thread, int(one.started_at), int(one.ended_at))
        span["args"] = {"iteration": iteration, "phase": phase, "usd": one.usd / TICKS_PER_S}
        events.append(span)
    for happened in run.device_events:
        track = {"pid": _PROCESSES[happened.market], "tid": numbers[happened.worker]}
        moment = {"ph": "i", "s": "t", "name": happened.kind, "cat": "happened"}
        events.append(moment | track | {"ts": happened.at / _TICKS_PER_US})
    return {"displayTimeUnit": "ms", "otherData": {"evidence": "simulated", **about}, "traceEvents": events}


def _span(name: str, category: str, process: int, thread: int, began: int, ended: int) -> dict[str, Any]:
    """Return the event for an interval in ticks."""
    return {
        "ph": "X", "name": name, "cat": category, "pid": process, "tid": thread,
        "ts": began / _TICKS_PER_US, "dur": (ended - began) / _TICKS_PER_US,
    }  # fmt: skip


def _names(devices: Mapping[str, Market], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return metadata: track names, which mark the figures as simulated."""
    markets = set(devices.values())
    named = [("process_name", _RUN, 0, "simulated run")]
    for market, process in _PROCESSES.items():
        if market in markets:
            named.append(("process_name", process, 0, f"simulated {market} devices"))
    named.append(("thread_name", _RUN, 1, "run"))
    named += [("thread_name", _PROCESSES[devices[name]], number, name) for name, number in numbers.items()]
    return [
        {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
        for kind, process, thread, name in named
    ]


def _by_number(name: str) -> tuple[str, int]:
    """Return a key that sorts `spot-2` before `spot-10`."""
    return re.sub(r"\d+", "", name), int((re.findall(r"\d+", name) or ["0"])[-1])
