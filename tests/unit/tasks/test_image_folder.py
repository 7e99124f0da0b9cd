"""GenEval's folder layout: read back as its official script does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpu_runtime.diffusion.samples import GeneratedSample, Trajectory
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.errors import StorageError
from storage.prompts.files import PromptRecord, load_prompts
from storage.text import claim_folder
from tasks.evaluation import write_images, write_mp4s

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


def test_a_disk_that_refuses_is_said(tmp_path: Path):
    prompt = PromptRecord(0, "a")
    (tmp_path / "00000").touch()
    with pytest.raises(StorageError, match="this evaluation is not recorded"):
        write_images(tmp_path, [sample(prompt, 0)], [prompt])


def program(folder: Path, text: str) -> None:
    """Let ffmpeg be a shell script, the only one on the path besides the system's own."""
    folder.mkdir()
    (folder / "ffmpeg").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "ffmpeg").chmod(0o755)


def written(folder: Path, clip_FHWC: np.ndarray) -> str:
    """Write a clip and its mp4; what is said of the second."""
    clip = replace(sample(PromptRecord(0, "a"), 1), image_HWC=clip_FHWC)
    write_images(folder, [clip, sample(PromptRecord(0, "a"), 2)], [PromptRecord(0, "a")])
    return write_mp4s(folder, [clip, sample(PromptRecord(0, "a"), 2)])


def test_a_clip_is_also_an_mp4_where_there_is_ffmpeg(tmp_path: Path, monkeypatch):
    program(tmp_path / "bin", 'for last; do :; done; echo "$@" >"$last.said"; cat >"$last"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    clip_FHWC = np.random.default_rng(0).integers(0, 256, (3, 5, 7, 3), np.uint8)
    assert not written(tmp_path / "images", clip_FHWC)
    [said] = (tmp_path / "images").glob("00000/samples/*.mp4.said")
    assert "-video_size 7x5 -framerate 1000/42" in said.read_text()
    assert (said.parent / "0001.mp4").read_bytes() == clip_FHWC.tobytes()


@pytest.mark.parametrize(("does", "said"), [
    ('echo "no space left" >&2; exit 1', "ffmpeg: no space left"), ("exec sleep 60", "timed out after 0.5"),
])  # fmt: skip
def test_an_ffmpeg_that_fails_or_hangs_costs_the_mp4_alone(does: str, said: str, tmp_path: Path, monkeypatch):
    program(tmp_path / "bin", does)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr("tasks.evaluation._FFMPEG_LIMIT_S", 0.5)
    assert said in written(tmp_path / "images", np.zeros((2, 4, 6, 3), np.uint8))
    assert (tmp_path / "images/00000/samples/0001.webp").is_file()


@pytest.mark.skipif(shutil.which("ffprobe") is None, reason="ffmpeg is not installed")
def test_players_read_the_mp4_that_ffmpeg_makes(tmp_path: Path):
    assert not written(tmp_path, np.full((9, 15, 17, 3), 200, np.uint8))
    asked = ("-count_frames", "-show_entries", "stream=width,height,nb_read_frames,pix_fmt")
    said = subprocess.run(
        ["ffprobe", "-loglevel", "error", *asked, "-of", "json", tmp_path / "00000/samples/0001.mp4"],
        check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    expected = {"width": 18, "height": 16, "pix_fmt": "yuv420p", "nb_read_frames": "9"}
    assert json.loads(said.stdout)["streams"] == [expected]


def test_without_ffmpeg_a_clip_is_a_webp_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not written(tmp_path, np.zeros((2, 4, 6, 3), np.uint8))
    names = {file.name for file in (tmp_path / "00000/samples").iterdir()}
    assert names == {"0001.webp", "0002.png"}
