"""A trace as a provider: it offers the recorded instances and rents nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from gpu_runtime.fleet.capacity.protocol import CapacityProvider, Offer
from gpu_runtime.spot.traces.files import read_trace
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import Trace
from storage.config.section import LONGEST_S, Section
from storage.errors import ConfigurationError


class TraceOptions(Section):
    """Options of the provider `trace`, from `[runtime.options]`."""

    file: Annotated[str, AfterValidator(os.path.abspath)] = Field(min_length=1)
    """The trace file: .csv, .json or .txt, as for `spotlight chaos --trace`."""

    speed: float = Field(default=1.0, gt=0, le=1e6)
    """Speed-up over the recording: at 60, an hour takes a minute."""

    begins_s: float = Field(default=0.0, ge=0, le=LONGEST_S)
    """Position in the trace, in seconds, at which the run begins."""

    notice_s: float = Field(default=0.0, ge=0, le=LONGEST_S)
    """Seconds by which an instance is called back before its removal; 0 for a loss without notice."""

    def read(self) -> Trace:
        """Return the trace to replay.

        Raises:
            TraceError: the file is missing or malformed.
            ConfigurationError: the trace ends before `begins_s`.
        """
        trace = read_trace(self.file)
        if self.begins_s:
            if self.begins_s >= trace.length_s:
                raise ConfigurationError(
                    f"runtime.options.begins_s is {self.begins_s:g} s, but the trace is {trace.length_s:g} s "
                    "long; lower it"
                )
            trace = trace.clipped(self.begins_s, trace.length_s)
        return trace.scaled(self.speed)


class TraceCapacity(CapacityProvider):
    """A provider that offers a trace's instances, up to the wanted number, from its creation on.

    It offers a returned instance again while the trace has it, after those not yet offered.

    Args:
        notice_s: seconds by which an instance is called back before its removal.
    """

    def __init__(
        self, trace: Trace, notice_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._replay = Replay(trace, notice_s)
        self._clock = clock
        self._began_s = clock()
        self._wanted = 0
        self._free: list[str] = []
        self._held: dict[str, Offer] = {}
        self._called_back: set[str] = set()
        self._lives: Counter[str] = Counter()

    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """See `CapacityProvider`; the run does not wait for devices that the trace lacks."""
        self._wanted = devices

    def offered(self) -> Sequence[Offer]:
        """See `CapacityProvider`."""
        for step in self._replay.due(self._clock() - self._began_s):
            self._lives[step.instance] += step.kind == "add"
            life = self._lives[step.instance]
            # A returning instance gets a new name: the run may first look after both its loss and its return.
            name = step.instance if life == 1 else f"{step.instance} (life {life})"
            if step.kind == "add":
                self._free.append(name)
            elif step.kind == "notice":
                self._called_back.add(name)
                if name in self._held:
                    self._held[name] = Offer(name, called_back="the trace takes it soon")
            else:
                self._called_back.discard(name)
                self._held.pop(name, None)
                if name in self._free:
                    self._free.remove(name)
        staying = sum(not offer.called_back for offer in self._held.values())
        usable = [name for name in self._free if name not in self._called_back]
        for name in usable[: max(0, self._wanted - staying)]:
            self._free.remove(name)
            self._held[name] = Offer(name)
        return list(self._held.values())

    def release(self, instance: str) -> None:
        """See `CapacityProvider`."""
        if self._held.pop(instance, None) is not None:
            self._free.append(instance)

    def close(self) -> None:
        """Forget the instances; nothing is rented."""
        self._held.clear()
