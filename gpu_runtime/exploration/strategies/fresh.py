"""Drafts on the critical path: just before the rollout, with its own weights, on all devices."""

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
"""The only instance, shared by all runs: it has no state."""
