"""What an iteration takes on a fleet, from a curve's counts and what one sample costs one core.

A curve is made on one core, in turns. Its costs are placed on devices by a rule, the same for every arm:
perfect division, each phase after the other. Communication, loading and losses are not in it; the simulator
(`gpu_runtime/simulator`) has them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.exploration.in_process_cluster import SCORE, TRAIN
from benchmarks.exploration.learning_curve import Curve
from gpu_runtime.exploration.measured_iterations import IterationTimes
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.scheduling.requests import RequestKind

_ROLLOUT, _DRAFT = RequestKind.ROLLOUT.value, RequestKind.EXPLORE.value

_ROUNDS = 8
"""Rounds that an iteration's drafts are planned in. Curves have some more, so their first plan took less."""


@dataclass(frozen=True)
class Fleet:
    """Devices that the seconds of one core are placed on.

    Attributes:
        reserved: devices at the price on demand.
        spot: devices at the price of spot.
        trainers: devices that divide the training, reserved ones first.
        scorers: processes that judge images, on cores of their own.
        shards: shards of an update's gradient that they divide (`algorithm.gradient_shards`); 0 where they
            divide its samples perfectly.
    """

    reserved: int
    spot: int
    trainers: int
    scorers: int = 12
    shards: int = 0

    @property
    def devices(self) -> int:
        """All that generate."""
        return self.reserved + self.spot

    @property
    def training_speed(self) -> float:
        """Speed of training, in that of one device: the device with most shards decides."""
        return self.shards / math.ceil(self.shards / self.trainers) if self.shards else self.trainers


MIXED = Fleet(reserved=4, spot=8, trainers=4)
"""The paper's: the reserved devices train."""

ALL_TRAIN = Fleet(reserved=4, spot=8, trainers=12)
"""The same devices, where spot devices may train, too: drafts then have no window of their own."""

ON_DEMAND = Fleet(reserved=12, spot=0, trainers=12)
"""As many devices, all on demand."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one core.

    Attributes:
        rollout, draft, score, train: of one sample.
        driver: of an iteration, on the one process that all wait for.
        planning: of an iteration, on the same process, beside training: planning drafts and noting scores.
        joining: of an iteration, on the same process, for each device that trains some shards: asking it for
            their sums, and joining these.
    """

    rollout: float
    draft: float
    score: float
    train: float
    driver: float
    planning: float
    joining: float = 0.0


def costs_of(curves: Sequence[Curve], like: Sequence[Curve], all_curves: Sequence[Curve]) -> Costs:
    """What the samples of an arm cost.

    Other work on a machine slows even the seconds of one core, of a whole curve alike. All curves of a task
    judge with the same scorer, so each curve's seconds are taken relative to its own of a judged sample, and
    multiplied by the usual ones. What is the same work in several arms has one cost: rolling out in all of
    them, training in those of an objective.

    Args:
        curves: of the arm.
        like: of all arms of its objective.
        all_curves: of the task.
    """
    usual_s = statistics.median(unit_cost(curve, SCORE) for curve in all_curves)

    def cost(members: Sequence[Curve], kind: str) -> float:
        samples = sum(curve.samples[kind] for curve in members)
        relative = sum(curve.seconds[kind] / unit_cost(curve, SCORE) for curve in members)
        return usual_s * relative / samples if samples else 0.0

    drivers = [statistics.median(c.driver_s) / unit_cost(c, SCORE) for c in curves]
    beside = [statistics.median(c.beside_s) / statistics.median(c.driver_s) for c in curves if c.beside_s]
    driver = usual_s * statistics.median(drivers)
    planning = driver * statistics.median(beside or [0.0])
    return Costs(
        rollout=cost(all_curves, _ROLLOUT),
        draft=cost(curves, _DRAFT),
        score=usual_s,
        train=cost(like, TRAIN),
        driver=driver - planning,
        planning=planning,
    )


def public_costs(training_share: float) -> Costs:
    """What samples cost where training takes a share of a step on equal GPUs, as public runs report it.

    Generating takes the rest, whether for a rollout or a draft; judging and the driver take nothing.
    """
    generate = 1 - training_share
    return Costs(generate, generate, score=0.0, train=training_share, driver=0.0, planning=0.0)


def unit_cost(curve: Curve, kind: str) -> float:
    """Seconds of one core that a sample of a kind took in a curve; 0 where there was none."""
    samples = curve.samples[kind]
    return curve.seconds[kind] / samples if samples else 0.0


def iteration_s(curve: Curve, costs: Costs, fleet: Fleet, strategy: Strategy, updates: int) -> float:
    """Seconds of a median iteration of a curve on a fleet.

    Rollouts are divided over all devices, and judged meanwhile by the scorers. Training is divided over the
    devices that train, and follows: the first update's groups as they are judged, the others once all are.
    What the driver does comes on top. Drafts are judged after rollouts, while others are drawn. Those of a
    training window are divided over the devices that do not train, and cost only what exceeds the training
    beside them; where all train, or before the rollout, they are divided over all devices and nothing is
    beside them.

    Args:
        curve: its counts.
        costs: of its samples.
        fleet: the devices.
        strategy: of exploration.
        updates: training steps of an iteration.
    """
    # Of iterations that have one before and one after them: the ends have no drafts.
    rollouts, drafts = (statistics.median(n[1:-1] or n) for n in (curve.rollouts, curve.drafts))
    trained = curve.samples[TRAIN] / len(curve.rollouts)
    if strategy.drafts_beside_training and fleet.devices > fleet.trainers:
        return times_with_window(rollouts, drafts, trained, costs, fleet, updates).whole_s
    alone = times_with_window(rollouts, 0, trained, costs, fleet, updates)
    judging = drafts * costs.score / fleet.scorers
    return max(_drafting_s(drafts, costs, fleet.devices), judging) + alone.whole_s


def times_with_window(
    rollouts: float, drafts: float, trained: float, costs: Costs, fleet: Fleet, updates: int
) -> IterationTimes:
    """Return what an iteration takes on a fleet if its drafts are made beside its training.

    Args:
        rollouts: samples rolled out.
        drafts: drafts made, on the devices that do not train.
        trained: samples trained on.
        costs: costs of the samples.
        fleet: the devices.
        updates: training steps of an iteration.
    """
    generated, judged = rollouts * costs.rollout / fleet.devices, rollouts * costs.score / fleet.scorers
    train = trained * costs.train / fleet.training_speed
    joining = fleet.trainers * costs.joining if fleet.shards else 0.0
    scored = max(generated, judged)
    ends = max(generated + train / updates, judged) + train - train / updates + joining
    drafted = 0.0
    if drafts:
        judging = drafts * costs.score / fleet.scorers
        drafted = max(
            generated + _drafting_s(drafts, costs, fleet.devices - fleet.trainers), judged + judging
        )
    return IterationTimes(
        rollout_s=generated,
        judging_s=scored - generated,
        train_s=ends - scored,
        draft_wait_s=max(0.0, drafted - ends),
        whole_s=costs.driver + max(ends, drafted),
        trained=round(trained),
        rollers=fleet.devices,
        beside_s=train + joining - (ends - scored),
    )


def _drafting_s(drafts: float, costs: Costs, devices: int) -> float:
    """Seconds in which devices make an iteration's drafts.

    The one driver plans the next round while devices draft the one before. They wait for it to plan the first
    one, and each for its own part of the rest; they are never ahead of it.
    """
    first = costs.planning / _ROUNDS
    return first + max(costs.planning - first, (drafts * costs.draft + costs.planning - first) / devices)
