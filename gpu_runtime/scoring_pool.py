"""Processes that judge images, fed by pulling like the devices."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait

import numpy as np

from gpu_runtime.actors.cluster import Cluster, RemoteActor
from gpu_runtime.actors.scoring import ScoringWorker
from gpu_runtime.rewards.guard import refuse_total_failure
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.pull_queue import Lease, PullQueue
from storage.config import RunConfig
from storage.errors import RuntimeFailure, WorkerLostError
from storage.prompts import PromptRecord

_IMAGES_A_CALL = 16
_DEATHS_ALLOWED = 3
"""Scorers that may die in one phase; more means that an image kills them."""


class ScoringPool:
    """A few scorer processes; one that dies is replaced and its images are scored again."""

    def __init__(self, cluster: Cluster, config: RunConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._started = 0
        self._pool = [self._start() for _ in range(config.runtime.scorer_workers)]

    def await_ready(self) -> None:
        """Wait until every scorer is loaded.

        Raises:
            RuntimeFailure: if one dies or takes longer than runtime.start_timeout_s.
        """
        limit = self._config.runtime.start_timeout_s
        for actor, call in [(actor, actor.call("ready")) for actor in self._pool]:
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
        queue: PullQueue[int] = PullQueue(range(len(images)), _IMAGES_A_CALL)
        scores: dict[int, Score] = {}
        busy: dict[Future[list[Score]], tuple[RemoteActor, Lease[int]]] = {}
        deaths = 0
        while not queue.done:
            working = {actor.name for actor, _ in busy.values()}
            for actor in self._pool:
                lease = None if actor.name in working else queue.pull(actor.name)
                if lease:
                    chosen = list(lease.requests)
                    call = actor.call("score", [images[i] for i in chosen], [prompts[i] for i in chosen])
                    busy[call] = (actor, lease)
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                actor, lease = busy.pop(future)
                try:
                    scores.update(zip(lease.requests, future.result(), strict=True))
                except WorkerLostError as error:
                    deaths += 1
                    queue.give_back(actor.name)
                    self._replace(actor, deaths, error)
                    continue
                queue.deliver(lease)
        ordered = [scores[index] for index in range(len(images))]
        refuse_total_failure(self._config.reward.scorer, ordered)
        return ordered

    def _start(self) -> RemoteActor:
        name = f"scorer-{self._started}"
        self._started += 1
        return self._cluster.start(name, ScoringWorker, self._config.reward.scorer, gpu=False)

    def _replace(self, actor: RemoteActor, deaths: int, error: WorkerLostError) -> None:
        if deaths > _DEATHS_ALLOWED:
            raise RuntimeFailure(
                f"{deaths} scorer processes died in one phase, the last with: {error}; an image may "
                "crash the engine, or memory is short"
            ) from error
        self._pool[self._pool.index(actor)] = self._start()
