"""Scorers that look at whole pictures: real classes with tiny random weights, formulas by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file as safetensors_file

from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.judge_models.clip import Clip
from gpu_runtime.rewards.protocol import Scorer, SupportsTo
from gpu_runtime.rewards.registry import SCORERS, build_scorer, chosen_scorer
from gpu_runtime.rewards.scorers.deepseek_ocr import DeepseekOcrScorer
from gpu_runtime.rewards.text_rules import normalise, ocr_reward
from storage.config.reward import RewardConfig
from storage.errors import ModelError, PromptFileError
from storage.prompts.files import PromptRecord
from tests.tiny_judges import save_clip, save_detector, save_head, save_image_reward, save_reader

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
        "aesthetic": {"clip": clip, "head": _head_file(folder)},
        "image-reward": {"weights": _image_reward_file(folder), "tokenizer": str(folder / "liked")},
    }


def _head_file(folder: Path) -> str:
    save_head(folder / "head.pth", width=8)
    return str(folder / "head.pth")


def _image_reward_file(folder: Path) -> str:
    save_image_reward(folder / "liked")
    return str(folder / "liked" / "ImageReward.pt")


def built(name: str, options: dict[str, Any]) -> Scorer:
    return build_scorer(RewardConfig(scorer=name, options=options))


def test_the_scorers_that_take_a_gpu_are_those_that_can_move(options: Options, tmp_path: Path):
    geneval = {"detector": str(save_detector(tmp_path / "detector"))} | options["clip-score"]
    own = options | {"geneval": geneval}
    names = set(SCORERS.names()) - {"sum", "remote", "vlm"}
    can_move = {name for name in names if isinstance(built(name, own.get(name, {})), SupportsTo)}
    assert can_move == {name for name in names if SCORERS.find(name).uses_gpu}
    large = {"geneval", "deepseek-ocr", "clip-score", "pick-score", "image-reward", "aesthetic"}
    assert can_move == large


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.parametrize("name", ["clip-score", "pick-score", "deepseek-ocr", "image-reward", "aesthetic"])
def test_a_gpu_judges_like_the_cpu(options: Options, name: str):
    scorer = built(name, options[name])
    expected = scorer.score(NOISE, SIGN)
    assert isinstance(scorer, SupportsTo)
    scorer.move("cuda")
    assert scorer.score(NOISE, SIGN).value == pytest.approx(expected.value, abs=1e-2)


def test_jpeg_is_the_share_of_bytes_saved():
    scorer = built("jpeg", {})
    scorer.check(SIGN)
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
        scorer.check(prompt)
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


def straight_through(weights: dict[str, torch.Tensor], vector: torch.Tensor, prefix: str) -> float:
    """A head by hand: linear layers one after the other, without the dropouts."""
    for place in (0, 2, 4, 6, 7):
        vector = weights[f"{prefix}{place}.weight"] @ vector + weights[f"{prefix}{place}.bias"]
    return float(vector)


def test_aesthetic_is_the_heads_number_of_clips_vector_over_10(options: Options, tmp_path: Path):
    clip = Clip.load("reward.options.clip", options["clip-score"]["clip"])
    weights = save_head(tmp_path / "other.pth", width=8, seed=3)
    weights["layers.7.bias"] += 5.0  # into the range that occurs
    safetensors_file(weights, tmp_path / "other.safetensors")
    expected = straight_through(weights, clip.of_pictures([NOISE])[0], "layers.")
    changed = options["aesthetic"] | {"head": str(tmp_path / "other.safetensors")}
    score = built("aesthetic", changed).score(NOISE, SIGN)
    assert score.value == pytest.approx(expected / 10, abs=1e-6)
    assert 0.3 < score.value < 0.7
    assert (score.exact, score.detail) == (False, f"vote {expected:.3f}")


@torch.inference_mode()
def test_image_reward_is_its_authors_formula_on_transformers_own_encoders(tmp_path: Path):
    vision, text = save_image_reward(tmp_path / "liked", seed=4)
    file = tmp_path / "liked" / "ImageReward.pt"
    scorer = built("image-reward", {"weights": str(file), "tokenizer": str(tmp_path / "liked")})
    head = torch.load(file)
    square = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    mean, deviation = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    pixels = torch.tensor((square / 255 - mean) / deviation, dtype=torch.float32).movedim(-1, 0)[None]
    picture: Any = vision(pixel_values=pixels).last_hidden_state
    numbers = []
    for prompt, tokens in (("a red dog", [2, 5, 6, 7, 3]), ("a Dog", [2, 5, 7, 3])):
        seen: Any = text(  # without padding, which the mask hides
            input_ids=torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            encoder_hidden_states=picture,
        ).last_hidden_state
        number = (straight_through(head, seen[0, 0], "mlp.layers.") - 0.16717363) / 1.0333395
        score = scorer.score(square, PromptRecord(0, prompt))
        assert score.value == pytest.approx(1 / (1 + np.exp(-number)), abs=1e-5)
        assert float(score.detail.removeprefix("score ")) == pytest.approx(number, abs=2e-3)
        numbers.append(number)
    assert numbers[0] != pytest.approx(numbers[1], abs=1e-4)
    assert 0 < scorer.score(NOISE, PromptRecord(0, "dog " * 100)).value < 1


Damage = dict[str, Any]


@pytest.mark.parametrize(
    ("scorer", "option", "damage", "says"),
    [
        ("aesthetic", "head", {"layers.0.weight": None}, r"has no layers\.0\.weight"),
        ("aesthetic", "head", {"layers.4.bias": None}, r"has no layers\.4\.bias"),
        (
            "aesthetic",
            "head",
            {"layers.2.weight": torch.zeros(6, 9)},
            r"layers\.2 has weights of shape \(6, 9\)",
        ),
        (
            "aesthetic",
            "head",
            {"layers.7.weight": torch.zeros(2, 4)},
            r"layers\.7 has weights of shape \(2, 4\)",
        ),
        ("aesthetic", "head", {"layers.0.weight": "text"}, "holds no weights by name"),
        ("image-reward", "weights", {"blip.visual_encoder.pos_embed": None}, "has no pos_embed"),
        (
            "image-reward",
            "weights",
            {"blip.visual_encoder.norm.bias": None},
            "lacks 1 weights of a BlipVisionModel",
        ),
        ("image-reward", "weights", {"mlp.layers.7.bias": None}, r"has no mlp\.layers\.7\.bias"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    options: Options, tmp_path: Path, scorer: str, option: str, damage: Damage, says: str
):
    file = tmp_path / "damaged.pt"
    whole = torch.load(options[scorer][option]) | damage
    torch.save({name: value for name, value in whole.items() if value is not None}, file)
    with pytest.raises(ModelError, match=says) as refused:
        built(scorer, options[scorer] | {option: str(file)})
    assert str(refused.value).startswith(f"reward.options.{option}")


def test_a_file_that_holds_no_weights_is_refused(options: Options, tmp_path: Path):
    for name, content in (("a.pth", b"<html>"), ("b.safetensors", b"<html>"), ("c.pt", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match="holds no weights that torch can read") as refused:
            built("aesthetic", options["aesthetic"] | {"head": str(tmp_path / name)})
        assert "\n" not in str(refused.value)
    with pytest.raises(ModelError, match=r"reward\.options\.head = .* is no file here"):
        built("aesthetic", options["aesthetic"] | {"head": str(tmp_path / "none.pth")})


def test_vectors_have_length_one(options: Options):
    clip = Clip.load("reward.options.clip", options["clip-score"]["clip"])
    assert clip.of_pictures([NOISE, FLAT]).norm(dim=-1).tolist() == pytest.approx([1, 1])
    assert clip.of_texts(["a", "b c"]).norm(dim=-1).tolist() == pytest.approx([1, 1])


def test_deepseek_reads_the_same_twice_and_is_judged_as_ocr_is(options: Options):
    scorer = built("deepseek-ocr", options["deepseek-ocr"])
    assert isinstance(scorer, DeepseekOcrScorer)
    scorer.check(SIGN)
    with pytest.raises(PromptFileError, match="no text in double quotes"):
        scorer.check(PromptRecord(0, "a sign"))
    score = scorer.score(NOISE, SIGN)
    assert score == scorer.score(NOISE, SIGN)
    assert score.value == ocr_reward("open", normalise(score.detail))
    assert len(score.detail) <= options["deepseek-ocr"]["tokens"]


def test_lines_and_capitals_make_no_difference_to_the_target(
    options: Options, monkeypatch: pytest.MonkeyPatch
):
    scorer = DeepseekOcrScorer.load(options["deepseek-ocr"]["reader"], 5)
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
            ModelError, match=rf"reward\.options\.{setting} = 'nobody/has-this' is no folder here"
        ):
            refused()


def test_weights_of_another_model_are_refused(tmp_path: Path, options: Options):
    detector = save_detector(tmp_path / "detector")
    with pytest.raises(ModelError, match=r"type 'mask2former', not 'deepseek_ocr2'"):
        built("deepseek-ocr", {"reader": str(detector)})
    (tmp_path / "config.json").write_text("[")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match=r"config\.json is no JSON object"):
        built("deepseek-ocr", {"reader": str(tmp_path)})
    with pytest.raises(ModelError, match=r"reward\.options\.processor: .* no tokenizer and picture size"):
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
