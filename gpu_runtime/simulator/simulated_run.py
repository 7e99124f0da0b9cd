"""How a simulated run is done, and what it came to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from storage.record.records import DeviceEvent, DeviceState, Market, StateInterval

SimulatedPhase = Literal["draft", "rollout", "reward", "train", "driver", "evaluate"]
LedgerPhase = Literal["iteration", "evaluation"]


@dataclass(frozen=True)
class SimulatedPlan:
    """How a run is done, whatever it computes.

    Attributes:
        fleet: what is rented.
        strategy: of exploration; it is asked what a live run would ask it.
        drafts: most drafts an iteration; 0 for as many as a window holds, or for every candidate where
            there is no window.
        more_samples: trained on in an iteration beyond the settings' number; whole groups of them.
        pushes: batches are dealt to the devices when a phase begins, instead of pulled.
        seeds: trainers roll out for RLBoost's window, then train while the others roll out the rest.
        runs: 2 where two equal runs share the devices, and one trains while the other rolls out.
        lends: the spot devices are those of a serving fleet, which lends them as its load allows.
        static_groups: devices that share samples stay together, and restart cold where their group changes.
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
        """What no live run does, in words; None for none of it."""
        return _first({**self._ways_alone, "groups of devices that restart cold": self.static_groups})

    @property
    def done_alone(self) -> str | None:
        """What no live run does whose devices share samples, in words; None for none of it."""
        return _first(
            {**self._ways_alone, "renting what times and prices say": self.fleet.decided is not None}
        )

    @property
    def of_one_kind(self) -> str | None:
        """What takes all devices to be of one kind, in words; None for nothing."""
        return _first(
            {
                "a window in which trainers roll out": self.seeds,
                "deciding how many spot devices are rented": self.fleet.decided is not None,
            }
        )

    @property
    def _ways_alone(self) -> dict[str, bool]:
        """What no live run does, and is simulated for devices that work alone."""
        return {
            "a window in which trainers roll out": self.seeds,
            "dealing batches beforehand": self.pushes,
            "sharing devices between two runs": self.runs > 1,
            "lending by an assumed load of a serving fleet": self.lends,
            "AstraFlow's rule for the number of devices": self.fleet.decided == "astraflow",
        }


def _first(ways: Mapping[str, bool]) -> str | None:
    """The first way that is taken."""
    return next((way for way, taken in ways.items() if taken), None)


@dataclass
class SimulatedRun:
    """What a simulated run came to.

    Attributes:
        wall: ticks from its beginning to its end.
        phases: ticks of all iterations by phase; evaluations are one of them.
        iterations: ticks of each iteration, evaluations not included.
        spent: ticks by market and state, over all devices.
        paid: ticks by market, metered apart from the states.
        usd_per_hour: price of a device by market; the mean over its paid time, where it changes.
        drafts: made and judged in time.
        more_per_sample: images made beyond the settings' samples (drafts, or a larger batch), over these.
        batches: rolled out.
        redone: denoising steps of batches that losses took with them.
        redone_time: ticks that devices need to do them again.
        returned: batches that went back to wait.
        joined, notices, losses: spot devices.
        events: of the clock.
        intervals: what every device did, in ticks; only where they are to be kept, as the next two.
        device_events: what happened to spot devices, in ticks.
        ends: of each iteration and each evaluation after one, its number, which of both, and its last tick.
        wanted: spot devices that were wanted in each iteration, where that was decided.
        runs: equal runs that shared the devices; all but the bill is of all of them together.
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
    def paid_hours(self) -> dict[Market, float]:
        """Device-hours that one run pays for, by market."""
        return {market: paid / 3600 / TICKS_PER_S / self.runs for market, paid in self.paid.items()}

    def share(self, state: DeviceState, market: Market | None = None) -> float:
        """Share of the paid time that devices of a market, or all, were in a state; 0 without any."""
        of = {key: value for key, value in self.spent.items() if market in (None, key[0])}
        whole = sum(of.values())
        return sum(value for key, value in of.items() if key[1] == state) / whole if whole else 0.0

    @property
    def redone_share(self) -> float:
        """Share of the paid time that went into steps which losses took with them; at most.

        No state of its own: as in the ledger of a live run, it is in that which the device was in.
        """
        paid = sum(self.paid.values())
        return self.redone_time / paid if paid else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values; whole numbers are ticks."""
        return {
            "wall": self.wall,
            "phases": {phase: self.phases[phase] for phase in sorted(self.phases)},
            "iterations": self.iterations,
            "spent": {f"{market}/{state}": self.spent[market, state] for market, state in sorted(self.spent)},
            "paid": dict(sorted(self.paid.items())),
            "usd": self.usd,
            **{
                name: getattr(self, name)
                for name in ("drafts", "batches", "redone", "returned", "joined", "notices", "losses")
            },
        }
