"""Two tiers of tests: hooks that `tests/conftest.py` takes in. CONTRIBUTING.md says what belongs where.

`make test` runs all but those marked `slow`, `make test-all` runs all. A test that is not slow may take
`longest_s` seconds, its fixtures included, or as many as its mark `takes(seconds)` allows.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

FIRST_TIER = "not slow"
"""The tests that `make test` chooses, whose time is limited; where all run they take as long as they must."""

_PRESSURE = Path("/proc/pressure/cpu")
_TIMES = Path("/proc/stat")
_SHARED_CORE = 2.0
_SLOW_WEIGHT_S = 60.0
_SPENT = pytest.StashKey[float]()


@dataclass(frozen=True)
class Reading:
    """Of three clocks, in seconds.

    Attributes:
        wall_s: monotonic time.
        cpu_s: processor time of this process and of its children that have ended.
        contended_s: in which something on the machine waited for a processor, another program or another
            virtual machine having it; 0 where Linux does not say.
    """

    wall_s: float
    cpu_s: float
    contended_s: float

    @classmethod
    def now(cls) -> Reading:
        """The clocks as they are."""
        try:
            some = _PRESSURE.read_text(encoding="ascii").partition("\n")[0]
            contended_s = int(some.rpartition("=")[2]) / 1e6 + _stolen_s()
        except (OSError, ValueError):
            contended_s = 0.0
        return cls(time.monotonic(), sum(os.times()[:4]), contended_s)

    def spent_since(self, before: Reading) -> float:
        """Seconds that the work since `before` takes at least, however busy the machine is.

        That is half its processor time, since a core whose other thread is busy does half as much in a
        second; or the time on the wall in which nothing on the machine waited for a processor: a test that
        computes, sleeps or waits for a process on an idle machine. Both are too low on a busy machine rather
        than too high.
        """
        waited_s = self.wall_s - before.wall_s - (self.contended_s - before.contended_s)
        return max((self.cpu_s - before.cpu_s) / _SHARED_CORE, waited_s)


def _stolen_s() -> float:
    """Seconds for which the host ran something else while a processor of this machine had work, over all."""
    fields = _TIMES.read_text(encoding="ascii").partition("\n")[0].split()  # cpu user nice system idle iowait
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")  # irq softirq steal


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long a test of the first tier may take."""
    parser.addini("longest_s", "seconds that a test without a mark may take", default="5")


@cache
def group_of(path: str) -> str:
    """The group of a file, whose tests go to one worker so that fixtures are made once: its own, by default.

    Files that share something expensive name a group of their own, by a mark `xdist_group`.
    """
    file = Path(path)
    named = re.search(r'xdist_group\("(\w+)"\)', file.read_text(encoding="utf-8")) if file.exists() else None
    return path if named is None else named[1]


class GroupScheduling(LoadScopeScheduling):
    """Gives each worker one group after another.

    xdist's own `loadgroup` writes the group into a private attribute that pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Keep groups together."""
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the groups that take longest."""
    weights: dict[str, float] = {}
    groups = {item: group_of(item.location[0]) for item in items}
    for item, group in groups.items():
        weights[group] = weights.get(group, 0.0) + _weight_s(item)
    items.sort(key=lambda item: (-weights[groups[item]], groups[item]))


def _weight_s(item: pytest.Item) -> float:
    takes = item.get_closest_marker("takes")
    if takes is not None:
        return float(takes.args[0])
    return _SLOW_WEIGHT_S if item.get_closest_marker("slow") else 0.0


def complaint(item: pytest.Item, spent_s: float) -> str | None:
    """What is wrong with how long a test took; None where it may."""
    if item.config.option.markexpr != FIRST_TIER:
        return None
    takes = item.get_closest_marker("takes")
    longest_s = float(takes.args[0] if takes is not None else item.config.getini("longest_s"))
    if spent_s <= longest_s or item.get_closest_marker("slow"):
        return None
    return (
        f"{item.nodeid} took {spent_s:.1f} s, but may take {longest_s:g} s: make it faster, leave it to "
        "`make test-all` (mark slow), or, where every commit needs it, say how long it takes (mark takes)"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Time the fixtures that a test makes."""
    before = Reading.now()
    yield
    item.stash[_SPENT] = Reading.now().spent_since(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Time the test itself."""
    before = Reading.now()
    yield
    item.stash[_SPENT] += Reading.now().spent_since(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that took too long."""
    report = yield
    if call.when == "call" and report.passed:
        said = complaint(item, item.stash[_SPENT])
        if said is not None:
            report.outcome, report.longrepr = "failed", said
        report.user_properties.append(("spent_s", round(item.stash[_SPENT], 2)))
    return report
