"""Decides how many spot devices to rent and when trainers leave a rollout, from times and prices; pure.

The live run and the simulator call the same functions. With R reserved devices, n spot devices, B batches of
b seconds each and r seconds of an iteration without rollout, an iteration takes
T(n) = b·⌈B / (R + n)⌉ + r and costs C(n) = p_R·R·T(n) + p_S·(n·T(n) - min(n, u)·r), where u spot devices are
useful during training: any number if they explore, those that train, or none. Another instance pays off
while C falls, that is, while the time it saves, times the price of what waits, exceeds its own price.
AstraFlow's rule bounds the growth of the number (`generate_balance_report`): G' = ⌈G / (1 - f)⌉, where f is
the trainer's share of waiting.

RLBoost (arXiv 2510.19225) calls the time that trainers roll out before training "seeding": if too short, they
wait for samples; if too long, the spot devices wait for them. Here trainers decide before each of their
batches (`runtime.trainers_leave`), and `IterationForecast.course` gives T(n).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST_GAIN = 0.02
"""Share of an iteration's cost that giving instances back must save, because getting one back costs another
start and times vary."""

LEAST_WAIT = 0.10
"""The trainer's share of waiting above which AstraFlow asks for more generators."""

_REMEMBERED = 5
"""Number of newest iterations over which times are medians; prompts and machines change during a run."""


@dataclass(frozen=True)
class IterationForecast:
    """The next iteration's work and times.

    Attributes:
        batch_s: seconds that a device takes for a batch.
        rest_s: seconds of the iteration outside its rollout and `train_s`.
        start_s: paid seconds of a new device before it has loaded.
        left: iterations left, including the next one, at least 1.
        trainers: devices that leave the rollout to train; 0 if they stay, with training in `rest_s`.
        train_s: seconds of that training, which may begin before the rollout ends.
    """

    batches: int
    batch_s: float
    rest_s: float
    start_s: float = 0.0
    left: int = 1
    trainers: int = 0
    train_s: float = 0.0

    def iteration_s(self, devices: int) -> float:
        """Return the seconds of the iteration."""
        return self.course(devices)[1] + self.rest_s

    def course(self, devices: int) -> tuple[float, float]:
        """Return when the rollout ends, and when both it and the training have ended, in seconds.

        The devices, at least 1, roll out in turns of whole batches. The trainers leave by `LiveWindow`'s
        formula, each after equally many batches. They train as samples arrive: from the first batch on, and
        after the last turn on its samples.
        """
        others, turns = devices - self.trainers, math.ceil(self.batches / devices)
        if not self.trainers or others <= 0:
            return turns * self.batch_s, turns * self.batch_s + self.train_s
        done = 0
        while done < turns and trainers_go_on(
            self.batches - done * devices, others, self.batch_s, self.train_s
        ):
            done += 1
        left = max(0, self.batches - done * devices)
        turns_left = math.ceil(left / others)
        rollout_s = (done + turns_left) * self.batch_s
        last = left - others * (turns_left - 1)
        after_s = self.train_s * last / self.batches if left else 0.0
        trained_s = (max(done, 1) if left else done) * self.batch_s + self.train_s
        return rollout_s, max(trained_s, rollout_s + after_s)


@dataclass(frozen=True)
class RentingTerms:
    """The devices that a run has and may rent, with their prices.

    Attributes:
        reserved: devices that stay, at least 1; all roll out.
        reserved_usd_per_hour, spot_usd_per_hour: price of a device.
        most: largest number of spot devices that the settings allow.
        used_beside: most spot devices that are useful during training; infinite if they explore.
    """

    reserved: int
    reserved_usd_per_hour: float
    spot_usd_per_hour: float
    most: int
    used_beside: float = 0.0

    def cost_usd(self, forecast: IterationForecast, spot: int) -> float:
        """Return the cost of the next iteration with this many spot devices."""
        devices = self.reserved + spot
        iteration_s = forecast.iteration_s(devices)
        reserved_s = self.reserved * iteration_s
        idle_s = iteration_s - forecast.course(devices)[0]
        spot_s = spot * iteration_s - min(spot, self.used_beside) * idle_s
        return (self.reserved_usd_per_hour * reserved_s + self.spot_usd_per_hour * spot_s) / 3600

    def cost_to_the_end(self, forecast: IterationForecast, spot: int, held: int) -> float:
        """Return the dollars of the remaining iterations and of starting devices beyond those `held`.

        Args:
            forecast: of an iteration.
            spot: spot devices wanted.
            held: current spot devices; further ones must be started.
        """
        starting_s = max(0, spot - held) * forecast.start_s
        return forecast.left * self.cost_usd(forecast, spot) + self.spot_usd_per_hour * starting_s / 3600


@dataclass(frozen=True)
class CapacityDecision:
    """The number of spot devices wanted, and the reason as text."""

    wanted: int
    reason: str


