"""Where a model's files lie: a folder, or the hub's cache of this machine. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from storage.errors import ModelError


def find_folder(setting: str, name: str) -> Path:
    """The folder of a model.

    Args:
        setting: the setting that names it, for messages.
        name: a folder, or a name in the hub's cache such as `openai/clip-vit-large-patch14`.

    Raises:
        ModelError: it is neither.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"{setting} = {name!r} is no folder here, and the hub's cache of this machine has no model "
            f"of that name; download it first (`hf download {name}`) or name a folder that holds it"
        ) from error
