"""The exploration phase: devices make the drafts that a planner requests, and scorers judge them.

It begins during a rollout, on devices with nothing left to roll out, and continues in the thread of the
`explore` task during reward and training. It ends with the planner's last draft, or at once with the
training window, which drops work in flight, at most one chunk of denoising steps per device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import Delivery, Judge
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.dispatch.training_window import TrainingWindow
from gpu_runtime.exploration.draft_planner import Draft, DraftPlanner
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate
from gpu_runtime.exploration.window import DraftGate
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion, WorkItem
from gpu_runtime.scheduling.scores import Score


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
