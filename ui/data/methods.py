"""What a run's exploration strategy and objective mean for its pages, from the settings stored with it.

Only this file of `ui` compares their names.
"""

from __future__ import annotations

from dataclasses import dataclass

from ui.data.run import RunView


@dataclass(frozen=True)
class SpreadMeasure:
    """What a run measures the differences between the scores of a prompt group by.

    Attributes:
        word: for a sentence.
        axis: for a chart.
    """

    word: str
    axis: str


_VARIANCE = SpreadMeasure("variance", "Variance of a prompt group's scores")
_DEVIATION = SpreadMeasure("spread", "Squared distance from the drafts' mean")


def explores(view: RunView) -> bool | None:
    """Whether the run drafts seeds; None where its settings do not say (another version's)."""
    strategy = view.setting("exploration", "strategy")
    return None if strategy is None else strategy != "plain"


def drafts_while_training(view: RunView) -> bool:
    """Whether spot devices draft with stale weights while the reserved devices train."""
    return view.setting("exploration", "strategy") == "stale"


def drafts_before_rollout(view: RunView) -> bool:
    """Whether the rollout waits for drafts of its own weights."""
    return view.setting("exploration", "strategy") == "fresh"


def clips_ratio(view: RunView) -> bool:
    """Whether the objective clips the ratio of new to old probabilities."""
    return view.setting("algorithm", "objective") != "nft"


def spread_measure(view: RunView) -> SpreadMeasure:
    """What the run's spread figures are; variance where its settings do not say."""
    return _DEVIATION if view.setting("exploration", "criterion") == "deviation" else _VARIANCE


def least_spearman(view: RunView) -> float | None:
    """The rank correlation below which the run raises its alarm; None where it has no such setting."""
    value = view.setting("exploration", "min_spearman")
    return float(value) if isinstance(value, int | float) else None
