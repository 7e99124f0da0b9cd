"""A process that the driver has started, and its typed calls; whatever cluster it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Concatenate, Generic, ParamSpec, TypeVar

WorkerT_co = TypeVar("WorkerT_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class RemoteActor(ABC, Generic[WorkerT_co]):
    """A worker in a process of its own; it serves its calls one at a time, in the order of their making.

    `WorkerT_co` is what it can be asked: a protocol of `gpu_runtime/worker_protocol.py`.

    Args:
        name: of the worker, in messages and records.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def call(
        self, method: Callable[Concatenate[WorkerT_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Start a method of the worker.

        Args:
            method: named through the worker's protocol, as in `actor.call(Worker.train, samples)`. Only its
                name travels.
            args: values, or what `Cluster.share` returned for them.
            kwargs: likewise.

        Returns:
            What the method returns or raises, or `WorkerLostError` if the process ends before.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the process, whatever it is doing; calls under way end with `WorkerLostError`."""

    def instance(self) -> Future[str]:
        """A name of the instance that the process is on; the empty one where there is only one."""
        here: Future[str] = Future()
        here.set_result("")
        return here
