"""Plain values that a run leaves behind, which `tables.py` writes as rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

RunStatus = Literal["running", "finished", "failed", "cancelled", "interrupted", "simulated"]
Market = Literal["reserved", "spot"]
DeviceState = Literal["rollout", "explore", "train", "load", "regroup", "idle", "lost"]
StandbyEnd = Literal["", "taken", "lost"]
DeviceEventKind = Literal["joined", "failed", "notice", "withdrawn", "left", "lost"]

JUDGE_USD = "cost_judge_usd"
"""Figure of an iteration (its rollout and the drafts judged meanwhile) and of a held-out image: dollars for
judges with a price, servers that are paid by the image. Discarded work is in neither."""


@dataclass(frozen=True)
class SampleRecord:
    """One scored image of an iteration's rollout.

    Attributes:
        seed_rank: place among the prompt's samples by score, 0 the best.
        explored_score: score of the draft that chose this seed; None where none was made.
        advantage: normalised advantage; None where the group had no variance, or a sample without a score.
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
        """The interval's cost, in dollars."""
        return (self.ended_at - self.started_at) * self.usd_per_hour / 3600


@dataclass(frozen=True)
class PaidTime:
    """A device was paid for `paid_s` seconds since the record before, measured apart from its states."""

    worker: str
    market: Market
    paid_s: float


@dataclass(frozen=True)
class StandbyTime:
    """Use of a standby since the record before: a worker process that waits for a place to be free.

    It holds no device, so it is no part of the bill; it takes processor time and memory of its host.

    Attributes:
        waited_s: seconds that it was kept, its loading included.
        cpu_s: processor time, as last read.
        memory_bytes: resident memory, as last read.
        end: `taken`: it took a place; `lost`: it died; empty while it waits.
    """

    standby: str
    waited_s: float
    cpu_s: float
    memory_bytes: int
    end: StandbyEnd = ""


@dataclass(frozen=True)
class DeviceEvent:
    """Something happened to a device at `at` (Unix seconds).

    Attributes:
        kind: `joined`: it is paid for from then on; `failed`: it ended while it loaded, before it joined;
            `notice`: its provider said that it will be taken; `withdrawn`: that notice was taken back;
            `left`: it was given back; `lost`: it is gone.
        detail: why, or what more there is to say; may be empty.
    """

    worker: str
    market: Market
    kind: DeviceEventKind
    at: float
    detail: str = ""


@dataclass(frozen=True)
class GroupRecord:
    """Devices shared each sequence from `started_at` to `ended_at` (Unix seconds); one device worked alone.

    Attributes:
        epoch: which change of groups formed it; counts from 1 in each life of a run.
        place: which of that change's groups it is.
        instance: where its devices are; may be empty.
        members: names of the workers, the leader first; how many is the degree.
    """

    epoch: int
    place: int
    instance: str
    members: tuple[str, ...]
    started_at: float
    ended_at: float


@dataclass(frozen=True)
class StepTimeRecord:
    """Time of a denoising step that so many devices shared, by which `auto` chooses the degree.

    Attributes:
        request_class: resolution and shape of the batches, in words.
        degree: devices that shared it.
        step_s: seconds, the median of the newest measurements of the run.
        chunks: chunks of denoising steps that were timed since the record before.
    """

    request_class: str
    degree: int
    step_s: float
    chunks: int


@dataclass
class Collected:
    """Device states, costs and events of a run between two records.

    Attributes:
        intervals: what each device did, contiguous from the record before.
        paid_time: what each device was paid for, over the same time as `intervals`.
        device_events: what happened to the devices.
        standby_time: what standbys have used.
        groups: which devices shared sequences; empty where each worked alone.
        step_times: what denoising steps took by degree; empty where the degree is fixed.
        judge_usd: dollars that judging rollouts and drafts has cost.
        notes: decisions about capacity with their reasons, and troubles with it, in words.
    """

    intervals: list[StateInterval] = field(default_factory=list)
    paid_time: list[PaidTime] = field(default_factory=list)
    device_events: list[DeviceEvent] = field(default_factory=list)
    standby_time: list[StandbyTime] = field(default_factory=list)
    groups: list[GroupRecord] = field(default_factory=list)
    step_times: list[StepTimeRecord] = field(default_factory=list)
    judge_usd: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CandidateRecord:
    """One scored draft of a candidate seed: made to choose the seeds of an iteration, or to check the choice.

    No two of an iteration share prompt, seed, fidelity and policy version: the same weights would
    draw the same image again. Where drafts were refused and made again, both are there, the new ones with
    the rollout's own policy version.

    Attributes:
        fidelity: "full", or the name of a cheaper draft such as "preview-5".
        policy_version: the weights that drew it: the previous iteration's for a stale draft, the
            rollout's own for a re-score of the staleness monitor and for what was drafted again.
        score: in [0, 1]; 0 where `error` says why there is none.
        exact: whether all that was asked is in it.
        round: the planner's round that asked for it, from 0; -1 for a re-score of the monitor.
        rank: place among the prompt's drafts of the same fidelity and policy version by score, 0 the best.
        kept: whether the seed went into the rollout; False for a refused draft, which chose nothing.
    """

    prompt_id: int
    prompt: str
    seed_index: int
    fidelity: str
    policy_version: int
    score: float
    exact: bool
    error: str | None
    round: int
    rank: int
    kept: bool