def decide_capacity(forecast: IterationForecast | None, terms: RentingTerms, held: int) -> CapacityDecision:
    """Return how many spot devices the next iteration should have: all that may be, before any forecast.

    This is the cheapest number within reach, the smallest on a tie, including the cost of new devices
    until they begin. Devices are given back only if that saves `LEAST_GAIN`.

    Args:
        forecast: forecast of the next iteration; None before times are measured, when all devices that the
            settings allow are wanted.
        terms: prices and bounds.
        held: spot devices rented now.
    """
    if forecast is None:
        return CapacityDecision(terms.most, f"nothing has been measured yet: {_devices(terms.most)} at first")
    held = min(held, terms.most)
    reach = min(terms.most, max(held, most_generators(forecast, terms.reserved + held) - terms.reserved))
    cost = [terms.cost_to_the_end(forecast, spot, held) for spot in range(reach + 1)]
    best = min(range(reach + 1), key=lambda spot: (cost[spot], spot))
    if best < held and cost[best] > (1 - LEAST_GAIN) * cost[held]:
        best = held
    return CapacityDecision(best, _reason(forecast, terms, held, best))


def most_generators(forecast: IterationForecast, generators: int) -> int:
    """Return AstraFlow's bound on the devices that roll out next, from the time that training waits."""
    iteration_s, rest_s = forecast.iteration_s(generators), forecast.rest_s + forecast.train_s
    if iteration_s - rest_s <= LEAST_WAIT * iteration_s:
        return generators
    # G / (1 - f), where 1 - f is the rest's share of the iteration; more devices than batches are useless.
    most = generators * iteration_s / rest_s if rest_s else math.inf
    return max(generators, math.ceil(min(most, forecast.batches)))


@dataclass(frozen=True)
class TrainingTime:
    """The time that an iteration's training took.

    Attributes:
        whole_s: seconds in all.
        beside_s: part of these seconds before the last score arrived.
    """

    whole_s: float = 0.0
    beside_s: float = 0.0


class MeasuredTimes:
    """Times of past iterations, of which the newest few count.

    Args:
        updates: weight updates in an iteration; only the training of the first can begin early.
    """

    def __init__(self, updates: int = 1) -> None:
        self._updates = updates
        self._batch_s, self._rest_s, self._start_s, self._train_s = (
            deque[float](maxlen=_REMEMBERED) for _ in range(4)
        )

    def add_batch_time(self, seconds: float) -> None:
        """Add the seconds that a device took for a batch of an iteration: the median over its batches."""
        self._batch_s.append(seconds)

    def add_rest(self, seconds: float, training: TrainingTime | None) -> None:
        """Add the time that an iteration took after its rollout.

        Args:
            seconds: time from the rollout's end to the next one's beginning.
            training: time of trainers that leave rollouts, partly contained in `seconds`; None if they stay.
        """
        if training is not None:
            early_s = training.whole_s / self._updates
            self._train_s.append(early_s)
            seconds -= early_s - training.beside_s
        self._rest_s.append(max(0.0, seconds))

    def add_start(self, seconds: float) -> None:
        """Add the seconds from requesting a worker until it had loaded."""
        self._start_s.append(seconds)

    def forecast(self, batches: int, left: int, trainers: int = 0) -> IterationForecast | None:
        """Return the forecast of the next iteration; None before a whole iteration is measured.

        Args:
            batches: batches of its rollout.
            left: iterations left, including the next one.
            trainers: devices that leave the rollout to train.
        """
        if not self._batch_s or not self._rest_s:
            return None
        start_s, train_s = (
            statistics.median(known) if known else 0.0 for known in (self._start_s, self._train_s)
        )
        batch_s, rest_s = statistics.median(self._batch_s), statistics.median(self._rest_s)
        return IterationForecast(batches, batch_s, rest_s, start_s, left, trainers, train_s)


def trainers_go_on(batches: float, others: int, batch_s: float, train_s: float) -> bool:
    """Return True if one more batch for trainers, beside `others`, ends rollout and training sooner.

    Args:
        batches: batches left of the rollout.
        others: devices that roll out and do not train, at least 1.
        batch_s: seconds of a batch.
        train_s: seconds of training that can run during the rollout.
    """
    return batches * batch_s / others > train_s + batch_s


class LiveWindow:
    """Decides, before each of the trainers' batches, whether they continue with a rollout.

    The rule uses the work left now, so a lost spot device brings the trainers back, and no number of devices
    need be remembered. On a tie, they train first.

    Args:
        note: called with the reason why trainers leave, once per number of other devices.
    """

    def __init__(self, note: Callable[[str], object] = lambda text: None) -> None:
        self._note = note
        self._batch_s: float | None = None
        self._others = 0  # when the last note was written

    def on_rolled_out(self, lease_s: Sequence[float]) -> None:
        """Record the end of a rollout, with the seconds of each of its batches."""
        if lease_s:
            self._batch_s = statistics.median(lease_s)

    def goes_on(self, batches: float, others: int, train_s: float | None) -> bool:
        """Return True if the iteration ends sooner by one more batch of the trainers, or if unknown.

        Args:
            batches: batches left of the rollout.
            others: devices that roll out and do not train.
            train_s: seconds of training that can run during the rollout; None if unknown.
        """
        if train_s is None or self._batch_s is None or others == 0:
            return True
        goes_on = trainers_go_on(batches, others, self._batch_s, train_s)
        if not goes_on and others != self._others:
            self._others, left_s = others, batches * self._batch_s / others
            self._note(
                f"trainers leave rollouts early: the {others} other devices need "
                f"{left_s:.1f} s for the rest of this one, and training takes {train_s:.1f} s"
            )
        return goes_on


def _reason(forecast: IterationForecast, terms: RentingTerms, held: int, best: int) -> str:
    """Return the reason for `best`, from the change from `held` or the effect of one more device."""
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
