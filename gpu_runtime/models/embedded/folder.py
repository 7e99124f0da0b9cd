"""Where an embedded model's files lie; found without torch."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import ModelError, quoted

EMBEDDED_PREFIX = "embedded:"
WEIGHTS_FOLDER = Path(__file__).resolve().parent / "weights"

SETTINGS_FILE = "spotlight.json"
CODEC_FILE = "codec.safetensors"
TRANSFORMER_FOLDER = "transformer"
TRANSFORMER_CONFIG = f"{TRANSFORMER_FOLDER}/config.json"
TRANSFORMER_WEIGHTS = f"{TRANSFORMER_FOLDER}/diffusion_pytorch_model.safetensors"
FILES = (SETTINGS_FILE, CODEC_FILE, TRANSFORMER_CONFIG, TRANSFORMER_WEIGHTS)
"""What a model's folder holds, relative to it."""


def resolve_folder(path: str | Path) -> Path:
    """Turn a path or `embedded:NAME` into a folder with all of a model's files.

    Raises:
        ModelError: the folder or one of its files is missing.
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
