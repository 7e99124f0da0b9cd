"""Clips on their way from the decoder to the pages: which frames are judged, and what is kept."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli.command_line import app
from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.diffusion.samples import GeneratedImage, GeneratedSample, Trajectory
from gpu_runtime.quality.meter import measured
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.options import RemoteOptions, VlmOptions
from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.rewards.scorers.remote import RemoteScorer
from gpu_runtime.rewards.scorers.vlm import VlmScorer
from gpu_runtime.rewards.scorers.weighted_sum import Part, WeightedSum
from gpu_runtime.scheduling.scores import Score, Term
from gpu_runtime.worker.scoring_worker import ScoringWorker
from storage.config.loading import load_config
from storage.config.run_config import RewardConfig
from storage.errors import ConfigurationError
from storage.pictures import (
    CLIP_BYTES,
    FRAME_MS,
    animated,
    chosen_frames,
    data_uri,
    frame_places,
    frames_of,
    picture_base64,
    picture_file,
    read_frames,
)
from storage.prompts.files import PromptRecord
from storage.readers.tensorboard_reader import TensorboardReader
from tasks.checks.quick_checks import check_inputs
from tasks.evaluation import write_images
from tests.fake_drafters import FakePool, fake_prompts
from tests.judge_servers import Judge, says
from tests.scripted import Script
from tests.tiny_run import request
from ui.elements.image_grid import large_html
from ui.pages.evaluations.data import load_pictures

PROMPT = PromptRecord(0, "a ball moves")
NOTHING = np.empty(0, np.float32)
R = TypeVar("R")


def clip(*levels: int) -> np.ndarray:
    """A clip whose frames are grey, of these levels: (F, 4, 6, 3)."""
    return np.stack([np.full((4, 6, 3), level, np.uint8) for level in levels])


def levels(image: np.ndarray) -> list[int]:
    return image[..., 0, 0, 0].tolist()


class ByLevel(Scorer):
    """A scorer of images: level / 100, exact from 50, and 13 fails."""

    name = "level"

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        level = int(image_HWC[0, 0, 0])
        assert image_HWC.shape == (4, 6, 3)
        if level == 13:
            raise ValueError("unlucky")
        return Score(level / 100, level >= 50, f"level {level}", usd=0.5)


class AtOnce(ByLevel):
    """The same, for several images at once."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        self.calls.append(len(images))
        return [self.score(image, prompt) for image, prompt in zip(images, prompts, strict=True)]


@pytest.mark.parametrize(
    ("count", "wanted", "places"),
    [
        (8, 1, [4]), (1, 1, [0]), (5, 3, [0, 2, 4]), (8, 3, [0, 4, 7]), (9, 4, [0, 3, 5, 8]), (1, 3, [0]),
        (2, 3, [0, 1]), (3, 9, [0, 1, 2]), (9, 2, [0, 8]),
    ],
)  # fmt: skip
def test_frames_are_chosen_at_even_distances(count: int, wanted: int, places: list[int]):
    assert frame_places(count, wanted) == places


def test_frames_as_the_settings_name_them():
    whole = clip(*range(9))
    assert levels(chosen_frames(whole, "all")) == list(range(9))
    assert levels(chosen_frames(whole, "first,middle,last")) == [0, 4, 8]
    assert levels(chosen_frames(whole, 2)) == [0, 8]
    image = whole[0]
    assert chosen_frames(image, 2) is image


def test_settings_name_frames_or_are_refused():
    def frames(value: str) -> int | str:
        return load_config("glyphs", [f"reward.frames={value}"], {}).reward.frames

    assert (frames("all"), frames("first,middle,last"), frames("4")) == ("all", "first,middle,last", 4)
    assert load_config("glyphs", [], {"SPOTLIGHT_REWARD__FRAMES": "4"}).reward.frames == 4
    for wrong in ("0", "some", "2.5", "true", "1025"):
        with pytest.raises(ConfigurationError, match=r"reward\.frames = .*1,024, or all, or first,"):
            frames(wrong)
    with pytest.raises(ConfigurationError, match=r"reward\.frames is 4, but embedded makes images; omit"):
        check_inputs(load_config("glyphs", ["reward.frames=4"], {}))


