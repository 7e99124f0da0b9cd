"""The protocol of clusters: processes for workers, and calls to them; without Ray and torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from storage.errors import CapacityError
from storage.record.records import Market

WorkerT = TypeVar("WorkerT")
WorkerT_co = TypeVar("WorkerT_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RemoteActor(ABC, Generic[WorkerT_co]):
    """A worker in a separate process; it serves calls one at a time, in order.

    `WorkerT_co` is the class of its calls, such as `Worker` of `gpu_runtime/worker/protocol.py`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def call(
        self, method: Callable[Concatenate[WorkerT_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Start a method of the worker's protocol, as in `actor.call(Worker.train, samples)`.

        Only its name is sent. Arguments may be what `Cluster.share` returned for them. The future has
        the method's result or exception, or `WorkerLostError` if the process ends before.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the process, whatever it is doing; calls under way end with `WorkerLostError`."""

    def instance(self) -> Future[str]:
        """Return the name of the process's instance; empty if the cluster has only one."""
        here: Future[str] = Future()
        here.set_result("")
        return here

    def drain_instance(self, reason: str, deadline: float | None) -> str:
        """Stop the cluster from starting more on its instance, which will be taken; return why not, or "".

        It does nothing if the cluster has one instance or does not state instances' markets.
        The instance may be gone at `deadline`, in unix seconds; None if unknown.
        """
        return ""


class Cluster(ABC):
    """The processes of a run; `open_cluster` provides the one that the settings name.

    The default methods suit a cluster of one instance.
    """

    tells_markets_apart: bool = False
    """True if instances state their market; spot ones may then come and go."""

    @property
    def host(self) -> str:
        """Address at which workers reach this process."""
        return "127.0.0.1"

    def devices(self) -> dict[Market, int]:
        """Return the number of devices that its instances have now, without those for scorers.

        All are reserved if instances do not state their market.
        """
        return {"reserved": 1, "spot": 0}

    def request_spot_devices(self, devices: int) -> None:
        """Ask the cluster's autoscaler for instances with this many spot devices, whatever runs on them.

        Raises:
            CapacityError: the cluster has no autoscaler, or it cannot be reached.
        """
        raise CapacityError("this cluster has no autoscaler; name one with an autoscaler in runtime.cluster")

    @abstractmethod
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
            build: class or function of a module, called there with `args`. If it raises, all calls end with
                `WorkerLostError`.
            gpu: True if it is a device, which needs a share of a GPU if the cluster has any.
            market: market of the instance to place it on, if instances state theirs; its start is pending
                until one has room.
            gpu_share: share of a GPU that it needs otherwise.
            reads: folders of this host that it reads; a host that lacks one gets a copy first.
        """

    def share(self, value: T) -> T:
        """Store a value once, and return a stand-in for it as an argument of calls, typed as the value."""
        return value

    def needed_processes(self) -> dict[str, int]:
        """Return the processes that this one cannot outlive, name -> pid."""
        return {}

    @abstractmethod
    def describe(self) -> str:
        """Return its resources, for messages."""

    @abstractmethod
    def shutdown(self) -> None:
        """End all processes that it started; leave a joined cluster running."""
