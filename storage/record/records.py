"""Plain values of a run's record, which `tables.py` writes as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

RunStatus = Literal["running", "finished", "failed", "cancelled", "interrupted", "simulated"]
Market = Literal["reserved", "spot"]
DeviceState = Literal["rollout", "explore", "train", "load", "regroup", "idle", "lost"]
StandbyEnd = Literal["", "taken", "lost"]
DeviceEventKind = Literal["joined", "failed", "notice", "withdrawn", "left", "lost"]

JUDGE_USD = "cost_judge_usd"
"""Figure of an iteration (its rollout and the drafts judged meanwhile) and of a held-out image: dollars for
judges with a price, that is, servers paid per image. Neither includes discarded work."""


@dataclass(frozen=True)
class SampleRecord:
    """One scored image of an iteration's rollout.

    Attributes:
        seed_rank: rank among the prompt's samples by score, 0 the best.
        explored_score: score of the draft that chose this seed; None if none was made.
        advantage: normalised advantage; None if the group had no variance, or a sample without a score.
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
    """The state of a device from `started_at` to `ended_at` (Unix seconds)."""

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
    """The `paid_s` seconds paid for a device since the previous record, measured apart from its states."""

    worker: str
    market: Market
    paid_s: float


@dataclass(frozen=True)
class StandbyTime:
    """Use of a standby since the previous record: a worker process that waits for a free slot.

    It holds no device, so it is not on the bill; it takes processor time and memory of its host.

    Attributes:
        waited_s: seconds of standby, loading included.
        cpu_s: processor time, latest reading.
        memory_bytes: resident memory, latest reading.
        end: `taken`: it took a slot; `lost`: it died; empty while it waits.
    """

    standby: str
    waited_s: float
    cpu_s: float
    memory_bytes: int
    end: StandbyEnd = ""


@dataclass(frozen=True)
class DeviceEvent:
    """An event of a device at `at` (Unix seconds); `detail` is its reason, or empty.

    Attributes:
        kind: `joined`: it is paid for from then on; `failed`: it ended while it loaded, before it joined;
            `notice`: its provider announced its removal; `withdrawn`: that notice was withdrawn; `left`: it
            was given back; `lost`: it is gone.
    """

    worker: str
    market: Market
    kind: DeviceEventKind
    at: float
    detail: str = ""


@dataclass(frozen=True)
class GroupRecord:
    """Devices that shared sequences from `started_at` to `ended_at` (Unix seconds); a single one was alone.

    Attributes:
        epoch, place: change of groups that formed it, from 1 in each life of a run, and its number within
            that.
        members: names of the workers, the leader first; their number is the degree.
    """

    epoch: int
    place: int
    instance: str
    members: tuple[str, ...]
    started_at: float
    ended_at: float


@dataclass(frozen=True)
class StepTimeRecord:
    """Time of a denoising step at a degree (devices that share it), from which `auto` chooses the degree.

    Attributes:
        request_class: resolution and shape of the batches, as text.
        step_s: seconds, median of the newest measurements of the run.
        chunks: number of chunks of denoising steps timed since the previous record.
    """

    request_class: str
    degree: int
    step_s: float
    chunks: int


@dataclass(kw_only=True)
class DeviceTime:
    """The work and the cost of devices between two records; `paid_time` covers the time of `intervals`."""

    intervals: list[StateInterval] = field(default_factory=list)
    paid_time: list[PaidTime] = field(default_factory=list)
    device_events: list[DeviceEvent] = field(default_factory=list)
    standby_time: list[StandbyTime] = field(default_factory=list)
    groups: list[GroupRecord] = field(default_factory=list)
    step_times: list[StepTimeRecord] = field(default_factory=list)

    def of_devices(self) -> dict[str, Any]:
        """Return these values by name, to build a record from them."""
        return {each.name: getattr(self, each.name) for each in fields(DeviceTime)}


