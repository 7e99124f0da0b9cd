"""The replay of a trace on real local instances, in a background thread."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from gpu_runtime.cluster.ray.local_instances import LocalInstances
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import TraceEvent
from storage.clock import now


@dataclass
class Replayed:
    """The actions of a replay so far.

    Attributes:
        added: times at which instances had come, in seconds from its beginning.
        removed: times at which instances were removed, in the same seconds.
        happened: events of added and removed instances, with their names and the same times.
        failure: exception that ended it early; None if there was none.
    """

    added: list[float] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)
    warned: int = 0
    happened: list[TraceEvent] = field(default_factory=list)
    failure: BaseException | None = None


class TraceReplay:
    """A thread that adds and removes instances as time passes, until it is stopped or nothing is left to do.

    Args:
        instances: instances to act on; no other code may add or remove spot instances meanwhile.
    """

    def __init__(self, steps: Replay, instances: LocalInstances) -> None:
        self.done = Replayed()
        self.began_at: float | None = None
        """Beginning in unix seconds; None before `start`."""
        self.steps = steps
        self.instances = instances
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-replay", daemon=True)

    def start(self) -> None:
        """Start the clock of the replay, unless it is running."""
        if self._thread.ident is None:
            self.began_at = now()
            self._thread.start()

    def stop(self) -> None:
        """Stop the replay; present instances stay.

        Raises:
            BaseException: the failure that ended the replay early.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.done.failure is not None:
            raise self.done.failure

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while (next_s := self.steps.next_s) is not None:
                if self._stopped.wait(max(0.0, began + next_s - time.monotonic())):
                    return
                for step in self.steps.due(time.monotonic() - began):
                    self._do(step, began)
                    if self._stopped.is_set():
                        return
        except BaseException as error:  # noqa: BLE001  (raised again by `stop`)
            self.done.failure = error

    def _do(self, step: TraceEvent, began: float) -> None:
        if step.kind == "add":
            self.instances.add(step.instance)
            self.done.added.append(time.monotonic() - began)
            self.done.happened.append(TraceEvent(self.done.added[-1], "add", step.instance))
        elif step.kind == "notice":
            self.instances.warn(step.instance)
            self.done.warned += 1
        else:
            self.instances.remove(step.instance)
            self.done.removed.append(time.monotonic() - began)
            self.done.happened.append(TraceEvent(self.done.removed[-1], "remove", step.instance))
