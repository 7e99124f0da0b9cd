"""Trace files of spot instances: rows of events, SkyPilot's JSON, and the formats of Parcae's repository.

Parcae's formats are those of `aws/traces` in its published code (NSDI '24): a table of counts, lists of
intervals, and lines of events with node names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard, cast

from gpu_runtime.spot.traces.trace import EventKind, Roster, Trace, TraceEvent
from storage.errors import TraceError, quoted
from storage.text import read_text_file

_LONGEST_GAP_S = 1e9
MOST_AT_ONCE = 10_000
"""Most instances at once; a run has at most 1,024 spot workers, so a larger trace has the wrong unit."""

_WITHOUT_CHANGE = ("no-op", "migration")
"""Parcae's names for intervals in which no instance comes or goes."""


def read_trace(path: str | Path) -> Trace:
    """Read a trace in the format of its suffix.

    `.csv`: one row `milliseconds,add|remove,instance` per event, in order of time, without a header; or
    Parcae's `milliseconds,instances available`. The trace ends with its last row.
    `.json`: SkyPilot's `{"metadata": {"gap_seconds": S}, "data": [instances available, ...]}`, or Parcae's
    list of `{"interval": [instances before, came, went], "duration": milliseconds}`.
    `.txt`: Parcae's lines `[milliseconds, "add"|"remove"|"no-op"|"migration", {"nodes": [name, ...],
    "duration": milliseconds}]`; a line that begins with `#` is a comment.
    In formats without names, instances are numbered as they come, and the oldest leaves first.

    Raises:
        TraceError: the file is missing, its suffix is unknown, or a row is malformed or contradictory (the
            message names the file and the line).
    """
    path = Path(path)
    readers = {".csv": _from_csv, ".json": _from_json, ".txt": _from_lines}
    if path.suffix not in readers:
        raise TraceError(
            f"{path}: suffix {quoted(path.suffix)}; name a .csv file (events), a .json file (SkyPilot's or "
            "Parcae's intervals) or a .txt file (Parcae's events)"
        )
    return readers[path.suffix](read_text_file(path, str(path), TraceError), path)


class _Events:
    """The events read so far, each checked when added."""

    def __init__(self) -> None:
        self._roster = Roster()
        self._came = 0
        self.events: list[TraceEvent] = []

    @property
    def count(self) -> int:
        """Number of current instances."""
        return len(self._roster.alive)

    def add(self, event: TraceEvent, where: str) -> None:
        """Add an event.

        Raises:
            TraceError: it contradicts earlier events, or too many instances are there.
        """
        problem = self._roster.problem(event)
        if problem:
            raise TraceError(f"{where}: {problem}")
        _refuse_too_many(self.count, where)
        self.events.append(event)

    def set_count(self, at_s: float, count: int, where: str) -> None:
        """Set the number of instances from a moment on: the oldest leave, or new ones arrive."""
        _refuse_too_many(count, where)
        for name in list(self._roster.alive)[: self.count - count] if count < self.count else ():
            self.add(TraceEvent(at_s, "remove", name), where)
        while self.count < count:
            self._came += 1
            self.add(TraceEvent(at_s, "add", f"instance-{self._came}"), where)


def _from_csv(text: str, path: Path) -> Trace:
    found = _Events()
    columns, end_s = 0, -math.inf
    for where, line in _lines(text, path):
        row = [cell.strip() for cell in line.split(",")]
        columns = columns or len(row)
        if len(row) != columns or columns not in (2, 3):
            raise TraceError(
                f"{where}: {len(row)} columns; write milliseconds,add|remove,instance in every row, or "
                "milliseconds,instances available"
            )
        at_s = _seconds(row[0], where)
        if at_s < end_s:  # also in a row without a change
            raise TraceError(f"{where}: time goes back from {end_s} s to {at_s} s; sort the events by time")
        end_s = at_s
        if columns == 3:
            found.add(TraceEvent(at_s, cast(EventKind, row[1]), row[2]), where)
        else:
            found.set_count(at_s, _whole(row[1], where), where)
    if not found.events:
        raise TraceError(f"{path}: no events in it; write at least one row")
    return Trace(tuple(found.events), end_s)


