"""The parts of a diffusers pipeline, loaded one by one with all their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from gpu_runtime.models.files.part_check import empty_part, refuse_other_names
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from storage.errors import ModelError


@dataclass(frozen=True)
class Parts:
    """The loaded parts of a pipeline.

    Attributes:
        transformer: denoiser.
        vae: decoder of latents, float32.
        scheduler: source of the noise schedule.
        encoders, tokenizers: models by the names of their folders; image processors are with the tokenizers.
    """

    transformer: Any
    vae: Any
    scheduler: Any
    encoders: Mapping[str, Any]
    tokenizers: Mapping[str, Any]


def load_weights(model_class: Any, folder: PipelineFolder, part: str, dtype: torch.dtype) -> Any:
    """Load a model of a diffusers or transformers class on the CPU, frozen and in evaluation mode.

    Args:
        model_class: class with `from_pretrained`.
        folder: folder of the pipeline.
        part: name of its folder in the pipeline's.
        dtype: dtype of the weights.

    Raises:
        ModelError: if the files are those of another model, or lack weights. Both libraries would draw the
            missing ones at random, and only warn.
    """
    named = {"diffusers": "torch_dtype", "transformers": "dtype"}[folder.parts[part]]
    try:
        model, report = model_class.from_pretrained(
            str(folder.path),
            subfolder=part,
            local_files_only=True,
            output_loading_info=True,
            **{named: dtype},
        )
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"{folder.path / part} is no {model_class.__name__} that can be loaded: {error}"
        ) from error
    # Buffers too: a batch norm's statistics are as much part of a model as its weights.
    own = (*model.named_parameters(), *model.named_buffers())
    lacking = sorted({name for name, _ in own} & set(report["missing_keys"]))
    if lacking:
        raise ModelError(
            f"{folder.path / part} lacks {len(lacking)} weights of a {model_class.__name__}, such as "
            f"{lacking[0]}; download the model again, whole"
        )
    return model.eval().requires_grad_(False)


def load_tokenizers(folder: PipelineFolder) -> dict[str, Any]:
    """Load the tokenizers, each by the class that the pipeline names, and the image processors.

    Raises:
        ModelError: if one cannot be loaded.
    """
    loaded: dict[str, Any] = {}
    for part in (part for part, kind in folder.parts.items() if kind == "tokenizer"):
        _, named = folder.index.get(part) or ("", "")
        # The tokenizer of a processor alone: the whole one needs torchvision, for videos.
        known = None if named.endswith("Processor") else getattr(transformers, named, None)
        tokenizer_class: Any = known or transformers.AutoTokenizer
        try:
            loaded[part] = tokenizer_class.from_pretrained(str(folder.path / part), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"{folder.path / part} is no tokenizer that transformers can load: {error}"
            ) from error
    for part in (part for part, kind in folder.parts.items() if kind == "processor"):
        try:
            # For images alone: the whole processor needs torchvision, for videos.
            loaded[part] = transformers.AutoImageProcessor.from_pretrained(
                str(folder.path / part), local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(
                f"{folder.path / part} holds no settings of images that transformers can load: {error}"
            ) from error
    return loaded


def load_scheduler(folder: PipelineFolder, kind: Any) -> Any:
    """Load the scheduler, of which only the schedule is used.

    Args:
        folder: folder of the pipeline.
        kind: class that the family's models come with.

    Raises:
        ModelError: if it is of another kind, or cannot be made.
    """
    config = folder.config("scheduler")
    if config.get("_class_name") != kind.__name__:
        raise ModelError(
            f"{folder.path / 'scheduler'} is a {config.get('_class_name')}, not a {kind.__name__}: sampling "
            "here is flow matching along that one's schedule; name a model that comes with it"
        )
    try:
        return kind.from_config(config)
    except (TypeError, ValueError, ArithmeticError, MemoryError) as error:
        raise ModelError(
            f"{folder.path / 'scheduler'} is no {kind.__name__} that can be made: {error}; download it again"
        ) from error


def empty_transformer(
    model_class: Any, encoder_classes: Mapping[str, Any], vae_class: Any, folder: PipelineFolder,
    dtype: torch.dtype, name: str,
) -> Any:  # fmt: skip
    """Build the transformer without memory for its weights, to inspect its layers.

    The other models of the pipeline are built in the same way, checked against their files, and dropped.

    Args:
        model_class: class of the transformer.
        encoder_classes: classes of the text encoders, by their folders.
        vae_class: class of the VAE.
        folder: folder of the pipeline.
        dtype: dtype of the transformer's weights.
        name: folder of the transformer in the pipeline's.

    Raises:
        ModelError: if a part's configuration is that of another model, or asks for weights not in its files.
    """
    for part, part_class in {"vae": vae_class, **encoder_classes}.items():
        _empty_part(part_class, folder, part)
    model = _empty_part(model_class, folder, name)
    refuse_other_names(model, folder.path / name, folder.weights(name))
    for weight in model.parameters():  # to() would warn of parts that a model keeps in float32
        weight.data = weight.data.to(dtype)
    return model


def _empty_part(part_class: Any, folder: PipelineFolder, part: str) -> Any:
    config = folder.config(part)

    def build() -> Any:
        if folder.parts[part] == "diffusers":
            return part_class.from_config(config)
        return part_class(part_class.config_class.from_dict(config))

    return empty_part(build, part_class.__name__, folder.path / part, config, folder.weights(part))
