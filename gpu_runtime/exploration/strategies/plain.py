"""No exploration: the first prompts and seeds, which follow from the settings alone."""

from __future__ import annotations

from gpu_runtime.exploration.strategies.strategy import Ahead, Drafting, Strategy


class Plain(Strategy):
    """Seeds chosen without a draft."""

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead:
        """Return a plan that waits for nothing."""
        return Ahead(lambda: drafting.plain(iteration))


PLAIN = Plain()
"""The one instance, for all runs: it has no state."""
