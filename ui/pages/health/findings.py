"""What a rule of the page Health finds in a run: how serious it is, with figures and advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from storage.ledger.ledger import Ledger
from ui.data.quality import QualityView
from ui.data.run import RunView
from ui.elements.formatting import money

Level = Literal["problem", "warning", "passed", "unknown"]
"""Wrong; possibly wrong; not wrong; not measured by the run (yet)."""

LEVELS: tuple[Level, ...] = ("problem", "warning", "passed", "unknown")
"""The most serious first."""

RECENT = 20
"""Iterations that a rule looks back on."""


@dataclass(frozen=True)
class Finding:
    """The result of one rule.

    Attributes:
        level: how serious it is.
        title: what the rule checks.
        text: what was found, with figures.
        advice: what to change; empty for a check that passed.
    """

    level: Level
    title: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Evidence:
    """What the rules judge.

    Attributes:
        view: the run's figures and settings.
        ledger: where its paid time went.
        quality: what its held-out images look like.
    """

    view: RunView
    ledger: Ledger
    quality: QualityView = field(default_factory=QualityView)

    def money(self, usd: float) -> str:
        """Dollars of the run in words."""
        return money(usd, self.view.is_modelled)

    def recent(self, name: str) -> np.ndarray:
        """A metric's last values, at most `RECENT`, without those that were not measured."""
        values = self.view.metric(name)
        return values[np.isfinite(values)][-RECENT:]

    def number(self, section: str, name: str) -> float | None:
        """A setting that is a number; None where the run has none of that name."""
        value = self.view.setting(section, name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


Rule = Callable[[Evidence], Finding]


def by_level(findings: list[Finding]) -> dict[Level, list[Finding]]:
    """The findings of each level that has any, the most serious level first."""
    found: dict[Level, list[Finding]] = {
        level: [finding for finding in findings if finding.level == level] for level in LEVELS
    }
    return {level: listed for level, listed in found.items() if listed}
