"""Processes that judge images, fed by pulling like the devices."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait

import numpy as np

from gpu_runtime.cluster.protocol import Cluster, RemoteActor
from gpu_runtime.rewards.guard import refuse_total_failure
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.work_items import Lease, WorkItem
from gpu_runtime.worker.history_log import HistoryPlace
from gpu_runtime.worker.protocol import ImageScorer
from gpu_runtime.worker.scoring_worker import ScoringWorker
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure, WorkerLostError
from storage.prompts.files import PromptRecord

_IMAGES_A_CALL = 16
CALL_LIMIT_S = 1800.0
"""Seconds that a scorer may take for one call before it counts as hung."""

_DEATHS_ALLOWED = 3
"""Scorers that may be lost in one phase; more means that an image kills them."""


class ScoringPool:
    """A few scorer processes; one that dies or hangs is replaced and its images are scored again.

    Args:
        cluster: where they run.
        config: the run's configuration.
        history: where their histories go; None keeps none.
    """

    def __init__(self, cluster: Cluster, config: RunConfig, history: HistoryPlace | None = None) -> None:
        self._cluster = cluster
        self._config = config
        self._history = history
        self._started = 0
        self._hung: set[str] = set()
        self.actors = [self._start() for _ in range(config.runtime.scorer_workers)]

    def await_ready(self) -> None:
        """Wait until every scorer is loaded.

        Raises:
            RuntimeFailure: if one dies or takes longer than runtime.start_timeout_s.
        """
        limit = self._config.runtime.start_timeout_s
        for actor, call in [(actor, actor.call(ImageScorer.ready)) for actor in self.actors]:
            try:
                call.result(timeout=limit)
            except TimeoutError as error:
                raise RuntimeFailure(
                    f"scorer {actor.name} did not start in runtime.start_timeout_s={limit:g}; the cluster "
                    "has "
                    f"{self._cluster.describe()}"
                ) from error
            except WorkerLostError as error:
                raise RuntimeFailure(f"scorer {actor.name} died while starting: {error}") from error

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """One score an image, in order.

        Raises:
            RewardError: if the scorer failed on every image.
            RuntimeFailure: if scorers die again and again.
        """
        judging = self.open(_IMAGES_A_CALL)
        for number, (image, prompt) in enumerate(zip(images, prompts, strict=True)):
            judging.add(number, image, prompt)
        scores: dict[int, Score] = {}
        while not judging.done:
            judging.feed()
            for call in wait(judging.calls, return_when=FIRST_COMPLETED).done:
                scores |= judging.collect(call)
        ordered = [scores[index] for index in range(len(images))]
        refuse_total_failure(self._config.reward.scorer, ordered)
        return ordered

    def close(self) -> None:
        """End the processes of all scorers."""
        for actor in self.actors:
            actor.kill()

    def open(self, images_a_call: int, tolerant: bool = False) -> ScoringBatch:
        """Judge images as they come; see `ScoringBatch`."""
        return ScoringBatch(self, images_a_call, tolerant)

    def replace(self, actor: RemoteActor[ImageScorer]) -> None:
        """Start another scorer in place of one that died."""
        self.actors[self.actors.index(actor)] = self._start()

    def end_if_hung(self, actor: RemoteActor[ImageScorer], call: Future[list[Score]]) -> None:
        """Kill a scorer whose call takes longer than `CALL_LIMIT_S`: the call then ends as lost."""

        def end() -> None:
            self._hung.add(actor.name)
            actor.kill()

        timer = threading.Timer(CALL_LIMIT_S, end)
        timer.daemon = True  # a run that ends does not wait for it
        timer.start()
        call.add_done_callback(lambda _: timer.cancel())

    def end_of(self, actor: RemoteActor[ImageScorer], error: WorkerLostError) -> str:
        """In words, how a scorer ended."""
        if actor.name not in self._hung:
            return str(error)
        return f"scorer {actor.name} gave no answer in {CALL_LIMIT_S:g} s and was killed"

    def _start(self) -> RemoteActor[ImageScorer]:
        name = f"scorer-{self._started}"
        self._started += 1
        share = self._config.runtime.scorer_gpu
        arguments = (self._config.reward, name, self._history, share > 0)
        return self._cluster.start(name, ScoringWorker, *arguments, gpu=False, gpu_share=share)


class ScoringBatch:
    """Images on their way through the scorers: added at any time, collected as they are judged.

    The caller waits for `calls` as it likes. One thread and one `ScoringBatch` at a time use a pool; one
    that is left behind unfinished only keeps its scorers busy with the calls that it has made.

    Args:
        pool: the scorers.
        images_a_call: most images of one call.
        tolerant: images over which scorers die again and again have an error, and do not stop the run.
    """

    def __init__(self, pool: ScoringPool, images_a_call: int, tolerant: bool) -> None:
        self._pool = pool
        self._tolerant = tolerant
        # A scorer that hangs is killed by the pool, so no lease expires.
        self._queue: PullScheduler[int] = PullScheduler(images_a_call, math.inf, images_a_call)
        self._images_a_call = images_a_call
        self._images: dict[int, tuple[np.ndarray, PromptRecord]] = {}
        self._busy: dict[Future[list[Score]], tuple[RemoteActor[ImageScorer], Lease[int]]] = {}
        self._deaths = 0

    @property
    def done(self) -> bool:
        """Every image that was added is judged and collected."""
        return self._queue.done()

    @property
    def calls(self) -> list[Future[list[Score]]]:
        """The calls under way."""
        return list(self._busy)

    def add(self, number: int, image: np.ndarray, prompt: PromptRecord) -> None:
        """One more image, under a number of its own."""
        self._images[number] = (image, prompt)
        self._queue.add([WorkItem(number, RequestKind.ROLLOUT, steps=1, turn=0, version=0)])

    def feed(self) -> list[Future[list[Score]]]:
        """Let every free scorer pull; the calls that this starts."""
        working = {actor.name for actor, _ in self._busy.values()}
        started: list[Future[list[Score]]] = []
        for actor in self._pool.actors:
            idle = actor.name not in working
            lease = self._queue.pull(actor.name, 0.0, 0, self._images_a_call) if idle else None
            if lease:
                images, prompts = zip(*(self._images[number] for number in lease.requests), strict=True)
                call = actor.call(ImageScorer.score, list(images), list(prompts))
                self._pool.end_if_hung(actor, call)
                self._busy[call] = (actor, lease)
                started.append(call)
        return started

    def collect(self, call: Future[list[Score]]) -> dict[int, Score]:
        """The scores of a finished call, by number; none if its scorer died and others will judge.

        Raises:
            RuntimeFailure: if scorers die again and again.
        """
        actor, lease = self._busy.pop(call)
        try:
            scores = dict(zip(lease.requests, call.result(), strict=True))
        except WorkerLostError as error:
            self._deaths += 1
            how = self._pool.end_of(actor, error)
            self._pool.replace(actor)
            if self._deaths <= _DEATHS_ALLOWED:
                self._queue.on_worker_lost(actor.name)
                return {}
            if not self._tolerant:
                raise RuntimeFailure(
                    f"{self._deaths} scorer processes were lost in one phase, the last: {how}; an image may "
                    "crash the engine, or memory is short"
                ) from error
            scores = {number: Score(0.0, False, "", error=how) for number in lease.requests}
        self._queue.deliver(lease, lease.requests, 0.0)
        for number in lease.requests:
            del self._images[number]
        return scores
