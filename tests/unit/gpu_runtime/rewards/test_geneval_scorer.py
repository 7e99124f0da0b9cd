"""The scorer `geneval` with findings made from a row, perfect or with one fault, in place of a detector's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_runtime.prompt_sets.geneval import CLASSES, COLOURS, OPPOSITE, Row, official_rows
from gpu_runtime.rewards.geneval_rules import Detection
from gpu_runtime.rewards.scorers.geneval import GenEvalScorer, most_confident
from gpu_runtime.scheduling.scores import Score
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord

IMAGE = np.zeros((8, 8, 3), np.uint8)
_SIDE, _GAP = 40.0, 100.0
_AWAY = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}

Fault = Callable[[Row, list[Detection]], list[list[Detection]]]
"""From a row and its perfect findings to findings with that one fault; none where it has no room for it."""


class GivenFindings:
    """A detector and a classifier that return given findings."""

    class_names: frozenset[str] = frozenset(CLASSES)

    def __init__(self, findings: Sequence[Detection]) -> None:
        self.findings = findings

    def detect(self, image_HWC: np.ndarray, least_confidence: float) -> list[Detection]:
        """The findings without their colours, as a detector gives them."""
        return [replace(item, colour="") for item in self.findings]

    def colours_of(self, image_HWC: np.ndarray, found: Sequence[Detection]) -> list[str]:
        """The colours of those findings, known again by their boxes."""
        colours = {item.box: item.colour for item in self.findings}
        return [colours[item.box] for item in found]


def scorer_with(given: GivenFindings) -> GenEvalScorer:
    """The scorer with given findings in place of its two models."""
    models: Any = given
    return GenEvalScorer(models, models)


def judged(row: Row, findings: Sequence[Detection]) -> Score:
    """The score of an image in which these were detected."""
    given = GivenFindings(findings)
    prompt = PromptRecord(0, row["prompt"], row)
    scorer = scorer_with(given)
    scorer.check(prompt)
    return scorer.score(IMAGE, prompt)


def perfect(row: Row) -> list[Detection]:
    """The detections of a perfect detector in a picture that fulfils the row."""
    placed: list[tuple[float, float]] = []
    findings: list[Detection] = []
    for place, item in enumerate(row["include"]):
        left, top = 10 * _GAP * place, 10 * _GAP * place
        if item.get("position") is not None:
            relation, index = item["position"]
            right, down = _AWAY[relation]
            left, top = placed[index][0] + right * _GAP, placed[index][1] + down * _GAP
        placed.append((left, top))
        for number in range(item["count"]):
            findings.append(_object(item["class"], item.get("color", ""), left + number * _GAP, top))
    return findings


def _object(name: str, colour: str, left: float, top: float) -> Detection:
    return Detection(name, colour, (left, top, left + _SIDE, top + _SIDE), 0.95)


def missing_object(row: Row, findings: list[Detection]) -> list[list[Detection]]:
    """One object is not there; each in turn."""
    return [findings[:place] + findings[place + 1 :] for place in range(len(findings))]


def one_too_many(row: Row, findings: list[Detection]) -> list[list[Detection]]:
    """One more object of a class, like one that is asked for and beside it; of each class in turn."""
    faulty = []
    for item in row["include"]:
        like = next(found for found in findings if found.class_name == item["class"])
        other = _object(like.class_name, like.colour, like.box[0] + 7 * _SIDE, like.box[1] + 7 * _SIDE)
        faulty.append([*findings, replace(other, confidence=0.92)])
    return faulty


def wrong_colour(row: Row, findings: list[Detection]) -> list[list[Detection]]:
    """One object has another colour than asked: every other one in turn."""
    return [
        [*findings[:place], replace(found, colour=colour), *findings[place + 1 :]]
        for place, found in enumerate(findings)
        if found.colour
        for colour in COLOURS
        if colour != found.colour
    ]


def wrong_position(row: Row, findings: list[Detection]) -> list[list[Detection]]:
    """The object that should stand somewhere stands opposite, beside, or on the other."""
    faulty = []
    for place, item in enumerate(row["include"]):
        if item.get("position") is None:
            continue
        relation, index = item["position"]
        left, top = findings[index].box[:2]
        for other, (right, down) in [*_AWAY.items(), (OPPOSITE[relation], (0, 0))]:
            if other != relation:
                moved = _object(item["class"], findings[place].colour, left + right * _GAP, top + down * _GAP)
                faulty.append([*findings[:place], moved, *findings[place + 1 :]])
    return faulty


def wrong_count(row: Row, findings: list[Detection]) -> list[list[Detection]]:
    """Another number of objects, up to the most that are looked at, where a number is asked for."""
    if row["tag"] != "counting":
        return []
    asked, first = len(findings), findings[0]
    numbers = [number for number in range(17) if number != asked]
    return [
        [_object(first.class_name, "", place * _GAP, 0.0) for place in range(number)] for number in numbers
    ]


FAULTS: dict[str, Fault] = {
    "missing_object": missing_object,
    "one_too_many": one_too_many,
    "wrong_colour": wrong_colour,
    "wrong_position": wrong_position,
    "wrong_count": wrong_count,
}

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
