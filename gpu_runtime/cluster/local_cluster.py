"""Workers as local processes, forked from one that has done their imports; without Ray."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, cast

from gpu_runtime.cluster.fork_client import ForkedProcess, start_fork_server
from gpu_runtime.cluster.local_worker import Answer
from gpu_runtime.cluster.protocol import Cluster, P, R, RemoteActor, T, WorkerT
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, WorkerLostError
from storage.record.records import Market

_END_S = 30.0
_COUNT = struct.Struct("<Q")
_ALIGNED_BYTES = 64


class LocalCluster(Cluster):
    """A cluster of processes on this machine; it ends with `shutdown`, or with the driver.

    A driver's clusters share a fork server, which stays for the next one; if it is lost, so are its workers,
    and no other process is needed.

    Args:
        output: folder for its workers' output, a file per name; None keeps only the end, in memory.

    Raises:
        ConfigurationError: on systems other than Linux.
    """

    def __init__(self, config: RunConfig, output: Path | None = None) -> None:
        if sys.platform != "linux":
            raise ConfigurationError(
                f"runtime.cluster=local needs Linux, but this is {sys.platform}; set runtime.cluster=ray"
            )
        self._start_limit_s = config.runtime.start_timeout_s
        self._output = output
        self._lock = threading.Lock()
        self._actors: list[LocalActor[Any]] = []
        self._over = False
        self._shared: weakref.WeakSet[SharedValue] = weakref.WeakSet()
        start_fork_server()

    def start(
        self,
        name: str,
        build: Callable[..., WorkerT],
        *args: Any,
        gpu: bool,
        market: Market = "reserved",
        gpu_share: float = 0.0,
        reads: Sequence[str] = (),
    ) -> LocalActor[WorkerT]:
        """See `Cluster`; callable from any thread. Market, GPU and folders have no effect here."""
        log = self._output and self._output / f"{name.partition('.')[0]}.log"
        process = start_fork_server().fork(self._start_limit_s, log)
        actor: LocalActor[WorkerT] = LocalActor(name, process, (build, args))
        with self._lock:
            self._actors = [actor for actor in self._actors if not actor.gone] + [actor]
            if self._over:  # shut down while the process was forked
                actor.kill()
        return actor

    def share(self, value: T) -> T:
        """Pickle a value once; its stand-in maps it into each worker."""
        shared = SharedValue(value)
        self._shared.add(shared)
        return cast(T, shared)

    def describe(self) -> str:
        """Return the resources of this machine, for messages."""
        return f"{os.cpu_count()} CPUs, all on this machine"

    def shutdown(self) -> None:
        """End all workers of this cluster, and wait until they are gone."""
        with self._lock:
            self._over, actors = True, self._actors
        for actor in actors:
            actor.kill()
        for actor in actors:
            actor.wait(_END_S)
        for shared in list(self._shared):
            shared.close()


class LocalActor(RemoteActor[WorkerT]):
    """A worker in a local process.

    One thread sends its calls, so no caller waits for a stopped process; another receives the answers, in
    the order of the calls.
    """

    def __init__(
        self,
        name: str,
        process: ForkedProcess,
        worker: tuple[Callable[..., WorkerT], tuple[Any, ...]],
    ) -> None:
        super().__init__(name)
        self.pid = process.pid
        self._process = process
        self._lock = threading.Lock()
        self._open: deque[tuple[Future[Any], Any]] = deque()
        self._to_send: SimpleQueue[bytes | None] = SimpleQueue()
        self.gone = False
        """True once its process has ended."""
        self._loss = ""
        self._worker = worker  # until it is built, as are the arguments of calls until they are answered
        surroundings = name, sys.path, dict(os.environ), os.getcwd()  # which it inherits
        self._to_send.put(pickle.dumps(surroundings, protocol=5))
        self._to_send.put(pickle.dumps(worker, protocol=5))
        self._sender = threading.Thread(target=self._send, name=f"send-{name}", daemon=True)
        self._sender.start()
        threading.Thread(target=self._receive, name=f"receive-{name}", daemon=True).start()

    def call(
        self, method: Callable[Concatenate[WorkerT, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """See `RemoteActor`."""
        message = pickle.dumps((method.__name__, args, kwargs), protocol=5)
        call: Future[R] = Future()
        call.set_running_or_notify_cancel()  # a call is never cancelled
        with self._lock:
            if not self.gone:
                # A shared value lives as long as its stand-in.
                self._open.append((call, (args, kwargs)))
                self._to_send.put(message)
                return call
        call.set_exception(self._lost())
        return call

    def kill(self) -> None:
        """See `RemoteActor`."""
        with self._lock:
            if not self.gone:
                self._process.kill()

    def wait(self, limit_s: float) -> None:
        """Wait until its process has ended, and its calls with it."""
        self._sender.join(limit_s)

    def _send(self) -> None:
        while (message := self._to_send.get()) is not None:
            with suppress(OSError):  # its process has ended, which the other thread sees too
                self._process.link.send_bytes(message)
        self._process.close()

    def _receive(self) -> None:
        """Settle calls until the process ends, or because its worker could not be built."""
        loss, built = "", self._next_answer()
        if built is not None and built.error is not None:
            self._process.kill()
            loss = f"{type(built.error).__name__}: {built.error}"
        elif built is not None:
            del self._worker
            while (answer := self._next_answer()) is not None:
                with self._lock:
                    call = self._open.popleft()[0]
                if answer.error is None:
                    call.set_result(answer.value)
                else:
                    if answer.trace:
                        answer.error.add_note(f"in worker {self.name!r}:\n{answer.trace}")
                    call.set_exception(answer.error)
                del answer, call  # otherwise weights or images would live until the next answer
        with self._lock:
            self._loss = loss or self._process.last_words()
            self.gone = True
            left, self._open = self._open, deque()
            self._to_send.put(None)
        for call, _ in left:
            call.set_exception(self._lost())

    def _next_answer(self) -> Answer | None:
        """Return the next answer; None when the process has ended."""
        try:
            message = self._process.link.recv_bytes()
        except (EOFError, OSError):
            return None
        try:
            return pickle.loads(message)
        except Exception as error:  # noqa: BLE001 - a value that cannot be unpickled
            return Answer(error=error)

    def _lost(self) -> WorkerLostError:
        return WorkerLostError(f"worker {self.name!r} is gone: {self._loss}")


class SharedValue:
    """A stand-in for a value in the arguments of calls; the value itself arrives, with read-only arrays.

    The value is pickled once, and every receiving process maps it without copying its arrays. The memory has
    no name in any folder, so the kernel frees it when the last process closes it, however that process
    ends.
    """

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        parts = [memoryview(pickle.dumps(value, protocol=5, buffer_callback=buffers.append))]
        parts += [buffer.raw() for buffer in buffers]
        self._descriptor = os.memfd_create("spotlight-shared-value")
        self.close = weakref.finalize(self, os.close, self._descriptor)
        """Release the memory; processes that have mapped it keep it."""
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(_COUNT.pack(len(parts)))
            file.writelines(_COUNT.pack(part.nbytes) for part in parts)
            for part in parts:
                file.seek(-file.tell() % _ALIGNED_BYTES, os.SEEK_CUR)
                file.write(part)

    def __reduce__(self) -> tuple[Any, ...]:
        return _mapped, (f"/proc/{os.getpid()}/fd/{self._descriptor}",)


def _mapped(path: str) -> Any:
    """Return the value shared by another process."""
    with open(path, "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    (count,) = _COUNT.unpack_from(memory)
    parts, end = [], (1 + count) * _COUNT.size
    for number in range(count):
        (size,) = _COUNT.unpack_from(memory, (1 + number) * _COUNT.size)
        begin = end + -end % _ALIGNED_BYTES
        end = begin + size
        parts.append(memory[begin:end])
    return pickle.loads(parts[0], buffers=parts[1:])
