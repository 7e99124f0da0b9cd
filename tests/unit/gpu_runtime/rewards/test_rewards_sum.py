from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.plan import Candidate
from gpu_runtime.exploration.selection import max_variance_subset
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.protocol import BatchScorer
from gpu_runtime.rewards.registry import build_scorer, chosen_scorer
from gpu_runtime.rewards.scorers.weighted_sum import Part, WeightedSum
from gpu_runtime.scheduling.scores import Score, Term, part_means
from storage.config.loading import differences, load_config
from storage.config.run_config import RewardConfig, RunConfig
from storage.errors import ConfigurationError, PromptFileError, RewardError
from storage.prompts.files import PromptRecord

IMAGES = [np.full((8, 8, 3), level, np.uint8) for level in (0, 1)]
PROMPTS = [PromptRecord(place, f'a sign "{place}"') for place in (0, 1)]


class Fixed:
    """Says the same of every image; `broken` images by their level."""

    def __init__(self, name: str, value: float, exact: bool = False, broken: int = -1) -> None:
        self.name, self._value, self._exact, self._broken = name, value, exact, broken

    def check(self, prompt: PromptRecord) -> None:
        if "refused" in prompt.text:
            raise PromptFileError(f"{self.name} refuses it")

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        if image_HWC[0, 0, 0] == self._broken:
            raise OSError("gone")
        return Score(self._value, self._exact, "seen")


def test_weights_are_divided_by_their_sum_and_parts_stay_apart():
    jpeg = Part(Fixed("jpeg", 0.5), gives_verdict=False)
    scorer = WeightedSum({"ocr": Part(Fixed("ocr", 1.0, True), 3.0), "jpeg": jpeg})
    score = scorer.score(IMAGES[0], PROMPTS[0])
    assert score.value == pytest.approx((3 * 1.0 + 1 * 0.5) / 4)
    assert score.parts == {"ocr": 1.0, "jpeg": 0.5}
    assert score.detail == "ocr 1.000 seen; jpeg 0.500 seen"
    assert score.exact  # jpeg gives no verdict


def test_a_sum_moves_the_parts_that_can():
    class Model(Fixed):
        device = "cpu"

        def move(self, device: str) -> None:
            self.device = device

    model = Model("clip-score", 0.5)
    scorer = WeightedSum({"jpeg": Part(Fixed("jpeg", 0.5)), "clip-score": Part(model)})
    scorer.move("cuda:1")
    assert model.device == "cuda:1"


@pytest.mark.parametrize(
    ("parts", "exact"),
    [
        ({"ocr": True, "shapes": True}, True),
        ({"ocr": True, "shapes": False}, False),
        ({"jpeg": False, "shapes": True}, True),
        ({"jpeg": False, "clip-score": False}, False),
    ],
)
def test_exact_needs_every_part_that_gives_a_verdict(parts: dict[str, bool], exact: bool):
    grading = ("jpeg", "clip-score")
    scorer = WeightedSum(
        {
            name: Part(Fixed(name, 1.0, verdict), gives_verdict=name not in grading)
            for name, verdict in parts.items()
        }
    )
    assert scorer.score(IMAGES[0], PROMPTS[0]).exact is exact


def test_a_part_that_fails_takes_only_its_image_along():
    scorer = WeightedSum({"ocr": Part(Fixed("ocr", 1.0, broken=1)), "jpeg": Part(Fixed("jpeg", 0.5))})
    good, bad = score_each(scorer, IMAGES, PROMPTS)
    assert (good.value, good.error) == (0.75, None)
    assert (bad.value, bad.parts) == (0.0, {"jpeg": 0.5})
    assert str(bad.error).startswith("ocr: OSError: gone (")
    with pytest.raises(RewardError, match="ocr: OSError: gone"):  # as the preflight asks, of one blank image
        scorer.score(IMAGES[1], PROMPTS[1])
    assert part_means([good, good, bad]) == {"ocr": 1.0, "jpeg": 0.5}, "of what was judged, as the mean is"
    assert part_means([bad]) == {}
    assert part_means([Score(1.0, True, "")]) == {}


