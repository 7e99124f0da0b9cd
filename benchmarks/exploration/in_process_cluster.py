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

    def add(self, kind: str, seconds: float, samples: int) -> None:
        """Note some work."""
        self.seconds[kind] += seconds
        self.samples[kind] += samples

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
        self._note(method.__name__, args, result, time.thread_time() - began_s)
        done.set_result(result)
        return done

    def kill(self) -> None:
        """As of every actor; there is no process to end."""

    def _note(self, method: str, args: tuple[Any, ...], result: Any, seconds: float) -> None:
        if method in ("begin_samples", "advance_samples"):
            lease = args[0] if method == "advance_samples" else args[1]
            if method == "begin_samples":
                first = args[2][0]
                self._kinds[lease] = getattr(first, "request", first).kind.value
            self._times.add(self._kinds[lease], seconds, len(result.samples))
        elif method in ("train", "add_to_training"):
            self._times.add(TRAIN, seconds, len(args[0]))
        elif method == "score":
            self._times.add(SCORE_HELD_OUT if args[2] else SCORE, seconds, len(args[0]))
        else:
            self._times.add(OTHER, seconds, 0)


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
