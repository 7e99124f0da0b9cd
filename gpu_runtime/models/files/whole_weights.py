"""Loads models with all of their weights.

If a file lacks weights, diffusers and transformers initialise them at random and only warn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from gpu_runtime.models.files.pipeline_folder import PipelineFolder, read_json
from storage.errors import ModelError


def load_weights(model_class: Any, folder: PipelineFolder, part: str, dtype: torch.dtype) -> Any:
    """Load a part of a pipeline on the CPU, frozen and in evaluation mode.

    Args:
        model_class: class with `from_pretrained`.
        part: name of the part's folder in the pipeline.

    Raises:
        ModelError: if the files are those of another model, or lack weights.
    """
    named = {"diffusers": "torch_dtype", "transformers": "dtype"}[folder.parts[part]]
    extra = {"subfolder": part, named: dtype}
    return _load_whole(model_class, str(folder.path / part), str(folder.path), extra)


def load_judge(model_class: Any, setting: str, folder: Path, dtype: torch.dtype | str = torch.float32) -> Any:
    """Load a scorer's transformers model, as `load_weights` does.

    Args:
        model_class: class with `from_pretrained`.
        setting: setting that names the model, for messages.
        dtype: dtype of the weights; `auto` for that of the files.

    Raises:
        ModelError: if the files are those of another model, or lack weights.
    """
    # By the configuration alone: a model built from another one's could have any size.
    try:
        found = read_json(folder / "config.json").get("model_type")
    except ModelError as error:
        raise ModelError(f"{setting}: {error}") from error
    wanted = model_class.config_class.model_type
    if found != wanted:
        raise ModelError(
            f"{setting}: {folder} holds a model of type {found!r}, not {wanted!r}; name one that "
            f"transformers loads as {model_class.__name__}"
        )
    return _load_whole(model_class, f"{setting}: {folder}", str(folder), {"dtype": dtype}, judges=True)


def _load_whole(model_class: Any, label: str, path: str, extra: dict[str, Any], judges: bool = False) -> Any:
    """Load with `from_pretrained`; `label` names it in messages, and `extra` has further arguments.

    A judge may lack buffers: files for inference leave out those of its training loss.
    """
    try:
        model, report = model_class.from_pretrained(
            path, local_files_only=True, output_loading_info=True, **extra
        )
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{label} cannot be loaded as {model_class.__name__}: {error}") from error
    # Otherwise buffers too: a batch norm's statistics are as much part of a model as its weights.
    own = {*dict(model.named_parameters()), *([] if judges else dict(model.named_buffers()))}
    if lacking := sorted(own & set(report["missing_keys"])):
        or_else = ", or name the folder of a whole one" if judges else ""
        raise ModelError(
            f"{label} lacks {len(lacking)} weights of a {model_class.__name__}, such as {lacking[0]}; "
            f"download the model again, whole{or_else}"
        )
    return model.eval().requires_grad_(False)
