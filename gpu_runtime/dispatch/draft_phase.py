"""The phase that explores: devices draft what a planner asks for, scorers judge it, until there is no more.

It begins beside a rollout, on the devices that find nothing more to roll out, and goes on in the thread of
the `explore` task, beside reward and training. It ends with the planner's last draft or with the training
window: then at once. What a device has in flight, at most one chunk of denoising steps, is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import Delivery, Judge
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.dispatch.training_window import TrainingWindow
from gpu_runtime.exploration.draft_planner import Draft, DraftPlanner
from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate
from gpu_runtime.exploration.window import DraftGate
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion, WorkItem


@dataclass(frozen=True)
class DraftTask:
    """A draft to make: whose noise, with which weights, how faithful, and for which round."""

    request: SampleRequest
    fidelity: str
    round: int


class DraftSource(Protocol):
    """Where drafts come from, beyond those that were there at the start."""

    def more(self) -> list[DraftTask]:
        """The next drafts; none if there are no more, or none before others are judged."""
        ...

    def judged(self, candidate: Candidate) -> None:
        """A draft has its judgement, or the reason why it has none."""
        ...


class PlannedDrafts:
    """A planner, which knows of scores only, as the source of a phase of drafts.

    Args:
        planner: says what to draft.
        explorer: says what is learned of a judgement.
        task: makes the task of a round's draft.
    """

    def __init__(
        self, planner: DraftPlanner, explorer: SeedExplorer, task: Callable[[int, Draft], DraftTask]
    ) -> None:
        self._planner = planner
        self._explorer = explorer
        self._task = task

    def more(self) -> list[DraftTask]:
        """The planner's next round; none before the round before the last is judged."""
        if not self._planner.can_plan:
            return []
        drafts = self._planner.next_round()
        return [self._task(self._planner.round_of(draft), draft) for draft in drafts]

    def judged(self, candidate: Candidate) -> None:
        """Pass the judgement of a planned draft to the planner; the monitor's re-scores are not planned."""
        if candidate.round == MONITOR_ROUND:
            return
        score = self._explorer.signal(candidate) if candidate.error is None else None
        self._planner.observe(Draft(candidate.prompt_id, candidate.seed_index, candidate.fidelity), score)


@dataclass
class Drafted:
    """What a phase has made.

    Attributes:
        candidates: judged drafts, in the order of their judgement.
        lease_s: time that devices, or groups of them, had the batches that were finished.
        full_drafts: what these batches have room for, in full drafts: a short one takes as long.
        samples: drafts that may be trained on, judged or not.
    """

    candidates: list[Candidate] = field(default_factory=list)
    lease_s: float = 0.0
    full_drafts: float = 0.0
    samples: list[Delivered] = field(default_factory=list)


@dataclass(frozen=True)
class DraftLimits:
    """What a phase of drafts has to keep to.

    Attributes:
        batch_size: drafts that a device makes at once.
        steps: fidelity → denoising steps of a draft.
        cost: fidelity → what a draft costs, in full drafts.
        window: the training window to keep to; None where nothing trains meanwhile.
        drafts_on: whether a device may draft: not the trainers, whose training would wait for it.
        stops_with_training: whether the phase ends with the training steps.
        fits: whether so many full drafts may be begun so many seconds after the window's opening.
    """

    batch_size: int
    steps: Mapping[str, int]
    cost: Mapping[str, float]
    window: TrainingWindow | None = None
    drafts_on: Callable[[Device], bool] = lambda device: True
    stops_with_training: bool = True
    fits: Callable[[float, float], bool] = lambda elapsed_s, full_drafts: True


class DraftPhase:
    """A phase of drafts.

    Args:
        first: drafts that are made before all others.
        source: where further drafts come from.
        judge: lets scorers judge drafts.
        version: of the weights that all drafts are made with.
        limits: what the phase has to keep to.
        clock: seconds, of a clock that never goes back.
    """

    kind = RequestKind.EXPLORE
    must_end = False

    def __init__(
        self,
        first: Sequence[DraftTask],
        source: DraftSource,
        judge: Judge,
        version: WeightsVersion,
        limits: DraftLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = version
        self.made = Drafted()
        """What it has made so far."""
        self._first = first
        self._source = source
        self._judge = judge
        self._limits = limits
        self._clock = clock
        self._tasks: dict[SampleRequest, DraftTask] = {}
        self._judging: dict[Future[Score], DraftTask] = {}
        self._gate = DraftGate(limits.fits)

    @property
    def over(self) -> bool:
        """The window is over, where the phase has one."""
        window = self._limits.window
        if window is None:
            return False
        return window.abandoned or (window.closed and self._limits.stops_with_training)

    @property
    def awaits_devices(self) -> bool:
        """As long as the trainer is busy anyway; the rollout does not wait for devices to draft."""
        return self._limits.window is not None and not self._limits.window.closed

    @property
    def calls(self) -> Collection[Future[Any]]:
        """The scores that are awaited."""
        return self._judging.keys()

    def begin(self, wake: Callable[[], None]) -> Collection[WorkItem[SampleRequest]]:
        """See `Phase`."""
        if self._limits.window is not None:
            self._limits.window.on_end(wake)
        return self._items(self._first)

    def more(self) -> Collection[WorkItem[SampleRequest]]:
        """The source's next drafts."""
        return self._items(self._source.more())

    def accepts(self, device: Device) -> bool:
        """Whether it may draft."""
        return self._limits.drafts_on(device)

    def may_pull(self, device: Device, following: WorkItem[SampleRequest]) -> bool:
        """Whether its batch can end in the window, which opens when the first device asks."""
        window = self._limits.window
        elapsed_s = 0.0 if window is None else window.open(self._clock())
        fidelity = self._tasks[following.request].fidelity
        return self._gate.may_begin(device.name, elapsed_s, self._cost_of_batch(fidelity))

    def deliver(self, delivery: Delivery) -> Collection[Future[Any]]:
        """A batch is finished: its images go to the scorers."""
        lease = delivery.lease
        fidelity = self._tasks[lease.requests[0]].fidelity
        self.made.lease_s += delivery.lease_s
        # A lease that goes on from another device's commit has the rest of a batch to do.
        share = (lease.steps - lease.step) / lease.steps
        self.made.full_drafts += share * self._cost_of_batch(fidelity)
        scores = self._judge(delivery.images)
        tasks = [self._tasks[image.request] for image in delivery.images]
        self._judging |= zip(scores, tasks, strict=True)
        self.made.samples += [
            Delivered(image, delivery.worker, score)
            for image, score in zip(delivery.images, scores, strict=True)
            if isinstance(image, GeneratedSample)
        ]
        return scores

    def settle(self, call: Future[Score]) -> None:
        """A draft is judged."""
        task, score = self._judging.pop(call), call.result()
        candidate = Candidate(
            prompt_id=task.request.prompt_id,
            seed_index=task.request.seed_index,
            fidelity=task.fidelity,
            policy_version=task.request.policy_version,
            value=score.value,
            exact=score.exact,
            error=score.error,
            round=task.round,
        )
        self.made.candidates.append(candidate)
        self._source.judged(candidate)

    def end(self) -> None:
        """Count the judgements that are there, and want no others: the rollout waits for none."""
        abandoned = self._limits.window is not None and self._limits.window.abandoned
        for call in list(self._judging):
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
        """In full drafts; a short batch takes as long as a full one."""
        return self._limits.batch_size * self._limits.cost[fidelity]