@dataclass(frozen=True)
class SampleImage:
    """A thumbnail (PNG, base64 text) of a rolled-out seed: the best and the worst of a few prompts."""

    prompt_id: int
    seed_index: int
    png_base64: str


@dataclass(frozen=True)
class IterationRecord:
    """Everything that an iteration leaves; its rows appear by one rename.

    Attributes:
        metrics: named figures of the iteration (reward_mean, reward_std, loss, kl, clip_share,
            ratio_deviation, gradient_norm, groups, groups_dropped, groups_failed, ... and *_s for phase
            times).
        intervals: what each device did, contiguous from the previous iteration's end.
        candidates: drafts that chose the seeds of this iteration, and the monitor's re-scores.
        sample_images: thumbnails of some of `samples`.
        next_plan: the seeds already chosen for the next iteration, as JSON values (so keys are text);
            None where there are none. In the checkpoint only, so that a resumed run need not explore again.
        explorer_state: what the explorer has learned, as JSON values; in the checkpoint only.
        device_events: what happened to the devices since the record before.
        groups: which devices shared sequences; none where each worked alone.
        step_times: what denoising steps took by degree; none where the degree is fixed.
        paid_time: what each device was paid for, over the same time as `intervals`.
        standby_time: what standbys have used since the record before.
    """

    run_id: str
    iteration: int
    policy_version: int
    started_at: float
    ended_at: float
    metrics: dict[str, float]
    samples: list[SampleRecord] = field(default_factory=list)
    intervals: list[StateInterval] = field(default_factory=list)
    candidates: list[CandidateRecord] = field(default_factory=list)
    sample_images: list[SampleImage] = field(default_factory=list)
    next_plan: dict[str, Any] | None = None
    explorer_state: dict[str, Any] | None = None
    device_events: list[DeviceEvent] = field(default_factory=list)
    groups: list[GroupRecord] = field(default_factory=list)
    step_times: list[StepTimeRecord] = field(default_factory=list)
    paid_time: list[PaidTime] = field(default_factory=list)
    standby_time: list[StandbyTime] = field(default_factory=list)

    @property
    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs beside the trainer's state, as JSON values."""
        return {
            "policy_version": self.policy_version,
            "next_plan": self.next_plan,
            "explorer_state": self.explorer_state,
        }


@dataclass(frozen=True)
class EvaluationImage:
    """One held-out image.

    Attributes:
        png_base64: its PNG as base64 text, for the gallery; else None.
        figures: what it looks like, by name (`storage/evaluations/quality.py`), and the parts of its score
            as `part_NAME`.
    """

    prompt_id: int
    prompt: str
    seed_index: int
    score: float
    exact: bool
    detail: str
    error: str | None
    png_base64: str | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationRecord:
    """A held-out evaluation after `iteration` iterations (0: the untouched model).

    Its means are over the prompts that every evaluation of the run has; `images` may be of more.

    Attributes:
        parts: mean of each part of a weighted sum.
        looks: mean of each figure of the images' looks.
    """

    run_id: str
    iteration: int
    policy_version: int
    started_at: float
    ended_at: float
    score: float
    exact: float
    images: list[EvaluationImage] = field(default_factory=list)
    intervals: list[StateInterval] = field(default_factory=list)
    device_events: list[DeviceEvent] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    groups: list[GroupRecord] = field(default_factory=list)
    step_times: list[StepTimeRecord] = field(default_factory=list)
    paid_time: list[PaidTime] = field(default_factory=list)
    standby_time: list[StandbyTime] = field(default_factory=list)
    looks: dict[str, float] = field(default_factory=dict)
