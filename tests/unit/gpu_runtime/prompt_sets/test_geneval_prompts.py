from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_runtime.embedded_tasks.shapes import geneval_row
from gpu_runtime.prompt_sets import geneval
from gpu_runtime.prompt_sets.geneval import (
    TAGS,
    as_lines,
    draw_row,
    meaning,
    official_rows,
    training_rows,
)
from storage.errors import PromptFileError

OFFICIAL = Path(__file__).resolve().parents[5] / "shared/benchmarks/geneval/evaluation_metadata.jsonl"


@pytest.mark.skipif(not OFFICIAL.is_file(), reason="the official file is not at hand")
def test_the_official_file_is_drawn_again_row_by_row():
    rows = [json.loads(line) for line in OFFICIAL.read_text(encoding="utf-8").splitlines()]
    drawn = official_rows()
    assert len(drawn) == len(rows) == 553
    for number, (mine, official) in enumerate(zip(drawn, rows, strict=True)):
        assert mine == official, f"row {number}"
    assert as_lines(drawn) == OFFICIAL.read_text(encoding="utf-8")


def test_how_many_rows_of_each_tag():
    assert Counter(row["tag"] for row in official_rows()) == {
        "single_object": 80, "two_object": 99, "counting": 80, "colors": 94, "position": 100,
        "color_attr": 100,
    }  # fmt: skip


def test_another_numpy_that_draws_other_numbers_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(geneval, "OFFICIAL_SEED", 44)
    with pytest.raises(PromptFileError, match=r"draws other GenEval rows .*builtin:geneval-evaluate"):
        official_rows()


def test_grammar():
    rows = [geneval_row("colors", [("cat", "orange")]), geneval_row("single_object", [("bus", "")])]
    rows += [geneval_row("counting", [(name, "")], count=2) for name in ("bus", "bench")]
    assert [row["prompt"].removeprefix("a photo of ") for row in rows] == [
        "an orange cat", "a bus", "two buses", "two benchs"
    ]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
def test_every_tag_can_be_drawn(tag: str):
    row = draw_row(tag, np.random.default_rng(1))
    assert row["tag"] == tag
    assert all(item["class"] in row["prompt"] for item in row["include"])


def test_no_colour_is_asked_of_people():
    rng = np.random.default_rng(2)
    drawn = [draw_row(tag, rng) for tag in ("colors", "color_attr") for _ in range(2000)]
    assert not any(item["class"] == "person" for row in drawn for item in row["include"])


def test_training_rows_have_the_weights_and_nothing_of_the_test():
    rows = training_rows(1700, seed=1)
    assert Counter(row["tag"] for row in rows) == {
        "position": 700, "counting": 500, "color_attr": 300, "colors": 100, "two_object": 100,
    }  # fmt: skip
    test = official_rows()
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in test}
    assert not {meaning(row) for row in rows} & {meaning(row) for row in test}
    assert len({row["prompt"] for row in rows if row["tag"] == "counting"}) <= 80 * 3 - 80


def test_training_rows_follow_from_the_seed_and_fill_up():
    assert training_rows(35, seed=3) == training_rows(35, seed=3) != training_rows(35, seed=4)
    assert len(training_rows(35, seed=3)) == 35
    assert len(training_rows(1, seed=3)) == 1
    with pytest.raises(PromptFileError, match="0 GenEval rows are asked for"):
        training_rows(0, seed=3)


def test_what_the_same_pictures_fulfil_means_the_same():
    def row(*include: dict[str, Any]) -> dict[str, Any]:
        return {"include": list(include)}

    dog: dict[str, Any] = {"class": "dog", "count": 1}
    cat: dict[str, Any] = {"class": "cat", "count": 1}
    assert meaning(row(dog, cat)) == meaning(row(cat, dog))
    assert meaning(row(dog, cat)) != meaning(row(dog, {"class": "cat", "count": 2}))
    left = row(cat, dog | {"position": ["left of", 0]})
    assert meaning(left) == meaning(row(dog, cat | {"position": ["right of", 0]}))
    assert meaning(left) != meaning(row(cat, dog | {"position": ["above", 0]}))
    assert meaning(left) != meaning(row(cat, dog))
    red_dog = row(dog | {"color": "red"}, cat | {"color": "blue"})
    assert meaning(red_dog) != meaning(row(dog | {"color": "blue"}, cat | {"color": "red"}))
