"""Scorers that look at whole pictures: real classes with tiny random weights, formulas by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.judge_models.clip import Clip
from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.rewards.registry import SCORERS, build_scorer, chosen_scorer
from gpu_runtime.rewards.scorers.deepseek_ocr import DeepseekOcrScorer
from gpu_runtime.rewards.text_rules import normalise, ocr_reward
from storage.config.run_config import RewardConfig
from storage.errors import ModelError, PromptFileError
from storage.prompts.files import PromptRecord
from tests.tiny_judges import save_clip, save_detector, save_reader

NOISE = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
FLAT = np.full((40, 56, 3), 90, np.uint8)
SIGN = PromptRecord(0, 'a sign that says "Open"')


Options = dict[str, dict[str, Any]]
"""Of each scorer, by its name."""


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    folder = tmp_path_factory.mktemp("judges")
    clip = str(save_clip(folder / "clip"))
    return {
        "clip-score": {"clip": clip},
        "pick-score": {"model": str(save_clip(folder / "pick", seed=1)), "processor": clip},
        "deepseek-ocr": {"reader": str(save_reader(folder / "reader")), "tokens": 5},
    }


def built(name: str, options: dict[str, Any]) -> Scorer:
    return build_scorer(RewardConfig(scorer=name, options=options))


def test_the_scorers_that_take_a_gpu_are_those_that_can_move(options: Options, tmp_path: Path):
    geneval = {"detector": str(save_detector(tmp_path / "detector"))} | options["clip-score"]
    own = options | {"geneval": geneval}
    names = set(SCORERS.names()) - {"sum", "remote", "vlm"}
    can_move = {name for name in names if hasattr(built(name, own.get(name, {})), "move")}
    assert can_move == {name for name in names if SCORERS.find(name).uses_gpu}
    assert can_move == {"geneval", "deepseek-ocr", "clip-score", "pick-score"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.parametrize("name", ["clip-score", "pick-score", "deepseek-ocr"])
def test_a_gpu_judges_like_the_cpu(options: Options, name: str):
    scorer = built(name, options[name])
    expected = scorer.score(NOISE, SIGN)
    getattr(scorer, "move")("cuda")  # noqa: B009 - not every scorer has it
    assert scorer.score(NOISE, SIGN).value == pytest.approx(expected.value, abs=1e-2)


def test_jpeg_is_the_share_of_bytes_saved():
    scorer = built("jpeg", {})
    file = io.BytesIO()
    Image.fromarray(NOISE).save(file, "JPEG", quality=95)
    score = scorer.score(NOISE, SIGN)
    assert score.value == pytest.approx(1 - len(file.getvalue()) / (40 * 56 * 3))
    assert (score.exact, score.detail) == (False, f"{len(file.getvalue())} bytes")
    assert 0 <= score.value < scorer.score(FLAT, SIGN).value < 1
    assert scorer.score(NOISE[:1, :1], SIGN).value == 0.0  # the header alone is longer than the pixels


def test_clip_score_is_the_cosine_times_two_and_a_half(options: Options):
    scorer = built("clip-score", options["clip-score"])
    clip = Clip.load("reward.options.clip", options["clip-score"]["clip"])
    seen: list[float] = []
    for prompt in (SIGN, PromptRecord(1, "zebra"), PromptRecord(2, "x" * 500)):
        cosine = float(clip.of_pictures([NOISE])[0] @ clip.of_texts([prompt.text])[0])
        seen.append(scorer.score(NOISE, prompt).value)
        assert seen[-1] == pytest.approx(min(1.0, max(0.0, 2.5 * cosine)), abs=1e-6)
    assert len(set(seen)) > 1


def test_pick_score_is_the_scaled_cosine_over_26(options: Options):
    scorer = built("pick-score", options["pick-score"])
    clip = Clip.load("reward.options.model", options["pick-score"]["model"])
    cosine = float(clip.of_pictures([FLAT])[0] @ clip.of_texts([SIGN.text])[0])
    score = scorer.score(FLAT, SIGN)
    scale = float(np.exp(2.6592))  # what a new CLIP begins with
    assert score.value == pytest.approx(max(0.0, scale * cosine / 26), abs=1e-4)
    assert score.detail.startswith("score ")


def test_vectors_have_length_one(options: Options):
    clip = Clip.load("reward.options.clip", options["clip-score"]["clip"])
    assert clip.of_pictures([NOISE, FLAT]).norm(dim=-1).tolist() == pytest.approx([1, 1])
    assert clip.of_texts(["a", "b c"]).norm(dim=-1).tolist() == pytest.approx([1, 1])


def test_deepseek_reads_the_same_twice_and_is_judged_as_ocr_is(options: Options):
    scorer = built("deepseek-ocr", options["deepseek-ocr"])
    assert isinstance(scorer, DeepseekOcrScorer)
    with pytest.raises(PromptFileError, match="no text in double quotes"):
        scorer.score(NOISE, PromptRecord(0, "a sign"))
    score = scorer.score(NOISE, SIGN)
    assert score == scorer.score(NOISE, SIGN)
    assert score.value == ocr_reward("open", normalise(score.detail))
    assert len(score.detail) <= options["deepseek-ocr"]["tokens"]


def test_lines_and_capitals_make_no_difference_to_the_target(
    options: Options, monkeypatch: pytest.MonkeyPatch
):
    scorer = built("deepseek-ocr", options["deepseek-ocr"])
    monkeypatch.setattr(scorer, "read", lambda image: "op\nEN  now")
    assert scorer.score(NOISE, SIGN).exact


@pytest.mark.parametrize(
    ("scorer", "setting"),
    [
        ("clip-score", "clip"),
        ("pick-score", "model"),
        ("pick-score", "processor"),
        ("deepseek-ocr", "reader"),
    ],
)
def test_missing_weights_are_refused_by_their_setting(options: Options, scorer: str, setting: str):
    missing = options[scorer] | {setting: "nobody/has-this"}
    chosen = chosen_scorer(RewardConfig(scorer=scorer, options=missing))
    for refused in (chosen.build, chosen.check_files):
        with pytest.raises(
            ModelError, match=rf"reward\.options\.{setting} = 'nobody/has-this' is not a local folder"
        ):
            refused()


def test_weights_of_another_model_are_refused(tmp_path: Path, options: Options):
    detector = save_detector(tmp_path / "detector")
    with pytest.raises(ModelError, match=r"type 'mask2former', not 'deepseek_ocr2'"):
        built("deepseek-ocr", {"reader": str(detector)})
    (tmp_path / "config.json").write_text("[")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        built("deepseek-ocr", {"reader": str(tmp_path)})
    with pytest.raises(ModelError, match=r"reward\.options\.processor: .* no CLIP tokenizer"):
        built("pick-score", options["pick-score"] | {"processor": str(detector)})


def test_half_a_file_of_weights_is_refused(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    folder = save_clip(tmp_path / "clip")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if "visual_projection" not in name},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(
        ModelError, match=r"lacks 1 weights of a CLIPModel, such as visual_projection\.weight"
    ):
        Clip.load("reward.options.clip", str(folder))


def test_a_picture_scores_the_same_in_any_company(options: Options):
    scorer = built("clip-score", options["clip-score"])
    alone = score_each(scorer, [NOISE], [SIGN])[0]
    assert score_each(scorer, [FLAT, NOISE], [SIGN, SIGN])[1] == alone
