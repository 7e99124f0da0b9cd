"""The real classes of detector and CLIP with tiny random weights, and what they are made to say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_runtime.prompt_sets.geneval import CLASSES, COLOURS
from gpu_runtime.rewards.geneval_rules import Detection
from gpu_runtime.rewards.judge_models.clip import GREY, Clip, ClipColours, crop
from gpu_runtime.rewards.judge_models.mask2former import Mask2FormerDetector, instances
from gpu_runtime.rewards.options import GenEvalOptions
from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.rewards.registry import build_scorer
from storage.config.run_config import RewardConfig
from storage.errors import ModelError, RewardError
from storage.prompts.files import PromptRecord
from tests.tiny_judges import save_clip, save_detector

PICTURE = np.random.default_rng(0).integers(0, 256, (48, 80, 3), dtype=np.uint8)
ROW = {
    "tag": "colors",
    "include": [{"class": "tv remote", "count": 1, "color": "red"}],
    "prompt": "a photo of a red tv remote",
}


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> GenEvalOptions:
    folder = tmp_path_factory.mktemp("judges")
    detector, clip = save_detector(folder / "detector"), save_clip(folder / "clip")
    return GenEvalOptions(detector=str(detector), clip=str(clip))


def geneval(judges: GenEvalOptions, **changed: str) -> Scorer:
    return build_scorer(RewardConfig(scorer="geneval", options=judges.model_dump() | changed))


def test_the_detector_is_loaded_and_finds_the_same_again(judges: GenEvalOptions):
    detector = Mask2FormerDetector.load(judges.detector)
    assert detector.class_names == set(CLASSES)  # under GenEval's names, not COCO's
    found = detector.detect(PICTURE, 0.0)
    assert found
    for item in found:
        left, top, right, bottom = item.box
        assert 0 <= left < right <= 80
        assert 0 <= top < bottom <= 48
        assert item.mask_HW is not None and item.mask_HW.shape == (48, 80)
        assert 0 < item.confidence < 1
    assert detector.detect(PICTURE, 0.0) == found
    assert detector.detect(PICTURE, 0.99) == []


def test_masks_of_a_padded_picture_lie_where_the_picture_is(judges: GenEvalOptions):
    detector = Mask2FormerDetector.load(judges.detector)
    whole = np.full((40, 80, 3), 128, np.uint8)  # 48x96 for the model, padded to 64x96
    for item in detector.detect(whole, 0.0):
        assert item.box[2] <= 80 and item.box[3] <= 40


def test_geneval_with_the_real_classes(judges: GenEvalOptions):
    scorer = geneval(judges)
    prompt = PromptRecord(0, ROW["prompt"], ROW)
    scorer.check(prompt)
    score = scorer.score(PICTURE, prompt)
    assert (score.value, score.exact, score.error) == (0.0, False, None)  # random weights are sure of nothing


def test_what_the_outputs_say_by_hand():
    class_logits_QK = torch.log(torch.tensor([[0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.01, 0.01, 0.98]]))
    mask_logits_Qhw = torch.full((3, 4, 4), -9.0)
    mask_logits_Qhw[0, 1:3, :2] = torch.logit(torch.tensor(0.75))
    mask_logits_Qhw[1] = -1.0  # nothing of the second object is seen
    found = instances(class_logits_QK, mask_logits_Qhw, lambda mask_hw: mask_hw, 0.3)
    ((label, confidence, box, mask_HW),) = found
    assert label == 0
    assert confidence == pytest.approx(0.8 * 0.75)
    assert box == (0.0, 1.0, 2.0, 3.0)
    assert mask_HW.sum() == 4
    assert instances(class_logits_QK, mask_logits_Qhw, lambda mask_hw: mask_hw, 0.61) == []


def test_models_that_overflow_judge_no_picture(judges: GenEvalOptions):
    nothing_QK, mask_Qhw = torch.full((3, 3), np.nan), torch.zeros(3, 4, 4)
    with pytest.raises(RewardError, match="detector's outputs are not finite"):
        instances(nothing_QK, mask_Qhw, lambda mask_hw: mask_hw, 0.3)
    scorer = build_scorer(RewardConfig(scorer="clip-score", options={"clip": judges.clip}))
    prompt = PromptRecord(0, "a dog")
    for part in ("visual_projection", "text_projection"):
        weight = getattr(scorer, "_clip")._model.get_submodule(part).weight.data  # noqa: B009
        kept = weight.clone()
        weight[0, 0] = np.nan
        with pytest.raises(RewardError, match="CLIP's vectors are not finite"):
            scorer.score(PICTURE, prompt)
        weight.copy_(kept)
    assert 0 <= scorer.score(PICTURE, prompt).value <= 1


def test_a_crop_shows_the_object_on_grey():
    image_HWC = np.full((4, 6, 3), 200, np.uint8)
    mask_HW = np.zeros((4, 6), bool)
    mask_HW[1, 1] = True
    shown = crop(image_HWC, Detection("dog", "", (1.0, 1.0, 3.0, 3.0), 0.9, mask_HW))
    assert shown.shape == (2, 2, 3)
    assert shown[..., 0].tolist() == [[200, GREY], [GREY, GREY]]
    assert crop(image_HWC, Detection("dog", "", (0.0, 0.0, 6.0, 4.0), 0.9)).min() == 200


def test_the_colour_is_the_likest_of_ten_averaged_texts(judges: GenEvalOptions):
    clip = Clip.load("reward.options.clip", judges.clip)
    noisy = [np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8) for seed in range(6)]
    picture = np.concatenate([np.pad(part, ((0, 0), (0, 1), (0, 0))) for part in noisy], axis=1)
    found = [Detection("cup", "", (8.0 * place, 0.0, 8.0 * place + 7, 9.0), 0.9) for place in range(6)]
    expected = []
    for part in noisy:
        likeness = []
        for colour in COLOURS:
            said = [
                f"a photo of a {colour} cup",
                f"a photo of a {colour}-colored cup",
                f"a photo of a {colour} object",
            ]
            vector_D = clip.of_texts(said).mean(0)
            likeness.append(float(clip.of_pictures([part])[0] @ vector_D / vector_D.norm()))
        expected.append(COLOURS[int(np.argmax(likeness))])
    assert ClipColours(clip).colours_of(picture, found) == expected
    assert len(set(expected)) > 1


def test_weights_that_are_not_there_are_refused(tmp_path: Path, judges: GenEvalOptions):
    for path, says in (
        (
            "nobody/has-this",
            r"reward\.options\.detector = 'nobody/has-this' is not a local folder.*hf download nobody/has",
        ),
        (str(tmp_path / "no folder"), "is not a local folder"),
        (str(tmp_path), r"has no config\.json"),
    ):
        with pytest.raises(ModelError, match=says):
            geneval(judges, detector=path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no weights"):
        geneval(judges, clip=str(tmp_path))


def test_weights_of_another_model_are_refused(judges: GenEvalOptions):
    with pytest.raises(
        ModelError, match=r"reward\.options\.clip: .* type 'mask2former', not 'clip'.* CLIPModel"
    ):
        geneval(judges, clip=judges.detector)


def test_a_detector_without_geneval_s_classes_is_refused(tmp_path: Path):
    folder = save_detector(tmp_path / "few", ("person", "bus"))
    with pytest.raises(ModelError, match=r"2 labels lack 78 of GenEval's classes.*COCO's instances"):
        Mask2FormerDetector.load(str(folder))
