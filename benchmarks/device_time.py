"""When each device of a run was paid for, held samples or was under notice, as the run's history says.

The history has every life of a run, and the end of one whose driver was killed, which no database has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpu_runtime.scheduling.history_check import DRIVER, MEMBERS_JOINED_BY, HistoryLine
from gpu_runtime.scheduling.requests import RequestKind

Span = tuple[float, float]
"""From and until, in unix seconds."""


@dataclass
class Window:
    """A phase of generating.

    Attributes:
        span: from the beginning of the rollout, weights given out and notices asked for, to its last sample.
        requests: names of the samples.
        steps: denoising steps of each.
        ended: all samples were delivered.
        counts: it ended, and no later life did it again.
        drafts: it is one of drafts, none of which had to be made.
    """

    span: Span
    requests: Sequence[str] = ()
    steps: int = 0
    ended: bool = False
    counts: bool = False
    drafts: bool = False


@dataclass
class LeaseTime:
    """A lease.

    Attributes:
        window: that it belongs to.
        members: names of the devices that shared it.
        samples: how many.
        from_step: where it began.
        span: from the grant to its end.
        kept_until: when its devices had done the last denoising step that was saved.
        how: it ended: `delivered`, `lost`, `expired`, `notice`, `retired`, `yielded` to a rollout, `dropped`
            with a window of drafts, or `open` at the life's end.
    """

    window: Window
    members: tuple[str, ...]
    samples: int
    from_step: int
    span: Span
    kept_until: float
    how: str = "open"


@dataclass
class DeviceTime:
    """A device.

    Attributes:
        name: of its worker.
        paid: from its process's start to its loss or the life's end.
        leases: that it had, in order.
        noticed_at: when it was seen to be under notice for good; None where it was not.
        lost: it was gone before the life's end.
    """

    name: str
    paid: Span
    leases: list[LeaseTime] = field(default_factory=list)
    noticed_at: float | None = None
    lost: bool = False

    @property
    def is_replacement(self) -> bool:
        """Whether another worker had its place before."""
        return "." in self.name

    @property
    def first_lease_at(self) -> float:
        """When it pulled first; the end of its paid time where it never did."""
        return self.leases[0].span[0] if self.leases else self.paid[1]


@dataclass
class LifeTimes:
    """One life of a run.

    Attributes:
        began_at: its first line.
        under_way_at: its first phase; its end where there is none.
        ended_at: its driver's last line.
        windows: in order.
        leases: in order.
        devices: by name.
    """

    began_at: float
    under_way_at: float
    ended_at: float
    windows: list[Window]
    leases: list[LeaseTime]
    devices: dict[str, DeviceTime]

    @property
    def steps_needed(self) -> int:
        """Denoising steps of the samples of all windows that count."""
        return sum(len(window.requests) * window.steps for window in self.windows if window.counts)


def overlap(*spans: Span) -> float:
    """Seconds that all spans have in common."""
    return max(0.0, min(end for _, end in spans) - max(start for start, _ in spans))


def lives_of(lines: Iterable[HistoryLine]) -> list[LifeTimes]:
    """The lives of a run, in order.

    Args:
        lines: of all processes and lives; those of one process in the order in which it wrote them.
    """
    by_life: dict[int, list[HistoryLine]] = defaultdict(list)
    for line in lines:
        by_life[line.life].append(line)
    lives = [_read(by_life[number]) for number in sorted(by_life)]
    later: set[str] = set()
    for life in reversed(lives):
        for window in life.windows:
            window.counts = window.ended and not window.drafts and later.isdisjoint(window.requests)
        later.update(name for window in life.windows for name in window.requests)
    return lives


def _read(lines: Sequence[HistoryLine]) -> LifeTimes:
    driver = [line for line in lines if line.by == DRIVER]
    ended_at = driver[-1].at
    leases, windows = _leases(driver, ended_at)
    _note_kept(leases, lines)
    under_way = (line.at for line in driver if line.event in ("phase", "generate"))
    return LifeTimes(
        driver[0].at,
        next(under_way, ended_at),
        ended_at,
        windows,
        list(leases.values()),
        _devices(lines, driver, list(leases.values()), ended_at),
    )


def _leases(driver: Sequence[HistoryLine], ended_at: float) -> tuple[dict[int, LeaseTime], list[Window]]:
    """The leases by number, and the windows that they belong to."""
    leases: dict[int, LeaseTime] = {}
    windows: list[Window] = []
    for line in driver:
        facts = line.facts
        if line.event == "phase" and facts["phase"] == "rollout":
            windows.append(Window((line.at, ended_at)))
        elif line.event == "generate":
            drafts = facts.get("kind") == RequestKind.EXPLORE
            if drafts or not windows or windows[-1].requests or windows[-1].drafts:
                windows.append(Window((line.at, ended_at), drafts=drafts))
            windows[-1].requests, windows[-1].steps = facts["requests"], facts["steps"]
        elif line.event == "generated":
            window = _window_of(windows, facts.get("kind"))
            window.span, window.ended = (window.span[0], line.at), True
        elif line.event == "lease":
            members, samples = tuple(facts["worker"].split(MEMBERS_JOINED_BY)), len(facts["requests"])
            span = (line.at, ended_at)
            window = _window_of(windows, facts.get("kind"))
            leases[facts["lease"]] = LeaseTime(window, members, samples, facts["step"], span, line.at)
        elif line.event in ("deliver", "back"):
            lease = leases[facts["lease"]]
            if lease.how == "open":
                lease.span = (lease.span[0], line.at)
                lease.how = "delivered" if line.event == "deliver" else facts["why"]
    return leases, windows


def _window_of(windows: Sequence[Window], kind: str | None) -> Window:
    """The newest window of a kind: drafts may be under way beside a rollout."""
    drafts = kind == RequestKind.EXPLORE
    return next(window for window in reversed(windows) if kind is None or window.drafts == drafts)


def _note_kept(leases: dict[int, LeaseTime], lines: Sequence[HistoryLine]) -> None:
    """When the devices had done what was saved of each lease, by their own words."""
    saved: dict[int, int] = {}
    for line in lines:
        if line.by == DRIVER and line.event == "commit":
            saved[line.facts["lease"]] = max(line.facts["step"], saved.get(line.facts["lease"], 0))
    for line in lines:
        if line.event == "step" and line.facts["lease"] in leases:
            lease = leases[line.facts["lease"]]
            if line.facts["to"] <= saved.get(line.facts["lease"], 0):
                lease.kept_until = max(lease.kept_until, line.at)


def _devices(
    lines: Sequence[HistoryLine], driver: Sequence[HistoryLine], leases: Sequence[LeaseTime], ended_at: float
) -> dict[str, DeviceTime]:
    created = {line.facts["name"]: line.facts["created"] for line in lines if line.event == "process"}
    devices: dict[str, DeviceTime] = {}
    for line in driver:
        name = line.facts.get("worker", "")
        if line.event == "starting":
            # Ray may have had the process ready before it was asked for.
            devices[name] = DeviceTime(name, (max(line.at, created.get(name, line.at)), ended_at))
        elif line.event == "lost":
            began = devices[name].paid[0]
            devices[name].paid, devices[name].lost = (began, max(began, line.at)), True
        elif line.event == "notice":
            devices[name].noticed_at = line.at
        elif line.event == "withdrawn":
            devices[name].noticed_at = None
    for lease in leases:
        for name in lease.members:
            devices[name].leases.append(lease)
    return devices
