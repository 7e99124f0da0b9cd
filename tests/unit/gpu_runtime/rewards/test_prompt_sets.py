from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest

from benchmarks.models.builtin_prompts import bound_objects, built_in_files
from flows.cli import command_line
from gpu_runtime.prompt_sets.signs import SCENES, sign_lines
from gpu_runtime.rewards.text_rules import target_text
from storage.errors import PromptFileError
from storage.prompts.files import BUILTIN_FOLDER, load_prompts
from storage.prompts.sources import read_source


def test_the_committed_prompt_files_are_what_the_generators_make():
    files = built_in_files()
    by_hand = {"smoke-evaluate.txt"}  # a few lines of `glyphs-evaluate.txt`
    assert set(files) | by_hand == {path.name for path in BUILTIN_FOLDER.iterdir()}
    for name, content in files.items():
        committed = (BUILTIN_FOLDER / name).read_text(encoding="utf-8")
        assert with_pixels(committed) == with_pixels(content), f"{name}: run builtin_prompts again"


def with_pixels(lines: str) -> str:
    """PNG files as the digests of their pixels: how they are compressed is the library's choice."""
    return re.sub(
        r"data:image/png;base64,[^\"]+",
        lambda found: hashlib.sha256(read_source(found.group()).tobytes()).hexdigest(),
        lines,
    )


@pytest.mark.parametrize("name", ["shapes", "shapes-binding"])
def test_no_two_objects_to_evaluate_by_are_trained_on_in_any_order(name):
    train, evaluate = (
        {bound_objects(line) for line in (BUILTIN_FOLDER / f"{name}-{kind}.jsonl").read_text().splitlines()}
        for kind in ("train", "evaluate")
    )
    assert train & evaluate <= {None}, "of other tags there are too few objects to keep any apart"


def test_objects_are_compared_without_their_order():
    row = '{{"tag": "color_attr", "include": [{}, {}]}}'
    red, blue = '{"class": "square", "color": "red"}', '{"class": "circle", "color": "blue"}'
    assert bound_objects(row.format(red, blue)) == bound_objects(row.format(blue, red)) is not None
    assert bound_objects('{"tag": "counting", "include": []}') is None


def test_every_sign_quotes_a_text_and_none_is_drawn_twice():
    lines = sign_lines(500, held_out=False, seed=1)
    assert len(set(lines)) == 500
    for line in lines:
        assert target_text(line)
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


def prompts_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Exit code of `spotlight prompts`."""
    monkeypatch.setattr(sys, "argv", ["spotlight", "prompts", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return ended.value.code


@pytest.mark.parametrize(("kind", "name"), [("geneval", "my.jsonl"), ("signs", "my.txt")])
def test_longer_files_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str):
    file = tmp_path / name
    assert prompts_command(monkeypatch, kind, "40", str(file), "--seed", "3") == 0
    assert len(load_prompts(file)) == 40
    first = file.read_bytes()
    assert prompts_command(monkeypatch, kind, "40", str(file)) == 0
    assert file.read_bytes() != first, "another seed draws other prompts"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("geneval", "40", "my.csv"), "prompts of geneval need .jsonl"),
        (("poems", "40", "my.txt"), "there are geneval, signs"),
        (("signs", "0", "my.txt"), "0 prompts of signs are asked for"),
        (("signs", "9", "nowhere/my.txt"), "is missing"),
    ],
)
def test_what_cannot_be_written_is_refused(monkeypatch, capsys, tmp_path, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert prompts_command(monkeypatch, *arguments) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
