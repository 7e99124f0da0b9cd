"""Devices that share each sequence, called as if they were one device.

Every member gets the same calls in the same order. The leader's answer counts, as only it carries states and
images; the others' answers show that they are alive and whether they are under notice. A member that dies
breaks the group: it is called off at once, which frees the others wherever they wait for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Timer
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.sample_chunk import SampleChunk
from storage.errors import GroupBrokenError, WorkerLostError

_Failure = WorkerLostError | GroupBrokenError

P = ParamSpec("P")
R = TypeVar("R")


class GeneratingGroup(RemoteActor[Worker]):
    """A group of one epoch, from its formation to its end.

    Answers arrive in other threads; a lock guards what they write.

    Args:
        place: number and members of the group.
        devices: members, the leader first.
        call_off: function that frees members waiting for each other; callable from any thread, and twice.
    """

    def __init__(
        self, place: WorkerGroup, devices: Sequence[Device], call_off: Callable[[WorkerGroup], None]
    ) -> None:
        super().__init__("+".join(device.name for device in devices))
        self.place = place
        self.devices = tuple(devices)
        self.device = Device(self, devices[0].market, degree=len(devices))
        """The group as the generating loop sees it."""
        self.failures: dict[str, _Failure] = {}
        """Members whose calls failed, with their errors."""
        self.notices: dict[str, Notice | None] = {}
        """Notices of the members' machines, from their last answers."""
        self.step_s: SimpleQueue[float] = SimpleQueue()
        """Seconds of a denoising step in each chunk that the leader has answered."""
        self.over = False
        """True once it no longer counts: answers of its members are late."""
        self.overdue = False
        """True once its answers are no longer waited for."""
        self.late = 0
        """Number of answers that came after it was over."""
        self._call_off = call_off
        self._lock = Lock()
        self._open: dict[Future[Any], str] = {}

    @property
    def broken(self) -> bool:
        """True if it can do no more work."""
        return self.over or bool(self.failures)

    @property
    def gone(self) -> list[tuple[Device, WorkerLostError]]:
        """Members whose processes are known to be gone."""
        with self._lock:
            failures = dict(self.failures)
        return [
            (device, error)
            for device in self.devices
            if isinstance(error := failures.get(device.name), WorkerLostError)
        ]

    @property
    def open_calls(self) -> dict[Future[Any], str]:
        """Calls under way, with the names of their members."""
        with self._lock:
            return dict(self._open)

    def call(
        self, method: Callable[Concatenate[Worker, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Call all members; the future ends with the leader's chunk, or when it can no longer arrive.

        It raises `WorkerLostError` if the group broke before the leader had answered.
        """
        if self.broken:
            failed: Future[R] = Future()
            failed.set_exception(WorkerLostError(f"group {self.name} is broken"))
            return failed
        if len(self.devices) == 1:
            return self.ask(lambda device: device.actor.call(method, *args, **kwargs))
        epoch, name = self.place.epoch, method.__name__
        return self.ask(lambda device: device.actor.call(Worker.in_group, epoch, name, *args, **kwargs))

    def kill(self) -> None:
        """End the processes of all members."""
        for device in self.devices:
            device.actor.kill()

    def ask(self, start: Callable[[Device], Future[R]], limit_s: float | None = None) -> Future[R]:
        """Start a call on each member; see `call`.

        Args:
            start: function that starts a member's call.
            limit_s: seconds after which the answer is no longer waited for: the group is then `overdue`.
        """
        calls = {device.name: start(device) for device in self.devices}
        shared = _SharedCall(self, calls)
        if limit_s is not None:
            timer = Timer(limit_s, shared.time_out)
            timer.daemon = True
            timer.start()
            shared.answer.add_done_callback(lambda _: timer.cancel())
        with self._lock:
            self._open |= {call: name for name, call in calls.items()}
        for call in calls.values():
            call.add_done_callback(shared.on_answer)
        return shared.answer

    def record_answer(self, call: Future[Any]) -> bool:
        """Record a member's answer; return True if it breaks the group."""
        error = call.exception()
        with self._lock:
            name = self._open.pop(call)
            self.late += self.over
            first = isinstance(error, _Failure) and not self.failures
            if isinstance(error, _Failure) and not isinstance(self.failures.get(name), WorkerLostError):
                self.failures[name] = error
            elif error is None and isinstance(chunk := call.result(), SampleChunk):
                self.notices[name] = chunk.notice
                if chunk.step_s is not None and name == self.place.leader:
                    self.step_s.put(chunk.step_s)
            return first and not self.over

    def call_off(self) -> None:
        """Free members that are waiting for each other."""
        self._call_off(self.place)


class _SharedCall:
    """One call of all members of a group."""

    def __init__(self, group: GeneratingGroup, calls: dict[str, Future[Any]]) -> None:
        self.answer: Future[Any] = Future()
        self._group = group
        self._calls = calls
        self._leader = calls[group.place.leader]
        self._lock = Lock()

    def on_answer(self, call: Future[Any]) -> None:
        """Handle a member's answer."""
        breaks = self._group.record_answer(call)
        with self._lock:
            if not self.answer.done():
                self._set_answer(call.exception())
        # Last: freed members fail too, and the leader's answer must be set before that.
        if breaks:
            self._group.call_off()

    def time_out(self) -> None:
        """Stop waiting for the answer."""
        with self._lock:
            if not self.answer.done():
                self._group.overdue = True
                self.answer.set_exception(WorkerLostError(f"group {self._group.name} does not answer"))

    def _set_answer(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, _Failure):
            self.answer.set_exception(error)  # no other group would help
            return
        if not self._leader.done():
            return
        if not self._group.failures and not self._all_ended():
            return
        lead = self._leader.exception()
        if lead is None:
            self.answer.set_result(self._with_notices(self._leader.result()))
        elif isinstance(lead, WorkerLostError) or self._group.gone or self._all_ended():
            self.answer.set_exception(WorkerLostError(f"group {self._group.name} broke: {lead}"))

    def _all_ended(self) -> bool:
        return all(call.done() for call in self._calls.values())

    def _with_notices(self, chunk: Any) -> Any:
        """Return the leader's chunk, under notice if any member is."""
        if not isinstance(chunk, SampleChunk) or chunk.notice is not None:
            return chunk
        notices = [notice for notice in self._group.notices.values() if notice is not None]
        return dataclasses.replace(chunk, notice=notices[0]) if notices else chunk