def test_every_part_is_asked_about_a_prompt():
    scorer = WeightedSum({"ocr": Part(Fixed("ocr", 1.0)), "jpeg": Part(Fixed("jpeg", 1.0))})
    scorer.check(PROMPTS[0])
    with pytest.raises(PromptFileError, match="ocr refuses it"):
        scorer.check(PromptRecord(0, "refused"))
    with pytest.raises(ConfigurationError, match="no scorers"):
        WeightedSum({})


def test_the_registry_builds_what_the_settings_say():
    scorer = build_scorer(RewardConfig(scorer="sum", options={"parts": {"jpeg": 1.0, "shapes": 2.0}}))
    assert isinstance(scorer, BatchScorer)
    row = {"include": [{"class": "circle", "count": 1}]}
    score = scorer.score(IMAGES[0], PromptRecord(0, "a circle", row))
    assert set(score.parts) == {"jpeg", "shapes"}
    assert score.value == pytest.approx((score.parts["jpeg"] + 2 * score.parts["shapes"]) / 3)
    assert not score.exact, "jpeg gives no verdict, and shapes finds no circle"


class Batch(BatchScorer):
    name = "batch"

    def __init__(self, *scores: Score | Exception) -> None:
        self._scores = scores

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        raise AssertionError("asked one at a time")

    def score_batch(self, images: object, prompts: object) -> list[Score]:
        for score in self._scores:
            if isinstance(score, Exception):
                raise score
        return [score for score in self._scores if isinstance(score, Score)]


def test_a_batch_is_guarded_like_single_images():
    fine, wild = score_each(Batch(Score(0.5, False, "a"), Score(1.5, True, "b")), IMAGES, PROMPTS)
    assert fine == Score(0.5, False, "a")
    assert "score 1.5 is not in [0, 1]" in str(wild.error)
    for value in (0.5, float("nan")):
        failed = Score(value, True, "", error="timed out", usd=0.1)
        (score,) = score_each(Batch(failed), IMAGES[:1], PROMPTS[:1])
        assert score == Score(0.0, False, "", error="timed out", usd=0.1), "its own error is kept"
    for scorer, says in (
        (Batch(Score(0.5, False, "a")), "RewardError: 1 scores came back for 2 images"),
        (Batch(OSError("gone")), "OSError: gone"),
    ):
        errors = [str(score.error) for score in score_each(scorer, IMAGES, PROMPTS)]
        assert len(errors) == 2 and all(error.startswith(says) for error in errors)


def test_a_sum_that_holds_one_scorer_with_a_verdict_may_be_learned_from_exactly():
    parts = {"jpeg": 1.0, "shapes": 1.0}
    chosen = chosen_scorer(RewardConfig(scorer="sum", signal="exact", options={"parts": parts}))
    assert [judge.name for judge in chosen.judges] == ["jpeg", "shapes"]
    assert not chosen.uses_gpu
    assert chosen_scorer(RewardConfig(scorer="sum", options={"parts": {"ocr": 1, "geneval": 1}})).uses_gpu


def test_a_sum_asks_its_judges_about_a_prompt_before_they_are_loaded():
    chosen = chosen_scorer(RewardConfig(scorer="sum", options={"parts": {"jpeg": 1.0, "deepseek-ocr": 1.0}}))
    chosen.check_prompt(PROMPTS[0])
    with pytest.raises(PromptFileError, match="no text in double quotes"):
        chosen.check_prompt(PromptRecord(0, "a sign"))


def test_parts_come_from_the_command_line_and_travel():
    sets = ["reward.scorer=sum", "reward.options.parts.ocr=0.7", "reward.options.parts.jpeg=0.3"]
    config = load_config(None, sets, {})
    assert config.reward.options == {"parts": {"ocr": 0.7, "jpeg": 0.3}}
    assert [(part.name, part.weight) for part in chosen_scorer(config.reward).judges] == [
        ("ocr", 0.7),
        ("jpeg", 0.3),
    ]
    assert RunConfig.model_validate(differences(config)) == config
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_part_of_another_package_is_written_as_one_table_on_the_command_line():
    path = "gpu_runtime.rewards.registry:SCORERS"  # any name with dots; which one, is asked later
    sets = ["reward.scorer=sum", f'reward.options.parts={{jpeg=1, "{path}"={{weight=2, a=3}}}}']
    config = load_config(None, sets, {})
    assert config.reward.options == {"parts": {"jpeg": 1, path: {"weight": 2, "a": 3}}}


