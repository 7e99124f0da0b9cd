"""The location of a model's files: a folder, or this machine's hub cache. Nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import ModelError, quoted

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def find_folder(setting: str, name: str) -> Path:
    """Find the folder of a model.

    Args:
        setting: setting that names it, for messages.
        name: folder, or name in the hub's cache such as `openai/clip-vit-large-patch14`.

    Raises:
        ModelError: if it is neither.
    """
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        return folder
    # Imported here: importing it takes as long as all earlier checks together, and a folder does not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except HFValidationError as error:
        raise ModelError(
            f"{setting} = {quoted(name)} is not a local folder, and is not a valid model name on the hub; "
            "name a folder that holds the model"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{setting} = {quoted(name)} is not a local folder, and this machine's hub cache has no model of "
            f"that name; download it first (`hf download {name[:80]}`) or name a folder with it"
        ) from error


def local_folder(setting: str, name: str, weights: bool = True) -> Path:
    """Find the folder of a model that `from_pretrained` can read.

    Missing files are refused: otherwise a run would be paid for while it downloads them, and would fail on a
    machine without a network.

    Args:
        weights: True to require weights; a processor alone has none.

    Raises:
        ModelError: if it is neither, or files are missing.
    """
    folder = find_folder(setting, name)
    wanted = "config.json" if weights else "preprocessor_config.json"
    if not (folder / wanted).is_file():
        raise ModelError(f"{setting} = {name!r}: {folder} has no {wanted}; download the model again, whole")
    if weights and not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise ModelError(
            f"{setting} = {name!r}: {folder} has no weights ({' or '.join(_WEIGHTS)}); download the model "
            "again, whole"
        )
    return folder
