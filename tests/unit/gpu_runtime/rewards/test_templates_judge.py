"""The judge `templates`: reads what the renderers draw, and is no reward's engine; how a judge is chosen."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpu_runtime.embedded_tasks.registry import TASKS
from gpu_runtime.rewards.registry import ChosenScorer, chosen_judge, read_scorer_options
from gpu_runtime.rewards.scorers.templates import TemplatesScorer, check_prompt, find_shapes, read_glyphs
from gpu_runtime.scheduling.scores import Score, part_figures
from gpu_runtime.worker.scoring_worker import ScoringWorker
from storage.config.loading import load_config
from storage.config.run_config import RewardConfig, RunConfig
from storage.errors import ConfigurationError, PromptFileError, RewardError
from storage.prompts.files import PromptRecord
from tasks.checks.quick_checks import check_inputs

SIGN = PromptRecord(0, 'a red sign that says "K7A"')


def judge_of(config: RunConfig) -> ChosenScorer | None:
    return chosen_judge(config.reward, config.evaluation)


def noisy(image_HWC: np.ndarray, deviation: float) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, deviation, image_HWC.shape)
    return (image_HWC + noise).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("name", ["glyphs", "moving-shapes", "shapes"])
def test_the_renderer_s_pictures_are_exact_and_grain_costs(name: str):
    rng, judge = np.random.default_rng(0), TemplatesScorer()
    for _ in range(12):
        prompt = TASKS[name].draw_prompt(rng)
        image_HWC = TASKS[name].render(prompt, rng)
        clean, grainy = judge.score(image_HWC, prompt), judge.score(noisy(image_HWC, 60), prompt)
        assert clean.exact and clean.value > 0.95, (prompt.text, clean)
        # A path has no grain: a clip's value tells whether the shapes are there.
        assert name == "moving-shapes" or grainy.value < clean.value - 0.02, (prompt.text, grainy)


def test_a_wrong_character_counts_nothing_and_an_empty_sign_too():
    image_HWC = TASKS["glyphs"].render(SIGN, np.random.default_rng(0))
    read, correlations = read_glyphs(image_HWC, "K1A")
    assert read == "K7A"
    assert correlations[1] == 0 and min(correlations[0], correlations[2]) > 0.99
    judged = TemplatesScorer().score(image_HWC, PromptRecord(0, 'a red sign that says "K1A"'))
    assert judged.value == pytest.approx(2 / 3, abs=0.01) and not judged.exact
    flat = np.full((32, 48, 3), 90, np.uint8)
    assert TemplatesScorer().score(flat, SIGN) == Score(0.0, False, "AAA")


def test_a_wrong_colour_is_seen_and_nothing_is_found_on_the_background():
    row = {"tag": "colors", "include": [{"class": "circle", "count": 1, "color": "red"}]}
    red, task = PromptRecord(0, "a photo of a red circle", row), TASKS["shapes"]
    blue_row = {"tag": "colors", "include": [{"class": "circle", "count": 1, "color": "blue"}]}
    blue = PromptRecord(0, "a photo of a blue circle", blue_row)
    image_HWC = task.render(blue, np.random.default_rng(0))
    assert [(one.class_name, one.colour) for one in find_shapes(image_HWC)] == [("circle", "blue")]
    assert TemplatesScorer().score(image_HWC, red).value == pytest.approx(0.5, abs=0.01), "the count alone"
    assert TemplatesScorer().score(image_HWC, blue).exact
    empty_HWC = np.full((32, 32, 3), (24, 24, 28), np.uint8)
    assert find_shapes(empty_HWC) == []
    assert TemplatesScorer().score(empty_HWC, red).value == 0


def test_what_neither_renderer_draws_is_refused():
    for text in ('a sign that says "OPEN"', 'a sign that says "A-B"', "a dog"):
        with pytest.raises(PromptFileError):
            check_prompt(PromptRecord(0, text))
    with pytest.raises(RewardError, match="64 x 64"):
        TemplatesScorer().score(np.zeros((64, 64, 3), np.uint8), SIGN)


def test_the_judge_is_named_by_a_setting_and_is_no_part_of_the_reward():
    config = load_config("glyphs", ["evaluation.judge=templates"], {})
    judge = judge_of(config)
    assert judge is not None and judge.name == "templates"
    assert judge_of(load_config("glyphs", ["evaluation.judge="], {})) is None
    same = ["evaluation.judge=jpeg", "reward.scorer=sum", "reward.options.parts={ocr=1, jpeg=1}"]
    with pytest.raises(ConfigurationError, match="which the reward is made of"):
        judge_of(load_config("glyphs", same, {}))
    with pytest.raises(ConfigurationError, match="combines scorers"):
        judge_of(load_config("glyphs", ["evaluation.judge=sum", "evaluation.options.parts.jpeg=1"], {}))
    with pytest.raises(ConfigurationError, match="did you mean templates"):
        judge_of(load_config("glyphs", ["evaluation.judge=template"], {}))
    with pytest.raises(ConfigurationError, match=r"evaluation\.judge names none"):
        judge_of(load_config("glyphs", ["evaluation.judge=", "evaluation.options.layout=page"], {}))


def test_the_judge_s_options_are_read_and_kept():
    settings = ["evaluation.judge=ocr", "evaluation.options.layout=page"]
    config = read_scorer_options(load_config("glyphs", settings, {}))
    assert config.evaluation.options == {"layout": "page"}, "another layout is another judge than the reward"
    with pytest.raises(ConfigurationError, match=r"evaluation\.options\.layout"):
        judge_of(load_config("glyphs", ["evaluation.judge=ocr", "evaluation.options.layout=book"], {}))


def test_held_out_prompts_that_it_cannot_judge_are_refused_before_a_run(tmp_path):
    file = tmp_path / "held-out.txt"
    file.write_text('a red sign that says "AB"\n', encoding="utf-8")
    settings = ["evaluation.judge=templates", f"prompts.evaluate={file}", "evaluation.prompts=1"]
    with pytest.raises(PromptFileError, match=r"evaluation\.judge is 'templates'"):
        check_inputs(load_config("glyphs", settings, {}))


def test_a_scorer_s_process_judges_held_out_images_twice_and_others_once():
    worker = ScoringWorker(RewardConfig(scorer="jpeg"), judge=RewardConfig(scorer="templates"))
    image_HWC = TASKS["glyphs"].render(SIGN, np.random.default_rng(0))
    images, prompts = [image_HWC, image_HWC], [SIGN, PromptRecord(1, "a dog")]
    assert [score.judge for score in worker.score(images, prompts)] == [None, None]
    scores = pickle.loads(pickle.dumps(worker.score(images, prompts, held_out=True)))
    assert all(score.error is None for score in scores), "the judge's failure is not the reward's"
    assert part_figures(scores[0])["judge"] > 0.99
    assert scores[1].judge.error is not None and part_figures(scores[1]) == {}, "and never a 0"
