"""Images in GenEval's folder layout, so that its official scripts can read them.

    FOLDER/00000/metadata.jsonl         the prompt's row, one JSON object
    FOLDER/00000/samples/0000.png       one image per seed; a clip is 0000.webp, animated, and 0000.mp4

The folder's name is the prompt's place in the file. A prompt that is not a GenEval row gets a row with
only its text: the layout is the same, but GenEval's detector has nothing to look for. Only ffmpeg makes
mp4: where it is not installed, there is none.
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


def write_images(folder: Path, samples: Sequence[GeneratedSample], prompts: Sequence[PromptRecord]) -> None:
    """Write every image and its prompt's row.

    Args:
        samples: finished samples, each identified by its prompt and seed.
        prompts: prompts, at least those of the samples.

    Raises:
        StorageError: the disk refused, or ffmpeg failed.
    """
    ffmpeg = shutil.which("ffmpeg")
    rows = {prompt.prompt_id: prompt.metadata or {"prompt": prompt.text} for prompt in prompts}
    try:
        for prompt_id in sorted({sample.request.prompt_id for sample in samples}):
            (folder / f"{prompt_id:05}" / "samples").mkdir(parents=True)
            row = json.dumps(rows[prompt_id]) + "\n"
            (folder / f"{prompt_id:05}" / "metadata.jsonl").write_text(row, encoding="utf-8")
        for sample in samples:
            place = folder / f"{sample.request.prompt_id:05}" / "samples"
            name = f"{sample.request.seed_index:04}"
            if is_clip(sample.image_HWC):
                frames = [Image.fromarray(frame) for frame in sample.image_HWC]
                (place / f"{name}.webp").write_bytes(animated(frames, FRAME_MS, _CLIP_QUALITY))
                if ffmpeg:
                    _write_mp4(ffmpeg, sample.image_HWC, place / f"{name}.mp4")
            else:
                Image.fromarray(sample.image_HWC).save(place / f"{name}.png")
    except OSError as error:
        raise StorageError(
            f"the images could not be written to {folder}: {error}; the scores are in the record all the same"
        ) from error


def _write_mp4(ffmpeg: str, clip_FHWC: np.ndarray, path: Path) -> None:
    """Write a clip by ffmpeg with its own choice of codec; players want YUV 4:2:0, and so even sides.

    Raises:
        OSError: ffmpeg failed.
    """
    _, height, width, _ = clip_FHWC.shape
    command = [
        ffmpeg, "-loglevel", "error", "-f", "rawvideo", "-pixel_format", "rgb24",
        "-video_size", f"{width}x{height}", "-framerate", f"1000/{FRAME_MS}", "-i", "-",
        "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-y", str(path),
    ]  # fmt: skip
    done = subprocess.run(command, input=clip_FHWC.tobytes(), capture_output=True)
    if done.returncode:
        raise OSError(f"ffmpeg: {done.stderr.decode(errors='replace').strip()}")
