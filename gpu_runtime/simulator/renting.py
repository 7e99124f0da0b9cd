"""The number of spot devices that a simulated run rents, from past iterations as in a live run. Pure."""

from __future__ import annotations

from gpu_runtime.scheduling.capacity_decision import (
    IterationForecast,
    MeasuredTimes,
    RentingTerms,
    TrainingTime,
    decide_capacity,
    most_generators,
)
from gpu_runtime.simulator.fleet import FleetPlan, SimulatedFleet
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, EventLoop


def scale_generators(forecast: IterationForecast | None, terms: RentingTerms, held: int) -> int:
    """Return the spot devices wanted by AstraFlow's rule: more if training waits and the run costs no more.

    If training hardly waits, the rule asks for min(G, ⌈1.1·G·consumed/entered⌉). An iteration trains on
    everything that it rolls out, so this is G: no device is given back. No live run rents by this rule.

    Args:
        forecast: forecast of the next iteration; None, which keeps `held`, before times are measured.
    """
    if forecast is None:
        return held
    held = min(held, terms.most)
    asked = min(terms.most, most_generators(forecast, terms.reserved + held) - terms.reserved)
    costs_more = terms.cost_to_the_end(forecast, asked, held) > terms.cost_to_the_end(forecast, held, held)
    return held if costs_more else asked


class Renting:
    """Decides as `RentedCapacity` does; does nothing if the plan rents all available devices.

    Attributes:
        wanted: wanted spot devices of each iteration; empty without a decision rule.
        evaluated: ticks of evaluations since the last rollout, which are not part of an iteration.
        training: time of the last iteration's training.
    """

    def __init__(
        self, loop: EventLoop, plan: FleetPlan, fleet: SimulatedFleet, updates: int, leaves: bool
    ) -> None:
        self.wanted: list[int] = []
        self.evaluated = 0
        self.training = TrainingTime()
        self._loop = loop
        self._plan = plan
        self._fleet = fleet
        self._measured = MeasuredTimes(updates)
        self._rolled_out: int | None = None
        self._leaving = plan.trainers if leaves else 0

    def decide(self, batches: int = 0, left: int = 1) -> None:
        """Rent for the next iteration, or, without batches, before the first one.

        Args:
            batches: batches of its rollout.
            left: number of iterations left, including it.
        """
        plan, at_s = self._plan, self._loop.now / TICKS_PER_S
        if plan.decided is None:
            return
        if self._rolled_out is not None:
            rest = self._loop.now - self._rolled_out - self.evaluated
            self._measured.add_rest(rest / TICKS_PER_S, self.training if self._leaving else None)
        reserved_usd, spot_usd = plan.price_at("reserved", at_s), plan.price_at("spot", at_s)
        terms = RentingTerms(plan.reserved, reserved_usd, spot_usd, plan.spot, 0.0)
        forecast = self._measured.forecast(batches, left, self._leaving)
        held = self._fleet.staying
        if plan.decided == "astraflow":
            wanted = scale_generators(forecast, terms, held)
        else:
            wanted = decide_capacity(forecast, terms, held).wanted
        self._fleet.want(wanted)
        if batches:
            self.wanted.append(wanted)

    def on_rolled_out(self, batch: int, start: int) -> None:
        """Record a finished rollout: the ticks of a batch, and of a device's start."""
        self._measured.add_batch_time(batch / TICKS_PER_S)
        self._measured.add_start(start / TICKS_PER_S)
        self._rolled_out, self.evaluated = self._loop.now, 0