def test_the_mean_of_a_clip_s_frames_counts():
    batch = AtOnce()
    for scorer in (ByLevel(), batch):
        first, image, last = score_each(scorer, [clip(20, 40, 90), clip(10)[0], clip(50, 70)], [PROMPT] * 3)
        assert first.value == pytest.approx(0.5) and not first.exact and first.usd == 1.5
        assert first.detail == "level 20 | level 40 | level 90"
        assert (image.value, image.detail, image.usd) == (0.1, "level 10", 0.5)
        assert last.value == pytest.approx(0.6) and last.exact
    assert batch.calls == [6], "all frames of a call at once"


def test_terms_of_frames_are_averaged_where_their_gates_are_open():
    class Summed(ByLevel):
        def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
            level = int(image_HWC[0, 0, 0]) / 100
            terms = Term(0.75, level), Term(0.2, level if level > 0.5 else None), Term(0.05, None)
            return Score(level, False, "", terms=terms)

    (score,) = score_each(Summed(), [clip(20, 60, 100)], [PROMPT])
    assert [term.weight for term in score.terms] == [0.75, 0.2, 0.05]
    assert [term.value for term in score.terms] == [pytest.approx(0.6), pytest.approx(0.8), None]


def test_a_scorer_tells_whether_it_judges_frames_one_by_one(monkeypatch: pytest.MonkeyPatch):
    class Whole(ByLevel):
        takes_clips = True

    of = {"frames": ByLevel(), "whole": Whole(), "sum": WeightedSum({"level": Part(ByLevel())}),
          "wholes": WeightedSum({"level": Part(Whole())})}  # fmt: skip
    monkeypatch.setattr("gpu_runtime.worker.scoring_worker.build_scorer", lambda reward: of[reward.scorer])

    def ready(scorer: str, judge: str | None = None) -> bool:
        second = None if judge is None else RewardConfig(scorer=judge)
        return ScoringWorker(RewardConfig(scorer=scorer), judge=second).ready()

    assert ready("frames") and ready("sum") and ready("whole", "frames")
    assert not ready("whole") and not ready("wholes", "whole")


def test_a_frame_without_a_score_costs_its_clip_the_score():
    good, bad = score_each(ByLevel(), [clip(20, 40), clip(20, 13, 40)], [PROMPT] * 2)
    assert good.error is None
    assert (bad.value, bad.exact, bad.usd) == (0.0, False, 1.0)
    assert str(bad.error).startswith("frame 1 of those judged: ValueError: unlucky")


def test_a_function_of_frames_gets_the_whole_clip(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("def rises(frames, prompt):\n    first, last = frames[0], frames[-1]\n"
                    "    return (last.getpixel((0, 0))[0] - first.getpixel((0, 0))[0]) / 100 * len(frames)\n"
                    "def first(image, prompt):\n    return image.getpixel((0, 0))[0] / 100\n")  # fmt: skip
    rises = build_scorer(RewardConfig(scorer=f"{file}:rises"))
    scores = score_each(rises, [clip(10, 90, 30), clip(7)[0]], [PROMPT] * 2)
    assert [score.value for score in scores] == pytest.approx([0.6, 0]), "an image is a clip of one frame"
    mean = build_scorer(RewardConfig(scorer=f"{file}:first"))
    assert score_each(mean, [clip(10, 90, 30)], [PROMPT])[0].value == pytest.approx(1.3 / 3)


def test_a_threshold_in_a_sum_looks_at_the_whole_clip():
    sums = WeightedSum({"level": Part(ByLevel(), threshold=0.5)})
    high, low = score_each(sums, [clip(10, 90), clip(10, 70)], [PROMPT] * 2)
    # The mean of the first is .5; frame by frame its 10 would not have counted.
    assert high.value == pytest.approx(0.5) and high.parts == {"level": pytest.approx(0.5)}
    assert low.value == 0.0


def pixels(encoded: str) -> int:
    return int(np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))[0, 0, 0])


