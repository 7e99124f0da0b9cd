"""What a name in the settings means is decided in its registry, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_runtime.exploration.registry import STRATEGIES
from gpu_runtime.fleet.capacity.registry import CAPACITY
from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.models.registry import FAMILIES
from gpu_runtime.rewards.registry import SCORERS
from gpu_runtime.spot.notices.watch import NOTICES
from tests.module_graph import ROOMS

REPOSITORY = Path(__file__).resolve().parents[3]

NAMES = {
    setting: set(registry.names())
    for setting, registry in (
        ("scorer", SCORERS), ("family", FAMILIES), ("objective", OBJECTIVES), ("strategy", STRATEGIES),
        ("notices", NOTICES), ("capacity", CAPACITY),
    )
}  # fmt: skip


def decisions(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, setting and name of every comparison, match and lookup by a registered name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            yield from _pairs(node.lineno, sides, sides)
        elif isinstance(node, ast.Match):
            patterns = [each for case in node.cases for each in ast.walk(case.pattern)]
            values = [each.value for each in patterns if isinstance(each, ast.MatchValue)]
            yield from _pairs(node.lineno, [node.subject], values)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            yield from _pairs(node.lineno, [node.slice], [key for key in node.value.keys if key is not None])


def _pairs(line: int, subjects: list[ast.expr], values: list[ast.expr]) -> Iterator[tuple[int, str, str]]:
    constants = {
        inner.value
        for value in values
        for inner in ast.walk(value)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    }
    for setting, names in NAMES.items():
        if names & constants and any(_speaks_of(setting, subject) for subject in subjects):
            yield from ((line, setting, name) for name in sorted(names & constants))


def _speaks_of(setting: str, node: ast.AST) -> bool:
    return any(
        (isinstance(inner, ast.Attribute) and inner.attr == setting)
        or (isinstance(inner, ast.Name) and inner.id == setting)
        or (isinstance(inner, ast.Constant) and inner.value == setting)
        for inner in ast.walk(node)
    )


def test_no_room_decides_by_a_registered_name() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line} decides by {setting} {name!r}"
        for room in ROOMS
        for path in sorted((REPOSITORY / room).rglob("*.py"))
        if path.name != "registry.py"
        for line, setting, name in decisions(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'if config.exploration.strategy == "stale": pass',
        'match config.model.family:\n    case "embedded" | "flux": pass',
        'x = {"grpo": 1, "nft": 2}[config.algorithm.objective]',
        'if view.setting("exploration", "strategy") in ("plain", "fresh"): pass',
        'strategy = 1\nif strategy != "fresh": pass',
    ],
)
def test_the_search_finds_what_it_is_for(code: str) -> None:
    assert list(decisions(ast.parse(code)))


def test_the_search_leaves_other_comparisons_alone() -> None:
    assert not list(decisions(ast.parse('if config.adaptation.mode == "lora" and strategy == other: pass')))
