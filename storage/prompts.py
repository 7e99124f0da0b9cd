"""Prompt files: one prompt a line (.txt), one GenEval row a line (.jsonl), or a dataset on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.dataset_prompts import DATA_SUFFIXES, data_files, dataset_rows
from storage.errors import PromptFileError

BUILTIN_PREFIX = "builtin:"
BUILTIN_FOLDER = Path(__file__).resolve().parents[1] / "presets" / "prompts"
_SUFFIXES = (".txt", ".jsonl")


@dataclass(frozen=True)
class PromptRecord:
    """One prompt of a file.

    Attributes:
        prompt_id: 0-based position among the file's non-empty lines; part of a sample's identity.
        text: what the model is asked to draw.
        metadata: the whole GenEval row of a .jsonl file or of a dataset; empty for a .txt file.
        line: 1-based line of the file, or row of a dataset; for messages.
    """

    prompt_id: int
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    line: int = field(default=0, compare=False)


def resolve_prompt_path(path: str | Path) -> Path:
    """Turn a path or `builtin:NAME` into the file or the dataset's folder that it means.

    Raises:
        PromptFileError: no such file, no such built-in set, or a suffix that is none of a prompt file.
    """
    text = str(path)
    if text.startswith(BUILTIN_PREFIX):
        return _resolve_builtin(text.removeprefix(BUILTIN_PREFIX))
    found = Path(path).expanduser()
    if found.is_dir():
        return found
    if found.suffix not in (*_SUFFIXES, *DATA_SUFFIXES):
        raise PromptFileError(
            f"prompt file {text!r} has suffix {found.suffix!r}; name a .txt file (one prompt a line), "
            f"a .jsonl file (GenEval rows), a dataset's folder, {' or '.join(DATA_SUFFIXES)} file, or one of "
            f"{_builtin_names()}"
        )
    if not found.is_file():
        raise PromptFileError(
            f"prompt file {text!r} does not exist; check the path or use {_builtin_names()}"
        )
    return found


def _resolve_builtin(name: str) -> Path:
    for suffix in _SUFFIXES:
        found = BUILTIN_FOLDER / f"{name}{suffix}"
        # A name with a separator would reach outside the folder.
        if found.parent == BUILTIN_FOLDER and found.is_file():
            return found
    raise PromptFileError(f"no built-in prompt set {name!r}; there are {_builtin_names()}")


def _builtin_names() -> str:
    names = sorted(p.stem for p in BUILTIN_FOLDER.glob("*") if p.suffix in _SUFFIXES)
    return ", ".join(BUILTIN_PREFIX + name for name in names) or "no built-in sets installed"


def prompt_files(path: str | Path) -> list[Path]:
    """The files that `load_prompts` reads, in a fixed order.

    Raises:
        PromptFileError: one is missing.
    """
    return data_files(resolve_prompt_path(path))


def load_prompts(path: str | Path) -> list[PromptRecord]:
    """Read a prompt file or a dataset.

    Args:
        path: a .txt or .jsonl file, a dataset (see `storage.dataset_prompts`), or `builtin:NAME` for a set
            that the project carries.

    Returns:
        One record for each non-empty line, in the file's order.

    Raises:
        PromptFileError: the file is missing, empty or not UTF-8, or a row is malformed (the message
            names the file and the line).
    """
    found = resolve_prompt_path(path)
    records = _dataset(found) if found.suffix not in _SUFFIXES or found.is_dir() else _lines(found)
    if not records:
        raise PromptFileError(f"{found}: no prompts in it; write at least one line")
    return records


def _dataset(found: Path) -> list[PromptRecord]:
    records: list[PromptRecord] = []
    for number, (where, row) in enumerate(dataset_rows(found), start=1):
        _check_row(row, where)
        metadata = row if "include" in row else {}
        records.append(PromptRecord(len(records), row["prompt"].strip(), metadata, number))
    return records


def _lines(found: Path) -> list[PromptRecord]:
    try:
        # Not splitlines(): U+2028 and the like may stand inside a JSON string.
        lines = found.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{found}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    records: list[PromptRecord] = []
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line:
            continue
        if found.suffix == ".txt":
            records.append(PromptRecord(len(records), line, line=number))
        else:
            row = _parse_row(line, f"{found}:{number}")
            records.append(PromptRecord(len(records), row["prompt"], row, number))
    return records


def _parse_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptFileError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(row, dict):
        raise PromptFileError(f"{where}: expected a JSON object, got {type(row).__name__}")
    _check_row(row, where)
    return row


def _check_row(row: dict[str, Any], where: str) -> None:
    """Check a row's prompt and, where it has them, GenEval's tag and objects."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise PromptFileError(f"{where}: `prompt` must be a non-empty string, got {prompt!r}")
    if "include" in row and not isinstance(row.get("tag", ""), str):
        raise PromptFileError(f"{where}: `tag` must be a string, got {row['tag']!r}")
    if "include" in row:
        _check_objects(row["include"], "include", where)
    if "exclude" in row:
        _check_objects(row["exclude"], "exclude", where)


def _check_objects(objects: Any, key: str, where: str) -> None:
    """Check the objects of `include` or `exclude`: class, count, color?, position?."""
    if not isinstance(objects, list) or (key == "include" and not objects):
        raise PromptFileError(f"{where}: `{key}` must be a non-empty list of objects, got {objects!r}")
    for index, item in enumerate(objects):
        at = f"{where}: `{key}[{index}]"
        if not isinstance(item, dict):
            raise PromptFileError(f"{at}` must be an object, got {item!r}")
        if not isinstance(item.get("class"), str):
            raise PromptFileError(f"{at}.class` must be a string, got {item.get('class')!r}")
        count = item.get("count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise PromptFileError(f"{at}.count` must be an integer of at least 1, got {count!r}")
        if "color" in item and not isinstance(item["color"], str):
            raise PromptFileError(f"{at}.color` must be a string, got {item['color']!r}")
        if item.get("position") is not None:
            _check_position(item["position"], len(objects), index, at)


def _check_position(position: Any, size: int, index: int, at: str) -> None:
    """Check `[relation, index of another object of the same list]`."""
    pair = isinstance(position, list) and len(position) == 2
    if not pair or not isinstance(position[0], str) or not isinstance(position[1], int):
        raise PromptFileError(f"{at}.position` must be [relation, index], got {position!r}")
    if not 0 <= position[1] < size or position[1] == index:
        raise PromptFileError(
            f"{at}.position` points at object {position[1]}; it must be another of the {size} objects"
        )
