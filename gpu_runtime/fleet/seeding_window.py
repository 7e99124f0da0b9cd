"""The time that reserved devices roll out before they train, while spot devices finish the rollout. Pure.

RLBoost (arXiv 2510.19225) calls it seeding: reserved devices begin the rollout, then train on what is
delivered, while the spot devices roll out the rest. If the window is too short, the trainers wait for
samples; if it is too long, the spot devices wait for the trainers. RLBoost feeds the difference of both waits
back and remembers the window of each number of spot devices. If the time of a sample is known, the window can
be solved for instead, as do the policy `window` of `spotlight what-if` and, batch by batch, a run whose
trainers may leave rollouts, live or simulated (`runtime.trainers_leave`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from storage.errors import ConfigurationError

DAMPING = 3.0
"""Divisor of the difference of the waits that a window changes by, as in RLBoost's published code."""

FLOOR_S = 5.0
"""Shortest window, in seconds, that one may shrink to, as in RLBoost's published code."""


def solved_window_s(work_s: float, train_s: float, reserved: int, spot: int) -> float:
    """Return the window after which the rest of the rollout takes the spot devices as long as training.

    Until it ends, all devices roll out; after it, only the spot devices do, for `train_s`. It follows from
    `work_s = window_s * (reserved + spot) + train_s * spot`; without spot devices it is the whole rollout.

    Args:
        work_s: seconds that one device would need for the whole rollout.
        train_s: seconds of training.
        reserved: devices that train after the window.
        spot: devices that continue the rollout.

    Raises:
        ConfigurationError: a time or number is negative or infinite, or there is no device.
    """
    for name, value in (("work_s", work_s), ("train_s", train_s), ("reserved", reserved), ("spot", spot)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigurationError(f"{name} of a seeding window is {value}; give 0 or more")
    if reserved + spot == 0:
        raise ConfigurationError("a seeding window for no device; give at least one reserved or spot device")
    return max(0.0, (work_s - spot * train_s) / (reserved + spot))


def trainers_go_on(batches: float, others: int, batch_s: float, train_s: float) -> bool:
    """Return True if one more batch for the trainers lets the rollout and the training end sooner.

    Args:
        batches: batches left of the rollout.
        others: devices that roll out and do not train, at least 1.
        batch_s: seconds of a batch.
        train_s: seconds of training that can be done beside the rollout.
    """
    return batches * batch_s / others > train_s + batch_s


class LiveWindow:
    """The decision whether trainers go on with a rollout, taken before each of their batches.

    The rule is that of `solved_window_s` for the work left now, so a lost spot device brings the trainers
    back, and no number of devices has to be remembered. On a tie, they train first.
    """

    def __init__(self) -> None:
        self._batch_s: float | None = None
        self._others = 0  # when the last note was written
        self._notes: list[str] = []

    def on_rolled_out(self, lease_s: Sequence[float]) -> None:
        """Record the end of a rollout, with the seconds of each of its batches."""
        if lease_s:
            self._batch_s = statistics.median(lease_s)

    def goes_on(self, batches: float, others: int, train_s: float | None) -> bool:
        """Return True if one more batch for the trainers lets the rollout and the training end sooner.

        Args:
            batches: batches left of the rollout.
            others: devices that roll out and do not train.
            train_s: seconds of training that can be done beside the rollout; None if not known.
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
        """Return why trainers left, once for each number of other devices, since the last call."""
        taken, self._notes = self._notes, []
        return taken


def most_useful_spot(remote_s: float, spot: int, window_s: float, reserved: int, train_s: float) -> float:
    """Return the number of spot devices beyond which each one waits for the trainer: `N_prem` of RLBoost.

    They roll out the rest while the trainer trains; the whole rollout is `remote_s * spot + window_s *
    reserved`, and this many of them do it in `train_s` without any window.

    Args:
        remote_s: seconds that each spot device rolls out.
        spot: devices that do.
        window_s: seconds that each reserved device rolls out.
        reserved: devices that train afterwards.
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
        first_s: first window, such as a solved one.
        remembers: True to reuse the last window of each number of spot devices, else the last one of all.

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
        """Return the window for the next iteration with this many spot devices."""
        if self._remembers:
            return self._of.get(spot, self._last_s)
        return self._last_s

    def add_waits(self, spot: int, trainers_s: float, spot_s: float) -> None:
        """Correct the window by the waits of an iteration.

        Args:
            spot: spot devices that it had.
            trainers_s: seconds that the trainers waited for samples.
            spot_s: seconds that the spot devices waited for the training.
        """
        known_s = self.window_s(spot)
        window_s = known_s + (trainers_s - spot_s) / DAMPING
        if window_s < known_s:
            window_s = min(known_s, max(FLOOR_S, window_s))
        self._of[spot] = self._last_s = window_s
