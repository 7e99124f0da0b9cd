"""Summary figures of a trace of spot instances. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_runtime.spot.traces.trace import Trace
from storage.errors import TraceError


@dataclass(frozen=True)
class TraceSummary:
    """Figures of a trace.

    Attributes:
        length_s: length of the trace.
        instances: number of instances that came.
        peak: most instances at once.
        mean_alive: number of instances, averaged over time.
        availability: `mean_alive` over the capacity wanted.
        losses: number of instances removed.
        multi_loss_share: share of the losses that happened together with others; None without losses.
        largest_loss: most instances lost together.
        mean_lifetime_s: mean lifetime of removed instances; long-lived ones that are left at the end are not
            included. None without losses.
        losses_per_instance_hour: losses over the lifetime of all instances in hours, including those left at
            the end. None without instances.
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
    """Return the figures of `trace`.

    Args:
        capacity: number of instances wanted; None for the trace's peak.
        together_s: seconds within which losses that follow one another count as one event. 0 fits traces with
            coarse times, where simultaneous events have equal times.

    Raises:
        TraceError: the capacity is below the peak.
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
