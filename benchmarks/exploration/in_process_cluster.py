"""A cluster whose workers live in this process: each call is done at once, and its processor time is noted.

Two devices of a run take turns that way on one core, with the runtime of `spotlight train`: what each of them
computes, and in what order, follows from the settings. Only how long things take beside each other does not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from gpu_runtime.cluster.protocol import Cluster, RemoteActor
from storage.record.records import Market

Result = TypeVar("Result")
WorkerT = TypeVar("WorkerT")

TRAIN, SCORE, SCORE_HELD_OUT, OTHER = "train", "score", "score_held_out", "other"
"""Kinds of work beside generating, which has the names of `RequestKind`."""


class WorkTimes:
    """Seconds of one core, and how many samples they were for, by the kind of work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.samples: dict[str, int] = defaultdict(int)

    @property
    def devices_s(self) -> float:
        """Seconds of all work but the scorers'."""
        return sum(self.seconds.values()) - self.seconds[SCORE] - self.seconds[SCORE_HELD_OUT]


class InProcessActor(RemoteActor[Any]):
    """A worker of this process."""

    def __init__(self, name: str, worker: Any, times: WorkTimes) -> None:
        super().__init__(name)
        self._worker, self._times = worker, times
        self._kinds: dict[int, str] = {}

    def call(self, method: Callable[..., Result], *args: Any, **kwargs: Any) -> Future[Result]:
        """As of every actor; done when this returns."""
        done: Future[Result] = Future()
        began_s = time.thread_time()
        try:
            result = getattr(self._worker, method.__name__)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the caller's to handle
            done.set_exception(error)
            return done
        took_s = time.thread_time() - began_s
        match method.__name__:
            case "begin_samples":
                _, lease, (first, *_), _ = args
                kind = self._kinds[lease] = getattr(first, "request", first).kind.value
                samples = len(result.samples)
            case "advance_samples":
                kind, samples = self._kinds[args[0]], len(result.samples)
            case "train" | "add_to_training":
                kind, samples = TRAIN, len(args[0])
            case "score":
                kind, samples = SCORE_HELD_OUT if args[2] else SCORE, len(args[0])
            case _:
                kind, samples = OTHER, 0
        self._times.seconds[kind] += took_s
        self._times.samples[kind] += samples
        done.set_result(result)
        return done

    def kill(self) -> None:
        """As of every actor; there is no process to end."""


class InProcessCluster(Cluster):
    """A cluster for a run's workers of any number, all in this process.

    Attributes:
        times: what their calls have taken.
    """

    def __init__(self) -> None:
        self.times = WorkTimes()

    def start(
        self,
        name: str,
        build: Callable[..., WorkerT],
        *args: Any,
        gpu: bool,
        market: Market = "reserved",
        gpu_share: float = 0.0,
        reads: Sequence[str] = (),
    ) -> RemoteActor[WorkerT]:
        """As of every cluster, but that it loads at once."""
        return InProcessActor(name, build(*args), self.times)

    def describe(self) -> str:
        """As of every cluster."""
        return "one process"

    def shutdown(self) -> None:
        """As of every cluster."""
