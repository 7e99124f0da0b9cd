"""What a trace of spot instances is like, in a few figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_runtime.spot.traces.trace import Trace
from storage.errors import TraceError


@dataclass(frozen=True)
class TraceSummary:
    """Figures of a trace.

    Attributes:
        length_s: its length.
        instances: how many instances came.
        peak: most instances at once.
        mean_alive: instances there, averaged over time.
        availability: `mean_alive` over the capacity wanted.
        losses: how many were removed.
        multi_loss_share: share of the losses that were not alone; None without losses.
        largest_loss: most instances lost together.
        mean_lifetime_s: from coming to going, over those that went: the long-lived that are left at
            the end are not in it. None without losses.
        losses_per_instance_hour: losses over the hours that all instances were there; those that are
            left count too. None where no instance was there at all.
    """

    length_s: float
    instances: int
    peak: int
    mean_alive: float
    availability: float
    losses: int
    multi_loss_share: float | None
    largest_loss: int
    mean_lifetime_s: float | None
    losses_per_instance_hour: float | None


def summarise(trace: Trace, capacity: int | None = None, together_s: float = 0.0) -> TraceSummary:
    """Figures of `trace`.

    Args:
        capacity: how many instances were wanted; the trace's peak where it is None.
        together_s: losses that follow one another within so many seconds count as one event. 0 fits
            traces with coarse times, where what happens together has the same time.

    Raises:
        TraceError: a capacity below the peak.
    """
    came: dict[str, float] = {}
    lifetimes: list[float] = []
    groups: list[int] = []
    instances = peak = 0
    last_loss_s: float | None = None
    for event in trace.events:
        if event.kind == "add":
            came[event.instance] = event.at_s
            instances += 1
            peak = max(peak, len(came))
            continue
        lifetimes.append(event.at_s - came.pop(event.instance))
        if last_loss_s is not None and event.at_s - last_loss_s <= together_s:
            groups[-1] += 1
        else:
            groups.append(1)
        last_loss_s = event.at_s
    if capacity is not None and capacity < peak:
        raise TraceError(f"capacity {capacity} is below the trace's peak of {peak}; give at least that")
    alive_s = sum(lifetimes) + sum(trace.length_s - since for since in came.values())
    mean_alive = alive_s / trace.length_s if trace.length_s else float(len(came))
    wanted = peak if capacity is None else capacity
    losses = len(lifetimes)
    return TraceSummary(
        length_s=trace.length_s,
        instances=instances,
        peak=peak,
        mean_alive=mean_alive,
        availability=mean_alive / wanted if wanted else 0.0,
        losses=losses,
        multi_loss_share=sum(size for size in groups if size > 1) / losses if losses else None,
        largest_loss=max(groups, default=0),
        mean_lifetime_s=sum(lifetimes) / losses if losses else None,
        losses_per_instance_hour=losses / (alive_s / 3600) if alive_s else None,
    )
