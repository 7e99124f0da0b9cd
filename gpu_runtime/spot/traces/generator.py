"""Traces from a seeded generator, with zones that lose several instances at once; pure."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.errors import ConfigurationError


@dataclass(frozen=True)
class TraceShape:
    """The parameters of generated traces.

    Attributes:
        capacity: number of instances wanted; the trace begins with all of them and never has more.
        multi_loss_share: share of the losses that take two or more instances of a zone at once, 0 to 1.
            It is reached only if zones hold several instances; a nearly empty zone cannot lose several.
        largest_burst: most instances lost at once, 2 or more.
        zones: number of zones over which the instances are spread; zones lose theirs independently.
        mean_reacquire_s: mean seconds until a lost instance is replaced.
        min_reacquire_s: minimum of that time, such as a machine's start-up; the rest is exponential.

    Raises:
        ConfigurationError: a value is out of range.
    """

    capacity: int
    length_s: float
    mean_lifetime_s: float = 5400.0
    multi_loss_share: float = 0.77
    largest_burst: int = 6
    zones: int = 3
    mean_reacquire_s: float = 600.0
    min_reacquire_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("capacity", self.capacity, 1),
            ("largest_burst", self.largest_burst, 2),
            ("zones", self.zones, 1),
            ("min_reacquire_s", self.min_reacquire_s, 0),
            ("mean_reacquire_s", self.mean_reacquire_s, self.min_reacquire_s),
        ):
            if not (math.isfinite(value) and value >= least):
                raise ConfigurationError(f"{name} of a generated trace is {value}; give at least {least}")
        for name, value in (("length_s", self.length_s), ("mean_lifetime_s", self.mean_lifetime_s)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name} of a generated trace is {value}; give a number above 0")
        if not 0 <= self.multi_loss_share <= 1:
            raise ConfigurationError(f"multi_loss_share is {self.multi_loss_share}; give a share from 0 to 1")


def generate_trace(shape: TraceShape, seed: int) -> Trace:
    """Return a trace of that shape; the same seed gives the same trace.

    Losses are events in the zones. An event takes one instance or, as often as `multi_loss_share` requires,
    a burst of two or more, with all sizes up to `largest_burst` equally likely. Events that take more
    instances are rarer, so the mean lifetime is `mean_lifetime_s` for any share.

    Returns:
        Times in whole milliseconds; instances named `zone-Z-N`, never twice.
    """
    return _Generator(shape, seed).run()


class _Generator:
    def __init__(self, shape: TraceShape, seed: int) -> None:
        self._shape = shape
        self._random = random.Random(seed)
        self._alive: list[list[str]] = [[] for _ in range(shape.zones)]
        self._returns: list[tuple[float, int]] = []  # a heap: when an instance arrives, and in which zone
        self._events: list[TraceEvent] = []
        self._came = 0
        self._last_loss_s = -1.0

    def run(self) -> Trace:
        shape = self._shape
        for slot in range(shape.capacity):
            self._add(0.0, slot % shape.zones)
        at_s = 0.0
        while True:
            # Waiting times are memoryless, so redrawing after every event is exact.
            rate = sum(self._event_rate(zone) for zone in range(shape.zones))
            loss_s = at_s + self._random.expovariate(rate) if rate else math.inf
            at_s = min(loss_s, self._returns[0][0] if self._returns else math.inf)
            if at_s > shape.length_s:
                return Trace(tuple(self._events), shape.length_s)
            if loss_s > at_s:
                self._add(*heapq.heappop(self._returns))
            elif _to_ms(at_s) > self._last_loss_s:  # two events in one millisecond would look like one
                self._last_loss_s = _to_ms(at_s)
                self._remove_some(at_s)

    def _burst_sizes(self, zone: int) -> range:
        return range(2, min(self._shape.largest_burst, len(self._alive[zone])) + 1)

    def _burst_probability(self, zone: int) -> float:
        """Return the probability that an event is a burst, for bursts to have their share of *losses*."""
        sizes, share = self._burst_sizes(zone), self._shape.multi_loss_share
        if not sizes:
            return 0.0
        mean_size = sum(sizes) / len(sizes)
        return share / (share + mean_size * (1 - share))

    def _event_rate(self, zone: int) -> float:
        """Return a zone's events per second: its losses per second over the mean losses per event."""
        alive, share = len(self._alive[zone]), self._shape.multi_loss_share
        sizes = self._burst_sizes(zone)
        if not sizes:  # alone in its zone, an instance has the rate of single losses elsewhere
            return alive * (1 - share) / self._shape.mean_lifetime_s
        burst = self._burst_probability(zone)
        losses_of_an_event = burst * sum(sizes) / len(sizes) + (1 - burst)
        return alive / losses_of_an_event / self._shape.mean_lifetime_s

    def _remove_some(self, at_s: float) -> None:
        rates = [self._event_rate(zone) for zone in range(self._shape.zones)]
        [zone] = self._random.choices(range(self._shape.zones), weights=rates)
        sizes = self._burst_sizes(zone)
        is_burst = self._random.random() < self._burst_probability(zone)
        for _ in range(self._random.choice(sizes) if is_burst else 1):
            alive = self._alive[zone]
            name = alive.pop(self._random.randrange(len(alive)))
            self._events.append(TraceEvent(_to_ms(at_s), "remove", name))
            delay_s = self._shape.min_reacquire_s
            above_s = self._shape.mean_reacquire_s - delay_s
            if above_s > 0:
                delay_s += self._random.expovariate(1 / above_s)
            heapq.heappush(self._returns, (at_s + delay_s, zone))

    def _add(self, at_s: float, zone: int) -> None:
        self._came += 1
        name = f"zone-{zone}-{self._came}"
        self._alive[zone].append(name)
        self._events.append(TraceEvent(_to_ms(at_s), "add", name))


def _to_ms(at_s: float) -> float:
    """Return seconds rounded down to whole milliseconds, which keeps the order and the length."""
    return math.floor(at_s * 1000) / 1000
