"""What a run leaves behind, as plain values: the rows of the database, before they are written.

An iteration's record travels inside its checkpoint too, so that a run killed between the
checkpoint and the database loses no row: resuming writes the record again, and writing a record
twice gives what writing it once gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RunStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]
Market = Literal["reserved", "spot"]
DeviceState = Literal["rollout", "explore", "train", "load", "regroup", "idle", "lost"]


@dataclass(frozen=True)
class SampleRecord:
    """One scored image of an iteration's rollout.

    Attributes:
        seed_rank: place among the prompt's samples by score, 0 the best.
        explored_score: score of the draft that chose this seed; None where none was made.
        advantage: normalised advantage; None where the group had no variance.
        worker: name of the worker that finished it.
    """

    prompt_id: int
    prompt: str
    seed_index: int
    policy_version: int
    score: float
    exact: bool
    detail: str
    error: str | None
    seed_rank: int
    explored_score: float | None
    advantage: float | None
    worker: str


@dataclass(frozen=True)
class StateInterval:
    """A device was in one state from `started_at` to `ended_at` (Unix seconds)."""

    worker: str
    market: Market
    state: DeviceState
    started_at: float
    ended_at: float
    usd_per_hour: float

    @property
    def usd(self) -> float:
        """What the interval costs, in dollars."""
        return (self.ended_at - self.started_at) * self.usd_per_hour / 3600


@dataclass(frozen=True)
class IterationRecord:
    """Everything an iteration leaves in the database; written in one transaction.

    Attributes:
        metrics: named figures of the iteration (reward_mean, reward_std, loss, kl, clip_share,
            ratio_deviation, gradient_norm, groups, groups_dropped, ... and *_s for phase times).
        intervals: what each device did, contiguous from the previous iteration's end.
    """

    run_id: str
    iteration: int
    policy_version: int
    started_at: float
    ended_at: float
    metrics: dict[str, float]
    samples: list[SampleRecord] = field(default_factory=list)
    intervals: list[StateInterval] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationImage:
    """One held-out image: its score and, for the gallery, its PNG (base64 text), else None."""

    prompt_id: int
    prompt: str
    seed_index: int
    score: float
    exact: bool
    detail: str
    error: str | None
    png_base64: str | None = None


@dataclass(frozen=True)
class EvaluationRecord:
    """A held-out evaluation after `iteration` iterations (0: the untouched model)."""

    run_id: str
    iteration: int
    policy_version: int
    started_at: float
    ended_at: float
    score: float
    exact: float
    images: list[EvaluationImage] = field(default_factory=list)
    intervals: list[StateInterval] = field(default_factory=list)
