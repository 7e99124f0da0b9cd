"""The files and settings of an embedded model, found and read without torch."""

from __future__ import annotations

import os
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_runtime.models.files.pipeline_folder import read_json
from storage.config.model import EMBEDDED_PREFIX
from storage.errors import ModelError, quoted

WEIGHTS_FOLDER = Path(__file__).resolve().parent / "weights"
SETTINGS_FILE = "spotlight.json"
CODEC_FILE = "codec.safetensors"
TRANSFORMER_FOLDER = "transformer"
TRANSFORMER_CONFIG = f"{TRANSFORMER_FOLDER}/config.json"
TRANSFORMER_WEIGHTS = f"{TRANSFORMER_FOLDER}/diffusion_pytorch_model.safetensors"
FILES = (SETTINGS_FILE, CODEC_FILE, TRANSFORMER_CONFIG, TRANSFORMER_WEIGHTS)
"""Files of a model, relative to its folder."""

PATCH = 8
"""Side in pixels of the patch that a token stands for."""

_LARGEST = 4096
"""Most pixels per side, text tokens and their width; the project's models have less than a hundredth."""


@dataclass(frozen=True)
class EmbeddedSettings:
    """The content of `spotlight.json`: settings that are not in the transformer's own configuration.

    Attributes:
        task: embedded task that the weights were made for.
        height: canvas height in pixels, a multiple of 8.
        width: canvas width in pixels, a multiple of 8.
        text_length: text tokens L, a multiple of 4 so that 1, 2 and 4 workers can share a sequence.
        text_width: width E of a token's embedding.
        training: figures of the pre-training; nothing reads them.
        frames: frames of a clip, each with as many tokens as an image; 0 if the model makes images.
        edits: True if the model changes an image as a prompt asks; otherwise it draws from the prompt alone.
        guided: True if the model was also trained without prompts, which guidance needs.
    """

    task: str
    height: int
    width: int
    text_length: int
    text_width: int
    seed: int
    training: dict[str, Any] = field(default_factory=dict)
    edits: bool = False
    frames: int = 0
    guided: bool = False


def resolve_folder(path: str | Path) -> Path:
    """Turn a path or `embedded:NAME` into a folder with all of a model's files.

    Raises:
        ModelError: if the folder or one of its files is missing.
    """
    name = str(path)
    embedded = name.startswith(EMBEDDED_PREFIX)
    folder = Path(os.path.expanduser(name))
    if embedded:
        folder = WEIGHTS_FOLDER / name.removeprefix(EMBEDDED_PREFIX)
    missing = [file for file in FILES if not os.path.isfile(folder / file)]
    if embedded and folder.parent != WEIGHTS_FOLDER:  # a name with a separator reaches outside
        missing = list(FILES)
    if not missing:
        return folder
    if not embedded:
        raise ModelError(
            f"{quoted(name)}: no {', '.join(missing)} in it; give a folder that EmbeddedModel.save wrote"
        )
    there = sorted(found.name for found in WEIGHTS_FOLDER.glob("*") if (found / SETTINGS_FILE).is_file())
    task = folder.name.removesuffix("-sparse")
    raise ModelError(
        f"{quoted(name)}: no {', '.join(missing)} there; there are {', '.join(there) or 'no models'}. Make "
        f"it again with: python -m gpu_runtime.pretraining.flow_matching {task[:40]}"
    )


def read_settings(path: Path) -> EmbeddedSettings:
    """Read and check a model's `spotlight.json`.

    Raises:
        ModelError: if it is damaged, or a size in it is not valid.
    """
    try:
        settings = EmbeddedSettings(**read_json(path))
    except TypeError as error:
        raise ModelError(
            f"{path}: not the settings of an embedded model ({error}); restore the file"
        ) from error
    for name in ("height", "width", "text_length", "text_width"):
        value = getattr(settings, name)
        unit = PATCH if name in ("height", "width") else 1
        if type(value) is not int or not 0 < value <= _LARGEST or value % unit:
            raise ModelError(
                f"{path}: {name} is {reprlib.repr(value)}, not a multiple of {unit} up to {_LARGEST}; "
                "restore the file"
            )
    if type(settings.frames) is not int or not 0 <= settings.frames <= _LARGEST:
        raise ModelError(
            f"{path}: frames is {reprlib.repr(settings.frames)}, not a whole number up to {_LARGEST}; "
            "restore the file"
        )
    for name in ("edits", "guided"):
        value = getattr(settings, name)
        if type(value) is not bool:
            raise ModelError(f"{path}: {name} is {reprlib.repr(value)}, not true or false; restore the file")
    return settings
