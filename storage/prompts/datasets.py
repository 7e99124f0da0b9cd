"""Prompts from Hugging Face datasets on disk: folders of `save_to_disk`, or single .parquet and .arrow files.

They are read by pyarrow: the package `datasets` is not needed. A column `prompt`, `text` or `caption` holds
the prompts; with a column `include`, its rows are GenEval rows. No other column is read. Arrow has no lists
of mixed types, such as a `position`: `include` and `exclude` may be JSON text instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import PromptFileError, quoted
from storage.text import parse_json, read_text_file

DATA_SUFFIXES = (".parquet", ".arrow")
"""The suffixes of single files."""

PROMPT_COLUMNS = ("prompt", "text", "caption")
"""The columns that may hold the prompt; the first one present is used."""

ROW_COLUMNS = ("tag", "include", "exclude")
"""The columns of a GenEval row beside its prompt. Others are not read: they may be gigabytes of images."""

_STATE_FILE = "state.json"
_SPLITS_FILE = "dataset_dict.json"


def data_files(path: Path) -> list[Path]:
    """Return the files that hold the rows of a file or of a dataset's (or split's) folder, in their order.

    Raises:
        PromptFileError: the folder is not a dataset, has several splits, or lacks files.
    """
    if path.is_file():
        return [path]
    if (path / _SPLITS_FILE).is_file():
        splits = _list_of(path / _SPLITS_FILE, "splits", str)
        raise PromptFileError(
            f"{path} has the splits {', '.join(splits)}; name the folder of one, as in "
            f"{path / next(iter(splits), 'train')}"
        )
    if (path / _STATE_FILE).is_file():
        listed = _list_of(path / _STATE_FILE, "_data_files", dict)
        files = [path / str(entry.get("filename")) for entry in listed]
    else:
        files = sorted(found for suffix in DATA_SUFFIXES for found in path.glob(f"*{suffix}"))
    missing = [file for file in files if not os.path.isfile(file)]
    if not files or missing:
        lacks = missing[0].name if missing else f"{_STATE_FILE}, nor {' or '.join(DATA_SUFFIXES)} files"
        raise PromptFileError(
            f"{path} is not a readable dataset: it has no {lacks}; save it with `dataset.save_to_disk(...)`"
        )
    return files


def dataset_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a dataset, each with its location (file and row, counted from 1).

    A row has its prompt under `prompt`, and omits missing values: GenEval's `color` and `position` are absent
    rather than None.

    Raises:
        PromptFileError: a file is damaged, or has no column of prompts.
    """
    for file in data_files(path):
        table, column = _read_table(file)
        for number, row in enumerate(table.to_pylist(), start=1):
            where, found = f"{file}:row {number}", _without_nothing(row)
            objects = {
                key: parse_json(text, f"{where}: `{key}`", PromptFileError, f"correct {quoted(text)}")
                for key in ("include", "exclude")
                if isinstance(text := found.get(key), str)
            }
            yield where, found | objects | {"prompt": found.get(column)}


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nothing(inner) for key, inner in value.items() if inner is not None}
    return [_without_nothing(inner) for inner in value] if isinstance(value, list) else value


def _read_table(file: Path) -> tuple[Any, str]:
    """Return the columns of a file that prompts need, and the name of the prompt column."""
    import pyarrow
    import pyarrow.parquet

    try:
        if file.suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(file) as opened:
                needed = _needed(file, opened.schema_arrow.names)
                return opened.read(columns=needed), needed[0]
        with pyarrow.memory_map(str(file)) as source:  # unused parts are not read
            try:
                table = pyarrow.ipc.open_stream(source).read_all()  # the format of `datasets`
            except pyarrow.ArrowInvalid:
                source.seek(0)
                table = pyarrow.ipc.open_file(source).read_all()
            needed = _needed(file, table.column_names)
            return table.select(needed), needed[0]
    except (OSError, pyarrow.ArrowException) as error:
        raise PromptFileError(f"{file}: not a file that pyarrow can read: {error}; save it again") from error


def _needed(file: Path, names: list[str]) -> list[str]:
    """Return the column of prompts, and those of GenEval rows if present."""
    column = next((name for name in PROMPT_COLUMNS if name in names), None)
    if column is None:
        raise PromptFileError(
            f"{file}: no column {', '.join(PROMPT_COLUMNS)}; it has {', '.join(names)}: "
            "rename the one that holds the prompts"
        )
    return [column, *(name for name in ROW_COLUMNS if "include" in names and name in names)]


def _list_of(file: Path, key: str, kind: type) -> list[Any]:
    """Return the list under a key of a JSON file that `datasets` writes."""
    text = read_text_file(file, str(file), PromptFileError)
    values = parse_json(text, str(file), PromptFileError, "save the dataset again")
    listed = values.get(key, []) if isinstance(values, dict) else None
    if not isinstance(listed, list) or not all(isinstance(entry, kind) for entry in listed):
        raise PromptFileError(f"{file}: {key} is not a list as `datasets` writes it; save the dataset again")
    return listed
