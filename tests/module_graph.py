"""Which modules start which, read from the source: imports, modules run as processes, pages served."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOMS = ("flows", "tasks", "gpu_runtime", "storage", "ui")


def modules(root: Path, rooms: Iterable[str] = ROOMS) -> dict[str, Path]:
    """The modules of the rooms: dotted name -> file."""
    found: dict[str, Path] = {}
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def edges(name: str, files: Mapping[str, Path]) -> set[str]:
    """Modules that a module imports, also inside a function, or names in a string to import, run or serve it.

    What is imported for the type checker alone does not count.
    """
    path = files[name]
    found: set[str] = set()
    for node in _at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{name}: imports are absolute"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(_named_in(node.value, path, files))
    return {module for module in found if module in files}


def reachable(starts: Iterable[str], files: Mapping[str, Path]) -> set[str]:
    """Modules that are loaded, sooner or later, by a process that begins with one of `starts`."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        package = module.rpartition(".")[0]
        waiting += [*edges(module, files), *([package] if package else [])]
    return seen


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        children: Iterable[ast.AST] = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _at_run_time(child)


def _named_in(text: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """Modules that a string names: dotted (`import_module`, `-m`), or by a path from here or the root."""
    if "." in text and text in files:
        yield from (text, f"{text}.__main__")
    elif text.endswith(".py"):
        yield text.removesuffix(".py").replace("/", ".")
        named = os.path.normpath(path.parent / text)
        yield from (module for module, file in files.items() if os.path.normpath(file) == named)
