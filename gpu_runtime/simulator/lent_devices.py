"""Devices that a serving fleet lends and calls back in a simulated run, by its load over the day. Pure.

The simulated lender decides as ROSE does: it lends devices while their requests can wait for a step, that is,
while a request's deadline, less its predicted time, leaves more than a step's time. Under pressure it halves
the devices lent and freezes that number until the next training step. With the provider `lending`, the live
lender itself decides.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.spot.traces.trace import TraceEvent

LOOK_EVERY_S = 60.0
"""Seconds for which a load stays constant; looking at it more often would change nothing."""

_DAY_S = 86400.0

_CUT = 2
"""Divisor of the number of lent devices when the serving side needs a device back."""


@dataclass(frozen=True)
class ServingLoad:
    """The load of a serving fleet. The defaults are assumed, not measured.

    Attributes:
        mean: average share of its devices that are busy over a day.
        swing: half the difference between the busiest and the quietest hour.
        slack_s: seconds that a serving request can wait: its deadline minus its processing time.
        noise: standard deviation of the share from minute to minute.
    """

    mean: float = 0.5
    swing: float = 0.3
    slack_s: float = 2.0
    noise: float = 0.05

    def free(self, devices: int, chance: random.Random) -> Callable[[float], int]:
        """Return the number of free devices as a function of time, starting at a random hour of the day."""
        began_s = chance.uniform(0.0, _DAY_S)

        def free_at(at_s: float) -> int:
            turn = 2 * math.pi * (began_s + at_s) / _DAY_S
            busy = self.mean + self.swing * math.sin(turn) + self.noise * chance.gauss(0.0, 1.0)
            return math.floor(devices * (1 - min(1.0, max(0.0, busy))) + 1e-9)

        return free_at


ASSUMED_LOAD = ServingLoad()


class LentDevices:
    """Arrivals and recalls of lent devices, with the interface of a trace's `Replay`.

    A recalled device gets a notice, completes its denoising step, and leaves when the slack is over.

    Args:
        devices: largest number that a run takes.
        slack_s: seconds that a serving request can wait.
        step_s: seconds of a denoising step, after which a recalled device is free.
        free: returns the number of devices that serving does not need at a time; times never decrease.
    """

    def __init__(self, devices: int, slack_s: float, step_s: float, free: Callable[[float], int]) -> None:
        self._most = devices if slack_s > step_s else 0
        self._slack_s = slack_s
        self._free = free
        self._frozen = False
        self._looks_s = 0.0
        self._lent: list[str] = []
        self._leaving: deque[tuple[float, str]] = deque()
        self._came = 0

    @property
    def next_s(self) -> float:
        """Time of the next step or look at the load, in seconds."""
        return min(self._looks_s, self._leaving[0][0]) if self._leaving else self._looks_s

    def due(self, now_s: float) -> list[TraceEvent]:
        """Return the new steps due by now, in order."""
        steps: list[TraceEvent] = []
        while (at_s := self.next_s) <= now_s:
            if self._leaving and self._leaving[0][0] == at_s:
                steps.append(TraceEvent(at_s, "remove", self._leaving.popleft()[1]))
                continue
            lent, free = len(self._lent), self._free(at_s)
            if free < lent:
                self._frozen, lent = True, min(free, lent // _CUT)
            elif not self._frozen:
                lent = min(free, self._most)
            while len(self._lent) > lent:
                name = self._lent.pop()
                steps.append(TraceEvent(at_s, "notice", name))
                self._leaving.append((at_s + self._slack_s, name))
            while len(self._lent) < lent:
                self._came += 1
                self._lent.append(f"lent-{self._came}")
                steps.append(TraceEvent(at_s, "add", self._lent[-1]))
            self._looks_s = at_s + LOOK_EVERY_S
        return steps

    def on_training(self) -> None:
        """Allow lending more devices again, as the run trains."""
        self._frozen = False
