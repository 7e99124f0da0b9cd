"""The number of iterations that a run needs to reach a score: measured learning curves. Pure.

The simulator gives the cost of an iteration; a curve gives the number of iterations. Each has its own
interval: over run seeds for curves, over futures for the simulator.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_runtime.simulator.comparison.policies import Arm
from storage.text import read_json_model

MILESTONES = (0.25, 0.5, 0.75, 1.0)
"""Reported shares of the baseline's progress."""

_LAST = 3
"""Number of final evaluations whose mean is a curve's end."""


def end_of(values: Sequence[float]) -> float:
    """Return a curve's end: the mean of its last three evaluations."""
    return statistics.fmean(values[-_LAST:])


def rising_fit(iterations: Sequence[int], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the least-squares rising fit to the evaluations (isotonic regression; Ayer et al., 1955).

    A value that falls is pooled with the evaluations before it. A pool is one point, at the mean iteration
    and value of its evaluations, so the fit has only the noise of a mean; it begins with the first pool.

    Args:
        iterations: iterations of the evaluations, rising.

    Returns:
        Iterations and values of the points, both rising.
    """
    pools: list[tuple[float, float, int]] = []
    for iteration, value in zip(iterations, values, strict=True):
        pool = (float(iteration), value, 1)
        while pools and pools[-1][1] > pool[1]:
            middle, mean, count = pools.pop()
            both = count + pool[2]
            pool = (
                (middle * count + pool[0] * pool[2]) / both, (mean * count + pool[1] * pool[2]) / both, both,
            )  # fmt: skip
        pools.append(pool)
    return [middle for middle, _, _ in pools], [mean for _, mean, _ in pools]


def reached_at(iterations: Sequence[int], values: Sequence[float], target: float) -> float | None:
    """Return the interpolated iteration at which a curve's rising fit reaches the target; None if never.

    Args:
        iterations: iterations of the evaluations, rising.
        values: scores of the evaluations.
        target: the value to reach.
    """
    middles, means = rising_fit(iterations, values)
    first = next((index for index, mean in enumerate(means) if mean >= target), None)
    if not first:
        return None if first is None else middles[0]
    share = (target - means[first - 1]) / (means[first] - means[first - 1])
    return middles[first - 1] + share * (middles[first] - middles[first - 1])


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LearningCurve(_Part):
    """Held-out evaluations of one run seed."""

    iterations: tuple[int, ...] = Field(min_length=2)
    """Iterations of the evaluations, rising from 0."""

    values: tuple[float, ...]
    """Score at each iteration."""

    @model_validator(mode="after")
    def _is_even(self) -> Self:
        if len(self.iterations) != len(self.values):
            raise ValueError(f"{len(self.iterations)} iterations have {len(self.values)} values")
        if self.iterations[0] != 0 or list(self.iterations) != sorted(set(self.iterations)):
            raise ValueError("iterations do not rise from 0")
        return self


class LearningCurves(_Part):
    """Curves of one task by arm; always with `plain`, the baseline."""

    name: str = Field(min_length=1, max_length=100)
    """Name that users choose the curves by."""

    summary: str = ""
    """One sentence about the runs behind the curves."""

    source: str = ""
    """Runs or result that they were measured in."""

    rewards: tuple[str, ...] = ()
    """Scorers of the runs that the curves represent."""

    objective: str = ""
    """Objective of the runs that the curves represent."""

    model: str = ""
    """Name of the trained model, as in profiles; empty where unknown."""

    learner: str = ""
    """Description of the trained model, with its size."""

    more_per_sample: float | None = Field(default=None, ge=0)
    """Images that runs with exploration made beyond their samples, per sample; None if unknown."""

    arms: dict[Arm, tuple[LearningCurve, ...]]
    """Curves of each arm, one for each run seed."""

    @model_validator(mode="after")
    def _has_a_baseline(self) -> Self:
        if not self.arms.get("plain") or not all(self.arms.values()):
            raise ValueError("arms needs curves for plain, and no arm may be empty")
        if self.target <= self.base:
            raise ValueError(f"plain's curves go from {self.base:g} to {self.target:g}; they must rise")
        return self

    @property
    def base(self) -> float:
        """The baseline's initial score, the mean over its run seeds."""
        return statistics.fmean(curve.values[0] for curve in self.arms["plain"])

    @property
    def target(self) -> float:
        """The baseline's final score, the median over its run seeds."""
        return statistics.median(end_of(curve.values) for curve in self.arms["plain"])

    def score_at(self, share: float) -> float:
        """Return the score at a share of the baseline's progress."""
        return self.base + share * (self.target - self.base)

    def iterations_to(self, arm: Arm, share: float) -> list[float]:
        """Return each run seed's iterations to reach a share of the baseline's progress, or else all."""
        ends = (float(curve.iterations[-1]) for curve in self.arms.get(arm, ()))
        return [end if at is None else at for end, at in zip(ends, self._reached(arm, share), strict=True)]

    def unreached(self, arm: Arm, share: float) -> int:
        """Return the number of run seeds that never reach a share of the baseline's progress."""
        return self._reached(arm, share).count(None)

    def _reached(self, arm: Arm, share: float) -> list[float | None]:
        target = self.score_at(share)
        return [reached_at(curve.iterations, curve.values, target) for curve in self.arms.get(arm, ())]


def read_curves(path: Path) -> LearningCurves:
    """Read learning curves from a JSON file.

    Raises:
        ConfigurationError: the file is missing or not JSON, or a curve is missing or does not rise.
    """
    return read_json_model(path, "curves", LearningCurves, "docs/explanation/what-if.md")
