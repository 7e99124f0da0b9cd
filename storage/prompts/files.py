"""Prompt files: one prompt a line (.txt), a GenEval row, an edit or a pair (.jsonl), or a dataset.

Each evaluation has all held-out prompts of a file, or a selection that represents it, drawn without
randomness. The first prompts would not do: benchmarks sort their prompts by task.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, PromptFileError, quoted
from storage.prompts.datasets import DATA_SUFFIXES, data_files, dataset_rows
from storage.prompts.sources import is_file, resolve_source
from storage.text import NOT_TEXT, is_text, parse_json, read_text_file

BUILTIN_PREFIX = "builtin:"
BUILTIN_FOLDER = Path(__file__).resolve().parents[2] / "presets" / "prompts"
_SUFFIXES = (".txt", ".jsonl")

PAIR = ("preferred", "rejected")
"""The keys of a row that name two pictures of its prompt, the better one first."""

LONGEST_PROMPT = 10_000
"""The most characters in a prompt; no text encoder accepts a tenth of that."""

_DEEPEST = 16
"""The deepest nesting of lists and objects; a row is sent to other processes, whose readers have limits."""

_MOST_OBJECTS = 1_000
"""The most objects of a class in a row."""

_KEY = b"spotlight: held-out prompts"
"""The key of the hashes in `draw_subset`. Another key would draw other subsets, whose scores would not
compare with earlier ones."""


@dataclass(frozen=True)
class PromptRecord:
    """One prompt of a file.

    Attributes:
        prompt_id: 0-based position among the file's non-empty lines; part of a sample's identity.
        text: prompt for the model.
        metadata: whole row of a .jsonl file, or GenEval row of a dataset; empty for a .txt file.
        line: 1-based line of the file, or row of a dataset; for messages.
        source: image that `text` asks to edit: an absolute path or a data URI, or several, one a line; empty
            for none.
        pair: preferred and rejected picture of the prompt, each named like a source; empty for none.
    """

    prompt_id: int
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    line: int = field(default=0, compare=False)
    source: str = ""
    pair: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        """The kind of task that it belongs to (GenEval's `tag`); empty if it has none."""
        tag = self.metadata.get("tag")
        return "" if tag is None else str(tag)

    @property
    def identity(self) -> tuple[str, str]:
        """Text and source image; rows that share both are one prompt."""
        return self.text, self.source


def resolve_prompt_path(path: str | Path) -> Path:
    """Return the file or dataset folder of a path or `builtin:NAME`; PromptFileError if there is none."""
    text = str(path)
    if text.startswith(BUILTIN_PREFIX):
        name = text.removeprefix(BUILTIN_PREFIX)
        for file in (BUILTIN_FOLDER / f"{name}{suffix}" for suffix in _SUFFIXES):
            # A name with a separator would reach outside the folder.
            if file.parent == BUILTIN_FOLDER and os.path.isfile(file):
                return file
        raise PromptFileError(f"no built-in prompt set {quoted(name)}; there are {_builtin_names()}")
    found = Path(os.path.expanduser(text))
    if os.path.isdir(found):
        return found
    if found.suffix not in (*_SUFFIXES, *DATA_SUFFIXES):
        raise PromptFileError(
            f"prompt file {quoted(text)} has suffix {quoted(found.suffix)}; name a .txt file (one prompt a "
            f"line), a .jsonl file (GenEval rows, edits or pairs), a dataset's folder, "
            f"{' or '.join(DATA_SUFFIXES)} file, or one of {_builtin_names()}"
        )
    if not os.path.isfile(found):
        raise PromptFileError(
            f"prompt file {quoted(text)} does not exist; check the path or use {_builtin_names()}"
        )
    return found


def _builtin_names() -> str:
    names = sorted(p.stem for p in BUILTIN_FOLDER.glob("*") if p.suffix in _SUFFIXES)
    return ", ".join(BUILTIN_PREFIX + name for name in names) or "no built-in sets installed"


def prompt_files(path: str | Path) -> list[Path]:
    """Return the files that `load_prompts` reads, in a fixed order; PromptFileError if one is missing."""
    return data_files(resolve_prompt_path(path))


def source_files(path: str | Path) -> list[Path]:
    """Return the image files that the rows of a prompt file name, in their order, without data URIs."""
    if resolve_prompt_path(path).suffix != ".jsonl":
        return []
    records = load_prompts(path)
    named = (one for record in records for one in (*record.source.split("\n"), *record.pair))
    return [Path(one) for one in named if one and is_file(one)]


def load_prompts(path: str | Path) -> list[PromptRecord]:
    """Read a prompt file or a dataset: one record for each non-empty line, in the file's order.

    Args:
        path: a .txt or .jsonl file, a dataset (see `storage.prompts.datasets`), or `builtin:NAME` for a set
            that ships with the project.

    Raises:
        PromptFileError: the file is missing, empty or not UTF-8, or a row is malformed (the message names the
            file and the line).
    """
    found = resolve_prompt_path(path)
    records: list[PromptRecord] = []
    if found.suffix not in _SUFFIXES or found.is_dir():
        for number, (where, row) in enumerate(dataset_rows(found), start=1):
            _check_row(row, where)
            metadata = row if "include" in row else {}
            records.append(PromptRecord(len(records), row["prompt"].strip(), metadata, number))
    else:
        # Not splitlines(): U+2028 and the like may occur inside a JSON string.
        lines = read_text_file(found, str(found), PromptFileError).split("\n")
        for number, line in enumerate(map(str.strip, lines), start=1):
            where, is_row = f"{found}:{number}", found.suffix != ".txt"
            if line:
                records.append(_record(line, is_row, found.parent, where, len(records), number))
    if not records:
        raise PromptFileError(f"{found}: no prompts in it; write at least one line")
    return records


def load_run_prompts(config: RunConfig) -> tuple[list[PromptRecord], list[PromptRecord]]:
    """Return the run's training prompts and its held-out ones: all prompts of the two files.

    Raises:
        PromptFileError: a file is missing or malformed.
        ConfigurationError: a file has fewer prompts than the run needs.
    """
    train = load_prompts(config.prompts.train)
    evaluate = load_prompts(config.prompts.evaluate)
    for field_name, prompts, limit, count in (
        ("prompts.train", train, "algorithm.prompts_per_iteration", config.algorithm.prompts_per_iteration),
        ("prompts.evaluate", evaluate, "evaluation.prompts", config.evaluation.prompts),
    ):
        if len(prompts) < count:
            raise ConfigurationError(
                f"{field_name} names a file of {len(prompts)} prompts, fewer than {limit} = {count}; lower "
                f"{limit} or give a longer file"
            )
    return train, evaluate


def prompt_of(text: str, where: str) -> PromptRecord:
    """Return a single prompt that a person gives: a text, or, if it begins with a brace, a .jsonl row.

    Its image is relative to the current folder. Raises PromptFileError, which begins with `where`, if the
    text is empty or has control characters, or the row is malformed.
    """
    line = text.strip()
    return _record(line, line.startswith("{"), Path.cwd(), where, 0, 0)


def _record(line: str, is_row: bool, folder: Path, where: str, prompt_id: int, number: int) -> PromptRecord:
    if not is_row:
        _check_prompt(line, where)
        return PromptRecord(prompt_id, line, line=number)
    row = parse_json(line, where, PromptFileError, "correct the row")
    if not isinstance(row, dict):
        raise PromptFileError(f"{where}: expected a JSON object, got {type(row).__name__}")
    _check_row(row, where)
    source = resolve_source(row["image"], folder, where) if "image" in row else ""
    pair = tuple(resolve_source(row[key], folder, where, key) for key in PAIR if key in row)
    if len(pair) == 1:
        raise PromptFileError(f"{where}: a pair has both {' and '.join(PAIR)}; give the other one, or none")
    return PromptRecord(prompt_id, row["prompt"], row, number, source, pair)


def _check_row(row: dict[str, Any], where: str) -> None:
    """Check a row's prompt and, if present, GenEval's tag and objects."""
    _check_prompt(row.get("prompt"), where)
    _check_value(row, where, _DEEPEST)
    if "include" in row:
        _require(isinstance(row.get("tag", ""), str), f"{where}: `tag`", "a string", row.get("tag"))
    for key in ("include", "exclude"):
        if key in row:
            _check_objects(row[key], key, where)


def _check_prompt(prompt: Any, where: str) -> None:
    is_given = isinstance(prompt, str) and bool(prompt.strip())
    _require(is_given, f"{where}: `prompt`", "a non-empty string", prompt)
    if not is_text(prompt):
        raise PromptFileError(f"{where}: a prompt {NOT_TEXT}, got {quoted(prompt)}")
    if len(prompt) > LONGEST_PROMPT:
        raise PromptFileError(
            f"{where}: a prompt of {len(prompt):,} characters, above {LONGEST_PROMPT:,}; shorten it"
        )


def _require(is_right: bool, what: str, wanted: str, value: Any) -> None:
    if not is_right:
        raise PromptFileError(f"{what} must be {wanted}, got {quoted(value)}")


def _check_value(value: Any, where: str, levels: int) -> None:
    """Refuse values that cannot be written as JSON again, or nest deeper than readers go."""
    if isinstance(value, str) and not is_text(value):
        raise PromptFileError(f"{where}: a text {NOT_TEXT}, got {quoted(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise PromptFileError(f"{where}: {value} is not a JSON number; give a finite one")
    if not isinstance(value, (dict, list)):
        return
    if levels == 0:
        raise PromptFileError(
            f"{where}: lists and objects nest deeper than {_DEEPEST} levels; flatten the row"
        )
    for inner in [*value, *value.values()] if isinstance(value, dict) else value:
        _check_value(inner, where, levels - 1)


def _check_objects(objects: Any, key: str, where: str) -> None:
    """Check the objects of `include` or `exclude`: class, count, color?, position?."""
    is_list = isinstance(objects, list) and (key == "exclude" or bool(objects))
    _require(is_list, f"{where}: `{key}`", "a non-empty list of objects", objects)
    for index, item in enumerate(objects):
        at = f"{where}: `{key}[{index}]"
        _require(isinstance(item, dict), f"{at}`", "an object", item)
        kind, count, position = (item.get(name) for name in ("class", "count", "position"))
        _require(isinstance(kind, str), f"{at}.class`", "a string", kind)
        is_count = type(count) is int and 1 <= count <= _MOST_OBJECTS
        _require(is_count, f"{at}.count`", f"an integer from 1 to {_MOST_OBJECTS:,}", count)
        _require(isinstance(item.get("color", ""), str), f"{at}.color`", "a string", item.get("color"))
        if position is None:
            continue
        is_pair = isinstance(position, list) and [type(part) for part in position] == [str, int]
        _require(is_pair, f"{at}.position`", "[relation, index]", position)
        if not 0 <= position[1] < len(objects) or position[1] == index:
            raise PromptFileError(
                f"{at}.position` points at object {quoted(position[1])}; it must be another of the "
                f"{len(objects)} objects"
            )


def compared_prompts(config: RunConfig, held_out: Sequence[PromptRecord]) -> list[PromptRecord]:
    """Return the held-out prompts (of all in the file) that every evaluation of a run shares.

    The first and the last evaluation have the whole file, those between them only these. A run without any
    between may be extended, so its number of iterations does not count.
    """
    return draw_subset(held_out, config.evaluation.prompts if config.evaluation.every else len(held_out))


def draw_subset(prompts: Sequence[PromptRecord], count: int) -> list[PromptRecord]:
    """Draw `count` of a file's prompts, with each tag in proportion, in the order of the file.

    Within a tag the prompts with the smallest hashes are taken: neither their order in the file nor a
    generator decides. A prompt in several rows is taken twice only once all others are in.
    """
    if count >= len(prompts):
        return list(prompts)
    by_tag: defaultdict[str, list[tuple[int, bytes, PromptRecord]]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    for prompt in prompts:
        # The image as the row names it: an absolute path would differ between machines.
        said = f"{prompt.text}\0{prompt.metadata.get('image', '')}"
        rank = hashlib.blake2b(said.encode(), key=_KEY, digest_size=16).digest()
        by_tag[prompt.tag].append((seen[prompt.identity], rank, prompt))
        seen[prompt.identity] += 1
    shares = _shares({tag: len(rows) for tag, rows in by_tag.items()}, count)
    drawn = [
        prompt
        for tag, rows in by_tag.items()
        for _, _, prompt in sorted(rows, key=lambda row: row[:2])[: shares[tag]]
    ]
    return sorted(drawn, key=lambda prompt: prompt.prompt_id)


def held_out_in_words(config: RunConfig) -> str:
    """Describe the part of the file in a run's evaluations, and their number of images."""
    _, held_out = load_run_prompts(config)
    compared = compared_prompts(config, held_out)
    whole, part = part_in_words(held_out, held_out), part_in_words(compared, held_out)
    if len(compared) == len(held_out):
        return f"each evaluation has {whole}"
    if not 0 < config.evaluation.every < config.iterations:
        return f"each evaluation has {whole}; the curve is over {part}"
    images = config.evaluation.images_per_prompt
    return (
        f"the first and the last evaluation have {whole} ({len(held_out) * images:,} images each), "
        f"the others {part} ({len(compared) * images:,} images)"
    )


def part_in_words(part: Sequence[PromptRecord], held_out: Sequence[PromptRecord]) -> str:
    """Describe a part that `draw_subset` drew from a file's held-out prompts."""
    if len(part) == len(held_out):
        return f"all {len(held_out)} held-out prompts"
    shares = ", every tag in its share" if any(prompt.tag for prompt in part) else ""
    return f"{len(part)} of {len(held_out)} held-out prompts{shares}"


def held_out_prompts(config: RunConfig, iteration: int) -> int:
    """Return the number of prompts in the evaluation after this iteration (0: of the untouched model).

    The file may be on another machine, as for a recorded run: then only `evaluation.prompts` is known.
    """
    part = config.evaluation.prompts
    if 0 < iteration < config.iterations:
        return part
    try:
        path = resolve_prompt_path(config.prompts.evaluate)
        return _count(str(path), path.stat().st_mtime_ns)
    except (PromptFileError, OSError):
        return part


@lru_cache(maxsize=32)
def _count(path: str, modified_ns: int) -> int:
    """Return the number of prompts in a file that was last changed at this time."""
    return len(load_prompts(path))


def _shares(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Split `count` among the tags: by largest remainder, and one each if there are enough."""
    whole = sum(sizes.values())
    shares = dict.fromkeys(sorted(sizes), int(count >= len(sizes)))
    for _ in range(count - sum(shares.values())):
        # In integers, so that ties are exact; the first name then wins.
        neediest = max(shares, key=lambda tag: sizes[tag] * count - shares[tag] * whole)
        shares[neediest] += 1
    return shares