GATE = {"ocr": 0.8}


def summed(ocr: float, jpeg: float, least: float = 0.0, normalised: bool = False, **of_jpeg: Any) -> Score:
    """The sum of 3 times `ocr`, which counts from `least` on, and `jpeg`, with rules of its own."""
    parts = {"ocr": Part(Fixed("ocr", ocr), 3.0, least), "jpeg": Part(Fixed("jpeg", jpeg), **of_jpeg)}
    return WeightedSum(parts, normalised).score(IMAGES[0], PROMPTS[0])


def test_below_its_threshold_a_part_counts_as_0():
    low = summed(0.4, 0.8, least=0.5)
    assert low.value == pytest.approx((0 + 0.8) / 4)
    assert summed(0.5, 0.8, least=0.5).value == pytest.approx((3 * 0.5 + 0.8) / 4)
    assert low.parts == {"ocr": 0.4, "jpeg": 0.8}, "recorded as it is"
    assert low.detail == "ocr 0.400 (not counted) seen; jpeg 0.800 seen"


def test_a_gate_lets_a_part_count_only_where_another_one_passes():
    assert summed(0.7, 1.0, gate=GATE).value == pytest.approx(3 * 0.7 / 4)
    assert summed(0.8, 1.0, gate=GATE).value == pytest.approx((3 * 0.8 + 1.0) / 4)
    assert summed(0.7, 1.0, gate=GATE).terms == ()


def test_normalised_parts_travel_as_terms_and_leave_the_score_as_it_is():
    for of_jpeg, second in [({}, 0.5), ({"gate": GATE}, None), ({"threshold": 0.8}, 0.0)]:
        score = summed(0.6, 0.5, normalised=True, **of_jpeg)
        assert score.terms == (Term(0.75, 0.6), Term(0.25, second))
        assert score.value == pytest.approx(0.575 if second else 0.45)


def test_the_rules_come_from_the_settings_and_are_stored():
    parts = {
        "ocr": {"weight": 2.0, "threshold": 0.5, "layout": "page"},
        "jpeg": {"weight": 1, "gate": {"ocr": 0.8}},
    }
    reward = RewardConfig(scorer="sum", options={"parts": parts, "normalise": "group"})
    chosen = chosen_scorer(reward)
    assert chosen.values == {"parts": parts, "normalise": "group"}
    assert chosen_scorer(RewardConfig(scorer="sum", options=chosen.values)).values == chosen.values
    assert chosen_scorer(RewardConfig(scorer="sum", options={"parts": {"jpeg": 1.0}})).values == {
        "parts": {"jpeg": 1.0}
    }


def test_exact_selection_sees_what_the_sum_counts():
    """ocr alone would keep 0 and 5; with jpeg behind a gate, the seed that has both is worth most."""
    seeds = [(0.0, 1.0), (0.2, 0.9), (0.4, 0.9), (0.9, 0.1), (0.8, 0.9), (1.0, 0.0)]
    values = [summed(ocr, jpeg, gate=GATE).value for ocr, jpeg in seeds]
    assert values == pytest.approx([0.0, 0.15, 0.3, 0.7, 0.825, 0.75])
    assert max_variance_subset(values, 2).indices == (0, 4)
    assert max_variance_subset([ocr for ocr, _ in seeds], 2).indices == (0, 5)


def test_the_planner_sees_the_combined_value():
    config = RunConfig()
    explorer = SeedExplorer(config, [0, 1], PLAIN)
    score = summed(0.7, 1.0, gate=GATE)
    draft = Candidate(0, 0, "full", 0, score.value, score.exact, score.error, 0)
    assert explorer.signal(draft) == explorer.signal(score) == pytest.approx(0.525)
