"""A running table of the time of a denoising step by degree, and of the time to form a group. Pure.

A table is for one class of requests: their resolution and the shape of their batches decide the cost of a
step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

KEPT = 9
"""Number of newest times of each degree that the median is taken over."""

_ENOUGH = 2
"""Number of times that make a degree known."""

_ENOUGH_FIRST = 3
"""The same if all of them are the first ones of their groups."""

REGROUP_GUESS_S = 0.25
"""Assumed seconds to form a group, before the first one was formed."""


@dataclass(frozen=True)
class RequestClass:
    """The properties shared by requests whose denoising steps cost the same.

    Attributes:
        height, width: size of an image in pixels; 0 for the model's own size.
        batch: number of samples in a forward pass.
    """

    height: int
    width: int
    batch: int

    def __str__(self) -> str:
        size = f"{self.height}x{self.width}" if self.height and self.width else "own size"
        return f"{size}, {self.batch} at a time"


class StepTimeTable:
    """The measured times of one class of requests.

    The first chunk of a group also warms it up: it opens connections and allocates buffers. Its time counts
    only while a degree has no others, as in phases where every group does one chunk.
    """

    def __init__(self) -> None:
        self._steady: dict[int, deque[float]] = {}
        self._first: dict[int, deque[float]] = {}
        self._regroups: deque[float] = deque(maxlen=KEPT)
        self._have_shared: set[str] = set()
        self._changed: dict[int, int] = {}

    def note(self, degree: int, step_s: float, first: bool) -> None:
        """Record the time of a chunk.

        Args:
            degree: number of devices that shared it.
            step_s: seconds of one of its denoising steps; ignored unless above 0.
            first: True if it was the first one of its group.
        """
        if not step_s > 0:
            return
        times = self._first if first else self._steady
        times.setdefault(degree, deque(maxlen=KEPT)).append(step_s)
        self._changed[degree] = self._changed.get(degree, 0) + 1

    def note_regroup(self, seconds: float, members: Collection[str] = ()) -> None:
        """Record the time to form a group.

        Args:
            seconds: time in seconds.
            members: its devices. A device in its first group has extra start-up, which does not recur: such a
                time is not counted.
        """
        if self._have_shared.issuperset(members):
            self._regroups.append(max(0.0, seconds))
        self._have_shared.update(members)

    def step_s(self, degree: int) -> float | None:
        """Return the seconds of a denoising step; None while too few times are measured."""
        for times, enough in ((self._steady, _ENOUGH), (self._first, _ENOUGH_FIRST)):
            measured = times.get(degree, ())
            if len(measured) >= enough:
                return median(measured)
        return None

    @property
    def known(self) -> Mapping[int, float]:
        """Seconds of a denoising step by known degree."""
        degrees = sorted(self._steady.keys() | self._first.keys())
        return {degree: step_s for degree in degrees if (step_s := self.step_s(degree)) is not None}

    @property
    def regroup_s(self) -> float:
        """Seconds that forming a group takes."""
        return median(self._regroups) if self._regroups else REGROUP_GUESS_S

    def state(self) -> tuple[object, ...]:
        """Return everything that its results depend on, now and after further times."""
        kept = ((degree, tuple(times)) for degree, times in sorted(self._steady.items()))
        first = ((degree, tuple(times)) for degree, times in sorted(self._first.items()))
        return tuple(kept), tuple(first), tuple(self._regroups), frozenset(self._have_shared)

    def take_changed(self) -> dict[int, int]:
        """Return the number of chunks timed since the last call, by known degree."""
        taken = {degree: count for degree, count in self._changed.items() if degree in self.known}
        for degree in taken:
            del self._changed[degree]
        return dict(sorted(taken.items()))
