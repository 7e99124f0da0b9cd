from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_runtime.prompt_sets import files
from gpu_runtime.prompt_sets.signs import SCENES, sign_lines
from gpu_runtime.rewards.ocr import OcrScorer
from gpu_runtime.rewards.quoted_text import target_text
from storage.errors import PromptFileError
from storage.prompts import BUILTIN_FOLDER, PromptRecord, load_prompts


def test_the_committed_prompt_files_are_what_the_generators_make():
    for name, content in files.built_in_files().items():
        assert (BUILTIN_FOLDER / name).read_bytes() == content.encode(), (
            f"{name}: run prompt_sets.files again"
        )


def test_every_sign_quotes_a_text_and_none_is_drawn_twice():
    lines = sign_lines(500, held_out=False, seed=1)
    assert len(set(lines)) == 500
    for line in lines:
        OcrScorer.check(None, PromptRecord(0, line))  # type: ignore[arg-type]
    assert all(scene.count('"{text}"') == 1 for scene in SCENES)


def test_no_text_to_evaluate_by_is_trained_on_in_any_scene():
    train = {target_text(line) for line in sign_lines(3000, held_out=False, seed=1)}
    evaluate = {target_text(line) for line in sign_lines(300, held_out=True, seed=1)}
    assert not train & evaluate


def test_signs_follow_from_the_seed():
    assert sign_lines(9, held_out=True, seed=4) == sign_lines(9, held_out=True, seed=4)
    assert sign_lines(9, held_out=True, seed=4) != sign_lines(9, held_out=True, seed=5)
    with pytest.raises(PromptFileError, match="0 prompts of signs"):
        sign_lines(0, held_out=True, seed=4)


@pytest.mark.parametrize(("kind", "name"), [("geneval", "my.jsonl"), ("signs", "my.txt")])
def test_longer_files_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str):
    monkeypatch.setattr(sys, "argv", ["files", kind, "40", str(tmp_path / name)])
    files.main()
    assert len(load_prompts(tmp_path / name)) == 40
    monkeypatch.setattr(sys, "argv", ["files", kind, "40", str(tmp_path / "my.csv")])
    with pytest.raises(SystemExit):
        files.main()
