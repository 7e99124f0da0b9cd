"""A simulated run's plan and outcome. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from storage.record.records import DeviceEvent, DeviceState, Market, StateInterval

SimulatedPhase = Literal["draft", "rollout", "reward", "train", "driver", "evaluate"]
LedgerPhase = Literal["iteration", "evaluation"]


@dataclass(frozen=True)
class SimulatedPlan:
    """The way a run is executed, regardless of its workload.

    Attributes:
        strategy: exploration strategy; it gets the same calls as in a live run.
        drafts: most drafts per iteration; 0 for as many as a window holds, or for every candidate if there
            is no window.
        more_samples: samples per iteration beyond the settings' number, in whole groups.
        pushes: True to deal batches to the devices when a phase begins, instead of letting them pull.
        seeds: True if trainers roll out for RLBoost's window, then train while others roll out the rest.
        runs: 2 if two equal runs share the devices, and one trains while the other rolls out.
        lends: True if the spot devices are lent by a serving fleet as its load allows.
        static_groups: True if groups of devices stay together, and restart cold if they change.
    """

    fleet: FleetPlan
    strategy: Strategy = PLAIN
    drafts: float = 0.0
    more_samples: float = 0.0
    pushes: bool = False
    seeds: bool = False
    runs: int = 1
    lends: bool = False
    static_groups: bool = False

    @property
    def only_simulated(self) -> str | None:
        """Description of the part that no live run supports; None if a live run can follow it."""
        return self._unsupported or ("groups of devices that restart cold" if self.static_groups else None)

    @property
    def done_alone(self) -> str | None:
        """Description of the part that needs devices to work alone; None if they may share samples."""
        return self._unsupported or ("renting by times and prices" if self.fleet.decided else None)

    @property
    def of_one_kind(self) -> str | None:
        """Description of the part that needs devices of one kind; None if there may be several kinds."""
        if self.seeds:
            return "a window in which trainers roll out"
        return "deciding how many spot devices are rented" if self.fleet.decided else None

    @property
    def _unsupported(self) -> str | None:
        """Description of the first simulated-only part that needs devices to work alone; None if none."""
        parts = {
            "a window in which trainers roll out": self.seeds,
            "dealing batches beforehand": self.pushes,
            "sharing devices between two runs": self.runs > 1,
            "lending by a serving fleet's assumed load": self.lends,
            "AstraFlow's rule for the number of devices": self.fleet.decided == "astraflow",
        }
        return next((part for part, used in parts.items() if used), None)


@dataclass(frozen=True)
class CostLine:
    """Dollars as a linear function of the price of a spot device.

    A policy's behaviour does not depend on prices unless it decides how much to rent; its cost is then not
    linear.

    Attributes:
        reserved_usd: dollars at price 0.
        spot_hours: spot device-hours.
    """

    reserved_usd: float
    spot_hours: float

    def usd(self, spot_usd_per_hour: float) -> float:
        """Return the dollars at a price."""
        return self.reserved_usd + self.spot_hours * spot_usd_per_hour

    def times(self, iterations: float) -> CostLine:
        """Return the line for this many iterations, given the line for one."""
        return CostLine(self.reserved_usd * iterations, self.spot_hours * iterations)


@dataclass
class SimulatedRun:
    """The outcome of a simulated run.

    Attributes:
        wall: ticks from its beginning to its end.
        phases: ticks of the run by phase, evaluations included.
        iterations: ticks of each iteration, without evaluations.
        spent: ticks by market and state, over all devices.
        paid: ticks by market, metered separately from the states.
        usd_per_hour: price of a device by market; the mean over its paid time if it changes.
        drafts: drafts made and judged in time.
        more_per_sample: images made beyond the settings' samples (drafts, or a larger batch), per sample.
        redone: denoising steps of batches that were lost.
        redone_time: device ticks needed to redo them.
        returned: batches that returned to the queue.
        joined, notices, losses: numbers of spot devices that joined, got a notice, or were lost.
        events: number of events on the clock.
        intervals: states of every device, in ticks; empty unless kept, as are the next two.
        device_events: events of spot devices, in ticks.
        ends: number, kind and last tick of each iteration and of each evaluation.
        wanted: spot devices wanted in each iteration; empty without a decision rule.
        runs: number of equal runs that shared the devices; all figures but the bill cover all of them.
    """

    usd_per_hour: dict[Market, float]
    wall: int = 0
    phases: Counter[SimulatedPhase] = field(default_factory=Counter)
    iterations: list[int] = field(default_factory=list)
    spent: Counter[tuple[Market, DeviceState]] = field(default_factory=Counter)
    paid: Counter[Market] = field(default_factory=Counter)
    drafts: int = 0
    more_per_sample: float = 0.0
    batches: int = 0
    redone: int = 0
    redone_time: int = 0
    returned: int = 0
    joined: int = 0
    notices: int = 0
    losses: int = 0
    events: int = 0
    intervals: list[StateInterval] = field(default_factory=list)
    device_events: list[DeviceEvent] = field(default_factory=list)
    ends: list[tuple[int, LedgerPhase, int]] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    runs: int = 1

    @property
    def wall_s(self) -> float:
        """Seconds from its beginning to its end."""
        return self.wall / TICKS_PER_S

    @property
    def usd(self) -> float:
        """The bill of one run."""
        prices = self.usd_per_hour
        return sum(prices[market] * hours for market, hours in self.paid_hours.items())

    @property
    def cost_line(self) -> CostLine:
        """The cost line of one iteration: the bill times the iterations' share of the run's time."""
        share = sum(self.iterations) / self.wall / len(self.iterations)
        hours, price = self.paid_hours, self.usd_per_hour["reserved"]
        return CostLine(hours.get("reserved", 0.0) * price, hours.get("spot", 0.0)).times(share)

    @property
    def iteration_usd(self) -> float:
        """Dollars of one iteration at the run's prices."""
        return self.cost_line.usd(self.usd_per_hour["spot"])

    @property
    def paid_hours(self) -> dict[Market, float]:
        """Device-hours for which one run pays, by market."""
        return {market: paid / 3600 / TICKS_PER_S / self.runs for market, paid in self.paid.items()}

    def share(self, state: DeviceState, market: Market | None = None) -> float:
        """Return the share of paid time that a market's devices, or all, spent in a state; 0 if none."""
        of = {key: value for key, value in self.spent.items() if market in (None, key[0])}
        whole = sum(of.values())
        return sum(value for key, value in of.items() if key[1] == state) / whole if whole else 0.0

    @property
    def redone_share(self) -> float:
        """Upper bound on the share of the paid time that went into lost steps.

        As in a live run's ledger, it is part of the devices' states, not a separate state.
        """
        paid = sum(self.paid.values())
        return self.redone_time / paid if paid else 0.0
