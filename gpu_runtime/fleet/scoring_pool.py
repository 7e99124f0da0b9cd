"""Processes that score images as they are delivered; like the devices, they pull their work."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, TimeoutError, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from gpu_runtime.cluster.protocol import Cluster, RemoteActor
from gpu_runtime.diffusion.samples import GeneratedImage
from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.fleet.trainers import LOOK_EVERY_S
from gpu_runtime.rewards.protocol import CALL_LIMIT_S, MOST_IMAGES_A_CALL
from gpu_runtime.rewards.registry import model_folders
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import Lease, RequestKind, WorkItem
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.history import HistoryPlace
from gpu_runtime.worker.scoring_worker import ScoringWorker
from storage.config.run_config import EvaluationConfig, RewardConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import RuntimeFailure, WorkerLostError
from storage.pictures import chosen_frames, frames_of
from storage.prompts.files import PromptRecord

_IMAGES_A_CALL = {
    RequestKind.ROLLOUT: MOST_IMAGES_A_CALL,
    RequestKind.EVALUATE: MOST_IMAGES_A_CALL,
    RequestKind.EXPLORE: MOST_IMAGES_A_CALL // 2,
}
"""Most images per call of each kind, in order of priority; half for drafts, because an early answer is worth
more near the window's end."""

_CLOSE_LIMIT_S = 10.0

_DEATHS_ALLOWED = 3
"""Consecutive calls of each scorer, or for one image, that may lose their scorer; more mean that an image
kills scorers or that memory is short."""


@dataclass(eq=False)
class _Image:
    """An image on its way through the scorers."""

    image: GeneratedImage
    prompt: PromptRecord
    score: Future[Score] = field(default_factory=Future)
    deaths: int = 0

    @property
    def kind(self) -> RequestKind:
        return self.image.request.kind

    def begin(self) -> bool:
        """Return True if its score is still wanted; it can no longer be cancelled."""
        return self.score.running() or self.score.set_running_or_notify_cancel()


