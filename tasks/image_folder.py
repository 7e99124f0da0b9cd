"""Images in GenEval's folder layout, so that its official scripts can read them.

    FOLDER/00000/metadata.jsonl         the prompt's row, one JSON object
    FOLDER/00000/samples/0000.png       one image per seed; a clip is 0000.webp, animated, and 0000.mp4

The folder's name is the prompt's place in the file. A prompt that is not a GenEval row gets a row with
only its text: the layout is the same, but GenEval's detector has nothing to look for. The mp4 is made by
ffmpeg, where that is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gpu_runtime.diffusion.samples import GeneratedSample
from storage.errors import StorageError
from storage.pictures import FRAME_MS, animated, is_clip
from storage.prompts.files import PromptRecord

_CLIP_QUALITY = 90

_FFMPEG_LIMIT_S = 120.0
"""Seconds for a clip; one of 17 frames of 832x480 takes a few."""


def write_images(folder: Path, samples: Sequence[GeneratedSample], prompts: Sequence[PromptRecord]) -> None:
    """Write every image and its prompt's row.

    Args:
        prompts: at least those of the samples.

    Raises:
        StorageError: the disk refused.
    """
    rows = {prompt.prompt_id: prompt.metadata or {"prompt": prompt.text} for prompt in prompts}
    try:
        for prompt_id in sorted({sample.request.prompt_id for sample in samples}):
            (folder / f"{prompt_id:05}" / "samples").mkdir(parents=True)
            row = json.dumps(rows[prompt_id]) + "\n"
            (folder / f"{prompt_id:05}" / "metadata.jsonl").write_text(row, encoding="utf-8")
        for sample in samples:
            if is_clip(sample.image_HWC):
                frames = [Image.fromarray(frame) for frame in sample.image_HWC]
                _place(folder, sample, "webp").write_bytes(animated(frames, FRAME_MS, _CLIP_QUALITY))
            else:
                Image.fromarray(sample.image_HWC).save(_place(folder, sample, "png"))
    except OSError as error:
        raise StorageError(
            f"the images could not be written to {folder}: {error}; nothing of this evaluation is recorded"
        ) from error


def write_mp4s(folder: Path, samples: Sequence[GeneratedSample]) -> str:
    """Write clips beside what `write_images` wrote where ffmpeg is installed; return why it gave up."""
    ffmpeg = shutil.which("ffmpeg")
    try:
        for sample in samples if ffmpeg else ():
            if is_clip(sample.image_HWC):
                _write_mp4(str(ffmpeg), sample.image_HWC, _place(folder, sample, "mp4"))
    except (OSError, subprocess.SubprocessError) as error:
        return f"ffmpeg: {error}"
    return ""


def _place(folder: Path, sample: GeneratedSample, ending: str) -> Path:
    request = sample.request
    return folder / f"{request.prompt_id:05}" / "samples" / f"{request.seed_index:04}.{ending}"


def _write_mp4(ffmpeg: str, clip_FHWC: np.ndarray, path: Path) -> None:
    """Write a clip by ffmpeg with its own choice of codec; players want YUV 4:2:0, and so even sides."""
    _, height, width, _ = clip_FHWC.shape
    command = [
        ffmpeg, "-loglevel", "error", "-f", "rawvideo", "-pixel_format", "rgb24",
        "-video_size", f"{width}x{height}", "-framerate", f"1000/{FRAME_MS}", "-i", "-",
        "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-y", str(path),
    ]  # fmt: skip
    run = subprocess.run(command, input=clip_FHWC.tobytes(), capture_output=True, timeout=_FFMPEG_LIMIT_S)
    if run.returncode:
        raise OSError(run.stderr.decode(errors="replace").strip())