def test_a_server_gets_the_frames_of_a_clip_as_a_list():
    judge = Judge(says(200, {"scores": [0.25, 0.5]}))
    scorer = RemoteScorer(RemoteOptions(url=judge.url))
    scores = score_each(scorer, [clip(1, 2, 3), clip(9)[0]], [PROMPT] * 2)
    judge.close()
    assert [score.value for score in scores] == [0.25, 0.5]
    (body,) = judge.bodies
    assert [pixels(frame) for frame in body["images"][0]] == [1, 2, 3]
    assert pixels(body["images"][1]) == 9


def test_a_language_model_sees_a_clip_s_frames_before_one_question():
    judge = Judge(says(200, {"choices": [{"message": {"content": "5"}, "finish_reason": "stop"}]}))
    scorer = VlmScorer(VlmOptions(url=judge.url, model="m", usd_per_image=0.1), environ={})
    (score,) = score_each(scorer, [clip(1, 2, 3)], [PROMPT])
    judge.close()
    assert (score.value, score.usd) == (0.5, 0.1)
    *frames, question = judge.bodies[0]["messages"][0]["content"]
    assert [pixels(one["image_url"]["url"].partition("base64,")[2]) for one in frames] == [1, 2, 3]
    assert question["type"] == "text"


def test_only_the_chosen_frames_travel_to_a_scorer():
    sent: list[np.ndarray] = []

    class Receiver(RemoteActor[ScoringWorker]):
        def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
            sent.extend(args[0])
            return Future()

        def kill(self) -> None:
            pass

    class Pool(FakePool):
        def _start(self) -> RemoteActor[ScoringWorker]:
            self._reward = RewardConfig(frames=2)
            self._loaded["scorer"] = Future()
            self._loaded["scorer"].set_result(False)
            return Receiver("scorer")

    pool = Pool(1, Script(), lambda prompt, seed: Score(0.5, False, ""))
    pool.judge([GeneratedImage(request(0, 0), clip(1, 2, 3, 4, 5))], fake_prompts(1))
    assert [levels(image) for image in sent] == [[1, 5]]


def test_the_look_of_a_clip_is_the_mean_of_three_frames():
    found = measured(np.repeat(np.repeat(clip(0, 255, 51, 255, 102), 4, 1), 4, 2), PROMPT)
    assert found["brightness"] == pytest.approx((0 + 0.2 + 0.4) / 3)


def test_a_small_clip_is_kept_without_loss():
    noise = np.random.default_rng(0).integers(0, 256, (8, 32, 48, 3), np.uint8)
    content = base64.b64decode(picture_base64(noise))
    assert np.array_equal(read_frames(content), noise)
    assert data_uri(content).startswith("data:image/webp;base64,")


@pytest.mark.parametrize("grey", [[40] * 17, [0] * 5 + [50, 100, 200], [0, 0, 90, 90, 90], [9, 9], [9]])
@pytest.mark.parametrize("quality", [None, 75])
def test_equal_frames_of_a_file_are_read_back_one_by_one(grey: list[int], quality: int | None):
    content = animated([Image.fromarray(frame) for frame in clip(*grey)], FRAME_MS, quality)
    found = read_frames(content)
    assert found.shape == ((len(grey), 4, 6, 3) if len(grey) > 1 else (4, 6, 3))
    assert frames_of(found)[:, 0, 0, 0].tolist() == pytest.approx(grey, abs=0 if quality is None else 6)


