"""GenEval findings made from a row: what a perfect detector would find, and the same with one fault.

No detector and no picture: the findings go through the scorer `geneval` as a detector's own do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_runtime.prompt_sets.geneval import CLASSES, COLOURS, OPPOSITE, Row
from gpu_runtime.rewards.geneval_rules import Detection
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.rewards.scorers.geneval import GenEvalScorer
from storage.prompts.files import PromptRecord

_SIDE, _GAP = 40.0, 100.0
_AWAY = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
_BLANK_HWC = np.zeros((8, 8, 3), np.uint8)

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
    """What the scorer says of these findings."""
    given = GivenFindings(findings)
    prompt = PromptRecord(0, row["prompt"], row)
    scorer = scorer_with(given)
    scorer.check(prompt)
    return scorer.score(_BLANK_HWC, prompt)


def perfect(row: Row) -> list[Detection]:
    """What a perfect detector finds in a picture that fulfils the row."""
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
