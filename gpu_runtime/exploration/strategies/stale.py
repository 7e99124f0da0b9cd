"""Spotlight's strategy: draft with the previous iteration's weights while the trainers are busy."""

from __future__ import annotations

from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.strategies.strategy import Ahead, Drafting, Strategy


class Stale(Strategy):
    """Drafts in the training window on devices that do not train, and rolls the chosen seeds out."""

    drafts_beside_training = True

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead | None:
        """Draft in the training window."""
        return drafting.in_window(iteration)

    def redraft(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Draft as much as the window should have held."""
        return drafting.on_all_devices(iteration, as_in_window=True)


STALE = Stale()
"""The only instance, shared by all runs: it has no state."""
