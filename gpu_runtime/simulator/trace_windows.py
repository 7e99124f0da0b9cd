"""Traces as long as a run: windows of a recorded trace from a random moment on, or drawn traces. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from gpu_runtime.spot.traces.generator import TraceShape, generate_trace
from gpu_runtime.spot.traces.replay import thinned
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.errors import TraceError

_MOST_LAPS = 1000
"""Most repetitions of a recorded trace to fill one run."""


@dataclass(frozen=True)
class SpotMarket:
    """A model of when spot instances come and go.

    Attributes:
        recorded: trace from which windows are taken; None to draw traces.
        shape: shape of drawn traces; capacity and length are set for each run.
        losses: False if drawn instances are never lost.
        notice_s: seconds of notice before an instance is removed.
        devices: devices per instance, which come and go together.
    """

    recorded: Trace | None
    shape: TraceShape
    losses: bool = True
    notice_s: float = 0.0
    devices: int = 1

    def window(self, spot: int, length_s: float, chance: random.Random) -> Trace:
        """Return a trace of at most `spot` devices at once for a run of `length_s` seconds.

        Args:
            spot: slots for spot devices, a multiple of the devices per instance.
            length_s: longest expected time of the run; after it, the devices present stay.

        Raises:
            TraceError: the recorded trace is too short, or has no events.
        """
        instances = spot // self.devices
        if self.recorded is not None:
            part = thinned(self.recorded, instances)
            if not part.events or part.length_s <= 0:
                raise TraceError("no instance arrives in the trace, or it has no length; name another one")
            trace = repeated(part, chance.uniform(0.0, part.length_s), length_s)
        elif self.losses:
            shape = replace(self.shape, capacity=instances, length_s=length_s)
            trace = generate_trace(shape, chance.randrange(2**32))
        else:
            events = tuple(TraceEvent(0.0, "add", f"spot-{number}") for number in range(instances))
            trace = Trace(events, length_s)
        if self.devices == 1:
            return trace
        of_devices = (
            TraceEvent(event.at_s, event.kind, f"{event.instance}/{number}")
            for event in trace.events
            for number in range(self.devices)
        )
        return Trace(tuple(of_devices), trace.length_s)


def repeated(trace: Trace, begins_s: float, length_s: float) -> Trace:
    """Return a trace from a moment on, repeated as often as a run needs.

    Instances present at the end continue as those present at the beginning; excess ones leave, missing ones
    come.

    Args:
        trace: the recorded trace, of a length above 0.
        begins_s: the moment, in seconds from the trace's beginning.

    Raises:
        TraceError: the trace would have to be repeated too often.
    """
    if length_s > _MOST_LAPS * trace.length_s:
        raise TraceError(
            f"the trace is {trace.length_s:g} s long and the run may take {length_s:,.0f} s; give one of at "
            f"least {length_s / _MOST_LAPS:,.0f} s"
        )
    events: list[TraceEvent] = []
    lives: dict[str, str] = {}  # name in the trace -> name in the result, of present instances
    came = 0
    shift_s, first_s = -begins_s, begins_s
    while True:
        part = trace.clipped(first_s, trace.length_s) if 0 < first_s < trace.length_s else trace
        waiting, lives = list(lives.values()), {}
        for event in part.events:
            at_s = max(0.0, shift_s + first_s) + event.at_s
            if at_s > length_s:
                break
            if event.kind == "add" and event.at_s == 0 and waiting:
                lives[event.instance] = waiting.pop(0)
                continue
            if waiting and event.at_s > 0:
                events += (TraceEvent(shift_s + first_s, "remove", name) for name in waiting)
                waiting = []
            if event.kind == "add":
                came += 1
                lives[event.instance] = f"{event.instance}.{came}"
                events.append(TraceEvent(at_s, "add", lives[event.instance]))
            else:
                events.append(TraceEvent(at_s, "remove", lives.pop(event.instance)))
        events += (TraceEvent(shift_s + first_s, "remove", name) for name in waiting)
        shift_s, first_s = shift_s + trace.length_s, 0.0
        if shift_s >= length_s:
            return Trace(tuple(events), length_s)
