"""The parts of a diffusers pipeline, loaded one by one with all their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from gpu_runtime.models.files.part_check import empty_part, refuse_other_names
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from storage.errors import ModelError


@dataclass(frozen=True)
class Parts:
    """The loaded parts of a pipeline.

    Attributes:
        vae: decoder of latents, float32.
        encoders, tokenizers: models by folder name; image processors are among the tokenizers.
    """

    transformer: Any
    vae: Any
    scheduler: Any
    encoders: Mapping[str, Any]
    tokenizers: Mapping[str, Any]


def load_tokenizers(folder: PipelineFolder) -> dict[str, Any]:
    """Load the tokenizers, each by the class that the pipeline names, and the image processors.

    Raises:
        ModelError: if one cannot be loaded.
    """
    loaded: dict[str, Any] = {}
    for part in (part for part, kind in folder.parts.items() if kind == "tokenizer"):
        _, named = folder.index.get(part) or ("", "")
        # Only the tokenizer of a processor: the whole processor needs torchvision, for videos.
        known = None if named.endswith("Processor") else getattr(transformers, named, None)
        tokenizer_class: Any = known or transformers.AutoTokenizer
        try:
            loaded[part] = tokenizer_class.from_pretrained(str(folder.path / part), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"{folder.path / part} is not a tokenizer that transformers can load: {error}"
            ) from error
    for part in (part for part, kind in folder.parts.items() if kind == "processor"):
        try:
            # Only the image part: the whole processor needs torchvision, for videos.
            loaded[part] = transformers.AutoImageProcessor.from_pretrained(
                str(folder.path / part), local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(
                f"{folder.path / part} holds no image settings that transformers can load: {error}"
            ) from error
    return loaded


def load_scheduler(folder: PipelineFolder, kind: Any) -> Any:
    """Load the scheduler, of which only the schedule is used.

    Args:
        kind: class that the family's models come with.

    Raises:
        ModelError: if it is of another class, or cannot be built.
    """
    config = folder.config("scheduler")
    if config.get("_class_name") != kind.__name__:
        raise ModelError(
            f"{folder.path / 'scheduler'} is a {config.get('_class_name')}, not a {kind.__name__}, whose "
            "flow matching schedule sampling follows here; name a model that comes with it"
        )
    try:
        return kind.from_config(config)
    except (TypeError, ValueError, ArithmeticError, MemoryError) as error:
        raise ModelError(
            f"{folder.path / 'scheduler'} is not a valid {kind.__name__}: {error}; download it again"
        ) from error


def empty_transformer(family: Any, folder: PipelineFolder, dtype: torch.dtype, name: str) -> Any:
    """Build the transformer on the meta device, to inspect its layers.

    The pipeline's other models are built in the same way, checked against their files, and dropped.

    Args:
        family: the family's class, a `PipelineModel`, which names the parts' classes.
        name: the transformer's folder in the pipeline.

    Raises:
        ModelError: if a part's configuration is that of another model, or describes weights not in its files.
    """
    for part, part_class in {"vae": family.VAE, **family.ENCODERS}.items():
        _empty_part(part_class, folder, part)
    model = _empty_part(family.TRANSFORMER, folder, name)
    refuse_other_names(model, folder.path / name, folder.weights(name))
    for weight in model.parameters():  # to() would warn about parts that a model keeps in float32
        weight.data = weight.data.to(dtype)
    return model


def _empty_part(part_class: Any, folder: PipelineFolder, part: str) -> Any:
    config = folder.config(part)

    def build() -> Any:
        if folder.parts[part] == "diffusers":
            return part_class.from_config(config)
        return part_class(part_class.config_class.from_dict(config))

    return empty_part(build, part_class.__name__, folder.path / part, config, folder.weights(part))
