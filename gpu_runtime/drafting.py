"""The drafting loop: devices draft what a planner asks for, scorers judge it, until there is no more.

It runs in the thread of the `explore` phase, beside training, and waits for one thing at a time: the
next call that ends, the moment when a device counts as hung, or the window's word that training is done.
Then it returns at once: what a device has in flight, at most one chunk of denoising steps, is dropped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from gpu_runtime.devices import Device
from gpu_runtime.drafting_bench import Bench
from gpu_runtime.drafts_in_flight import DraftChunk
from gpu_runtime.exploration.draft_planner import Draft
from gpu_runtime.exploration.fidelity import preview_step
from gpu_runtime.exploration.plan import Candidate
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.pull_queue import Lease, PullQueue
from gpu_runtime.scheduling.requests import SampleRequest
from gpu_runtime.spot.notice import Notice
from gpu_runtime.worker_protocol import Worker
from storage.errors import WorkerLostError

CHUNK_STEPS = 2
"""Denoising steps of one call: what the rollout may have to wait for when a window closes."""


@dataclass(frozen=True)
class DraftTask:
    """A draft to make: whose noise, with which weights, how faithful, and for which round."""

    request: SampleRequest
    fidelity: str
    round: int

    @property
    def draft(self) -> Draft:
        """The planner's name of it."""
        return Draft(self.request.prompt_id, self.request.seed_index, self.fidelity)


class DraftSource(Protocol):
    """Where drafts come from, beyond those that were there at the start."""

    def more(self) -> list[DraftTask]:
        """The next drafts; none if there are no more, or none before others are judged."""
        ...

    def judged(self, candidate: Candidate) -> None:
        """A draft has its judgement, or the reason why it has none."""
        ...


@dataclass
class Drafted:
    """What a loop has made.

    Attributes:
        candidates: judged drafts, in the order of their judgement.
        device_s: device time of the batches that were finished.
        full_drafts: what these batches have room for, in full drafts: a short one takes as long.
        returned: drafts that went back to the queue from workers that were lost or under notice.
    """

    candidates: list[Candidate] = field(default_factory=list)
    device_s: float = 0.0
    full_drafts: float = 0.0
    returned: int = 0


