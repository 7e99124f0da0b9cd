"""How many spot instances a run rents for its next iteration, by measured times and by prices. Pure.

The live run and the simulator ask the same function. With R reserved devices, n spot devices, B batches of b
seconds each and r seconds of an iteration in which nothing is rolled out, an iteration takes
T(n) = b·⌈B / (R + n)⌉ + r and costs C(n) = p_R·R·T(n) + p_S·n·(T(n) - u·r), where u is the share of a spot
device's time beside training that is of use (1 where it explores there, 0 where it idles). Another instance
pays while the time that it saves, times what waits meanwhile, is more than its own price: while C falls. How
fast the number grows is bounded by the rule of AstraFlow (`generate_balance_report`): G' = ⌈G / (1 - f)⌉, f
the trainer's share of waiting.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

LEAST_GAIN = 0.02
"""Share of an iteration's cost that giving instances back must save: an instance that is gone takes its start
to come again, and times vary."""

LEAST_WAIT = 0.10
"""The trainer's share of waiting above which AstraFlow asks for more generators."""

_REMEMBERED = 5
"""Iterations whose times count, by their median: prompts and machines change in the course of a run."""


@dataclass(frozen=True)
class IterationForecast:
    """What the next iteration has to do.

    Attributes:
        batches: of its rollout.
        batch_s: seconds that a device takes for one.
        rest_s: seconds of the iteration in which nothing is rolled out.
        start_s: seconds that a new device is paid for before it has loaded.
        left: iterations that are left, the next one included, at least 1.
    """

    batches: int
    batch_s: float
    rest_s: float
    start_s: float = 0.0
    left: int = 1

    def rollout_s(self, devices: int) -> float:
        """Seconds of the rollout on so many devices, at least 1: whole batches, in turns."""
        return self.batch_s * math.ceil(self.batches / devices)

    def iteration_s(self, devices: int) -> float:
        """Seconds of the iteration."""
        return self.rollout_s(devices) + self.rest_s


@dataclass(frozen=True)
class RentingTerms:
    """What is rented beside what may be.

    Attributes:
        reserved: devices that stay, at least 1; all of them roll out.
        reserved_usd_per_hour, spot_usd_per_hour: price of a device.
        most: spot devices that the settings allow.
        use_of_rest: share of a spot device's time beside training that is of use: 1 where it explores, else
            0.
    """

    reserved: int
    reserved_usd_per_hour: float
    spot_usd_per_hour: float
    most: int
    use_of_rest: float = 0.0

    def cost_usd(self, forecast: IterationForecast, spot: int) -> float:
        """What the next iteration costs with so many spot devices."""
        iteration_s = forecast.iteration_s(self.reserved + spot)
        reserved_s = self.reserved * iteration_s
        spot_s = spot * (iteration_s - self.use_of_rest * forecast.rest_s)
        return (self.reserved_usd_per_hour * reserved_s + self.spot_usd_per_hour * spot_s) / 3600


@dataclass(frozen=True)
class CapacityDecision:
    """How many spot devices are wanted, and why.

    Attributes:
        wanted: devices.
        reason: in words, for a person.
    """

    wanted: int
    reason: str


def decide_capacity(forecast: IterationForecast | None, terms: RentingTerms, held: int) -> CapacityDecision:
    """How many spot devices the next iteration should have.

    The cheapest number of those within reach; of numbers that cost the same, the smallest. What new devices
    cost until they begin is counted. Devices are given back only where that saves `LEAST_GAIN`.

    Args:
        forecast: of the next iteration; None before times have been measured: all that the settings allow
            are then wanted.
        terms: prices and bounds.
        held: spot devices that are rented now.
    """
    if forecast is None:
        return CapacityDecision(terms.most, f"nothing has been measured yet: {_devices(terms.most)} at first")
    held = min(held, terms.most)
    reach = min(terms.most, max(held, most_generators(forecast, terms.reserved + held) - terms.reserved))
    cost = [_cost_to_the_end(forecast, terms, spot, held) for spot in range(reach + 1)]
    best = min(range(reach + 1), key=lambda spot: (cost[spot], spot))
    if best < held and cost[best] > (1 - LEAST_GAIN) * cost[held]:
        best = held
    return CapacityDecision(best, _reason(forecast, terms, held, best))


