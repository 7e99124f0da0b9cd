"""Public functions with three or more parameters say what each is for that its name does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("flows", "tasks", "gpu_runtime", "storage", "ui")
COMMANDS = ROOT / "flows" / "cli"  # their options say it, for `--help`
MANY = 3
SPOKEN = {"self", "cls", "connection", "run_id", "home", "view", "store"}
"""Parameters that need no word: the type says all."""


@dataclass(frozen=True)
class Function:
    """One that has many parameters."""

    place: str
    name: str
    of_class: bool
    told: bool


def functions_with_many(tree: ast.Module | ast.ClassDef, place: str) -> Iterator[Function]:
    """Public ones of a module or class, and of its public classes."""
    of_class = isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from functions_with_many(node, f"{place}:{node.name}")
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if sum(one.arg not in SPOKEN for one in named) >= MANY:
            told = "Args:" in (ast.get_docstring(node) or "")
            yield Function(f"{place}:{node.name}", node.name, of_class, told)


def untold(found: list[Function]) -> list[str]:
    """Those that say nothing of their parameters. A method may leave it to the one it implements."""
    told = {one.name for one in found if one.of_class and one.told}
    return [one.place for one in found if not one.told and not (one.of_class and one.name in told)]


def test_public_functions_with_three_parameters_say_what_they_are():
    files = [
        path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if COMMANDS not in path.parents
    ]
    found = [
        function
        for path in files
        for function in functions_with_many(
            ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
        )
    ]
    assert len(found) > 100
    assert untold(found) == []


def test_what_counts():
    code = '''
def told(a, b, c):
    """Args: all."""
def two(a, b): ...
def _own(a, b, c): ...
def silent(a, *, b, c): ...
class Protocol:
    def asked(self, a, b, c):
        """Args: all."""
class Public:
    def asked(self, a, b, c): ...
    def method(self, a, b, c): ...
    def two(self, a, b): ...
class _Own:
    def method(self, a, b, c): ...
'''
    assert untold(list(functions_with_many(ast.parse(code), "m"))) == ["m:silent", "m:Public:method"]
