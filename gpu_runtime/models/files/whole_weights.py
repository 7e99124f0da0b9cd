"""Loading of a model with all of its weights.

diffusers and transformers draw weights at random if a file lacks them, and only warn.
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
        part: name of the part's folder in the pipeline's.

    Raises:
        ModelError: if the files are those of another model, or lack weights.
    """
    named = {"diffusers": "torch_dtype", "transformers": "dtype"}[folder.parts[part]]
    how = {"subfolder": part, named: dtype}
    return _load_whole(model_class, str(folder.path / part), str(folder.path), how)


def load_judge(model_class: Any, setting: str, folder: Path, dtype: torch.dtype | str = torch.float32) -> Any:
    """Load a scorer's model of a transformers class, as `load_weights` does.

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


def _load_whole(model_class: Any, said: str, path: str, how: dict[str, Any], judges: bool = False) -> Any:
    """Load from a path; `said` names it in messages, and `how` has further arguments of `from_pretrained`.

    A judge may lack buffers: files for inference leave out those of its training loss.
    """
    try:
        model, report = model_class.from_pretrained(
            path, local_files_only=True, output_loading_info=True, **how
        )
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{said} cannot be loaded as {model_class.__name__}: {error}") from error
    # Else buffers too: a batch norm's statistics are as much part of a model as its weights.
    own = {*dict(model.named_parameters()), *([] if judges else dict(model.named_buffers()))}
    if lacking := sorted(own & set(report["missing_keys"])):
        or_else = ", or name the folder of a whole one" if judges else ""
        raise ModelError(
            f"{said} lacks {len(lacking)} weights of a {model_class.__name__}, such as {lacking[0]}; "
            f"download the model again, whole{or_else}"
        )
    return model.eval().requires_grad_(False)
