"""Traces of spot instances as files: `milliseconds,add|remove,instance` rows, and SkyPilot's JSON."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, TypeGuard, cast

from gpu_runtime.spot.trace import EventKind, Roster, Trace, TraceEvent
from storage.errors import TraceError

_LONGEST_GAP_S = 1e9


def read_trace(path: str | Path) -> Trace:
    """Read a trace, by its suffix.

    `.csv`: a row `milliseconds,add|remove,instance` an event, in the order of time, without a header;
    the trace ends with its last event. `.json`: SkyPilot's
    `{"metadata": {"gap_seconds": S}, "data": [instances available, ...]}`, a figure every S seconds.
    That form names no instances, so they are numbered as they come, and the longest there goes first.

    Raises:
        TraceError: no such file, another suffix, or a malformed or contradictory row (the message
            names the file and the line).
    """
    path = Path(path).expanduser()
    readers = {".csv": _from_csv, ".json": _from_json}
    if path.suffix not in readers:
        raise TraceError(
            f"{path}: suffix {path.suffix!r}; name a .csv file (events) or a .json file (SkyPilot's)"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}; check the path") from error
    return readers[path.suffix](text, path)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write the events as a `.csv` that `read_trace` reads, in whole milliseconds.

    The form has no length of its own: read again, the trace ends with its last event.
    """
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for event in trace.events:
        writer.writerow([round(event.at_s * 1000), event.kind, event.instance])
    Path(path).write_text(rows.getvalue(), encoding="utf-8")


def _from_csv(text: str, path: Path) -> Trace:
    roster = Roster()
    events: list[TraceEvent] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = [cell.strip() for cell in line.split(",")]
        if len(row) != 3:
            raise TraceError(f"{where}: {len(row)} columns; write milliseconds,add|remove,instance")
        time_ms, kind, instance = row
        try:
            at_s = int(time_ms) / 1000
        except (ValueError, OverflowError) as error:
            raise TraceError(f"{where}: time {time_ms!r}; write whole milliseconds") from error
        event = TraceEvent(at_s, cast(EventKind, kind), instance)
        complaint = roster.complaint(event)
        if complaint:
            raise TraceError(f"{where}: {complaint}")
        events.append(event)
    if not events:
        raise TraceError(f"{path}: no events in it; write at least one row")
    return Trace.of(events)


def _from_json(text: str, path: Path) -> Trace:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON that can be read ({error})") from error
    metadata = content.get("metadata") if isinstance(content, dict) else None
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_number(gap_s) or not 0 < gap_s <= _LONGEST_GAP_S:
        raise TraceError(f"{path}: metadata.gap_seconds is {gap_s!r}; give the seconds between two figures")
    counts = content.get("data")
    if not isinstance(counts, list) or not counts:
        raise TraceError(
            f"{path}: data is {type(counts).__name__} or empty; give a list of instances available"
        )
    events: list[TraceEvent] = []
    there: list[str] = []
    came = 0
    for place, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise TraceError(f"{path}: data[{place}] is {count!r}; give whole numbers from 0 on")
        while len(there) > count:
            events.append(TraceEvent(place * gap_s, "remove", there.pop(0)))
        while len(there) < count:
            came += 1
            there.append(f"instance-{came}")
            events.append(TraceEvent(place * gap_s, "add", there[-1]))
    return Trace(tuple(events), len(counts) * gap_s)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
