"""Presets without what keeps images good: what is measured is the reward's own signal alone."""

from __future__ import annotations


def unguarded(scorer: str) -> tuple[str, ...]:
    """Settings that take the guards from a preset that explores (`benchmarks/hacking_runs.py` measures them).

    Args:
        scorer: the reward's own, which such a preset has as the main part of a sum.
    """
    return (
        "algorithm.kl_weight=0", "optimizer.ema_decay=0.7", f"reward.scorer={scorer}", "reward.options={}",
        "reward.signal=exact",
    )  # fmt: skip
