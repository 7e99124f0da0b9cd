"""No exploration: the first prompts and seeds, which follow from the settings alone."""

from __future__ import annotations

from gpu_runtime.exploration.strategies.strategy import Ahead, Drafting, Strategy


class Plain(Strategy):
    """Seeds without a draft."""

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead:
        """There is nothing to wait for."""
        return Ahead(lambda: drafting.plain(iteration))


PLAIN = Plain()
"""It has no state, so that one serves all runs."""
