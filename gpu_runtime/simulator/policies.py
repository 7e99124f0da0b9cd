"""Ways to spend the same devices and dollars on a run. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.run import SimulatedPlan

SPOTLIGHT = "spotlight"
"""The policy whose drafts set how many the critical path makes."""


@dataclass(frozen=True)
class Policy:
    """A way to do a run.

    Attributes:
        name: short.
        summary: what it does, in some words.
        plan: from what is offered, and the drafts that Spotlight makes an iteration, to how the run is done.
        explores: whether it makes drafts.
    """

    name: str
    summary: str
    plan: Callable[[FleetPlan, float], SimulatedPlan]
    explores: bool = False


def _reserved_only(offer: FleetPlan, drafts: float) -> SimulatedPlan:
    return SimulatedPlan(replace(offer, spot=0), DraftTiming.NEVER)


def _all_on_demand(offer: FleetPlan, drafts: float) -> SimulatedPlan:
    devices = offer.reserved + offer.spot
    # Where all that stay train, all do here: they all stay.
    trainers = devices if offer.trainers == offer.reserved else offer.trainers
    return SimulatedPlan(replace(offer, reserved=devices, trainers=trainers, spot=0), DraftTiming.NEVER)


def _spot_rollout(offer: FleetPlan, drafts: float) -> SimulatedPlan:
    return SimulatedPlan(offer, DraftTiming.NEVER)


def _spotlight(offer: FleetPlan, drafts: float) -> SimulatedPlan:
    return SimulatedPlan(offer, DraftTiming.TRAINING_WINDOW)


def _critical_path(offer: FleetPlan, drafts: float) -> SimulatedPlan:
    # As many drafts as hidden ones, so that the two differ in when they are made alone.
    return SimulatedPlan(offer, DraftTiming.BEFORE_ROLLOUT if drafts else DraftTiming.NEVER, drafts)


POLICIES = (
    Policy("reserved", "the reserved devices alone", _reserved_only),
    Policy("on-demand", "as many devices, all on demand; all train if all reserved ones do", _all_on_demand),
    Policy("spot", "spot devices roll out, and idle during training", _spot_rollout),
    Policy(SPOTLIGHT, "spot devices roll out, and explore during training", _spotlight, explores=True),
    Policy("critical-path", "as many drafts, made before the rollout", _critical_path, explores=True),
)
"""In the order in which they are shown. `spotlight` stands before what needs its drafts."""
