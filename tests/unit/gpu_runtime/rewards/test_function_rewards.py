"""Rewards that are plain functions in a file outside: judged by, and refused.

Runs that learn from them are in `tests/integration/test_how_to.py`; `tests/bad_inputs.jsonl` has one that
cannot judge.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli.command_line import app
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.registry import build_scorer, chosen_judge, chosen_scorer, read_scorer_options
from gpu_runtime.scheduling.scores import Score
from storage.config.loading import load_config
from storage.config.run_config import EvaluationConfig, RewardConfig
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord

REWARDS = """
def red(image, prompt):
    return image.getpixel((0, 0))[0] / 255

def long_prompts(images, prompts):
    return [len(prompt) for prompt in prompts]

def no_number(image, prompt):
    return None

def nan(image, prompt):
    return float("nan")

def inner(image):
    return 1 / 0

def broken(image, prompt):
    return inner(image)

def one(image):
    return 0

def by_row(image, prompt, row):
    return row.pop("level")  # of a row of its own: other images of the prompt have theirs

def by_rows(images, prompts, rows):
    return [row["level"] for row in rows]

def of_frames(frames, prompt, *, row=None):
    return row["level"]

def beside(image, row):
    return len(row) / 10

def too_many(image, prompt, row, more):
    return 0

def inf(image, prompt):
    return float("inf")

def log_of_zero(image, prompt):
    return float("-inf")
"""
IMAGES = [np.full((4, 4, 3), level, np.uint8) for level in (0, 51, 255)]
PROMPTS = [PromptRecord(0, "a"), PromptRecord(1, "bb"), PromptRecord(2, "cccc")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(REWARDS)
    return path


def scores(file: Path, name: str, **options: object) -> list[Score]:
    scorer = build_scorer(RewardConfig(scorer=f"{file}:{name}", options=options))
    return score_each(scorer, IMAGES, PROMPTS)


def test_a_function_judges_each_image_by_its_prompt(file: Path):
    assert [score.value for score in scores(file, "red")] == [0.0, 0.2, 1.0]
    assert [score.value for score in scores(file, "long_prompts", scale=[1, 3])] == [0.0, 0.5, 1.0]
    assert [score.value for score in scores(file, "red", scale="sigmoid")] == pytest.approx(
        [0.5, 1 / (1 + np.exp(-0.2)), 1 / (1 + np.exp(-1))]
    )
    assert not chosen_scorer(RewardConfig(scorer=f"{file}:red")).plugin.gives_verdict


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("by_row", [0.0, 0.5, 1.0]),
        ("by_rows", [0.0, 0.5, 1.0]),
        ("of_frames", [0.0, 0.5, 1.0]),
        ("beside", [0.1, 0.2, 0.4]),  # the second argument is the prompt, whatever its name
    ],
)
def test_a_function_sees_the_row_of_its_prompt(file: Path, name: str, values: list[float]):
    scorer = build_scorer(RewardConfig(scorer=f"{file}:{name}"))
    prompts = [replace(one, metadata={"level": one.prompt_id / 2}) for one in PROMPTS]
    assert [score.value for score in score_each(scorer, IMAGES * 2, prompts * 2)] == values * 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_number", "no_number returned None; a reward returns a number"),
        ("long_prompts", "returned 2, and scores lie in [0, 1]; set reward.options.scale to"),
        ("broken", "mine.py, line 15: return 1 / 0)"),
    ],
)
def test_what_a_function_does_wrong_is_told_with_its_line(file: Path, name: str, said: str):
    assert said in str(scores(file, name)[1].error)


@pytest.mark.parametrize("scale", ["identity", "sigmoid", [0, 10]])
@pytest.mark.parametrize("name", ["nan", "inf"])
def test_nan_and_infinity_are_no_score_on_any_scale(file: Path, name: str, scale: object):
    said = f"score {name} is not in [0, 1]"
    assert [score.error for score in scores(file, name, scale=scale)] == [said] * 3


@pytest.mark.parametrize("scale", ["sigmoid", [-20, 0]])
def test_the_log_of_zero_is_the_lowest_score_of_a_scale(file: Path, scale: object):
    assert [(score.value, score.error) for score in scores(file, "log_of_zero", scale=scale)] == [
        (0, None)
    ] * 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "mine.py:one",
            "it takes (image); a reward is a function of (image, prompt), or of (images, prompts)",
        ),
        (
            "mine.py:too_many",
            "it takes (image, prompt, row, more); a reward is a function of (image, prompt)",
        ),
        ("mine.py:two", "mine.py' has no 'two'; it has red"),
        ("yours.py:one", "yours.py' does not exist"),
        ("math:hypot", "no signature found for builtin <built-in function hypot>; write a function of"),
    ],
)
def test_what_is_no_reward_is_refused(file: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    with pytest.raises(ConfigurationError) as refused:
        chosen_scorer(RewardConfig(scorer=name))
    assert f"reward.scorer = '{name}'" in str(refused.value) and said in str(refused.value)


def test_the_example_judges_blue_and_contrast():
    example = Path(__file__).resolve().parents[4] / "examples" / "plain_reward.py"
    blue = np.zeros((4, 4, 3), np.uint8)
    blue[:2, :, 2] = 255
    [score] = score_each(build_scorer(RewardConfig(scorer=f"{example}:blue")), [blue], PROMPTS[:1])
    assert score.value == 0.75
    options = {"scale": [0, 128]}
    contrast = build_scorer(RewardConfig(scorer=f"{example}:contrast", options=options))
    assert score_each(contrast, [blue], PROMPTS[:1])[0].value == pytest.approx(blue.std() / 128)


def test_a_run_finds_its_file_from_another_folder(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    alone = load_config("glyphs", ["reward.scorer=mine.py:red"], {})
    assert read_scorer_options(alone).reward.scorer == f"{file}:red"
    parts = 'reward.options.parts={"mine.py:red" = 1, jpeg = {weight = 2, gate = {"mine.py:red" = 0.5}}}'
    both = read_scorer_options(load_config("glyphs", ["reward.scorer=sum", parts], {}))
    assert both.reward.options["parts"] == {
        f"{file}:red": 1, "jpeg": {"weight": 2, "gate": {f"{file}:red": 0.5}}
    }  # fmt: skip
    assert read_scorer_options(both) == both, "as a resumed run reads it"


def test_a_function_that_is_learned_from_is_no_second_judge_by_any_path(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(file.parent)
    with pytest.raises(ConfigurationError, match="which the reward is made of"):
        chosen_judge(RewardConfig(scorer="mine.py:red"), EvaluationConfig(judge=f"{file}:red"))


def test_score_tries_a_reward_on_one_image(file: Path, tmp_path: Path):
    Image.fromarray(IMAGES[1]).save(tmp_path / "image.png")
    for name, code in (("red", 0), ("broken", 1)):
        done = CliRunner().invoke(
            app, ["score", f"{file}:{name}", str(tmp_path / "image.png"), "a"], catch_exceptions=False
        )
        assert done.exit_code == code
        said = json.loads(done.stdout)
        assert (said["value"], said["exact"], said["error"] is None) == (
            (0.2, None, True),
            (0.0, None, False),
        )[code]
