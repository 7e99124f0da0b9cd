"""Drafts, from their requests to the iteration that trains on them.

- A training window opens at the end of a rollout, or with the first draft if a device with nothing left to
  roll out begins one earlier, and closes at the end of the training steps. Two threads use it: the training
  thread closes it, which calls the exploring thread back.
- A phase of drafts begins during a rollout, and continues in the thread of the `explore` task during reward
  and training. It ends with the planner's last draft, or at once with the window, which drops work in flight,
  at most one chunk of denoising steps per device.
- Drafts to train on are kept from the phase's end, and are part of their iteration's checkpoint, because a
  resumed run lacks the weights that drew them. They are already judged and pixels are only for display, so a
  clip keeps its middle frame.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from gpu_runtime.diffusion.samples import GeneratedSample, Trajectory
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import Delivery, Judge
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.exploration.draft_planner import Draft, DraftPlanner
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate, SeedPlan
from gpu_runtime.exploration.window import DraftGate
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion, WorkItem
from gpu_runtime.scheduling.scores import Score, Term
from storage.pictures import chosen_frames, frames_of

_ARRAYS, _FACTS = "drafts.safetensors", "drafts.json"
"""Files of a checkpoint: the devices' arrays, and facts about them."""

Drafts = Mapping[tuple[int, int], Delivered]
"""An iteration's samples by prompt_id and seed index."""


class TrainingWindow:
    """The window of one iteration.

    Args:
        version: version of the rollout's weights, which the devices hold until the window closes.

    Attributes:
        length_s: seconds from its opening to its close; None until then.
        closed: True once the training steps are done.
        abandoned: True once work in the window is useless.
        rescored: drafts of `plan` re-scored with the rollout's weights.
        drafters: devices that began drafts in it; devices that share a draft count once.
        lease_s, full_drafts: seconds of the finished batches of drafts, and their size in full drafts.
    """

    def __init__(self, plan: SeedPlan, version: WeightsVersion) -> None:
        self.plan = plan
        self.version = version
        self.length_s: float | None = None
        self.closed = False
        self.abandoned = False
        self.rescored: tuple[Candidate, ...] = ()
        self.drafters = 0
        self.lease_s = 0.0
        self.full_drafts = 0.0
        self._opened_s: float | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], object]] = []

    def open(self, now_s: float) -> float:
        """Open the window unless it is open, and return the seconds since it opened."""
        with self._lock:
            if self._opened_s is None:
                self._opened_s = now_s
            return now_s - self._opened_s

    def close(self, now_s: float) -> None:
        """Close the window after the training steps, and call the listeners."""
        self.length_s = self.open(now_s)
        self._tell(closed=True)

    def abandon(self) -> None:
        """Abandon the window and its results, and call the listeners."""
        self._tell(abandoned=True)

    def on_end(self, listener: Callable[[], object]) -> None:
        """Call `listener` when the window closes or is abandoned; at once if either has happened."""
        with self._lock:
            self._listeners.append(listener)
            over = self.closed or self.abandoned
        if over:
            listener()

    def _tell(self, closed: bool = False, abandoned: bool = False) -> None:
        with self._lock:
            self.closed, self.abandoned = self.closed or closed, self.abandoned or abandoned
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


@dataclass(frozen=True)
class DraftTask:
    """A draft to make: its request (noise and weights), its fidelity and its round."""

    request: SampleRequest
    fidelity: str
    round: int


@dataclass(frozen=True)
class DraftLimits:
    """The limits of a phase of drafts.

    Attributes:
        steps: fidelity → denoising steps of a draft.
        cost: fidelity → cost of a draft, in full drafts.
        window: training window to respect; None if nothing trains meanwhile.
        drafts_on: returns True if a device may draft; trainers may not, because training would wait.
        stops_with_training: True if the phase ends with the training steps.
        fits: returns True if full drafts may still begin, given seconds since the window opened.
    """

    batch_size: int
    steps: Mapping[str, int]
    cost: Mapping[str, float]
    window: TrainingWindow | None = None
    drafts_on: Callable[[Device], bool] = lambda device: True
    stops_with_training: bool = True
    fits: Callable[[float, float], bool] = lambda elapsed_s, full_drafts: True