def test_an_animation_of_another_program_is_read_by_its_times():
    file = io.BytesIO()
    first, *rest = (Image.fromarray(frame) for frame in clip(10, 200, 90))
    first.save(file, format="GIF", save_all=True, append_images=rest, duration=[40, 120, 10])
    assert levels(read_frames(file.getvalue())) == [10, 200, 200, 200, 90]


def test_an_image_is_kept_as_png():
    noise = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    content = picture_file(noise)
    assert np.array_equal(read_frames(content), noise)
    assert data_uri(content).startswith("data:image/png;base64,")
    assert Image.open(io.BytesIO(picture_file(noise, 24))).size == (24, 16)


def test_a_clip_is_made_smaller_by_its_longer_side():
    for shape, kept in (((4, 16, 512, 3), (4, 8, 256, 3)), ((4, 512, 16, 3), (4, 256, 8, 3))):
        assert (
            read_frames(picture_file(np.random.default_rng(0).integers(0, 256, shape, np.uint8))).shape
            == kept
        )


def test_a_large_clip_loses_quality_until_it_fits():
    noise = np.random.default_rng(0).integers(0, 256, (48, 144, 256, 3), np.uint8)  # as bad as it gets
    content = picture_file(noise)
    found = read_frames(content)
    assert len(content) <= CLIP_BYTES
    assert 1 < len(found) <= 48 and found.shape[2] <= 256
    moving = np.full((24, 288, 512, 3), 40, np.uint8)
    for place, frame in enumerate(moving):
        frame[100:180, 16 * place : 16 * place + 80] = 220
    kept = read_frames(picture_file(moving))
    assert kept.shape == (24, 144, 256, 3), "no frame is lost where the file is small enough"
    assert np.abs(kept.astype(int) - moving[:, ::2, ::2]).mean() < 4


def test_a_folder_of_images_holds_clips_that_a_page_shows(tmp_path: Path):
    sample = GeneratedSample(
        request(0, 1), np.repeat(clip(0, 200), 8, 1), Trajectory(NOTHING, NOTHING, NOTHING, NOTHING), NOTHING
    )
    write_images(tmp_path, [sample], [PROMPT])
    assert levels(read_frames((tmp_path / "00000/samples/0001.webp").read_bytes())) == pytest.approx(
        [0, 200], abs=4
    )
    shown = load_pictures(str(tmp_path), ((0, 0), (0, 1)))
    assert shown.keys() == {(0, 1)}
    assert len(read_frames(shown[0, 1])) == 2


def test_pages_show_a_clip_as_an_animated_image():
    row = {"prompt_id": 0, "seed_index": 0, "prompt": "a", "iteration": 0, "score": 0.5, "exact": False,
           "detail": "", "error": None, "png": picture_file(clip(0, 200))}  # fmt: skip
    assert 'src="data:image/webp;base64,UklGR' in large_html(pd.DataFrame([row]))


def test_an_animated_file_is_scored_as_a_clip(tmp_path: Path):
    rewards = tmp_path / "mine.py"
    rewards.write_text("def count(frames, prompt):\n    return len(frames) / 10\n")
    (tmp_path / "clip.webp").write_bytes(picture_file(clip(0, 50, 100, 150, 200)))

    def value(*more: str) -> float:
        arguments = ["score", f"{rewards}:count", str(tmp_path / "clip.webp"), "a", *more]
        return json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)["value"]

    assert value() == 0.5
    assert value("--set", "reward.frames=2") == 0.2


def test_tensorboard_shows_the_first_frame(monkeypatch: pytest.MonkeyPatch):
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(TensorboardReader, "_write", lambda _, *__, **content: written.append(content))
    reader = TensorboardReader.__new__(TensorboardReader)
    reader.evaluation(3, {}, {"held-out/a": picture_file(clip(7, 200))}, 0.0)
    ((picture,),) = (one["summary"]["value"] for one in written if one["summary"]["value"])
    assert levels(read_frames(picture["image"]["encoded_image_string"])) == 7
