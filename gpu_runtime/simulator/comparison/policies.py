"""Ways to spend the same devices and dollars on a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpu_runtime.exploration.strategies.fresh import FRESH
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.simulated_run import SimulatedPlan
from storage.errors import ConfigurationError, quoted

SPOTLIGHT = "spotlight"
"""Policy whose drafts determine `critical-path`'s drafts and `larger-batch`'s extra samples."""

SPOT, ON_DEMAND = "spot", "on-demand"
"""Policies whose costs give the discount at which spot devices break even."""

RESERVED = "reserved"
"""Policy that uses only the reserved devices."""

LENDING = "lending"
"""Policy that borrows a serving fleet's devices."""

Arm = Literal["plain", "stale", "fresh", "larger_batch"]
"""Samples that a run trains on: those of its settings, alone or with stale or fresh drafts, or more."""


_ANY = FleetPlan(1, 1, 1, 0.0, 0.0)
"""Placeholder devices for inspecting a policy's plan."""


@dataclass(frozen=True)
class Policy:
    """A way to spend devices on a run.

    Attributes:
        plan: returns the run's plan, given the devices offered and Spotlight's drafts per iteration.
        needs_drafts: True if its plan depends on Spotlight's drafts.
        arm: learning curve that it follows if it makes its drafts.
    """

    name: str
    summary: str
    plan: Callable[[FleetPlan, float], SimulatedPlan]
    needs_drafts: bool = False
    arm: Arm = "plain"

    @property
    def strategy(self) -> str:
        """Name of the exploration strategy that makes its drafts."""
        return "plain" if self.arm == "larger_batch" else self.arm

    @property
    def only_simulated(self) -> str | None:
        """Description of the part that no live run supports; None if a live run can follow it."""
        return self.plan(_ANY, 1.0).only_simulated


def _all_on_demand(offer: FleetPlan, drafts: float) -> SimulatedPlan:
    devices = offer.reserved + offer.spot
    # If all reserved devices train, all devices do here, since all are reserved.
    trainers = devices if offer.trainers == offer.reserved else offer.trainers
    return SimulatedPlan(replace(offer, reserved=devices, trainers=trainers, spot=0))


POLICIES = (
    Policy(RESERVED, "only the reserved devices", lambda offer, _: SimulatedPlan(replace(offer, spot=0))),
    Policy(ON_DEMAND, "the same devices, all on demand; all train if all reserved ones do", _all_on_demand),
    Policy(SPOT, "spot devices roll out, and idle during training", lambda offer, _: SimulatedPlan(offer)),
    Policy(SPOTLIGHT, "spot devices roll out, and explore during training",
           lambda offer, _: SimulatedPlan(offer, STALE), arm="stale"),
    # As many drafts as Spotlight hides beside training, so the two differ only in when drafts are made.
    Policy("critical-path", "as many drafts as spotlight, made before the rollout",
           lambda offer, drafts: SimulatedPlan(offer, FRESH if drafts else PLAIN, drafts), True, arm="fresh"),
    Policy("sized", "as spot, but times and prices set the number of spot devices before each rollout",
           lambda offer, _: SimulatedPlan(replace(offer, decided="cheapest"))),
    Policy("window", "trainers roll out for a while, then train while spot devices complete the rollout",
           lambda offer, _: SimulatedPlan(offer, seeds=True)),
    Policy("pushed", "as spot, but each phase's batches are dealt to devices when it begins",
           lambda offer, _: SimulatedPlan(offer, pushes=True)),
    Policy("larger-batch", "as many samples as spotlight's samples and drafts, all trained on",
           lambda offer, drafts: SimulatedPlan(offer, more_samples=drafts), True, arm="larger_batch"),
    Policy("astraflow", "as spot, but starts with none; AstraFlow's rule adds some if training waits and they"
           " cost no more", lambda offer, _: SimulatedPlan(replace(offer, decided="astraflow"))),
    Policy(LENDING, "as spot, with devices that a serving fleet lends for a denoising step at a time (ROSE)",
           lambda offer, _: SimulatedPlan(offer, lends=True)),
    Policy("shared", "two equal runs share the devices: one trains while the other rolls out; time of both,"
           " dollars of one", lambda offer, _: SimulatedPlan(offer, runs=2)),
    Policy("static-sp", "as spot, but groups of devices are static: if one loses a member, the others"
           " restart cold", lambda offer, _: SimulatedPlan(offer, static_groups=True)),
)  # fmt: skip
"""All policies in display order. `spotlight` comes before those that need its drafts."""

DEFAULT_POLICIES = POLICIES[:7]
"""Policies compared by default if devices work alone."""


def default_policies(degrees: Mapping[str, int], kinds: int = 1) -> tuple[Policy, ...]:
    """Return the policies to compare unless others are named, given the degrees by kind."""
    return tuple(
        policy
        for policy in POLICIES
        if (policy in DEFAULT_POLICIES or policy.plan(_ANY, 1.0).static_groups)
        and not unfit(policy, degrees, kinds)
    )


def unfit(policy: Policy, degrees: Mapping[str, int], kinds: int = 1) -> str | None:
    """Return why a policy cannot be simulated, given the degrees by kind (0: measured); None if it can.

    Args:
        policy: the policy.
        degrees: number of devices that share a sample, by kind of request; 0 if measured times choose.
        kinds: number of kinds of devices.
    """
    plan = policy.plan(_ANY, 1.0)
    if plan.static_groups and degrees["rollout"] <= 1:
        return "keeps groups of devices together, so sequence_parallel.rollout must be a number above 1"
    if plan.done_alone is not None and set(degrees.values()) != {1}:
        return (
            f"means {plan.done_alone}, which is simulated only for devices that work alone; leave it out, or "
            "set all degrees of sequence_parallel to 1"
        )
    if kinds > 1 and plan.of_one_kind is not None:
        return (
            f"means {plan.of_one_kind}, which is simulated only for devices of one kind; leave out the "
            "policy, or the profile of spot devices"
        )
    return None


def policies_of(names: Iterable[str]) -> tuple[Policy, ...]:
    """Return the named policies, in display order.

    Raises:
        ConfigurationError: a name is unknown, or none is given.
    """
    wanted = set(names)
    known = {policy.name for policy in POLICIES}
    for name in sorted(wanted - known):
        raise ConfigurationError(
            f"policy {quoted(name)} is unknown; choose from {', '.join(p.name for p in POLICIES)}"
        )
    if not wanted:
        raise ConfigurationError(f"name at least one policy: {', '.join(p.name for p in POLICIES)}")
    return tuple(policy for policy in POLICIES if policy.name in wanted)
