"""No exploration: the first prompts and seeds, determined by the settings alone."""

from __future__ import annotations

from gpu_runtime.exploration.strategies.strategy import Ahead, Drafting, Strategy


class Plain(Strategy):
    """Chooses seeds without drafts."""

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead:
        """Return a plan that waits for nothing."""
        return Ahead(lambda: drafting.plain(iteration))


PLAIN = Plain()
"""The only instance, shared by all runs: it has no state."""
