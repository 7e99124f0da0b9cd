"""Names and texts of the code: words that a reader from the field would not search for do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("flows", "gpu_runtime", "tasks", "storage", "ui", "benchmarks", "examples")

NAMES = {
    "admit": "register",
    "arrivals": "provisioner",
    "bench": "what it holds: runs, a context",
    "bite": "minimum batch",
    "born": "first, created",
    "bury": "record_failure, register_loss",
    "company": "sp_group",
    "complaint": "problem, error",
    "doomed": "targeted",
    "farewell": "barrier",
    "heard": "record, on_answer",
    "hear": "read, on_answer",
    "heed": "on_notice",
    "hinders": "prevents",
    "hungry": "eligible",
    "luck": "uniforms",
    "mend": "fix",
    "movable": "SupportsTo",
    "pace": "step_times",
    "played": "simulated, given",
    "player": "process",
    "players": "processes",
    "prey": "target",
    "rivals": "candidates",
    "road": "transport",
    "shelf": "queue",
    "striker": "killer",
    "told": "arguments, known",
    "unborn": "left_out, not_created",
    "voice": "caller",
    "welcome": "add_ready_workers",
    "worthless": "minimum gain",
}
"""Parts of names (of classes, functions, arguments, variables), and what to write instead."""

WHOLE_NAMES = {
    "cast": "processes",
    "epoch_book": "GroupRegistry",
    "give_up_worker": "kill_hung_worker",
    "hold_own": "use_training_weights",
    "look_before": "preflight",
    "lose": "on_worker_lost",
    "meeting_place": "rendezvous",
    "own_weights": "training_weights",
    "phase_end": "makespan",
    "take_place": "take_slot",
    "weight_road": "weight_transport",
}

TEXTS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|someone|whoever|whomever|in peace|in vain|the dear ones"
    r"|worth a look|goes on on)\b",
    re.IGNORECASE,
)
"""In comments, docstrings and messages: a sentence has a subject that acts, such as "no worker"."""


def sources() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of what a file defines: not what it uses of others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def odd_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and message of every defined name with a word of the tables."""
    for line, name in defined_names(ast.parse(source)):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
        found = {part: NAMES[part] for part in snake.split("_") if part in NAMES}
        if snake in WHOLE_NAMES:
            found[snake] = WHOLE_NAMES[snake]
        for word, better in found.items():
            yield line, f"{name}: {word} is no word of the field; write {better}"


def odd_texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and message of every such word in a comment or a string."""
    kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            for found in TEXTS.finditer(token.string):
                line = token.start[0] + token.string.count("\n", 0, found.start())
                yield line, f"{found.group()!r}: say which worker, device, process or user it is"


@pytest.mark.parametrize("find", [odd_names, odd_texts])
def test_the_code_speaks_the_field_s_language(find):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {message}"
        for path in sources()
        for line, message in find(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def heed(notice): ...", "write on_notice"),
        ("self._told = 1", "write arguments"),
        ("class PlayedTime: ...", "write simulated"),
        ("def f(luck_RN): ...", "write uniforms"),
        ("def lose(worker): ...", "write on_worker_lost"),
        ("take_place = 1", "write take_slot"),
    ],
)
def test_names_of_the_tables_are_found(code: str, says: str):
    assert [says in message for _, message in odd_names(code)] == [True]


@pytest.mark.parametrize("code", ["self.other.heed(1)", "close = placed = spaced = 1", "def lose_one(): ..."])
def test_other_names_are_left_alone(code: str):
    assert list(odd_names(code)) == []


@pytest.mark.parametrize(
    "code", ["# Nobody waits.", '"""A line.\n\nWhoever asks.\n"""', 'raise ValueError(f"{x} is somebody")']
)
def test_texts_are_searched(code: str):
    assert len(list(odd_texts(code))) == 1
    assert list(odd_texts(code.replace("ody", "ot").replace("Whoever", "However"))) == []
