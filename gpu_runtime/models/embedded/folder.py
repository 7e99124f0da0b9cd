"""An embedded model's files and settings, found and read without torch."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from gpu_runtime.models.files.pipeline_folder import read_json
from storage.config.errors import read_row
from storage.config.model import EMBEDDED_PREFIX
from storage.config.section import OptionValues, Section
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


class EmbeddedSettings(Section):
    """The content of `spotlight.json`: settings that are not in the transformer's own configuration."""

    task: str
    """Embedded task that the weights were made for."""

    height: int = Field(gt=0, le=_LARGEST, multiple_of=PATCH)
    """Height of the canvas in pixels."""

    width: int = Field(gt=0, le=_LARGEST, multiple_of=PATCH)
    """Width of the canvas in pixels."""

    text_length: int = Field(gt=0, le=_LARGEST)
    """Text tokens L, a multiple of 4 so that 1, 2 and 4 workers can share a sequence."""

    text_width: int = Field(gt=0, le=_LARGEST)
    """Width E of a token's embedding."""

    seed: int
    training: OptionValues = Field(default={})
    """Figures of the pre-training; nothing reads them."""

    edits: bool = False
    """True if the model changes an image as a prompt asks; otherwise it draws from the prompt alone."""

    frames: int = Field(default=0, ge=0, le=_LARGEST)
    """Frames of a clip, each with as many tokens as an image; 0 if the model makes images."""

    guided: bool = False
    """True if the model was also trained without prompts, which guidance needs."""


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
    if embedded and folder.parent != WEIGHTS_FOLDER:  # a name with a separator would reach outside
        missing = list(FILES)
    if not missing:
        return folder
    if not embedded:
        raise ModelError(
            f"{quoted(name)}: no {', '.join(missing)} in it; give a folder that EmbeddedModel.save wrote"
        )
    models = sorted(found.name for found in WEIGHTS_FOLDER.glob("*") if (found / SETTINGS_FILE).is_file())
    task = folder.name.removesuffix("-sparse")
    raise ModelError(
        f"{quoted(name)}: no {', '.join(missing)} there; available models: {', '.join(models) or 'none'}. "
        f"Make it with: spotlight pretrain {task[:40]} --out FOLDER"
    )


def read_settings(path: Path) -> EmbeddedSettings:
    """Read and check a model's `spotlight.json`.

    Raises:
        ModelError: if it is damaged, or a size in it is not valid.
    """
    where = f"{path}: not the settings of an embedded model; restore the file"
    return read_row(read_json(path), where, EmbeddedSettings, ModelError)
