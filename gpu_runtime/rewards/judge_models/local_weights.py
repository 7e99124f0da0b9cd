"""Loading of a scorer's model with all of its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from storage.errors import ModelError


def load_whole(
    model_class: Any, setting: str, folder: Path, dtype: torch.dtype | None = torch.float32
) -> Any:
    """Load a model of a transformers class, with all its weights.

    transformers draws weights at random if a file lacks them, and only warns. Training would go on with a
    partly random judge.

    Args:
        model_class: class with `from_pretrained`.
        setting: setting that names the model, for messages.
        folder: folder of the files.
        dtype: dtype of the weights; None for that of the files.

    Raises:
        ModelError: if the files are those of another model, or lack weights.
    """
    _refuse_other_model(model_class, setting, folder)
    try:
        model, report = model_class.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype="auto" if dtype is None else dtype
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{setting}: {folder} is no {model_class.__name__} that transformers can load: {error}"
        ) from error
    needed = {name for name, _ in model.named_parameters()}
    lacking = sorted(needed & set(report["missing_keys"]))
    if lacking:
        raise ModelError(
            f"{setting}: {folder} lacks {len(lacking)} weights of a {model_class.__name__}, such as "
            f"{lacking[0]}; name the folder of a whole {model_class.__name__}"
        )
    return model


def _refuse_other_model(model_class: Any, setting: str, folder: Path) -> None:
    """Refuse by the configuration alone: a model built from another one's could have any size."""
    file, wanted = folder / "config.json", model_class.config_class.model_type
    try:
        found = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{setting}: {file} is no JSON object; download the model again, whole") from error
    if found != wanted:
        raise ModelError(
            f"{setting}: {folder} holds a model of type {found!r}, not {wanted!r}; name one that "
            f"transformers loads as {model_class.__name__}"
        )
