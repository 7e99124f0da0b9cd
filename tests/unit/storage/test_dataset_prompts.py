"""Datasets in the layouts that `datasets` writes, made with pyarrow alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from storage.errors import PromptFileError
from storage.prompts.files import load_prompts, prompt_files

ROWS = [
    {
        "tag": "position",
        "include": [
            {"class": "cat", "count": 1},
            {"class": "dog", "count": 1, "position": {"relation": "left of", "index": 0}},
        ],
        "prompt": "a photo of a dog left of a cat",
    },
    {"tag": "colors", "include": [{"class": "cow", "count": 1, "color": "blue"}], "prompt": "a blue cow"},
]


def save_to_disk(folder: Path, *shards: Sequence[dict[str, Any]]) -> Path:
    """The layout of `Dataset.save_to_disk`: Arrow streams, and a state that lists them."""
    folder.mkdir(parents=True)
    names = [f"data-{place:05}-of-{len(shards):05}.arrow" for place in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        table = pyarrow.Table.from_pylist(list(rows))
        with (
            pyarrow.OSFile(str(folder / name), "wb") as sink,
            pyarrow.ipc.new_stream(sink, table.schema) as to,
        ):
            to.write_table(table)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def prompts(*texts: str) -> list[dict[str, Any]]:
    return [{"prompt": text} for text in texts]


def test_shards_come_in_the_order_of_the_state(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "set", prompts("one", " two "), prompts("three"))
    records = load_prompts(folder)
    assert [(r.prompt_id, r.text, r.metadata, r.line) for r in records] == [
        (0, "one", {}, 1), (1, "two", {}, 2), (2, "three", {}, 3),
    ]  # fmt: skip
    assert [file.name for file in prompt_files(folder)] == [
        "data-00000-of-00002.arrow",
        "data-00001-of-00002.arrow",
    ]


def test_geneval_rows_come_without_what_arrow_fills_in(tmp_path: Path) -> None:
    plain = [dict(row) for row in ROWS[1:]] + [
        {"tag": "x", "include": [{"class": "dog", "count": 2}], "prompt": "dogs"}
    ]
    cow, dogs = load_prompts(save_to_disk(tmp_path / "set", plain))
    assert cow.metadata == ROWS[1]
    assert dogs.metadata["include"] == [{"class": "dog", "count": 2}]  # Arrow has color=None there


def test_objects_may_be_json_text(tmp_path: Path) -> None:
    objects = [{"class": "cat", "count": 1}, {"class": "dog", "count": 1, "position": ["left of", 0]}]
    row = {"tag": "position", "include": json.dumps(objects), "prompt": "a dog left of a cat"}
    (record,) = load_prompts(save_to_disk(tmp_path / "set", [row]))
    assert record.metadata["include"] == objects
    with pytest.raises(PromptFileError, match=r"row 1: `include`: not JSON"):
        load_prompts(save_to_disk(tmp_path / "bad", [row | {"include": "[{"}]))


@pytest.mark.parametrize("name", ["prompts.parquet", "prompts.arrow"])
@pytest.mark.parametrize("column", ["prompt", "text", "caption"])
def test_single_files(tmp_path: Path, name: str, column: str) -> None:
    table = pyarrow.table({"n": [1, 2], column: ["one", "two"]})
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(table, tmp_path / name)
    else:  # a file of Arrow's other kind, with a footer
        with (
            pyarrow.OSFile(str(tmp_path / name), "wb") as sink,
            pyarrow.ipc.new_file(sink, table.schema) as to,
        ):
            to.write_table(table)
    assert [record.text for record in load_prompts(tmp_path / name)] == ["one", "two"]
    assert [record.text for record in load_prompts(tmp_path)] == ["one", "two"]  # a folder of such files


def test_a_malformed_row_names_file_and_row(tmp_path: Path) -> None:
    empty = save_to_disk(tmp_path / "empty", prompts("one"), prompts("two", ""))
    with pytest.raises(
        PromptFileError, match=r"data-00001-of-00002\.arrow:row 2: `prompt` must be a non-empty"
    ):
        load_prompts(empty)
    wrong = save_to_disk(tmp_path / "wrong", [ROWS[0]])  # a position as a table, where GenEval has a pair
    with pytest.raises(PromptFileError, match=r"row 1: `include\[1\]\.position` must be \[relation, index\]"):
        load_prompts(wrong)
    nothing = save_to_disk(tmp_path / "nothing", [{"prompt": None}, {"prompt": "x"}])
    with pytest.raises(PromptFileError, match=r"row 1: `prompt` must be a non-empty string, got None"):
        load_prompts(nothing)


def test_what_is_no_dataset_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match=r"it has no state\.json, nor \.parquet or \.arrow files"):
        load_prompts(tmp_path)
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(
        PromptFileError, match=r"has the splits train, test; name the folder of one, .*/train"
    ):
        load_prompts(splits)
    folder = save_to_disk(tmp_path / "set", prompts("one"))
    (folder / "data-00000-of-00001.arrow").write_bytes(b"nonsense")
    with pytest.raises(PromptFileError, match="not a file that pyarrow can read"):
        load_prompts(folder)
    (folder / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(PromptFileError, match=r"it has no data-00000-of-00001\.arrow"):
        load_prompts(folder)
    (folder / "state.json").write_text("[")
    with pytest.raises(PromptFileError, match="not JSON"):
        load_prompts(folder)
    with pytest.raises(PromptFileError, match=r"no column prompt, text, caption; it has question"):
        load_prompts(save_to_disk(tmp_path / "other", [{"question": "?"}]))


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_only_the_columns_of_prompts_are_read(tmp_path: Path, ending: str) -> None:
    """Images, dates and decimals cannot be written as JSON, and may be all of a file."""
    rows = [ROWS[1] | {"include": json.dumps(ROWS[1]["include"])}] * 2
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    columns |= {
        "image": [{"bytes": b"x", "path": "a.png"}] * 2, "created": [datetime(2026, 1, 1)] * 2,
        "price": [Decimal("1.5")] * 2,
    }  # fmt: skip
    file = tmp_path / f"gen.{ending}"
    table = pyarrow.table(columns)
    if ending == "parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as to:
            to.write_table(table)
    for record in load_prompts(file):
        assert record.metadata.keys() == {"tag", "include", "prompt"}
        json.dumps(record.metadata)
