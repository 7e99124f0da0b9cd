"""A cluster whose workers answer at once, without processes and without models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from gpu_runtime.cluster.protocol import Cluster, RemoteActor
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import HostUsage, WorkerReady
from storage.errors import WorkerLostError
from storage.record.records import Market

R = TypeVar("R")
WorkerT = TypeVar("WorkerT")


class FakeWorker(RemoteActor[Any]):
    """A worker that only holds names of weights.

    Attributes:
        notice: what it says when it is asked.
        watches: whether it was told to watch for notices.
        among: its place, if it was told to train with others.
        reads: folders that it needs.
        silent: methods that it does not answer, unless the test does: see `open_calls`.
        open_calls: the calls of those, by method.
        dead: all calls end with its loss.
        called: methods called.
        drained: why its instance was to be drained, each time.
        drain_refused: why it is not; empty where it is.
        usage: what it has used of its host.
        kind: its device.
        trains: whether it was started to train.
    """

    def __init__(self, name: str, watches: bool) -> None:
        super().__init__(name)
        self.notice: Notice | None = None
        self.watches = watches
        self.among: Any = None
        self.reads: Sequence[str] = ()
        self.silent: set[str] = set()
        self.open_calls: dict[str, Future[Any]] = {}
        self.dead = False
        self.called: list[str] = []
        self.drained: list[str] = []
        self.drain_refused = ""
        self.usage = HostUsage(3.0, 1000)
        self.kind = "cpu"
        self.trains = False

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """See `RemoteActor`."""
        called, call = method.__name__, Future[Any]()
        self.called.append(called)
        if self.dead:
            call.set_exception(WorkerLostError(f"worker {self.name!r} is gone"))
        elif called in self.silent:
            self.open_calls[called] = call
        else:
            answers: dict[str, Callable[[], Any]] = {
                "ready": lambda: WorkerReady(0.0, device=self.kind),
                "blobs": dict,
                "restore": lambda: None,
                "begin_training": lambda: None,
                "use_training_weights": lambda: f"digest of {args[0]}",
                "host_usage": lambda: self.usage,
                "take_slot": lambda: self._take_place(*args),
                "notice": lambda: self.notice,
                "load_weights": lambda: f"digest of {args[0]}",
            }
            call.set_result(answers[called]())
        return call

    def drain_instance(self, reason: str, deadline: float | None) -> str:
        """See `RemoteActor`."""
        self.drained.append(reason)
        return self.drain_refused

    def kill(self) -> None:
        """See `RemoteActor`."""
        self.dead = True
        for method in list(self.open_calls):
            call = self.open_calls.pop(method)
            if not call.done():
                call.set_exception(WorkerLostError(f"worker {self.name!r} was killed"))

    def _take_place(self, name: str, watches: bool, history: object) -> WorkerReady:
        self.watches = watches
        return WorkerReady(60.0, device=self.kind)


class FakeCluster(Cluster):
    """Starts fake workers.

    Attributes:
        workers: all of them, by name.
        slow: names of those that load until they are told: `open_calls` has their calls.
        stillborn: names of those that die while they load.
        markets: where each was to be placed, by name.
        has: devices that its instances have.
        requested: what its autoscaler was asked for, in order.
        kinds: devices of workers, where they are no `cpu`.
    """

    def __init__(self) -> None:
        self.workers: dict[str, FakeWorker] = {}
        self.tells_markets_apart = False
        self.slow: set[str] = set()
        self.stillborn: set[str] = set()
        self.markets: dict[str, Market] = {}
        self.has: dict[Market, int] = {"reserved": 1, "spot": 0}
        self.requested: list[int] = []
        self.kinds: dict[str, str] = {}

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
        """See `Cluster`."""
        (trains, watches), among = args[1:3], args[5] if len(args) > 5 else None
        self.workers[name] = FakeWorker(name, watches)
        self.workers[name].among = among
        self.workers[name].trains = trains
        self.workers[name].kind = self.kinds.get(name, "cpu")
        self.workers[name].reads = reads
        self.markets[name] = market
        self.workers[name].dead = name in self.stillborn
        if name in self.slow:
            self.workers[name].silent |= {"ready", "host_usage", "take_slot"}
        return self.workers[name]

    def devices(self) -> dict[Market, int]:
        """See `Cluster`."""
        return dict(self.has)

    def request_spot_devices(self, devices: int) -> None:
        """See `Cluster`."""
        self.requested.append(devices)

    def describe(self) -> str:
        """See `Cluster`."""
        return "nothing"

    def shutdown(self) -> None:
        """See `Cluster`."""