@dataclass
class Collected(DeviceTime):
    """Notes of a run's processes between two records: dollars for judges, and words about capacity.

    Attributes:
        evaluation_judge_usd: dollars for judging held-out images, which a finished evaluation has by image.
    """

    judge_usd: float = 0.0
    evaluation_judge_usd: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CandidateRecord:
    """A scored draft of a candidate seed, made to choose the seeds of an iteration, or to check the choice.

    No two of an iteration share prompt, seed, fidelity and policy version: the same weights would draw the
    same image. If drafts were refused and repeated, both are recorded, the new ones with the rollout's policy
    version.

    Attributes:
        fidelity: "full", or the name of a cheaper draft such as "preview-5".
        policy_version: version of the weights that drew it: the previous iteration's for a stale draft, the
            rollout's own for a re-score of the staleness monitor and for a repeated draft.
        score: score in [0, 1]; 0 if `error` tells why there is none.
        exact: True if the image has everything the prompt asked for.
        round: round of the planner that asked for it, from 0; -1 for a re-score of the monitor.
        rank: rank among the prompt's drafts of the same fidelity and policy version by score, 0 the best.
        kept: True if the seed went into the rollout; False for a refused draft, which chose nothing.
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
    """A thumbnail (PNG, for a clip animated WebP) of a rolled-out seed: best and worst of a few prompts."""

    prompt_id: int
    seed_index: int
    png: bytes


@dataclass
class IterationRecord(DeviceTime):
    """The whole record of an iteration; its rows appear by one rename.

    Attributes:
        metrics: named figures of the iteration (reward_mean, loss, kl, ... and *_s for phase times).
        candidates: drafts that chose the seeds of this iteration, and the monitor's re-scores.
        sample_images: thumbnails of some of `samples`.
        next_plan: seeds already chosen for the next iteration, as JSON values (so keys are text); None
            without such seeds. In the checkpoint only, so that a resumed run need not explore again.
        explorer_state: state that the explorer has learned, as JSON values; in the checkpoint only.
    """

    run_id: str
    iteration: int
    policy_version: int
    started_at: float
    ended_at: float
    metrics: dict[str, float]
    samples: list[SampleRecord] = field(default_factory=list)
    candidates: list[CandidateRecord] = field(default_factory=list)
    sample_images: list[SampleImage] = field(default_factory=list)
    next_plan: dict[str, Any] | None = None
    explorer_state: dict[str, Any] | None = None

    @property
    def state(self) -> dict[str, Any]:
        """The values that a resumed run needs in addition to the trainer's state, as JSON values."""
        return {
            "policy_version": self.policy_version,
            "next_plan": self.next_plan,
            "explorer_state": self.explorer_state,
        }


@dataclass(frozen=True)
class JudgedImage:
    """One held-out image of a run's evaluation, or of one by `spotlight evaluate`.

    Attributes:
        prompt_id: position of its prompt in the file.
        tag: the prompt's tag (GenEval's kind of task); empty if it has none. A run's record has none.
        figures: figures of its look, by name (`storage/evaluations/quality.py`), and the parts of its score
            as `part_NAME`.
        png: its PNG, for a clip its animated WebP, for the gallery; else None.
    """

    prompt_id: int
    seed_index: int
    prompt: str
    tag: str
    score: float
    exact: bool
    detail: str
    error: str | None
    figures: Mapping[str, float] = field(default_factory=dict)
    png: bytes | None = None

    @property
    def unit(self) -> tuple[str, str]:
        """Tag and text of its prompt: images that share both are not independent, whatever their rows."""
        return self.tag, self.prompt


@dataclass
class EvaluationRecord(DeviceTime):
    """A held-out evaluation after `iteration` iterations (0: the untouched model).

    All means, including those of the score's `parts` and the images' `looks`, are over the prompts that every
    evaluation of the run has; `images` may cover more.
    """

    run_id: str
    iteration: int
    policy_version: int
    started_at: float
    ended_at: float
    score: float
    exact: float
    images: list[JudgedImage] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    looks: dict[str, float] = field(default_factory=dict)
