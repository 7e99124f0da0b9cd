from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from gpu_runtime.embedded_tasks.glyphs import COLOURS, GlyphsTask
from gpu_runtime.rewards.options import OcrOptions
from gpu_runtime.rewards.scorers.ocr import OcrScorer
from gpu_runtime.rewards.text_rules import normalise, ocr_reward, target_text
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord


@pytest.fixture(scope="module")
def scorer() -> OcrScorer:
    return OcrScorer(OcrOptions())


@pytest.fixture(scope="module")
def page_scorer() -> OcrScorer:
    return OcrScorer(OcrOptions(layout="page"))


@pytest.fixture(scope="module", params=["scorer", "page_scorer"])
def either_scorer(request: pytest.FixtureRequest) -> OcrScorer:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("target", "read", "expected"),
    [
        ("k7a", "k7a", 1.0),
        ("k7a", "xk7ay", 1.0),  # a substring
        ("k7a", "k1a", 2 / 3),  # one of three substituted
        ("k7a", "ka", 2 / 3),  # one deleted
        ("k7a", "kx7a", 2 / 3),  # one inserted
        ("k7a", "xyz", 0.0),
        ("k7a", "", 0.0),
        ("k7a", "much too long a text", 0.0),  # the distance is held at the target's length
        ("open", "oqen", 0.75),
        ("ab", "ba", 0.0),  # a swap is two edits
    ],
)
def test_hand_worked_values(target: str, read: str, expected: float) -> None:
    assert ocr_reward(target, read) == pytest.approx(expected)


def test_target_is_the_first_quoted_text_without_case_and_spaces() -> None:
    assert target_text('a sign "Hello World" beside "other"') == "helloworld"
    assert normalise(" A b C") == "abc"
    for prompt in ("a sign", 'a sign ""', 'a sign " "', 'an open "quote'):
        with pytest.raises(PromptFileError, match="double quotes"):
            target_text(prompt)


def test_a_prompt_without_a_text_is_refused_before_any_image(scorer: OcrScorer) -> None:
    scorer.check(PromptRecord(0, 'a sign "OPEN"'))
    with pytest.raises(PromptFileError, match="double quotes"):
        scorer.check(PromptRecord(0, "a sign"))


def test_the_engine_reads_what_was_drawn(scorer: OcrScorer) -> None:
    rng = np.random.default_rng(0)
    prompts = [
        PromptRecord(0, f'a {colour} sign that says "{text}"')
        for colour, text in zip(COLOURS, ("K7A", "HEN", "2ZX", "R4T", "M9P", "WAY"), strict=True)
    ]
    scores = [scorer.score(GlyphsTask().render(prompt, rng), prompt) for prompt in prompts]
    assert [score.exact for score in scores] == [True] * 6
    assert scores[0].detail == "K7A"
    assert scores[0].value == 1.0


def test_a_wrong_character_and_an_empty_sign(scorer: OcrScorer) -> None:
    image_HWC = GlyphsTask().render(PromptRecord(0, 'a red sign that says "K7A"'), np.random.default_rng(0))
    wrong = scorer.score(image_HWC, PromptRecord(0, 'a red sign that says "K2A"'))
    assert wrong.value == pytest.approx(2 / 3)
    assert not wrong.exact
    empty = scorer.score(np.full((32, 48, 3), 80, np.uint8), PromptRecord(0, 'a sign that says "K7A"'))
    assert (empty.value, empty.exact, empty.error) == (0.0, False, None)


def test_a_long_line_is_read_whole(scorer: OcrScorer) -> None:
    """The engine's least width is set for short signs; wider images must not be squeezed into it."""
    task, rng = GlyphsTask(), np.random.default_rng(1)
    texts = ("HEN", "R4T", "WAY")
    parts = [task.render(PromptRecord(0, f'a blue sign that says "{text}"'), rng) for text in texts]
    score = scorer.score(np.concatenate(parts, axis=1), PromptRecord(0, '"HENR4TWAY"'))
    assert score.exact, score.detail


def photograph(*texts: tuple[str, tuple[int, int]]) -> np.ndarray:
    picture = Image.new("RGB", (512, 512), (70, 110, 90))
    for text, place in texts:
        ImageDraw.Draw(picture).text(place, text, font=ImageFont.load_default(60), fill=(250, 250, 240))
    return np.asarray(picture)


def test_a_page_is_read_wherever_its_text_stands(page_scorer: OcrScorer) -> None:
    prompt = PromptRecord(0, 'a shop with "OPEN LATE" over the door')
    score = page_scorer.score(photograph(("OPEN", (40, 60)), ("LATE", (230, 380))), prompt)
    assert (score.value, score.exact, score.detail) == (1.0, True, "OPENLATE")
    assert page_scorer.score(photograph(), prompt).value == 0.0


@pytest.mark.parametrize(
    ("target", "read"),
    [
        ("HELLO\nWORLD", "HELLOWORLD"), ("A\tB", "AB"), ("CAFÉ\u00a0BAR", "CAFÉ BAR"),
        ("欢迎\u3000光临", "欢迎光临"), (unicodedata.normalize("NFD", "CAFÉ"), "CAFÉ"),
        ("OP\u200bEN", "OPEN"), ("ＯＰＥＮ", "open"), ("ﬁsh", "FISH"), ("OPEN", "OP\r\nEN"),
        ("ΚΑΛΗΜΕΡΑ", "KAΛHMEPA"), ("ΛΟΓΟΣ", "ΛOΓOΣ"),  # Greek capitals, as a recogniser reads them in Latin
    ],
)  # fmt: skip
def test_a_perfect_reading_scores_one(target: str, read: str):
    assert ocr_reward(target_text(f'a sign "{target}"'), normalise(read)) == 1.0


@pytest.mark.parametrize("text", ["ПРИВЕТ", "مرحبا", "שלום", "สวัสดี", "नमस्ते", "안녕하세요"])
def test_letters_that_the_recogniser_does_not_have_are_refused(either_scorer: OcrScorer, text: str):
    prompt = PromptRecord(0, f'a sign "{text}"')
    with pytest.raises(PromptFileError) as refused:
        either_scorer.check(prompt)
    assert repr(prompt.text) in str(refused.value) and normalise(text)[0] in str(refused.value)
    assert "choose another text" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["OPEN 24/7!", "CAFÉ", "欢迎光临", "K7A", "HELLO\nWORLD", "50% & more", "ΛΟΓΟΣ"]
)
def test_letters_that_it_has_are_not(either_scorer: OcrScorer, text: str):
    either_scorer.check(PromptRecord(0, f'a sign "{text}"'))
