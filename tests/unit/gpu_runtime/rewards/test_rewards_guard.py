from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.rewards.guard import refuse_total_failure, score_each
from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.rewards.registry import SCORERS, build_scorer
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import RewardConfig
from storage.errors import ConfigurationError, RewardError
from storage.prompts.files import PromptRecord

REPOSITORY = Path(__file__).resolve().parents[4]
PROMPTS = [PromptRecord(index, str(index)) for index in range(3)]
IMAGES = [np.zeros((8, 8, 3), np.uint8)] * 3


class Scripted(Scorer):
    """Gives back, for each prompt, the value written for it, or raises it."""

    name = "scripted"

    def __init__(self, *values: float | Exception) -> None:
        self._values = values

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        value = self._values[prompt.prompt_id]
        if isinstance(value, Exception):
            raise value
        return Score(value, value == 1.0, "seen")


def test_one_failure_costs_one_score() -> None:
    scores = score_each(Scripted(1.0, OSError("engine gone"), 0.25), IMAGES, PROMPTS)
    refuse_total_failure("scripted", scores)
    assert [score.value for score in scores] == [1.0, 0.0, 0.25] and not scores[1].exact
    assert str(scores[1].error).startswith("OSError: engine gone (")
    assert [score.error for score in (scores[0], scores[2])] == [None, None]


def test_a_scorer_without_a_base_class_judges_all_images_in_one_call() -> None:
    class Together:
        name = "together"
        calls = 0

        def check(self, prompt: PromptRecord) -> None: ...

        def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
            raise AssertionError("asked one by one")

        def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
            self.calls += 1
            return [Score(0.5, False, "seen") for _ in images]

    scorer = Together()
    assert [score.value for score in score_each(scorer, IMAGES, PROMPTS)] == [0.5] * 3
    assert scorer.calls == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.5])
def test_what_is_no_score_is_an_error(value: float) -> None:
    score = score_each(Scripted(1.0, value, 1.0), IMAGES, PROMPTS)[1]
    assert (score.value, score.exact) == (0.0, False)
    assert "not in [0, 1]" in str(score.error)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([ImportError("no engine")] * 3, r"'scripted' failed on all 3 images.*ImportError: no engine"),
        ([math.nan, math.nan], "failed on all 2"),
        ([ValueError("x")], "failed on all 1 images; the first error was: ValueError: x"),
    ],
)
def test_failure_on_all_stops_the_run(values: list[float | Exception], says: str) -> None:
    count = len(values)
    scores = score_each(Scripted(*values), IMAGES[:count], PROMPTS[:count])
    with pytest.raises(RewardError, match=says):
        refuse_total_failure("scripted", scores)
    refuse_total_failure("scripted", score_each(Scripted(), [], []))


def test_lengths_must_agree() -> None:
    with pytest.raises(RewardError, match="3 images but 2 prompts"):
        score_each(Scripted(), IMAGES, PROMPTS[:2])


def test_registry() -> None:
    assert build_scorer(RewardConfig(scorer="shapes")).name == "shapes"
    with pytest.raises(
        ConfigurationError, match=r"'clip': unknown name.*choose one of .*ocr, .*shapes, .*geneval"
    ):
        build_scorer(RewardConfig(scorer="clip"))


@pytest.mark.parametrize("name", SCORERS.names())
def test_every_scorer_that_can_be_named_is_documented(name: str) -> None:
    page = (REPOSITORY / "docs" / "reference" / "rewards.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    # The options are in the row, or in the section that its last cell links to.
    linked = re.search(r": \[below\]\(#([a-z-]+)\) \|$", line)
    sections = {part.partition("\n")[0].lower().replace(" ", "-"): part for part in page.split("\n## ")}
    where = line + (sections[linked[1]] if linked else "")
    for option in SCORERS.find(name).options.model_fields:
        assert f"`{option}`" in where
    assert f"`{name}`" in str(RewardConfig.model_fields["scorer"].description)


class Raises(Scorer):
    """A user's scorer with a mistake in a function that it calls."""

    name = "mine"

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        return Score(self.colour(image_HWC), False, "")

    def colour(self, image_HWC: np.ndarray) -> float:
        return float(np.take(image_HWC, 10**9))  # of a library, far below


def test_an_error_names_the_line_of_the_scorer_s_file() -> None:
    (score,) = score_each(Raises(), [np.zeros((2, 2, 3), np.uint8)], [PromptRecord(0, "a sign")])
    assert score.error is not None and score.error.startswith("IndexError: ")
    assert f"({__file__}, line " in score.error and "np.take(image_HWC, 10**9)" in score.error