class DraftingLoop:
    """One run of the loop.

    Args:
        bench: what it works with.
        source: where further drafts come from.
    """

    def __init__(self, bench: Bench, source: DraftSource) -> None:
        self._bench = bench
        self._source = source
        self._devices = list(bench.devices)
        self._queue: PullQueue[DraftTask] = PullQueue((), bench.batch_size, lambda task: task.fidelity)
        # Calls under way, oldest first, with the moment when their device counts as hung.
        self._busy: dict[Future[DraftChunk], tuple[Device, Lease[DraftTask], float]] = {}
        self._tasks: list[DraftTask] = []
        self._begun: dict[str, float] = {}
        # Calls that have ended, in that order; None is the window's word that it is over.
        self._ended: SimpleQueue[Future | None] = SimpleQueue()
        self._made = Drafted()

    def run(self, first: Sequence[DraftTask] = ()) -> Drafted:
        """Make `first`, then what the source asks for.

        Raises:
            RuntimeFailure: if a worker holds other weights than it should, or the trainer died.
        """
        bench = self._bench
        if bench.window is not None:
            bench.window.on_end(lambda: self._ended.put(None))
        self._queue.add(first)
        began = time.monotonic()
        try:
            while not self._over:
                self._refill()
                self._feed(time.monotonic() - began)
                if not self._busy and not bench.judging.calls:
                    break
                self._settle(self._await())
            else:
                self._collect_what_is_done()
        finally:
            for device in self._devices:
                bench.fleet.enter(device.name, "idle")
        self._made.returned = self._queue.returned
        return self._made

    @property
    def _over(self) -> bool:
        window = self._bench.window
        if window is None:
            return False
        return window.abandoned or (window.closed and self._bench.stops_with_training)

    def _refill(self) -> None:
        """Ask for drafts as long as devices want work; a batch that is not full wastes a device."""
        wanted = (len(self._devices) - len(self._busy)) * self._bench.batch_size
        while self._queue.waiting < wanted:
            tasks = self._source.more()
            if not tasks:
                return
            self._queue.add(tasks)

    def _feed(self, elapsed_s: float) -> None:
        """Let every free device and every free scorer pull."""
        bench = self._bench
        working = {device.name for device, _, _ in self._busy.values()}
        for device in self._devices:
            if device.name in working:
                continue
            # A device's first batch is always tried: what it takes is how forecasts come true again.
            may_begin = device.name not in self._begun or self._next_fits(elapsed_s)
            lease = self._queue.pull(device.name) if may_begin else None
            bench.fleet.enter(device.name, "explore" if lease else "idle")
            if lease is None:
                continue
            self._begun[device.name] = time.monotonic()
            requests = [task.request for task in lease.requests]
            until = preview_step(lease.requests[0].fidelity)
            call = device.actor.call(Worker.begin_drafts, bench.weights_key, requests, until, CHUNK_STEPS)
            self._wait_for(call, device, lease)
        for call in bench.judging.feed():
            call.add_done_callback(self._ended.put)

    def _next_fits(self, elapsed_s: float) -> bool:
        """Whether the next batch can end in the window."""
        following = self._queue.following
        return following is not None and self._bench.fits(elapsed_s, self._cost_of_batch(following))

    def _cost_of_batch(self, task: DraftTask) -> float:
        """In full drafts; a short batch takes as long as a full one."""
        return self._bench.batch_size * self._bench.cost[task.fidelity]

    def _wait_for(self, call: Future[DraftChunk], device: Device, lease: Lease[DraftTask]) -> None:
        self._busy[call] = (device, lease, time.monotonic() + self._bench.lease_s)
        call.add_done_callback(self._ended.put)

    def _await(self) -> Future | None:
        """The next call that ends; None where the window does, or a device was given up."""
        due = min((due for _, _, due in self._busy.values()), default=math.inf)
        try:
            return self._ended.get(timeout=None if due == math.inf else max(0.0, due - time.monotonic()))
        except Empty:
            self._give_up_what_hangs()
            return None

    def _give_up_what_hangs(self) -> None:
        now, limit_s = time.monotonic(), self._bench.lease_s
        for call, (device, _, due) in list(self._busy.items()):
            if due <= now and not call.done():
                del self._busy[call]
                self._drop(device)
                self._bench.fleet.give_up(device, f"no word of its drafts in runtime.lease_s={limit_s:g} s")

    def _drop(self, device: Device) -> None:
        """A device drafts no more; others do what it has."""
        self._queue.give_back(device.name)
        self._devices.remove(device)

    def _settle(self, ended: Future | None) -> None:
        if ended is None or self._over:
            return
        if ended in self._busy:
            self._advance(ended)
        elif ended in self._bench.judging.calls:  # and not the late call of a device that was given up
            self._collect(ended)

    def _advance(self, call: Future[DraftChunk]) -> None:
        """A device has done a chunk: the next one, or its images are on their way to the scorers."""
        device, lease, _ = self._busy.pop(call)
        try:
            chunk = call.result()
        except WorkerLostError as error:
            self._drop(device)
            self._bench.fleet.lose(device, error)
            return
        if chunk.notice is not None:
            self._retire(device, chunk.notice)
        images = chunk.images
        if images is None and chunk.notice is not None:
            self._queue.give_back(device.name)
            return
        if images is None:
            self._wait_for(device.actor.call(Worker.advance_drafts, CHUNK_STEPS), device, lease)
            return
        self._made.device_s += time.monotonic() - self._begun[device.name]
        self._made.full_drafts += self._cost_of_batch(lease.requests[0])
        image_of = {image.request: image.image_HWC for image in images}
        for task in self._queue.deliver(lease):
            prompt = self._bench.prompts[task.request.prompt_id]
            self._bench.judging.add(len(self._tasks), image_of[task.request], prompt)
            self._tasks.append(task)

    def _retire(self, device: Device, notice: Notice) -> None:
        """A device will be taken: it drafts no more in this loop, even if the notice is withdrawn."""
        self._devices.remove(device)
        self._bench.fleet.heed(device, notice)
        self._bench.fleet.enter(device.name, "idle")

    def _collect_what_is_done(self) -> None:
        """At the window's end judgements count that are there; nobody waits for others."""
        if self._bench.window is not None and self._bench.window.abandoned:
            return
        for call in self._bench.judging.calls:
            if call.done():
                self._collect(call)

    def _collect(self, call: Future[list[Score]]) -> None:
        """A scorer has judged some images."""
        for number, score in self._bench.judging.collect(call).items():
            task = self._tasks[number]
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
            self._made.candidates.append(candidate)
            self._source.judged(candidate)