class ScoringPool:
    """A few scorer processes; one that dies or hangs is replaced, and its images are rescored.

    One thread gives images to the scorers and takes their scores, so that rollouts and drafts can be judged
    at the same time: rollouts and evaluations first.

    Args:
        history: location of their histories; None to keep none.
        look: called repeatedly by a thread that waits for a phase's scores.
    """

    def __init__(
        self,
        cluster: Cluster,
        runtime: RuntimeConfig,
        reward: RewardConfig,
        evaluation: EvaluationConfig,
        history: HistoryPlace | None = None,
        look: Callable[[], None] = lambda: None,
        collector: Collector | None = None,
    ) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._reward = reward
        judged = evaluation.judge
        self._second_judge = RewardConfig(scorer=judged, options=evaluation.options) if judged else None
        self._history = history
        self._look = look
        self._started = 0
        self._loaded: dict[str, Future[bool]] = {}
        self._hung: dict[str, float] = {}
        self._queue: PullScheduler[_Image] = PullScheduler()
        self._busy: dict[
            Future[list[Score]], tuple[RemoteActor[ScoringWorker], Lease[_Image], list[_Image]]
        ] = {}
        self._open: set[_Image] = set()
        self._by_frame = False
        self._frames = 1
        self._deaths_in_a_row = 0
        self.collector = collector or Collector()
        self._events: SimpleQueue[list[_Image] | Future[list[Score]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._ended: Exception | None = None
        self.actors = [self._start() for _ in range(runtime.scorer_workers)]
        self._thread = threading.Thread(target=self._serve, name="scoring", daemon=True)

    def await_ready(self) -> None:
        """Wait until every scorer has loaded and can judge images.

        Raises:
            RuntimeFailure: if one dies, or all take longer than runtime.start_timeout_s together.
        """
        limit = self._runtime.start_timeout_s
        deadline_s = time.monotonic() + limit
        for actor in self.actors:
            try:
                left_s = max(0.0, deadline_s - time.monotonic())
                self._by_frame = self._loaded[actor.name].result(timeout=left_s)
            except TimeoutError as error:
                raise RuntimeFailure(
                    f"scorer {actor.name} did not start in runtime.start_timeout_s={limit:g}; the cluster "
                    f"has {self._cluster.describe()}"
                ) from error
            except WorkerLostError as error:
                raise RuntimeFailure(f"scorer {actor.name} died while starting: {error}") from error
        self._thread.start()

    def judge(
        self, images: Sequence[GeneratedImage], prompts: Mapping[int, PromptRecord]
    ) -> list[Future[Score]]:
        """Let scorers judge images, and return one score per image, in order; any thread may call it.

        An unwanted score can be cancelled. If scorers keep dying, a draft's score carries the error, and any
        other image's raises `RuntimeFailure`.
        """
        added = [_Image(image, prompts[image.request.prompt_id]) for image in images]
        with self._lock:
            ended = self._ended
            if ended is None:
                self._events.put(added)
        for image in added if ended is not None else ():
            image.score.set_exception(ended)
        return [image.score for image in added]

    def wait_for(self, scores: Sequence[Future[Score]]) -> list[Score]:
        """Wait until all scores have arrived, and return them.

        Raises:
            RuntimeFailure: if scorers keep dying.
        """
        while wait(scores, timeout=LOOK_EVERY_S).not_done:
            self._look()
        return [score.result() for score in scores]

    def close(self) -> None:
        """End the processes of all scorers."""
        self._events.put(None)
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_LIMIT_S)  # it may be about to replace a scorer
        for actor in self.actors:
            actor.kill()

    def _limit(self, actor: RemoteActor[ScoringWorker], call: Future[Any], limit_s: float) -> None:
        """Kill a scorer that does not finish a call in time, which ends its calls as lost."""

        def end() -> None:
            if call.done():  # too late to cancel the timer: the scorer may be judging other images
                return
            self._hung[actor.name] = limit_s
            actor.kill()

        timer = threading.Timer(limit_s, end)
        timer.daemon = True  # a run that ends does not wait for it
        timer.start()
        call.add_done_callback(lambda _: timer.cancel())

    def _serve(self) -> None:
        """Feed the scorers with added images, as their calls end, until `close`."""
        ended: Exception = RuntimeFailure("the scorers have been closed")
        try:
            while (event := self._events.get()) is not None:
                self._on_event(event)
        except Exception as error:  # noqa: BLE001 - raised where the scores are awaited
            ended = error
        with self._lock:  # now `judge` adds nothing
            self._ended = ended
        while not self._events.empty():
            event = self._events.get()
            self._open |= set(event if isinstance(event, list) else ())
        for image in self._open:
            if not image.score.done() and image.begin():
                image.score.set_exception(ended)

    def _on_event(self, event: list[_Image] | Future[list[Score]]) -> None:
        if isinstance(event, list):
            self._open |= set(event)
            for image in event[:1]:  # a run's clips have the same number of frames
                self._frames = len(frames_of(chosen_frames(image.image.image_HWC, self._reward.frames)))
            self._queue.add(WorkItem(image, image.kind, steps=1, version=0) for image in event)
        else:
            self._settle(event)
        self._feed()

    def _finish(self, lease: Lease[_Image], images: Collection[_Image]) -> None:
        """Remove a lease's images that are judged, given up or no longer wanted."""
        self._queue.deliver(lease, images)
        self._open.difference_update(images)

    def _feed(self) -> None:
        """Let every free scorer pull that has loaded or died while loading, which its call will show."""
        working = {actor.name for actor, *_ in self._busy.values()}
        loaded = [actor for actor in self.actors if self._loaded[actor.name].done()]
        free = [actor for actor in loaded if actor.name not in working]
        while free and (lease := self._pull(free[0].name, len(free))) is not None:
            images = [image for image in lease.requests if image.begin()]
            self._finish(lease, set(lease.requests) - set(images))  # cancelled meanwhile
            if not images:
                continue
            actor = free.pop(0)
            call = actor.call(
                ScoringWorker.score,
                [chosen_frames(image.image.image_HWC, self._reward.frames) for image in images],
                [image.prompt for image in images],
                images[0].kind is RequestKind.EVALUATE,  # a lease has images of one kind
            )
            self._limit(actor, call, CALL_LIMIT_S)
            self._busy[call] = actor, lease, images
            call.add_done_callback(self._events.put)

    def _pull(self, scorer: str, free: int) -> Lease[_Image] | None:
        """Return a scorer's next lease: images of the next kind, divided among the free scorers.

        If frames are judged one by one, a call has at most as many frames as it would have images.
        """
        frames = self._frames if self._by_frame else 1
        for kind, images in _IMAGES_A_CALL.items():
            share = math.ceil(self._queue.waiting(kind) / free)
            lease = self._queue.pull(scorer, 0, min(share, max(1, images // frames)), kind)
            if lease is not None:
                return lease
        return None

    def _settle(self, call: Future[list[Score]]) -> None:
        """Handle the end of a call: the scorer judged, refused or died."""
        actor, lease, images = self._busy.pop(call)
        error = call.exception()
        if isinstance(error, WorkerLostError):
            self._on_scorer_lost(actor, lease, images, error)
            return
        self._deaths_in_a_row = 0
        self._finish(lease, images)
        if error is not None:
            for image in images:
                image.score.set_exception(error)
            return
        for image, score in zip(images, call.result(), strict=True):
            with self.collector.writing() as since:
                if image.kind is RequestKind.EVALUATE:  # its record has its price
                    since.evaluation_judge_usd += score.usd
                else:
                    since.judge_usd += score.usd
            image.score.set_result(score)

    def _on_scorer_lost(
        self,
        actor: RemoteActor[ScoringWorker],
        lease: Lease[_Image],
        images: list[_Image],
        error: WorkerLostError,
    ) -> None:
        """Replace a dead scorer; its images are rescored or given up."""
        how = str(error)
        if (limit_s := self._hung.get(actor.name)) is not None:
            how = f"scorer {actor.name} did not answer within {limit_s:g} s and was killed"
        self.actors[self.actors.index(actor)] = replacement = self._start()
        self._limit(replacement, self._loaded[replacement.name], self._runtime.start_timeout_s)
        self._deaths_in_a_row += 1
        for image in images:
            image.deaths += 1
        of_one = max(image.deaths for image in images)
        # All scorers may be lost at once, with their machine.
        if max(self._deaths_in_a_row // len(self.actors), of_one) <= _DEATHS_ALLOWED:
            self._queue.on_worker_lost(actor.name)
            return
        self._finish(lease, images)
        for image in images:
            if image.kind is RequestKind.EXPLORE:
                image.score.set_result(Score(0.0, False, "", error=how))
            else:
                image.score.set_exception(
                    RuntimeFailure(
                        f"{max(self._deaths_in_a_row, of_one)} scorer processes were lost in a row or on one "
                        f"image, the last: {how}; an image may be crashing the engine, or memory is "
                        "short"
                    )
                )

    def _start(self) -> RemoteActor[ScoringWorker]:
        name = f"scorer-{self._started}"
        self._started += 1
        share = self._runtime.scorer_gpu
        arguments = (self._reward, name, self._history, share > 0, self._second_judge)
        reads = [folder for one in (self._reward, self._second_judge) if one for folder in model_folders(one)]
        actor = self._cluster.start(name, ScoringWorker, *arguments, gpu=False, gpu_share=share, reads=reads)
        loaded = self._loaded[name] = actor.call(ScoringWorker.ready)
        loaded.add_done_callback(lambda _: self._events.put([]))  # images may wait for it
        return actor
