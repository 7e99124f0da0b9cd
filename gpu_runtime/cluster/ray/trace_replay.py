"""The replay of a trace on real local instances, in a background thread."""

from __future__ import annotations

import threading
import time

from gpu_runtime.cluster.ray.local_instances import LocalInstances
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import EventKind, TraceEvent
from storage.clock import now


class TraceReplay:
    """A thread that adds and removes instances as time passes, until it is stopped or nothing is left to do.

    Args:
        instances: instances to act on; no other code may add or remove spot instances meanwhile.

    Attributes:
        began_at: beginning in unix seconds; None before `start`.
        happened: actions so far, with the times in seconds from the beginning.
    """

    def __init__(self, steps: Replay, instances: LocalInstances) -> None:
        self.began_at: float | None = None
        self.happened: list[TraceEvent] = []
        self._failure: BaseException | None = None
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
        if self._failure is not None:
            raise self._failure

    def count(self, kind: EventKind) -> int:
        """Return how many instances came (`add`), got a notice (`notice`) or were removed (`remove`)."""
        return sum(event.kind == kind for event in self.happened)

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while (next_s := self.steps.next_s) is not None:
                if self._stopped.wait(max(0.0, began + next_s - time.monotonic())):
                    return
                for step in self.steps.due(time.monotonic() - began):
                    if step.kind == "add":
                        self.instances.add(step.instance)
                    elif step.kind == "remove":
                        self.instances.remove(step.instance)
                    else:
                        self.instances.warn(step.instance)
                    self.happened.append(TraceEvent(time.monotonic() - began, step.kind, step.instance))
                    if self._stopped.is_set():
                        return
        except BaseException as error:  # noqa: BLE001  (raised again by `stop`)
            self._failure = error