def _from_json(text: str, path: Path) -> Trace:
    content = _json(text, str(path))
    if isinstance(content, list):
        return _from_intervals(content, path)
    metadata = content.get("metadata") if isinstance(content, dict) else None
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_number(gap_s) or not 0 < gap_s <= _LONGEST_GAP_S:
        raise TraceError(
            f"{path}: metadata.gap_seconds is {quoted(gap_s)}; give the seconds between two figures"
        )
    counts = content.get("data")
    if not isinstance(counts, list) or not counts:
        raise TraceError(
            f"{path}: data is {type(counts).__name__} or empty; give a list of instances available"
        )
    found = _Events()
    for place, count in enumerate(counts):
        if not _is_count(count):
            raise TraceError(f"{path}: data[{place}] is {quoted(count)}; give whole numbers from 0 on")
        found.set_count(place * gap_s, count, f"{path}: data[{place}]")
    return Trace(tuple(found.events), len(counts) * gap_s)


def _from_intervals(intervals: list[Any], path: Path) -> Trace:
    found = _Events()
    at_s = 0.0
    for place, row in enumerate(intervals):
        where = f"{path}: [{place}]"
        counts = row.get("interval") if isinstance(row, dict) else None
        if not isinstance(counts, list) or len(counts) != 3 or not all(map(_is_count, counts)):
            raise TraceError(f"{where}.interval is {quoted(counts)}; give [instances before, came, went]")
        before, came, went = counts
        for count in counts:
            _refuse_too_many(count, where)
        if before != found.count and place:
            raise TraceError(f"{where}: {before} instances before it, but the last one left {found.count}")
        if went > before + came:
            raise TraceError(f"{where}: {went} of {before + came} instances go; correct the figures")
        found.set_count(at_s, before, where)
        found.set_count(at_s, max(before - went, 0), where)
        found.set_count(at_s, before + came - went, where)
        at_s += _duration_s(row, where)
    if not intervals:
        raise TraceError(f"{path}: no intervals in it; write at least one")
    return Trace(tuple(found.events), at_s)


def _from_lines(text: str, path: Path) -> Trace:
    found = _Events()
    end_s = 0.0
    for where, line in _lines(text, path):
        if line.startswith("#"):
            continue
        row = _json(line, where)
        nodes = row[2].get("nodes") if _is_event(row) else None
        if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
            raise TraceError(
                f'{where}: no event of Parcae\'s form; write [milliseconds, "add" or "remove", {{"nodes": '
                '["node-0"], "duration": milliseconds}]'
            )
        if row[1] in _WITHOUT_CHANGE and nodes:
            raise TraceError(f"{where}: {row[1]} names {len(nodes)} nodes; write add or remove")
        at_s = row[0] / 1000
        for node in nodes:
            found.add(TraceEvent(at_s, row[1], node), where)
        end_s = at_s + _duration_s(row[2], where)
    if not found.events:
        raise TraceError(f"{path}: no instance arrives in it; write at least one event")
    return Trace(tuple(found.events), end_s)


def _lines(text: str, path: Path) -> Iterable[tuple[str, str]]:
    """Yield the lines that are not empty, each with its file and line number."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line.strip()


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}" if "\n" in text or where.endswith(".json") else where
        raise TraceError(f"{place}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON that can be read ({error})") from error


def _seconds(time_ms: str, where: str) -> float:
    try:
        at_s = int(time_ms) / 1000
    except (ValueError, OverflowError) as error:
        raise TraceError(f"{where}: time {quoted(time_ms)}; write whole milliseconds") from error
    if at_s > _LONGEST_GAP_S:
        raise TraceError(f"{where}: time {at_s:g} s, some {at_s / 3.2e7:.3g} years; write milliseconds")
    return at_s


def _whole(count: str, where: str) -> int:
    try:
        number = int(count)
    except ValueError as error:
        raise TraceError(f"{where}: {quoted(count)} instances; write a whole number from 0 on") from error
    if number < 0:
        raise TraceError(f"{where}: {number} instances; write a whole number from 0 on")
    return number


def _duration_s(row: dict[str, Any], where: str) -> float:
    duration_ms = row.get("duration")
    if not _is_number(duration_ms) or not 0 < duration_ms <= _LONGEST_GAP_S * 1000:
        raise TraceError(f"{where}: duration is {quoted(duration_ms)}; give milliseconds above 0")
    return duration_ms / 1000


def _refuse_too_many(count: int, where: str) -> None:
    if count > MOST_AT_ONCE:
        raise TraceError(
            f"{where}: {quoted(count)} instances at once, above {MOST_AT_ONCE:,}; check the columns and the "
            "unit"
        )


def _is_event(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 3
        and _is_number(row[0])
        and 0 <= row[0] <= _LONGEST_GAP_S * 1000
        and row[1] in ("add", "remove", *_WITHOUT_CHANGE)
        and isinstance(row[2], dict)
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
