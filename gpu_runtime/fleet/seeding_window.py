"""How long reserved devices roll out before they train, while spot devices finish the rollout. Pure.

RLBoost (arXiv 2510.19225) calls it seeding: reserved devices begin the rollout, then train on what is
delivered, while the spot devices roll out the rest. Too short a window, and the trainers wait for samples;
too long a one, and the spot devices wait for the trainers. RLBoost feeds the difference of both waits back
and remembers the window of each number of spot devices. Where a sample takes a known time, the window can be
solved instead: so does the policy `window` of `spotlight what-if` and, batch by batch, a run whose trainers
may leave rollouts, live or simulated (`runtime.trainers_leave`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from storage.errors import ConfigurationError

DAMPING = 3.0
"""Part of the difference of the waits that a window changes by; that of RLBoost's published code."""

FLOOR_S = 5.0
"""A window that shrinks stays at least so long, as in RLBoost's published code."""


def solved_window_s(work_s: float, train_s: float, reserved: int, spot: int) -> float:
    """The window after which the rest of the rollout takes the spot devices as long as training takes.

    Until it ends, all devices roll out; after it, the spot devices alone, for `train_s`. From
    `work_s = window_s * (reserved + spot) + train_s * spot`; without spot devices, all of the rollout.

    Args:
        work_s: seconds of one device for the whole rollout.
        train_s: seconds of training.
        reserved: devices that train after the window.
        spot: devices that go on.

    Raises:
        ConfigurationError: a negative or infinite time or number, or no device.
    """
    for name, value in (("work_s", work_s), ("train_s", train_s), ("reserved", reserved), ("spot", spot)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigurationError(f"{name} of a seeding window is {value}; give 0 or more")
    if reserved + spot == 0:
        raise ConfigurationError("a seeding window for no device; give at least one reserved or spot device")
    return max(0.0, (work_s - spot * train_s) / (reserved + spot))


def trainers_go_on(batches: float, others: int, batch_s: float, train_s: float) -> bool:
    """Whether a batch more for the trainers lets the rollout and the training end sooner.

    Args:
        batches: that are left of the rollout.
        others: devices that roll out and do not train, at least 1.
        batch_s: seconds of a batch.
        train_s: seconds of training that can be done beside the rollout.
    """
    return batches * batch_s / others > train_s + batch_s


class LiveWindow:
    """Whether trainers go on with a rollout, asked before each of their batches.

    As `solved_window_s`, of what is left at the moment: so a lost spot device brings them back, and no number
    of devices has to be remembered. They train first where both take as long.
    """

    def __init__(self) -> None:
        self._batch_s: float | None = None
        self._others = 0  # when a note was written
        self._notes: list[str] = []

    def on_rolled_out(self, lease_s: Sequence[float]) -> None:
        """A rollout is over, each of whose batches took so many seconds."""
        if lease_s:
            self._batch_s = statistics.median(lease_s)

    def goes_on(self, batches: float, others: int, train_s: float | None) -> bool:
        """Whether a batch more for the trainers lets the rollout and the training end sooner.

        Args:
            batches: that are left of the rollout.
            others: devices that roll out and do not train.
            train_s: seconds of training that can be done beside the rollout; None where it is not known.
        """
        if train_s is None or self._batch_s is None or others == 0:
            return True
        goes_on = trainers_go_on(batches, others, self._batch_s, train_s)
        if not goes_on and others != self._others:
            self._others, left_s = others, batches * self._batch_s / others
            self._notes.append(
                f"trainers leave rollouts before the end: beside {others} other devices, which need "
                f"{left_s:.1f} s for the rest of this one, training takes {train_s:.1f} s"
            )
        return goes_on

    def take_notes(self) -> list[str]:
        """Why trainers left, once for each number of other devices, since the last call."""
        taken, self._notes = self._notes, []
        return taken


def most_useful_spot(remote_s: float, spot: int, window_s: float, reserved: int, train_s: float) -> float:
    """Spot devices beyond which each one waits for the trainer: `N_prem` of RLBoost.

    They roll out what is left while the trainer trains; the whole rollout is `remote_s * spot + window_s *
    reserved`, and with so many of them it takes `train_s` without any window.

    Args:
        remote_s: that each spot device rolls out, in seconds.
        spot: devices that do.
        window_s: that each reserved device rolls out, in seconds.
        reserved: devices that train after it.
        train_s: seconds of training, above 0.

    Raises:
        ConfigurationError: `train_s` is not above 0.
    """
    if not train_s > 0:
        raise ConfigurationError(f"train_s of a seeding window is {train_s}; give seconds above 0")
    return (remote_s * spot + window_s * reserved) / train_s


class SeedingWindows:
    """Windows that are corrected after each iteration, and remembered by the number of spot devices.

    Args:
        first_s: the first window, such as a solved one.
        remembers: whether a number of spot devices that returns gets its own last window; otherwise the
            last window of all is taken.

    Raises:
        ConfigurationError: `first_s` is negative or not a number.
    """

    def __init__(self, first_s: float, remembers: bool = True) -> None:
        if not (math.isfinite(first_s) and first_s >= 0):
            raise ConfigurationError(f"a first window of {first_s} s; give 0 or more")
        self._last_s = first_s
        self._of: dict[int, float] = {}
        self._remembers = remembers

    def window_s(self, spot: int) -> float:
        """The window for the next iteration with so many spot devices."""
        if self._remembers:
            return self._of.get(spot, self._last_s)
        return self._last_s

    def add_waits(self, spot: int, trainers_s: float, spot_s: float) -> None:
        """Correct the window by what an iteration waited.

        Args:
            spot: devices that it had.
            trainers_s: the trainers waited for samples.
            spot_s: the spot devices waited for the training.
        """
        known_s = self.window_s(spot)
        window_s = known_s + (trainers_s - spot_s) / DAMPING
        if window_s < known_s:
            window_s = min(known_s, max(FLOOR_S, window_s))
        self._of[spot] = self._last_s = window_s
