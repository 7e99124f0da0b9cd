"""Prompts of files and of datasets in the layouts that `datasets` writes, and a part of them by tag."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from storage.config.loading import list_presets, load_config
from storage.errors import ConfigurationError, PromptFileError
from storage.prompts.files import (
    PromptRecord,
    compared_prompts,
    draw_subset,
    held_out_in_words,
    held_out_prompts,
    load_prompts,
    load_run_prompts,
    prompt_files,
)

ROW = {
    "tag": "colors",
    "include": [{"class": "cow", "count": 1, "color": "blue"}],
    "prompt": "a photo of a blue cow",
}


def write(path: Path, *rows: object) -> Path:
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8"
    )
    return path


def test_text_lines_are_numbered_among_the_non_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", "one", "", "  two  ", "")
    assert [(p.prompt_id, p.text, p.metadata) for p in load_prompts(path)] == [(0, "one", {}), (1, "two", {})]


def test_a_row_whose_tag_is_null_has_none(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "a", "tag": None}, {"prompt": "b", "tag": "counting"})
    assert [p.tag for p in load_prompts(path)] == ["", "counting"]


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert [p.text for p in load_prompts(path)] == ["one", "two"]


def test_rows_keep_their_metadata_and_their_lines(tmp_path: Path) -> None:
    records = load_prompts(write(tmp_path / "p.jsonl", ROW, "", ROW))
    assert [(record.prompt_id, record.line) for record in records] == [(0, 1), (1, 3)]
    assert (records[0].text, records[0].metadata) == (ROW["prompt"], ROW)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("glyphs-train", 1000), ("glyphs-evaluate", 128), ("shapes-train", 128), ("shapes-evaluate", 128),
        ("edits-train", 384), ("edits-evaluate", 128), ("geneval-train", 1700),
        ("geneval-evaluate", 553), ("signs-train", 1000), ("signs-evaluate", 128),
    ],
)  # fmt: skip
def test_built_in_sets(name: str, least: int) -> None:
    records = load_prompts(f"builtin:{name}")
    assert len(records) >= least
    assert [record.prompt_id for record in records] == list(range(len(records)))


GENEVAL = [preset.name for preset in list_presets() if "geneval" in preset.name]


def prompts(**tags: int) -> list[PromptRecord]:
    """So many prompts of each tag, sorted by it."""
    rows = [(tag, number) for tag, count in tags.items() for number in range(count)]
    return [PromptRecord(i, f"{tag} {n}", {"tag": tag}) for i, (tag, n) in enumerate(rows)]


def of_tags(drawn: Sequence[PromptRecord]) -> dict[str, int]:
    return dict(Counter(prompt.tag for prompt in drawn))


@pytest.mark.parametrize("preset", GENEVAL)
def test_geneval_presets_evaluate_every_kind_of_task_and_all_of_it_at_the_ends(preset: str):
    config = load_config(preset, [], {})
    _, held_out = load_run_prompts(config)
    part, whole = of_tags(compared_prompts(config, held_out)), of_tags(held_out)
    assert sum(part.values()) == config.evaluation.prompts == 96
    assert part.keys() == whole.keys() and len(whole) == 6
    assert all(abs(part[tag] - count * 96 / 553) < 1 for tag, count in whole.items())
    ends = [held_out_prompts(config, at) for at in (0, config.evaluation.every, config.iterations)]
    assert ends == [553, 96, 553]
    assert held_out_in_words(config) == (
        "the first and the last evaluation have all 553 held-out prompts (553 images each), the others 96 of "
        "553 held-out prompts, every tag in its share (96 images)"
    )


def test_shares_are_of_the_largest_remainders_and_no_tag_is_left_out():
    drawn = draw_subset(prompts(a=50, b=30, c=15, d=1), 10)
    assert of_tags(drawn) == {"a": 5, "b": 3, "c": 1, "d": 1}
    assert [one.prompt_id for one in drawn] == sorted(one.prompt_id for one in drawn)
    assert of_tags(draw_subset(prompts(a=50, b=30, c=15, d=1), 2)) == {"a": 1, "b": 1}
    assert of_tags(draw_subset(prompts(a=50, b=30, c=15, d=1), 4)) == dict.fromkeys("abcd", 1)
    assert of_tags(draw_subset(prompts(a=3, b=3), 6)) == {"a": 3, "b": 3}


def test_neither_order_nor_chance_has_a_say(tmp_path: Path):
    file, shuffled = Path("presets/prompts/geneval-evaluate.jsonl"), tmp_path / "shuffled.jsonl"
    lines = file.read_text().splitlines()
    random.Random(3).shuffle(lines)
    shuffled.write_text("\n".join(lines))
    ours, theirs = (draw_subset(load_prompts(path), 96) for path in (file, shuffled))
    assert {prompt.text for prompt in ours} == {prompt.text for prompt in theirs}
    assert len({prompt.text for prompt in ours}) == 96


def test_a_prompt_of_several_rows_is_drawn_again_only_where_no_other_is_left(tmp_path: Path):
    file = tmp_path / "four-times.jsonl"
    rows = [{"prompt": f"sign {n}", "tag": "ab"[n % 2]} for n in range(8) for _ in range(4)]
    file.write_text("\n".join(map(json.dumps, rows)))
    for count, times in ((8, {1}), (16, {2}), (12, {1, 2})):
        drawn = Counter(prompt.text for prompt in draw_subset(load_prompts(file), count))
        assert len(drawn) == 8 and set(drawn.values()) == times


def test_without_an_evaluation_between_there_is_no_part(tmp_path: Path):
    config = load_config("glyphs", ["evaluation.every=0"], {})
    _, held_out = load_run_prompts(config)
    assert compared_prompts(config, held_out) == held_out
    assert held_out_in_words(config) == "each evaluation has all 128 held-out prompts"


def test_a_run_that_is_extended_goes_on_with_the_prompts_of_its_curve():
    short, longer = (
        load_config("smoke", ["evaluation.prompts=3", f"iterations={number}"], {}) for number in (2, 12)
    )
    _, held_out = load_run_prompts(short)
    assert compared_prompts(short, held_out) == compared_prompts(longer, held_out)
    assert len(compared_prompts(short, held_out)) == 3
    assert held_out_in_words(short) == (
        "each evaluation has all 8 held-out prompts; the curve is over 3 of 8 held-out prompts"
    )


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


def rows_of(*texts: str) -> list[dict[str, Any]]:
    return [{"prompt": text} for text in texts]


def test_shards_come_in_the_order_of_the_state(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "set", rows_of("one", " two "), rows_of("three"))
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
    with pytest.raises(PromptFileError, match=r"row 1: `include`: not JSON \(.* column 3\); correct '\[\{'$"):
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
    empty = save_to_disk(tmp_path / "empty", rows_of("one"), rows_of("two", ""))
    with pytest.raises(
        PromptFileError, match=r"data-00001-of-00002\.arrow:row 2: `prompt` must be a non-empty"
    ):
        load_prompts(empty)
    wrong = save_to_disk(tmp_path / "wrong", [ROWS[0]])  # a position as a table, where GenEval has a pair
    with pytest.raises(PromptFileError, match=r"row 1: `include\[1\]\.position` must be \[relation, index\]"):
        load_prompts(wrong)
    bare = save_to_disk(tmp_path / "bare", [ROWS[1] | {"include": "{}"}])
    with pytest.raises(PromptFileError, match=r"row 1: `include` must be a non-empty list of objects, got"):
        load_prompts(bare)
    nothing = save_to_disk(tmp_path / "nothing", [{"prompt": None}, {"prompt": "x"}])
    with pytest.raises(PromptFileError, match=r"row 1: `prompt` must be a non-empty string, got None"):
        load_prompts(nothing)


def test_a_dataset_without_a_column_of_prompts_is_refused(tmp_path: Path) -> None:
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


def objects(count: int = 1, index: int = 0) -> dict[str, Any]:
    cats = {"class": "cat", "count": count}
    return {"include": [cats, {"class": "dog", "count": 1, "position": ["left of", index]}]}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "x" * 10_000}, ""),
        ({"prompt": "x" * 10_001}, "a prompt of 10,001 characters, above 10,000"),
        ({"more": json.loads("[" * 15 + "]" * 15)}, ""),
        ({"more": json.loads("[" * 16 + "]" * 16)}, "nest deeper than 16 levels"),
        (objects(count=1000), ""),
        (objects(count=1001), "from 1 to 1,000, got 1001"),
        (objects(index=1), "must be another of the 2 objects"),
        (objects(index=2), "must be another of the 2 objects"),
        (objects(index=-1), "must be another of the 2 objects"),
        ({"image": "data:image/png;base64," + "A" * 65_514}, ""),
        ({"image": "data:image/png;base64," + "A" * 65_515}, "of 65,537 characters, above 65,536"),
        ({"preferred": "data:image/png;base64,"}, "a pair has both preferred and rejected"),
    ],
)
def test_rows_reach_their_limits_and_no_further(tmp_path: Path, row: dict[str, Any], says: str):
    path = write(tmp_path / "p.jsonl", {"prompt": "a dog"} | row)
    with pytest.raises(PromptFileError, match=says) if says else nullcontext():
        assert [record.metadata for record in load_prompts(path)] == [{"prompt": "a dog"} | row]


def test_a_run_takes_a_file_of_just_enough_prompts(tmp_path: Path):
    path = write(tmp_path / "p.txt", "one", "two", "three")
    settings = [f"prompts.train={path}", f"prompts.evaluate={path}"]
    for train, evaluate, says in (
        (3, 3, ""),
        (4, 3, "prompts.train names a file of 3 prompts, fewer than algorithm.prompts_per_iteration = 4"),
        (3, 4, "prompts.evaluate names a file of 3 prompts, fewer than evaluation.prompts = 4"),
    ):
        counts = [f"algorithm.prompts_per_iteration={train}", f"evaluation.prompts={evaluate}"]
        config = load_config(None, settings + counts, {})
        with pytest.raises(ConfigurationError, match=says) if says else nullcontext():
            load_run_prompts(config)


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "2", None, 10**9])
def test_objects_are_counted_in_positive_integers(tmp_path: Path, count: Any):
    file = tmp_path / "objects.jsonl"
    row = {"tag": "counting", "include": [{"class": "dog", "count": count}], "prompt": "dogs"}
    file.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(PromptFileError, match=r"include\[0\].count` must be an integer from 1 to"):
        load_prompts(str(file))
