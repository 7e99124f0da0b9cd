from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_runtime.prompt_sets.geneval import official_rows
from gpu_runtime.rewards.geneval_rules import Detection
from gpu_runtime.rewards.scorers.geneval import most_confident
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord
from tests.geneval_faults import FAULTS, GivenFindings, judged, perfect, scorer_with

IMAGE = np.zeros((8, 8, 3), np.uint8)
ROWS = official_rows()


def findings(name: str, *confidences: float, colour: str = "") -> list[Detection]:
    return [
        Detection(name, colour, (100.0 * place, 0.0, 100.0 * place + 40, 40.0), confidence)
        for place, confidence in enumerate(confidences)
    ]


def row(tag: str, *include: dict[str, Any], exclude: list[dict[str, Any]] | None = None) -> PromptRecord:
    return PromptRecord(
        0,
        "a photo of",
        {"tag": tag, "include": list(include), "exclude": exclude or [], "prompt": "a photo of"},
    )


def test_every_official_row_is_perfect_with_perfect_findings():
    scores = [judged(official, perfect(official)) for official in ROWS]
    assert len(scores) == 553
    assert {(score.value, score.exact) for score in scores} == {(1.0, True)}


@pytest.mark.parametrize(
    ("fault", "rows"),
    [
        ("missing_object", 553), ("one_too_many", 553), ("wrong_colour", 194), ("wrong_position", 100),
        ("wrong_count", 80),
    ],
)  # fmt: skip
def test_one_fault_costs_every_row_it_can_befall(fault: str, rows: int):
    befallen = 0
    for official in ROWS:
        scores = [judged(official, faulty) for faulty in FAULTS[fault](official, perfect(official))]
        befallen += bool(scores)
        assert all(0 <= score.value < 1 for score in scores), official["prompt"]
        forgiven = fault == "one_too_many" and "exclude" not in official
        assert all(score.exact == forgiven for score in scores), official["prompt"]
    assert befallen == rows


@pytest.mark.parametrize(("tag", "value"), [("counting", 0.5), ("two_object", 1.0)])
def test_doubtful_objects_count_unless_a_number_is_asked_for(tag: str, value: float):
    played = GivenFindings(findings("dog", 0.95, 0.6))
    assert scorer_with(played).score(IMAGE, row(tag, {"class": "dog", "count": 2})).value == value


def test_at_most_sixteen_of_a_class_the_most_confident_first():
    many = findings("dog", *np.linspace(0.31, 0.99, 20)) + findings("cat", 0.5, 0.3)
    kept = most_confident(many, 0.3)
    assert sum(item.class_name == "dog" for item in kept) == 16
    assert min(item.confidence for item in kept if item.class_name == "dog") == pytest.approx(
        0.31 + 4 * 0.68 / 19
    )
    assert [item.confidence for item in kept if item.class_name == "cat"] == [0.5]  # 0.3 is not above 0.3


def test_colours_are_asked_for_where_the_row_asks():
    class Counting(GivenFindings):
        asked: list[str]

        def colours_of(self, image_HWC: np.ndarray, found: Any) -> list[str]:
            self.asked = [item.class_name for item in found]
            return super().colours_of(image_HWC, found)

    objects = findings("dog", 0.9, colour="red") + [
        replace(item, box=(0.0, 200.0, 40.0, 240.0)) for item in findings("cat", 0.8, colour="blue")
    ]
    played = Counting(objects)
    scorer = scorer_with(played)
    red_dog = {"class": "dog", "count": 1, "color": "red"}
    score = scorer.score(IMAGE, row("color_attr", red_dog, {"class": "cat", "count": 1}))
    assert played.asked == ["dog"]
    assert (score.value, score.exact, score.detail) == (1.0, True, "red dog, cat")
    played.asked = []
    played.findings = findings("dog", 0.7, 0.9, 0.8, colour="red")
    pair = row("colors", {"class": "dog", "count": 2, "color": "red"})
    assert scorer.score(IMAGE, pair).value == pytest.approx((0.5 + 1) / 2)  # one too many, both colours right
    assert played.asked == ["dog", "dog"]  # the third is not judged by its colour
    played.asked = []
    scorer.score(IMAGE, row("two_object", {"class": "dog", "count": 1}))
    assert played.asked == []


def test_rows_that_cannot_be_judged_are_refused():
    played = GivenFindings([])
    scorer = scorer_with(played)
    for prompt, says in (
        (row("", {"class": "dragon", "count": 1}), "`class` 'dragon'"),
        (row("", {"class": "dog", "count": 1, "color": "teal"}), "`color` 'teal'"),
        (row("", {"class": "dog", "count": 17}), "room for 16"),
        (PromptRecord(0, "a dog"), "needs GenEval rows"),
    ):
        with pytest.raises(PromptFileError, match=says):
            scorer.check(prompt)
