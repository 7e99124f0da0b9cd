"""The meaning of a run's strategy, objective and reward for its pages, from the facts stored with it."""

from __future__ import annotations

import pandas as pd

from storage import environment
from storage.environment import BEFORE_ROLLOUT, BESIDE_TRAINING, DRAFTS_ARE_MADE, NO_DRAFTS, read_decisions
from ui.data.run import RunView

IDLE_SPOT_ADVICE = (
    "Rent fewer spot devices, or reserve them and let them train (`runtime.trainer_workers`): on most tasks "
    "that were measured this saves more time than drafting seeds meanwhile (`exploration.strategy=stale`), "
    "which gains on some and loses on others (docs/measurements.md). `spotlight what-if` compares the bills."
)
"""The remedy for spot devices that idle while the others train, according to measurements."""

_NO_METRICS = ("run_id", "iteration", "policy_version", "ended_at", "elapsed_s", "usd")
"""The columns of a frame of metrics that are none."""


def explores(view: RunView) -> bool | None:
    """Return True if the run drafts seeds; None if it was stored without that fact (another version's)."""
    made = view.row.environment.get(DRAFTS_ARE_MADE)
    return None if made is None else made != NO_DRAFTS


def drafts_while_training(view: RunView) -> bool:
    """Return True if spot devices draft with stale weights while the reserved devices train.

    A strategy that decides by measured times may have decided against it.
    """
    decisions = read_decisions(view.row.environment)
    if decisions and decisions[max(decisions)] == "plain":
        return False
    return BESIDE_TRAINING in view.row.environment.get(DRAFTS_ARE_MADE, "")


def drafts_before_rollout(view: RunView) -> bool:
    """Return True if the rollout waits for drafts by its own weights."""
    return BEFORE_ROLLOUT in view.row.environment.get(DRAFTS_ARE_MADE, "")


def clips_ratio(view: RunView) -> bool:
    """Return True if the objective clips the ratio of new to old probabilities."""
    return environment.clips_ratio(view.row.environment)


def gives_verdict(view: RunView) -> bool:
    """Return True if the reward may call an image exact; otherwise no page mentions exact images."""
    return environment.gives_verdict(view.row.environment)


def with_verdicts(images: pd.DataFrame, given: bool) -> pd.DataFrame:
    """Return judged images, with None for each `exact` unless verdicts are given."""
    if given:
        return images
    return images.assign(**{name: None for name in map(str, images) if name.startswith("exact")})


def metric_names(metrics: pd.DataFrame, verdicts: bool) -> list[str]:
    """Return the metrics among the columns of a frame, sorted.

    Args:
        metrics: frame from `queries.runs.metric_curves` or `queries.comparisons.metric_courses`.
        verdicts: False to leave out the share of exact images.
    """
    unused = _NO_METRICS if verdicts else (*_NO_METRICS, "exact_share")
    return sorted(name for name in map(str, metrics) if name not in unused)


def least_spearman(view: RunView) -> float | None:
    """Return the rank correlation below which the run raises its alarm; None if it has no such setting."""
    value = view.setting("exploration", "min_spearman")
    return float(value) if isinstance(value, int | float) else None
