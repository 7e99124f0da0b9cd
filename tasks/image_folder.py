"""Images in GenEval's folder layout, so that its official scripts can read them.

    FOLDER/00000/metadata.jsonl         the prompt's row, one JSON object
    FOLDER/00000/samples/0000.png       one image per seed; a clip is 0000.webp, animated

The folder's name is the prompt's place in the file. A prompt that is not a GenEval row gets a row with
only its text: the layout is the same, but GenEval's detector has nothing to look for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

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
        StorageError: the disk refused.
    """
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
            else:
                Image.fromarray(sample.image_HWC).save(place / f"{name}.png")
    except OSError as error:
        raise StorageError(
            f"the images could not be written to {folder}: {error}; the scores are in the record all the same"
        ) from error