def scale_generators(forecast: IterationForecast | None, terms: RentingTerms, held: int) -> CapacityDecision:
    """AstraFlow's rule with prices: more spot devices where training waits, if the run then costs no more.

    Where training hardly waits, the rule asks for min(G, ⌈1.1·G·consumed/entered⌉). An iteration trains on
    all that it rolls out, so that this is G: none is given back. No live run rents by this rule.

    Args:
        forecast: of the next iteration; None before times have been measured: what is held stays then.
        terms: prices and bounds.
        held: spot devices that are rented now.
    """
    if forecast is None:
        return CapacityDecision(held, f"nothing has been measured yet: {_devices(held)} as before")
    held = min(held, terms.most)
    asked = min(terms.most, most_generators(forecast, terms.reserved + held) - terms.reserved)
    costs_more = _cost_to_the_end(forecast, terms, asked, held) > _cost_to_the_end(
        forecast, terms, held, held
    )
    wanted = held if costs_more else asked
    return CapacityDecision(wanted, _reason(forecast, terms, held, wanted))


def most_generators(forecast: IterationForecast, generators: int) -> int:
    """AstraFlow's bound on how many devices roll out next, by the share of an iteration that training waits.

    Args:
        forecast: of the next iteration.
        generators: devices that roll out now, at least 1.
    """
    iteration_s, rest_s = forecast.iteration_s(generators), forecast.rest_s
    if forecast.rollout_s(generators) <= LEAST_WAIT * iteration_s:
        return generators
    # G / (1 - f), where 1 - f is the rest's share of the iteration; more than a batch each has no use.
    most = generators * iteration_s / rest_s if rest_s else math.inf
    return max(generators, math.ceil(min(most, forecast.batches)))


@dataclass
class MeasuredTimes:
    """The times of the past iterations, of which the newest few count."""

    _batch_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _rest_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _start_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def add_batch_time(self, seconds: float) -> None:
        """What a device took for a batch of an iteration, in seconds: the median over its batches."""
        self._batch_s.append(seconds)

    def add_rest(self, seconds: float) -> None:
        """What an iteration took beside its rollout, in seconds."""
        self._rest_s.append(seconds)

    def add_start(self, seconds: float) -> None:
        """What a worker took from being asked for to having loaded, in seconds."""
        self._start_s.append(seconds)

    def forecast(self, batches: int, left: int) -> IterationForecast | None:
        """What the next iteration has to do; None before a whole iteration has been measured.

        Args:
            batches: of its rollout.
            left: iterations that are left, the next one included.
        """
        if not self._batch_s or not self._rest_s:
            return None
        start_s = statistics.median(self._start_s) if self._start_s else 0.0
        batch_s, rest_s = statistics.median(self._batch_s), statistics.median(self._rest_s)
        return IterationForecast(batches, batch_s, rest_s, start_s, left)


def _cost_to_the_end(forecast: IterationForecast, terms: RentingTerms, spot: int, held: int) -> float:
    starting_s = max(0, spot - held) * forecast.start_s
    return forecast.left * terms.cost_usd(forecast, spot) + terms.spot_usd_per_hour * starting_s / 3600


def _reason(forecast: IterationForecast, terms: RentingTerms, held: int, best: int) -> str:
    """Why so many, by the change from what is held, or by what one more would do."""
    other = best if best != held else min(best + 1, terms.most)
    if other == held:
        return f"{_devices(held)}, the most that the settings allow: fewer would not save {LEAST_GAIN:.0%}"
    few, many = sorted((held, other))
    few_s, many_s = (forecast.iteration_s(terms.reserved + spot) for spot in (few, many))
    few_usd, many_usd = (terms.cost_usd(forecast, spot) for spot in (few, many))
    saves = f"{many - few} more would save {few_s - many_s:.1f} s of {few_s:.1f} s an iteration"
    costs = f"which would then cost ${many_usd:.4f} instead of ${few_usd:.4f}"
    if best > held:
        return f"{_devices(best)} instead of {held}: {saves}, {costs}"
    if best < held:
        saves = f"the last {many - few} save {few_s - many_s:.1f} s of {few_s:.1f} s an iteration"
        return (
            f"{_devices(best)} instead of {held}: {saves}, which costs ${many_usd:.4f} with them and "
            f"${few_usd:.4f} without"
        )
    return f"{_devices(held)} as before: {saves}, {costs}"


def _devices(count: int) -> str:
    return f"{count} spot {'device' if count == 1 else 'devices'}"
