"""Drafts on the critical path: with the rollout's own weights, on all devices, just before it."""

from __future__ import annotations

from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.strategies.strategy import Drafting, Strategy


class Fresh(Strategy):
    """Drafts before the rollout, which waits for them."""

    drafts_before_rollout = True

    def before_rollout(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Draft on all devices."""
        return drafting.on_all_devices(iteration)


FRESH = Fresh()
"""The one instance, for all runs: it has no state."""