class DraftPhase:
    """A phase of drafts; those in `first` are made before all that the planner requests.

    Args:
        planner: knows only scores.
        signal: returns the score that a judged draft is learned from with.
        task: returns a planned draft as a task, given its round.

    Attributes:
        candidates: judged drafts, in order of judgement.
        lease_s: seconds that devices, or groups of them, held the finished batches.
        full_drafts: capacity of these batches in full drafts; a partial batch takes as long.
        samples: drafts that training may use, judged or not.
    """

    kind = RequestKind.EXPLORE
    must_end = False
    plans = True

    def __init__(
        self,
        first: Sequence[DraftTask],
        planner: DraftPlanner,
        signal: Callable[[Candidate], float],
        task: Callable[[int, Draft], DraftTask],
        judge: Judge,
        version: WeightsVersion,
        limits: DraftLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = version
        self.candidates: list[Candidate] = []
        self.lease_s = self.full_drafts = 0.0
        self.samples: list[Delivered] = []
        self.planner = planner
        self._first = first
        self._signal = signal
        self._task = task
        self._judge = judge
        self._limits = limits
        self._clock = clock
        self._tasks: dict[SampleRequest, DraftTask] = {}
        self.calls: dict[Future[Score], DraftTask] = {}
        """Awaited scores, with their drafts."""
        self.accepts = limits.drafts_on
        self._gate = DraftGate(limits.fits)

    @property
    def over(self) -> bool:
        """True once the window is over, if the phase has one."""
        window = self._limits.window
        if window is None:
            return False
        return window.abandoned or (window.closed and self._limits.stops_with_training)

    @property
    def awaits_devices(self) -> bool:
        """True while the trainer is busy anyway; the rollout does not wait for drafting devices."""
        return self._limits.window is not None and not self._limits.window.closed

    def begin(self, wake: Callable[[], None]) -> Collection[WorkItem[SampleRequest]]:
        """See `Phase`."""
        if self._limits.window is not None:
            self._limits.window.on_end(wake)
        return self._items(self._first)

    def more(self) -> Collection[WorkItem[SampleRequest]]:
        """Return the planner's next round; none until the second-to-last round is scored."""
        if not self.planner.can_plan:
            return []
        drafts = self.planner.next_round()
        return self._items([self._task(self.planner.round_of[draft], draft) for draft in drafts])

    def may_pull(self, device: Device, following: WorkItem[SampleRequest]) -> bool:
        """Return True if the batch can end in the window, which opens with the first query."""
        window = self._limits.window
        elapsed_s = 0.0 if window is None else window.open(self._clock())
        fidelity = self._tasks[following.request].fidelity
        return self._gate.may_begin(device.name, elapsed_s, self._cost_of_batch(fidelity))

    def deliver(self, delivery: Delivery) -> Collection[Future[Any]]:
        """Pass the images of a finished batch to the scorers."""
        lease = delivery.lease
        fidelity = self._tasks[lease.requests[0]].fidelity
        self.lease_s += delivery.lease_s
        # A lease that resumes another device's commit does only the rest of a batch.
        share = (lease.steps - lease.step) / lease.steps
        self.full_drafts += share * self._cost_of_batch(fidelity)
        scores = self._judge(delivery.images)
        tasks = [self._tasks[image.request] for image in delivery.images]
        self.calls |= zip(scores, tasks, strict=True)
        self.samples += [
            Delivered(image, delivery.worker, score)
            for image, score in zip(delivery.images, scores, strict=True)
            if isinstance(image, GeneratedSample)
        ]
        return scores

    def settle(self, call: Future[Score]) -> None:
        """Record the judgement of a draft."""
        task, score = self.calls.pop(call), call.result()
        request = task.request
        candidate = Candidate(
            request.prompt_id, request.seed_index, task.fidelity, request.policy_version,
            score.value, score.exact, score.error, task.round,
        )  # fmt: skip
        self.candidates.append(candidate)
        if task.round != MONITOR_ROUND:  # the monitor's re-scores are not planned
            learned = self._signal(candidate) if candidate.error is None else None
            self.planner.observe(Draft(request.prompt_id, request.seed_index, task.fidelity), learned)

    def end(self) -> None:
        """Record the arrived judgements, and cancel the others: the rollout waits for none."""
        abandoned = self._limits.window is not None and self._limits.window.abandoned
        for call in list(self.calls):
            if call.done() and not abandoned:
                self.settle(call)
            else:
                call.cancel()

    def _items(self, tasks: Sequence[DraftTask]) -> list[WorkItem[SampleRequest]]:
        self._tasks |= {task.request: task for task in tasks}
        # In the planner's order.
        return [
            WorkItem(task.request, self.kind, self._limits.steps[task.fidelity], self.version)
            for task in tasks
        ]

    def _cost_of_batch(self, fidelity: str) -> float:
        """Return the cost of a batch in full drafts; a partial batch takes as long as a full one."""
        return self._limits.batch_size * self._limits.cost[fidelity]


class KeptDrafts:
    """The drafts of the rollout's plan and of the next one."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[int, int], Delivered]] = {}

    def keep(self, plan: SeedPlan, drafts: Iterable[Delivered]) -> None:
        """Keep the judged drafts that a plan chose, as rollouts; of a clip, one frame remains."""
        judged = plan.explored_score
        wanted = {(prompt, seed) for prompt, seeds in plan.seeds.items() for seed in seeds} & judged.keys()
        chosen: dict[tuple[int, int], Delivered] = {}
        for draft in drafts:
            request = draft.sample.request
            identity = request.prompt_id, request.seed_index
            if identity in wanted:
                (frame_HWC,) = frames_of(chosen_frames(draft.sample.image_HWC, 1))
                sample = replace(draft.sample, request=request.as_rollout, image_HWC=frame_HWC)
                chosen[identity] = replace(draft, sample=sample)
        # The order of arrival must not matter.
        self._of[plan.iteration] = dict(sorted(chosen.items()))

    def of(self, iteration: int) -> Drafts:
        """Return the samples that an iteration need not roll out."""
        return self._of.get(iteration, {})

    def forget(self, iteration: int | None = None) -> None:
        """Drop an iteration's samples, which are then rolled out; by default those of all iterations."""
        if iteration is None:
            self._of = {}
        else:
            self._of.pop(iteration, None)

    def forget_before(self, iteration: int) -> None:
        """Drop the samples of earlier iterations, which already trained on them."""
        self._of = {number: kept for number, kept in self._of.items() if number >= iteration}

    def blobs(self, iteration: int) -> dict[str, bytes]:
        """Return an iteration's samples as files of a checkpoint, by name; empty without samples."""
        drafts = list(self.of(iteration).values())
        if not drafts:
            return {}
        samples, facts = [draft.sample for draft in drafts], []
        for draft in drafts:
            assert draft.score is not None, "a chosen draft has its score"
            request, score = asdict(draft.sample.request), asdict(draft.score.result())
            facts.append({"request": request, "worker": draft.worker, "score": score})
        arrays = {
            "step_NW": [sample.trajectory.step_W for sample in samples],
            "before_NWSC": [sample.trajectory.before_WSC for sample in samples],
            "after_NWSC": [sample.trajectory.after_WSC for sample in samples],
            "log_prob_NW": [sample.trajectory.log_prob_W for sample in samples],
            "latents_NSC": [sample.latents_SC for sample in samples],
            "image_NHWC": [sample.image_HWC for sample in samples],
        }
        return {
            _ARRAYS: save({name: np.stack(rows) for name, rows in arrays.items()}),
            _FACTS: json.dumps({"iteration": iteration, "drafts": facts}).encode(),
        }

    def restore(self, blobs: Mapping[str, bytes]) -> None:
        """Restore drafts from all files of a checkpoint, which may contain none (see `blobs`)."""
        self._of = {}
        if _FACTS not in blobs:
            return
        facts, arrays = json.loads(blobs[_FACTS]), load(bytes(blobs[_ARRAYS]))
        kept = self._of[facts["iteration"]] = {}
        for place, one in enumerate(facts["drafts"]):
            row = {name: rows[place] for name, rows in arrays.items()}
            trajectory = Trajectory(row["step_NW"], row["before_NWSC"], row["after_NWSC"], row["log_prob_NW"])
            request = SampleRequest(**one["request"] | {"kind": RequestKind(one["request"]["kind"])})
            sample = GeneratedSample(request, row["image_NHWC"], trajectory, row["latents_NSC"])
            score: Future[Score] = Future()
            terms = tuple(Term(*term) for term in one["score"]["terms"])
            score.set_result(Score(**one["score"] | {"terms": terms}))
            kept[request.prompt_id, request.seed_index] = Delivered(sample, one["worker"], score)
