"""Traces of spot instances: reading, cutting, figures worked by hand, refusals."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from gpu_runtime.spot.traces.files import read_trace
from gpu_runtime.spot.traces.trace import Trace, TraceEvent, summarise
from storage.errors import TraceError
from tests.spot_traces import alive_at, trace_of

RECORDED = Path(__file__).resolve().parents[5] / "shared" / "traces"

# a, b and c come; a and b go together at 20 s, d comes, c goes alone at 40 s; d is left at 50 s.
ROWS = (
    "0,add,a\r\n0,add,b\r\n10000,add,c\r\n20000,remove,b\r\n20000,remove,a\r\n"
    "30000,add,d\r\n40000,remove,c\r\n"
)


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    events = read_trace(written(tmp_path, ROWS)).events
    return trace_of(events, length_s=50.0)


def test_rows_are_milliseconds_in_their_order(tmp_path):
    trace = read_trace(written(tmp_path, "\ufeff" + ROWS + "\n"))
    assert trace.events[2] == TraceEvent(10.0, "add", "c")
    assert [event.instance for event in trace.events] == ["a", "b", "c", "b", "a", "d", "c"]
    assert trace.length_s == 40.0
    again = read_trace(written(tmp_path, "0,add,a\n1000,remove,a\n2000,add,a\n"))
    assert [alive_at(again, second) for second in (0, 1, 2)] == [{"a"}, set(), {"a"}]


def test_figures_worked_by_hand(trace):
    # Lives: a 20, b 20, c 30 s ended; d 20 s so far: 90 instance-seconds in 50 s.
    figures = summarise(trace)
    assert (figures.instances, figures.peak, figures.losses) == (4, 3, 3)
    assert figures.multi_loss_share == pytest.approx(2 / 3)
    assert figures.losses_per_instance_hour == pytest.approx(3 / 90 * 3600)
    stays = summarise(trace_of([TraceEvent(0.0, "add", "a")], length_s=10.0))
    assert (stays.losses, stays.multi_loss_share, stays.losses_per_instance_hour) == (0, None, 0.0)
    assert summarise(trace_of([], length_s=10.0)).losses_per_instance_hour is None


def test_twice_as_fast(trace):
    fast = trace.scaled(2)
    assert (fast.length_s, alive_at(fast, 10), alive_at(fast, 15)) == (25.0, {"c"}, {"c", "d"})


def test_a_part_begins_with_those_who_are_there(trace):
    part = trace.clipped(10.0, 35.0)
    assert part.events[:3] == tuple(TraceEvent(0.0, "add", name) for name in "abc")
    assert part.length_s == 25.0
    for second in range(26):
        assert alive_at(part, second) == alive_at(trace, 10 + second)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no events in it"),
        ("0,add\n", ":1: 'add' instances; write a whole number"),
        ("0,add,a\n\n1000,lose,a\n", ":3: unknown event 'lose'; write add or remove"),
        ("0,add,a\n1000,notice,a\n", ":2: unknown event 'notice'; write add or remove"),
        ("time,add,a\n", ":1: time 'time'; write whole milliseconds"),
        ("-5,add,a\n", ":1: time -0.005 s"),
        ("5000,add,a\n4000,add,b\n", ":2: time goes back from 5.0 s to 4.0 s"),
        ("5000,2\n4000,2\n", ":2: time goes back from 5.0 s to 4.0 s"),
        ("0,add,a\n0,remove,b\n", ":2: instance 'b' is removed but does not exist"),
        ("0,add,a\n0,add,a\n", ":2: instance 'a' is added but already exists"),
        ("0,add,\n", ":1: an instance has no name"),
        ("0,2\n1000,add,a\n", ":2: 3 columns"),
        ("0,two\n", ":1: 'two' instances; write a whole number"),
        ("0,-1\n", ":1: -1 instances"),
        ("0,300000\n", ":1: 300000 instances at once, above 10,000"),
        ("".join(f"0,add,i{number}\n" for number in range(10_001)), ":10001: 10001 instances at once"),
        (f"{10**15},add,a\n", ":1: time 1e+12 s, some 3.12e+04 years"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, text, message):
    with pytest.raises(TraceError) as refused:
        read_trace(written(tmp_path, text))
    assert str(refused.value).startswith(str(tmp_path / "trace.csv"))
    assert message in str(refused.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(TraceError, match="check the path"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match=r"suffix '\.dat'"):
        read_trace(written(tmp_path, ROWS, "trace.dat"))
    (tmp_path / "odd.csv").write_bytes(b"0,add,\xff\n")
    with pytest.raises(TraceError, match="not UTF-8 at byte 6"):
        read_trace(tmp_path / "odd.csv")


def test_skypilots_form_counts_the_available(tmp_path):
    content = json.dumps({"metadata": {"gap_seconds": 300}, "data": [2, 2, 3, 1, 0]})
    trace = read_trace(written(tmp_path, content, "trace.json"))
    assert trace.length_s == 1500
    assert [len(alive_at(trace, 300 * place)) for place in range(5)] == [2, 2, 3, 1, 0]
    assert alive_at(trace, 900) == {"instance-3"}, "the longest there go first"
    assert summarise(trace).multi_loss_share == pytest.approx(2 / 3)


def test_parcaes_table_counts_the_available(tmp_path):
    trace = read_trace(written(tmp_path, "0,1\n0,2\n60000,1\n120000,3\n"))
    assert trace.length_s == 120
    assert [len(alive_at(trace, 60 * minute)) for minute in range(3)] == [2, 1, 3]
    assert alive_at(trace, 60) == {"instance-2"}, "the longest there go first"


def test_a_table_lasts_to_its_last_row_also_without_a_change(tmp_path):
    trace = read_trace(written(tmp_path, "0,2\n1800000,1\n3600000,1\n"))
    assert trace.length_s == 3600
    assert summarise(trace).losses_per_instance_hour == pytest.approx(1 / 1.5)


def test_parcaes_intervals(tmp_path):
    rows = [[0, 3, 0], [3, 0, 0], [3, 1, 2], [2, 0, 2]]
    content = json.dumps([{"interval": row, "duration": 60_000, "strategy": [1, 3]} for row in rows])
    trace = read_trace(written(tmp_path, content, "trace.json"))
    assert trace.length_s == 240
    found = [[int(name[9:]) for name in sorted(alive_at(trace, 60 * minute))] for minute in range(4)]
    assert found == [[1, 2, 3], [1, 2, 3], [3, 4], []]


def test_parcaes_events_name_their_nodes(tmp_path):
    lines = [
        "# made up",
        json.dumps([0, "add", {"nodes": ["node-0", "node-1"], "duration": 60_000, "strategy": [2, 1]}]),
        json.dumps([60_000, "no-op", {"nodes": [], "duration": 60_000}]),
        json.dumps([120_000, "remove", {"nodes": ["node-0"], "duration": 60_000}]),
        json.dumps([180_000, "migration", {"nodes": [], "duration": 30_000}]),
    ]
    trace = read_trace(written(tmp_path, "\n".join(lines), "trace.txt"))
    assert trace.events[2] == TraceEvent(120.0, "remove", "node-0")
    assert trace.length_s == 210
    assert alive_at(trace, 210) == {"node-1"}


def test_traces_that_contradict_themselves(trace):
    with pytest.raises(TraceError, match="event 1 of 1: instance 'a' is removed but does not exist"):
        trace_of([TraceEvent(0.0, "remove", "a")])
    with pytest.raises(TraceError, match=r"give at least its last event, 40\.0 s"):
        Trace(trace.events, 39.0)
    with pytest.raises(TraceError, match="event 1 of 1: time nan s"):
        trace_of([TraceEvent(float("nan"), "add", "a")], length_s=1.0)
    for speed in (0, -1, float("nan"), float("inf")):
        with pytest.raises(TraceError, match="speed"):
            trace.scaled(speed)
    for first_s, last_s in ((-1, 10), (10, 10), (0, 51), (float("nan"), 10)):
        with pytest.raises(TraceError, match="cannot clip"):
            trace.clipped(first_s, last_s)
    assert str(pickle.loads(pickle.dumps(TraceError("no")))) == "no"


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded traces are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "instances", "losses", "left", "share"),
    [("bamboo-p3", 177, 167, 10, 0.766), ("bamboo-g4dn", 79, 74, 5, 0.581)],
)
def test_the_recorded_traces(name, instances, losses, left, share):
    trace = read_trace(RECORDED / f"{name}.csv")
    figures = summarise(trace)
    assert (figures.instances, figures.losses) == (instances, losses)
    assert len(alive_at(trace, trace.length_s)) == left
    assert figures.multi_loss_share == pytest.approx(share, abs=0.001)
    half = trace.clipped(trace.length_s / 2, trace.length_s)
    assert alive_at(half, half.length_s) == alive_at(trace, trace.length_s)
