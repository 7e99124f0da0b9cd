"""Source images and pairs of prompts: found, read and refused line by line."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from storage.errors import PromptFileError
from storage.prompts.files import load_prompts, prompt_of, source_files
from storage.prompts.sources import as_data_uri, check_pair, check_source, read_source, thumbnail
from tasks.inputs import _digest_prompts

IMAGE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
DATA = "data:image/png;base64,"


def write(folder: Path, *sources: object) -> Path:
    path = folder / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "make it red", "image": source}) for source in sources))
    return path


def test_an_image_is_found_from_the_prompt_files_folder_whatever_the_working_folder(tmp_path: Path):
    (tmp_path / "images").mkdir()
    Image.fromarray(IMAGE).save(tmp_path / "images" / "a.png")
    first, second = load_prompts(write(tmp_path, "images/a.png", as_data_uri(IMAGE)))
    assert first.source == str(tmp_path / "images" / "a.png")
    assert second.source == as_data_uri(IMAGE)
    for record in (first, second):
        check_source(record.source, (6, 8))
        assert np.array_equal(read_source(record.source), IMAGE)
    assert first.metadata["image"] == "images/a.png"
    assert source_files(tmp_path / "p.jsonl") == [Path(first.source)]


def test_several_images_are_read_in_their_order_and_counted(tmp_path: Path):
    Image.fromarray(IMAGE).save(tmp_path / "a.png")
    Image.fromarray(255 - IMAGE).save(tmp_path / "b.png")
    Image.fromarray(IMAGE[:3]).save(tmp_path / "low.png")
    path = write(tmp_path, ["b.png", "a.png"], ["a.png", as_data_uri(IMAGE[:3])], ["a.png", 3])
    lines = path.read_text().split("\n")
    path.write_text("\n".join(lines[:2]))
    several, uneven = load_prompts(path)
    check_source(several.source, (2, 6, 8))
    assert np.array_equal(read_source(several.source), [255 - IMAGE, IMAGE])
    assert source_files(path) == [tmp_path / "b.png", tmp_path / "a.png", tmp_path / "a.png"]
    shown = Image.open(io.BytesIO(base64.b64decode(thumbnail(several.source, 100).split(",")[1])))
    assert np.array_equal(np.asarray(shown), np.concatenate([255 - IMAGE, IMAGE], axis=1))
    for size, says in (
        ((6, 8), "has 2 images, and the model takes 1"),
        ((3, 6, 8), "2 images, and the model takes 3"),
    ):
        with pytest.raises(PromptFileError, match=says):
            check_source(several.source, size)
    with pytest.raises(PromptFileError, match="has 8 x 3 pixels"):
        check_source(uneven.source, (2, 6, 8))
    path.write_text(lines[2])
    with pytest.raises(PromptFileError, match="must be the path of an image or a data URI"):
        load_prompts(path)


def test_a_prompt_without_an_image_has_none(tmp_path: Path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a cow"}')
    assert load_prompts(tmp_path / "p.jsonl")[0].source == ""
    check_source("", None)


def test_other_modes_become_rgb(tmp_path: Path):
    Image.fromarray(IMAGE).convert("L").save(tmp_path / "grey.png")
    Image.fromarray(IMAGE).convert("RGBA").save(tmp_path / "alpha.png")
    grey, alpha = load_prompts(write(tmp_path, "grey.png", "alpha.png"))
    assert read_source(grey.source).shape == (6, 8, 3)
    assert np.array_equal(read_source(alpha.source), IMAGE)


def test_what_is_no_image_is_refused_with_its_line_or_what_to_do(tmp_path: Path):
    """Others are in `tests/bad_inputs.jsonl`."""
    for source, says in (
        ("a\0b", "neither NUL"),
        ("no.png", r"p.jsonl:2: no image '.*no.png'; correct `image`"),
    ):
        with pytest.raises(PromptFileError, match=says):
            load_prompts(write(tmp_path, as_data_uri(IMAGE), source))
    file = tmp_path / "a.png"
    Image.fromarray(IMAGE.repeat(20, axis=0)).save(file)
    file.write_bytes(file.read_bytes()[:100])
    (record,) = load_prompts(write(tmp_path, "a.png"))
    with pytest.raises(
        PromptFileError, match=r"a.png' cannot be read as an image .*truncated.*save it again"
    ):
        check_source(record.source, (6, 8))
    with pytest.raises(PromptFileError, match="the image of the data URI cannot be read"):
        read_source(DATA + "!")


def test_the_digest_of_a_prompt_file_covers_its_images(tmp_path: Path):
    Image.fromarray(IMAGE).save(tmp_path / "a.png")
    path = write(tmp_path, "a.png")
    before = _digest_prompts(str(path))
    Image.fromarray(255 - IMAGE).save(tmp_path / "a.png")
    assert _digest_prompts(str(path)) != before


def test_a_prompt_given_by_itself_is_read_as_a_line_of_a_file(tmp_path, monkeypatch):
    """Its source is relative to the current folder."""
    Image.new("RGB", (4, 4)).save(tmp_path / "mine.png")
    monkeypatch.chdir(tmp_path)
    row = prompt_of('{"prompt": "make it blue", "image": "mine.png"}', "PROMPT")
    assert (row.text, row.source) == ("make it blue", str(tmp_path / "mine.png"))
    assert prompt_of(" a sign ", "PROMPT").text == "a sign"
    with pytest.raises(PromptFileError, match="PROMPT: not JSON"):
        prompt_of("{oops", "PROMPT")


def write_pairs(folder: Path, *pairs: dict[str, str]) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "a cow"} | pair) for pair in pairs))
    return path


def test_a_pair_is_found_from_the_prompt_files_folder_the_preferred_picture_first(tmp_path: Path):
    for name, image in (("good.png", IMAGE), ("bad.png", 255 - IMAGE)):
        Image.fromarray(image).save(tmp_path / name)
    by_name = {"rejected": "bad.png", "preferred": "good.png"}
    in_file = {"preferred": as_data_uri(IMAGE), "rejected": "bad.png"}
    path = write_pairs(tmp_path, by_name, in_file, {})
    first, second, third = load_prompts(path)
    assert first.pair == (str(tmp_path / "good.png"), str(tmp_path / "bad.png"))
    assert second.pair == (as_data_uri(IMAGE), first.pair[1])
    assert (third.pair, first.source) == ((), "")
    for record in (first, second):
        check_pair(record.pair, (6, 8))
    assert source_files(path) == [Path(one) for one in (*first.pair, second.pair[1])]
    before = _digest_prompts(str(path))
    Image.fromarray(IMAGE[::-1]).save(tmp_path / "bad.png")
    assert _digest_prompts(str(path)) != before, "a run is not resumed with other pictures"


def test_a_pair_with_an_empty_or_a_torn_picture_is_refused(tmp_path: Path):
    with pytest.raises(PromptFileError, match="`preferred` must be the path of an image"):
        load_prompts(write_pairs(tmp_path, {}, {"preferred": "", "rejected": as_data_uri(IMAGE)}))
    (tmp_path / "torn.png").write_bytes(b"\x89PNG")
    with pytest.raises(PromptFileError, match=r"torn.png'? cannot be read as an image"):
        check_pair((as_data_uri(IMAGE), str(tmp_path / "torn.png")), (6, 8))
