"""Texts that an image can be right for, however the prompt's file encodes them; others are refused."""

from __future__ import annotations

import unicodedata

import pytest

from gpu_runtime.rewards.scorers.ocr import OcrScorer
from gpu_runtime.rewards.text_rules import normalise, ocr_reward, target_text
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord


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


@pytest.fixture(scope="module", params=[False, True], ids=["line", "page"])
def scorer(request: pytest.FixtureRequest) -> OcrScorer:
    return OcrScorer(page=request.param)


@pytest.mark.parametrize("text", ["ПРИВЕТ", "مرحبا", "שלום", "สวัสดี", "नमस्ते", "안녕하세요"])
def test_letters_that_the_recogniser_does_not_have_are_refused(scorer: OcrScorer, text: str):
    prompt = PromptRecord(0, f'a sign "{text}"')
    with pytest.raises(PromptFileError) as refused:
        scorer.check(prompt)
    assert repr(prompt.text) in str(refused.value) and normalise(text)[0] in str(refused.value)
    assert "choose another text" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["OPEN 24/7!", "CAFÉ", "欢迎光临", "K7A", "HELLO\nWORLD", "50% & more", "ΛΟΓΟΣ"]
)
def test_letters_that_it_has_are_not(scorer: OcrScorer, text: str):
    scorer.check(PromptRecord(0, f'a sign "{text}"'))
