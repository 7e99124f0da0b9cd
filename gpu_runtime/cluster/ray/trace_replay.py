"""The replay of a trace on real local instances, in a background thread."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from gpu_runtime.cluster.ray.local_instances import LocalInstances
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import EventKind, TraceEvent
from storage.clock import now


@dataclass
class Replayed:
    """The actions of a replay so far.

    Attributes:
        happened: instances that came and were removed, with the times in seconds from its beginning.
        failure: exception that ended it early; None if there was none.
    """

    warned: int = 0
    happened: list[TraceEvent] = field(default_factory=list)
    failure: BaseException | None = None

    def count(self, kind: EventKind) -> int:
        """Return how many instances came (`add`), or were removed (`remove`)."""
        return sum(event.kind == kind for event in self.happened)


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
        elif step.kind == "remove":
            self.instances.remove(step.instance)
        else:
            self.instances.warn(step.instance)
            self.done.warned += 1
            return
        self.done.happened.append(TraceEvent(time.monotonic() - began, step.kind, step.instance))
