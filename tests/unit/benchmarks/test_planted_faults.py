"""The benchmark that plants faults: its operators on lines written by hand, its draw, and its verdicts."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.testing import covered_lines
from benchmarks.testing.fault_operators import Fault, drawn, faults_in
from benchmarks.testing.planted_faults import Tree, covered, measure, verdict


def changed(line: str) -> list[tuple[str, str]]:
    """Operator and new line of every fault of a line in a function."""
    source = f"def é(self, a, b):\n    {line}\n".encode()
    faults = list(faults_in("f.py", source, {2}))
    for fault in faults:
        assert fault.planted(source).decode() == f"def é(self, a, b):\n{fault.new}\n"
        assert (fault.function, fault.line, fault.old.strip()) == ("é", 2, line)
    return [(fault.operator, fault.new.strip()) for fault in faults]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return 'é', a < b", [("comparison", "return 'é', a <= b")]),
        ("return a <= self.b != b", [
            ("comparison", "return a < self.b != b"), ("comparison", "return a <= self.b == b"),
        ]),
        ("return a not in b", [("comparison", "return a in b")]),
        ("return (a) is (b)", [("comparison", "return (a) is not (b)")]),
        ("return a and b and self", [
            ("and/or", "return a or b and self"), ("and/or", "return a and b or self"),
        ]),
        ("a += b", [("sign", "a -= b"), ("statement", "pass")]),
        ("return -a", [("sign", "return a")]),
        ("return a - b", [("sign", "return a + b")]),
        ("return a + 'text'", []),
        ("return 7", [("constant", "return 8")]),
        ("return 0.25", [("constant", "return 0.5")]),
        ("return 0.0", [("constant", "return 1.0")]),
        ("return True, 'text'", []),
        ("return min(a, b)", [("min/max", "return max(a, b)")]),
        ("return a.max()", [("min/max", "return a.min()")]),
        ("return f(a, b, *a)", [("arguments", "return f(b, a, *a)")]),
        ("return f(a, a)", []),
        ("return f('text', a)", []),
        ("self.a = b", [("statement", "pass")]),
        ("a = b", []),
        ("f(a)", [("statement", "pass")]),
    ],
)  # fmt: skip
def test_operators_change_one_spot(line: str, expected: list[tuple[str, str]]):
    assert changed(line) == expected


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    '''At most 3.'''",
        "def f(a: X[3] = 3, *, b: int = 4) -> Y[-1]: ...",
        "def f():\n    a: X[3] = b",
        "def f():\n    _log.warning('%d', a + 1)",
        "def f():\n    return f'{a + 1}', LimitError(a + 1)",
        "class A:\n    def __repr__(self):\n        return a + 1",
        "if TYPE_CHECKING:\n    a = 1",
        "@cache(3)\ndef f(): ...",
        "def f():\n    return (a  # and here\n      and b)",
    ],
)
def test_places_that_get_no_fault(code: str):
    assert list(faults_in("f.py", code.encode(), range(9))) == []


def test_a_refusal_can_be_left_out_but_its_message_stays():
    code = b"class A:\n    def f(self):\n        raise g(\n            a + 1, b\n        )\n"
    (fault,) = faults_in("f.py", code, range(9))
    assert (fault.function, fault.new) == ("A.f", "        pass")
    assert fault.planted(code) == b"class A:\n    def f(self):\n        pass\n"
    assert str(fault) == "f.py:3: raise g( a + 1, b ) -> pass"


def test_only_faults_of_the_given_lines():
    code = b"def f():\n    a = 1\n    return 2\n"
    assert [fault.new for fault in faults_in("f.py", code, {3})] == ["    return 3"]


def fault(operator: str, line: int) -> Fault:
    return Fault("f.py", "f", line, operator, 0, f"old {line}", f"new {line}")


def test_a_seed_draws_each_fault_once_and_rare_operators_as_often_as_others():
    faults = [fault("constant", line) for line in range(90)] + [
        fault("sign", line) for line in range(90, 100)
    ]
    order = list(drawn(faults, 0))
    assert order == list(drawn(faults, 0)) != list(drawn(faults, 1))
    assert sorted(one.line for one in order) == list(range(100))
    firsts = Counter(next(drawn(faults, seed)).operator for seed in range(200))
    assert 70 < firsts["sign"] < 130


class FakeTree:
    """Tests that fail with a fault, and those that fail without one, too; it notes what is run."""

    def __init__(self, failing: Sequence[str] = (), broken: Sequence[str] = ()) -> None:
        self._failing, self._broken = failing, broken
        self.ran: list[str] = []
        self.path = Path()

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        yield

    def failing(self, tests: Sequence[str], limit_s: float) -> str:
        self.ran += tests
        return next((test for test in tests if test in self._failing), "")

    def passes_without(self, test: str, limit_s: float) -> bool:
        return test not in self._broken


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (FakeTree(), "missed"),
        (FakeTree(failing=["b"]), "caught"),
        (FakeTree(failing=["b"], broken=["b"]), "unjudged"),
    ],
)
def test_a_fault_is_caught_by_a_test_that_passes_without_it(tree: FakeTree, expected: str):
    assert verdict(cast(Tree, tree), fault("sign", 1), {"a": 2.0, "b": 3.0, "c": 1.0}) == expected
    assert tree.ran == ["c", "a", "b"]


def test_listed_faults_are_counted_and_others_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "f.py").write_text("def f():\n    a = 1\n    return   2\n")
    listed = '[[fault]]\nfile = "f.py"\nfunction = "f"\nold = "return 2"\nnew = "return 3"\nreason = "-"\n'
    (tmp_path / "equivalent.toml").write_text(listed)
    monkeypatch.setattr("benchmarks.testing.planted_faults.EQUIVALENT", tmp_path / "equivalent.toml")
    tree = FakeTree()
    tree.path = tmp_path
    files = {"a": {"seconds": 1.0, "lines": {"f.py": [2, 3]}}}
    assert measure(cast(Tree, tree), files, 2, 0) == {
        "faults": 1, "caught": 0, "equivalent": 1, "missed": ["f.py:2: a = 1 -> a = 2"],
    }  # fmt: skip


def test_only_test_files_that_pass_count(tmp_path: Path):
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"a": {"passed": True}, "b": {"passed": False}}))
    assert list(covered(cast(Tree, None), [], kept)) == ["a"]


def test_modules_of_another_tree_are_refused(monkeypatch: pytest.MonkeyPatch):
    session: Any = SimpleNamespace(exitstatus=0)
    covered_lines.pytest_sessionfinish(session)
    assert session.exitstatus == 0
    monkeypatch.setitem(sys.modules, "storage.elsewhere", cast(Any, SimpleNamespace(__file__="/other/f.py")))
    covered_lines.pytest_sessionfinish(session)
    assert session.exitstatus == covered_lines.OTHER_TREE
