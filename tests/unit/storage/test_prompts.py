from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.errors import PromptFileError
from storage.prompts.files import load_prompts

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


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert [p.text for p in load_prompts(path)] == ["one", "two"]


def test_rows_keep_their_metadata(tmp_path: Path) -> None:
    (record,) = load_prompts(write(tmp_path / "p.jsonl", ROW))
    assert (record.text, record.metadata) == (ROW["prompt"], ROW)


POSITION = {"class": "dog", "count": 1, "position": ["left of", 0]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        ([1], "JSON object"),
        ({"include": ROW["include"]}, "`prompt`"),
        ({"prompt": "  "}, "`prompt`"),
        (ROW | {"tag": 7}, "`tag` must be a string, got 7"),
        (ROW | {"include": []}, "`include`"),
        (ROW | {"include": ["cow"]}, r"`include\[0\]`"),
        (ROW | {"include": [{"count": 1}]}, r"`include\[0\].class`"),
        (ROW | {"include": [{"class": "cow", "count": 0}]}, r"`include\[0\].count`"),
        (ROW | {"include": [{"class": "cow", "count": True}]}, r"`include\[0\].count`"),
        (ROW | {"include": [{"class": "cow", "count": 1, "color": 3}]}, r"`include\[0\].color`"),
        (ROW | {"include": [POSITION | {"position": ["left of"]}]}, r"`include\[0\].position`"),
        (ROW | {"include": [POSITION]}, "points at object 0"),
        (ROW | {"include": [ROW["include"][0], POSITION | {"position": ["left of", False]}]}, "position`"),
        (ROW | {"include": [{"class": "cow", "count": 10**9}]}, "from 1 to 1,000"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"prompt": "a cow", "number": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ({"prompt": "a\0b"}, "must hold neither NUL"),
        ({"prompt": "half \ud83d"}, "must hold neither NUL nor half"),
        ({"prompt": "a", "note": {"b": ["c\0"]}}, "must hold neither NUL"),
        ('{"prompt": "a", "weight": NaN}', "nan is no number of JSON"),
        ({"prompt": "x" * 10_001}, "10,001 characters"),
        ('{"prompt": "a", "x": ' + "[" * 20 + "]" * 20 + "}", "deeper than 16 levels"),
        (ROW | {"exclude": [{"class": "cow"}]}, r"`exclude\[0\].count`"),
    ],
)
def test_a_malformed_row_names_file_and_line(tmp_path: Path, row: object, message: str) -> None:
    path = write(tmp_path / "p.jsonl", ROW, "", row)
    with pytest.raises(PromptFileError, match=rf"p\.jsonl:3: .*{message}"):
        load_prompts(path)


def test_lines_are_remembered(tmp_path: Path) -> None:
    records = load_prompts(write(tmp_path / "p.jsonl", ROW, "", ROW))
    assert [(record.prompt_id, record.line) for record in records] == [(0, 1), (1, 3)]


def test_missing_empty_and_unknown(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match="does not exist"):
        load_prompts(tmp_path / "no.txt")
    with pytest.raises(PromptFileError, match="no prompts"):
        load_prompts(write(tmp_path / "p.txt", "", " "))
    with pytest.raises(PromptFileError, match=r"suffix '\.csv'"):
        load_prompts(write(tmp_path / "p.csv", "a"))
    with pytest.raises(PromptFileError, match="builtin:glyphs-train"):
        load_prompts("builtin:no-such-set")
    with pytest.raises(PromptFileError, match="no built-in"):
        load_prompts("builtin:../../README")


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"ok\n\xff\xfe")
    with pytest.raises(PromptFileError, match="not UTF-8"):
        load_prompts(tmp_path / "p.txt")


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
