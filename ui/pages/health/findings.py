"""Findings of the page Health's rules: severity, figures and advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from storage.record.ledger import Ledger
from ui.data.run import QualityView, RunView
from ui.elements.formatting import money

Level = Literal["problem", "warning", "passed", "unknown"]
"""Wrong; possibly wrong; fine; not measured (yet). The most serious comes first."""

RECENT = 20  # number of iterations that a rule covers


@dataclass(frozen=True)
class Finding:
    """The result of one rule: its subject, its level, what it found, and advice unless it passed."""

    title: str
    level: Level
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Evidence:
    """The data that rules judge: a run, the ledger of its paid time, the look of its held-out images."""

    view: RunView
    ledger: Ledger
    quality: QualityView = field(default_factory=QualityView)

    def money(self, usd: float) -> str:
        """Return dollars of the run in words."""
        return money(usd, self.view.is_modelled)

    def recent(self, name: str) -> np.ndarray:
        """Return a metric's last measured values, at most `RECENT`."""
        return self.view.measured(name, RECENT)

    def now(self, section: str, name: str) -> str:
        """Return a numeric setting as ` (now 5)`; empty if the run lacks it."""
        value = self.view.number(section, name)
        return "" if value is None else f" (now {value:g})"


Judgement = tuple[Level, str] | tuple[Level, str, str]
"""The level, the text and perhaps the advice of a `Finding`."""

Rule = Callable[[Evidence], Judgement]


def judged(is_fine: bool, text: str, advice: str, level: Level = "warning") -> Judgement:
    """Return a passed judgement, or one with advice.

    Args:
        level: level of a judgement that did not pass.
    """
    return ("passed", text) if is_fine else (level, text, advice)


def by_level(findings: list[Finding]) -> dict[Level, list[Finding]]:
    """Return the findings by level, the most serious level first, without empty levels."""
    levels: tuple[Level, ...] = get_args(Level)
    return {
        level: listed
        for level in levels
        if (listed := [finding for finding in findings if finding.level == level])
    }
