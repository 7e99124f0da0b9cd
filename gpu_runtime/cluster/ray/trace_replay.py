"""Plays a trace on real local instances, in a thread of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from gpu_runtime.cluster.ray.local_instances import LocalInstances
from gpu_runtime.spot.traces.replay import Replay, ReplayStep
from gpu_runtime.spot.traces.trace import TraceEvent
from storage.clock import now


@dataclass
class Replayed:
    """What a replay has done.

    Attributes:
        added: when instances had come, in seconds from its beginning.
        removed: when instances were removed, likewise.
        warned: notices given.
        happened: instances that had come and went, with their names, at the same times.
        failure: why it ended early; None where it did not.
    """

    added: list[float] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)
    warned: int = 0
    happened: list[TraceEvent] = field(default_factory=list)
    failure: BaseException | None = None


class TraceReplay:
    """Adds and removes instances as time passes, until it is stopped or nothing is left to do.

    Args:
        replay: what is to be done when.
        instances: where it is done; no other code adds or removes spot instances meanwhile.
    """

    def __init__(self, replay: Replay, instances: LocalInstances) -> None:
        self.done = Replayed()
        self.began_at: float | None = None
        """Unix seconds; None before `start`."""
        self._replay = replay
        self._instances = instances
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-replay", daemon=True)

    @property
    def address(self) -> str:
        """Of the cluster, for `runtime.cluster`."""
        return self._instances.address

    @property
    def skipped(self) -> int:
        """Instances whose end was due before they were begun."""
        return self._replay.skipped

    def start(self) -> None:
        """Time begins to pass, unless it does already."""
        if self._thread.ident is None:
            self.began_at = now()
            self._thread.start()

    def stop(self) -> None:
        """Do nothing more; instances that are there stay. What failed on the way is raised.

        Raises:
            BaseException: what ended the replay early.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.done.failure is not None:
            raise self.done.failure

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while (next_s := self._replay.next_s) is not None:
                if self._stopped.wait(max(0.0, began + next_s - time.monotonic())):
                    return
                for step in self._replay.due(time.monotonic() - began):
                    self._do(step, began)
                    if self._stopped.is_set():
                        return
        except BaseException as error:  # noqa: BLE001  (it is raised again where the replay is stopped)
            self.done.failure = error

    def _do(self, step: ReplayStep, began: float) -> None:
        if step.kind == "add":
            self._instances.add(step.instance)
            self.done.added.append(time.monotonic() - began)
            self.done.happened.append(TraceEvent(self.done.added[-1], "add", step.instance))
        elif step.kind == "notice":
            self._instances.warn(step.instance)
            self.done.warned += 1
        else:
            self._instances.remove(step.instance)
            self.done.removed.append(time.monotonic() - began)
            self.done.happened.append(TraceEvent(self.done.removed[-1], "remove", step.instance))
