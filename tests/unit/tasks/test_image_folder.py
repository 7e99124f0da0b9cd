"""GenEval's folder layout: read back as its official script does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpu_runtime.diffusion.samples import GeneratedSample, Trajectory
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.errors import ConfigurationError, StorageError
from storage.new_folder import claim_folder
from storage.prompts.files import PromptRecord, load_prompts
from tasks.image_folder import write_images

NOTHING = np.empty(0, np.float32)


def sample(prompt: PromptRecord, seed: int) -> GeneratedSample:
    request = SampleRequest(RequestKind.EVALUATE, 0, 0, prompt.prompt_id, seed, 0, prompt.text)
    image_HWC = np.full((4, 6, 3), 10 * prompt.prompt_id + seed, np.uint8)
    return GeneratedSample(request, image_HWC, Trajectory(NOTHING, NOTHING, NOTHING, NOTHING), NOTHING)


def as_geneval_reads(folder: Path) -> list[tuple[str, dict, int]]:
    """What its script takes: folders named by digits, one JSON object each, pictures named by digits."""
    found = []
    for entry in sorted(folder.iterdir()):
        assert entry.is_dir() and entry.name.isdigit()
        with (entry / "metadata.jsonl").open() as file:
            metadata = json.load(file)
        for picture in sorted((entry / "samples").iterdir()):
            assert re.fullmatch(r"\d+\.png", picture.name)
            found.append(
                (f"{entry.name}/{picture.name}", metadata, int(np.asarray(Image.open(picture))[0, 0, 0]))
            )
    return found


def test_rows_and_images_come_back_as_geneval_reads_them(tmp_path: Path):
    prompts = load_prompts("builtin:geneval-evaluate")[:3]
    folder = claim_folder(tmp_path / "new" / "images", "--images")
    write_images(folder, [sample(prompt, seed) for prompt in prompts for seed in (0, 1)], prompts)
    found = as_geneval_reads(folder)
    assert [name for name, _, _ in found] == [
        "00000/0000.png", "00000/0001.png", "00001/0000.png", "00001/0001.png", "00002/0000.png",
        "00002/0001.png",
    ]  # fmt: skip
    assert [value for _, _, value in found] == [0, 1, 10, 11, 20, 21]
    for name, metadata, _ in found:
        row = prompts[int(name[:5])].metadata
        assert metadata == row
        assert {"tag", "include", "prompt"} <= metadata.keys()


def test_a_prompt_that_is_no_geneval_row_keeps_its_text(tmp_path: Path):
    prompt = PromptRecord(12, 'a sign that says "A1"')
    write_images(claim_folder(tmp_path / "images", "--images"), [sample(prompt, 0)], [prompt])
    assert as_geneval_reads(tmp_path / "images") == [("00012/0000.png", {"prompt": prompt.text}, 120)]


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"is not an empty folder; name a new one"):
        claim_folder(tmp_path, "--images")
    with pytest.raises(ConfigurationError, match="cannot be made"):
        claim_folder(tmp_path / "file" / "below", "--images")


def test_a_disk_that_refuses_is_said(tmp_path: Path):
    prompt = PromptRecord(0, "a")
    (tmp_path / "00000").touch()
    with pytest.raises(StorageError, match="the scores are in the record all the same"):
        write_images(tmp_path, [sample(prompt, 0)], [prompt])
