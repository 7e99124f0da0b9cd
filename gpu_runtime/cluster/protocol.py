"""What the driver needs of a cluster: processes for workers, and calls of them; neither Ray nor torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from storage.record.records import Market

WorkerT = TypeVar("WorkerT")
WorkerT_co = TypeVar("WorkerT_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RemoteActor(ABC, Generic[WorkerT_co]):
    """A worker in a process of its own; it serves its calls one at a time, in the order of their making.

    `WorkerT_co` is what it can be asked: a protocol of `gpu_runtime/worker/protocol.py`.

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

    def drain_instance(self, reason: str, deadline: float | None) -> str:
        """Its instance will be taken: let the cluster start nothing more there, whatever comes of the notice.

        It does nothing where the cluster has one instance, or does not say how instances are rented.

        Args:
            reason: in words.
            deadline: when the instance may be gone, in unix seconds; None where that is not known.

        Returns:
            Why the cluster does not do so; empty where it does, or need not.
        """
        return ""


class Cluster(Protocol):
    """Where a run's processes are; `build_cluster` makes the one that the settings name."""

    @property
    def tells_markets_apart(self) -> bool:
        """Whether its instances say how they are rented.

        Workers are then placed by that, and spot instances may come and go.
        """
        ...

    @property
    def host(self) -> str:
        """The address by which workers reach this process."""
        ...

    def devices(self) -> dict[Market, int]:
        """Devices that its instances have now, beside what the scorers take.

        All are reserved where instances do not say how they are rented.
        """
        ...

    def request_spot_devices(self, devices: int) -> None:
        """Ask the cluster's autoscaler to have instances for so many spot devices, whatever runs on them.

        Raises:
            CapacityError: there is none, or it cannot be asked.
        """
        ...

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
        """Start a process for a worker; it loads in the background.

        Args:
            name: shown in messages and records.
            build: a class or a function of a module, which is called there with `args`. If that raises, all
                calls end with `WorkerLostError`.
            gpu: whether it is a device, and needs a GPU's share where there are any.
            market: of the instance that it is to be placed on, where instances say theirs; its start is
                pending until one has room.
            gpu_share: the share of a GPU that it needs otherwise.
            reads: folders of this host that it reads; another host without one gets a copy first.
        """
        ...

    def share(self, value: T) -> T:
        """Store a value once, to be passed to many calls.

        Returns:
            A stand-in of the value: good for nothing but to be an argument of calls, where the value itself
            arrives. It is typed as the value, so that such calls are checked.
        """
        ...

    def needed_processes(self) -> dict[str, int]:
        """Processes that this one cannot outlive, name -> pid."""
        ...

    def describe(self) -> str:
        """Its resources, for messages."""
        ...

    def shutdown(self) -> None:
        """End all processes that it has started; leave what it has joined."""
        ...
