"""Small faults of Python code, and a random draw among them.

Docstrings, annotations, log texts, `__repr__`, error messages and `if TYPE_CHECKING` get no fault.
"""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

_EXCHANGED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
}  # fmt: skip
_EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
_NOT_SWAPPED = {"cast", "isinstance", "issubclass", "getattr", "hasattr", "setattr"}
_LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn", "print"}
_JOINED = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)  # they support + but not -


@dataclass(frozen=True)
class Fault:
    """A change at one spot.

    Attributes:
        file: its path in the tree.
        function: qualified name.
        line: line number, from 1.
        operator: kind of fault.
        start: first replaced byte.
        old, new: whole lines without and with the fault.
    """

    file: str
    function: str
    line: int
    operator: str
    start: int
    old: str
    new: str

    def __str__(self) -> str:
        """Return the place and both texts, in one line."""
        old, new = (textwrap.shorten(text, 160) for text in (self.old, self.new))
        return f"{self.file}:{self.line}: {old} -> {new}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """A name that does not change if lines move."""
        return (self.file, self.function, " ".join(self.old.split()), " ".join(self.new.split()))

    def planted(self, source: bytes) -> bytes:
        """Return the file's content with the fault."""
        return source[: self.start] + self.new.encode() + source[self.start + len(self.old.encode()) :]


def drawn(faults: Iterable[Fault], seed: int) -> Iterator[Fault]:
    """Yield all faults, ordered by the seed: each operator is equally likely, then each of its faults."""
    generator = random.Random(seed)
    left: dict[str, list[Fault]] = {}
    for fault in faults:
        left.setdefault(fault.operator, []).append(fault)
    while left:
        operator = generator.choice(sorted(left))
        yield left[operator].pop(generator.randrange(len(left[operator])))
        if not left[operator]:
            del left[operator]


def faults_in(file: str, source: bytes, lines: Collection[int]) -> Iterator[Fault]:
    """Yield every possible fault on some lines of a file."""
    places = _Places(source)
    for function, node in _nodes(ast.parse(source)):
        if getattr(node, "lineno", None) in lines:
            for operator, start, end, new in places.changes(node):
                first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
                old = source[first:last].decode()
                changed = source[first:start].decode() + new + source[end:last].decode()
                if changed != old:
                    yield Fault(file, function, node.lineno, operator, first, old, changed)


def _nodes(node: ast.AST, function: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the nodes that may be changed, each with the qualified name of its function."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_spared(child):
                named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                inner = f"{function}.{child.name}".lstrip(".") if named else function
                yield inner, child
                if not isinstance(child, ast.Raise):  # it may be left out, but its message stays
                    yield from _nodes(child, inner)


def _is_spared(node: ast.AST) -> bool:
    match node:
        case ast.arguments() | ast.JoinedStr():  # defaults are computed on import
            return True
        case ast.FunctionDef(name="__repr__" | "__str__") | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Expr(value=ast.Call(func=called)) if _name(called) in _LOGGING:
            return True
    return isinstance(node, ast.Call) and _name(node.func).endswith("Error")


def _name(called: ast.AST) -> str:
    """Return the last part of a called name; empty without one."""
    return getattr(called, "attr", getattr(called, "id", ""))


class _Places:
    """Positions of a source's nodes, and the bytes that operators replace."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0, 0, *accumulate(len(line) for line in source.splitlines(keepends=True))]

    def changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        """Yield the operators of a node: name, first replaced byte, byte after the last, new text."""
        start, end = self._span(node)
        match node:
            case ast.Compare(left=left, ops=signs, comparators=rest):
                for sign, pair in zip(signs, pairwise([left, *rest]), strict=True):
                    yield "comparison", *self._exchange(sign, *pair)
            case ast.BoolOp(op=connective, values=values):
                for pair in pairwise(values):
                    yield "and/or", *self._exchange(connective, *pair)
            case (
                ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right)
                | ast.AugAssign(target=left, op=ast.Add() | ast.Sub() as sign, value=right)
            ) if not any(isinstance(part, _JOINED) or _is_string(part) for part in (left, right)):
                yield "sign", *self._exchange(sign, left, right)
            case ast.UnaryOp(op=ast.USub()):
                yield "sign", start, start + 1, ""
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                moved = value + 1 if isinstance(value, int) else value * 2 or 1.0
                yield "constant", start, end, repr(moved)
            case ast.Call(func=called) if (name := _name(called)) in _EXTREMES:
                behind = self._span(called)[1]
                yield "min/max", behind - len(name), behind, _EXTREMES[name]
            case ast.Call(func=called, args=given) if _name(called) not in _NOT_SWAPPED:
                for first, second in pairwise(given):
                    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
                    if not starred and _is_string(first) == _is_string(second):
                        (a, b), (c, d), text = self._span(first), self._span(second), self._source
                        yield "arguments", a, d, (text[c:d] + text[b:c] + text[a:b]).decode()
        if _can_be_left_out(node):
            yield "statement", start, end, "pass"

    def _span(self, node: Any) -> tuple[int, int]:
        """Return a node's first byte and the byte after its last; columns count bytes."""
        return self._lines[node.lineno] + node.col_offset, self._lines[node.end_lineno] + node.end_col_offset

    def _exchange(self, operator: ast.AST, left: ast.AST, right: ast.AST) -> tuple[int, int, str]:
        """Return a replacement of the operator between two nodes, unless a comment there could hide it."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._source[start:end].decode()
        return start, end, gap if "#" in gap else gap.replace(*_EXCHANGED[type(operator)], 1)


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _can_be_left_out(node: ast.AST) -> bool:
    """Return True for a statement that gives no local name its first value."""
    match node:
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case ast.Expr(value=ast.Call()):
            return True
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete)
