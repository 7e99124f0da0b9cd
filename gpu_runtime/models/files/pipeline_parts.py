"""The parts of a diffusers pipeline, loaded one by one with all their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from diffusers import FlowMatchEulerDiscreteScheduler
from safetensors import SafetensorError

from gpu_runtime.models.files.part_check import empty_part, refuse_other_names
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from storage.errors import ModelError

SCHEDULER = "FlowMatchEulerDiscreteScheduler"


@dataclass(frozen=True)
class Parts:
    """What a family works with.

    Attributes:
        transformer: the denoiser.
        vae: decodes latents, float32.
        scheduler: gives the noise schedule.
        encoders, tokenizers: by the names of their folders; what prepares images is with the tokenizers.
    """

    transformer: Any
    vae: Any
    scheduler: Any
    encoders: Mapping[str, Any]
    tokenizers: Mapping[str, Any]


def load_weights(model_class: Any, folder: PipelineFolder, part: str, dtype: torch.dtype) -> Any:
    """Load a model of diffusers' or transformers' classes, on the CPU, to be used and not trained.

    Args:
        model_class: with `from_pretrained`.
        folder: of the pipeline.
        part: its folder in the pipeline's.
        dtype: of the weights.

    Raises:
        ModelError: the files are of another model, or weights are missing in them. Both libraries would
            draw the missing ones at random, and only warn.
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
    lacking = sorted({name for name, _ in model.named_parameters()} & set(report["missing_keys"]))
    if lacking:
        raise ModelError(
            f"{folder.path / part} lacks {len(lacking)} weights of a {model_class.__name__}, such as "
            f"{lacking[0]}; download the model again, whole"
        )
    return model.eval().requires_grad_(False)


def load_tokenizers(folder: PipelineFolder) -> dict[str, Any]:
    """The tokenizers, each by the class that the pipeline names, and what prepares images for an encoder.

    Raises:
        ModelError: one cannot be loaded.
    """
    loaded: dict[str, Any] = {}
    for part in (part for part, kind in folder.parts.items() if kind == "tokenizer"):
        _, named = folder.index.get(part) or ("", "")
        tokenizer_class: Any = getattr(transformers, named, transformers.AutoTokenizer)
        try:
            loaded[part] = tokenizer_class.from_pretrained(str(folder.path / part), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"{folder.path / part} is no tokenizer that transformers can load: {error}"
            ) from error
    for part in (part for part, kind in folder.parts.items() if kind == "processor"):
        try:
            # Its images alone: the whole processor needs torchvision, for videos.
            loaded[part] = transformers.AutoImageProcessor.from_pretrained(
                str(folder.path / part), local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(
                f"{folder.path / part} holds no settings of images that transformers can load: {error}"
            ) from error
    return loaded


def load_scheduler(folder: PipelineFolder) -> Any:
    """The scheduler, of which only the schedule is used.

    Raises:
        ModelError: it is one of another kind.
    """
    config = folder.config("scheduler")
    if config.get("_class_name") != SCHEDULER:
        raise ModelError(
            f"{folder.path / 'scheduler'} is a {config.get('_class_name')}, not a {SCHEDULER}: sampling here "
            "is flow matching along that one's schedule; name a model that comes with it"
        )
    try:
        return FlowMatchEulerDiscreteScheduler.from_config(config)
    except (TypeError, ValueError, ArithmeticError, MemoryError) as error:
        raise ModelError(
            f"{folder.path / 'scheduler'} is no {SCHEDULER} that can be made: {error}; download it again"
        ) from error


def empty_transformer(
    model_class: Any, encoder_classes: Mapping[str, Any], vae_class: Any, folder: PipelineFolder,
    dtype: torch.dtype,
) -> Any:  # fmt: skip
    """The transformer without memory for its weights: its layers can be looked at.

    The other models of the pipeline are built likewise, to be held against their files, and dropped.

    Args:
        model_class: of the transformer.
        encoder_classes: of the text encoders, by their folders.
        vae_class: of the VAE.
        folder: of the pipeline.
        dtype: of the transformer's weights.

    Raises:
        ModelError: a part's configuration is of another model, or asks for other weights than there are.
    """
    for part, part_class in {"vae": vae_class, **encoder_classes}.items():
        _empty_part(part_class, folder, part)
    model = _empty_part(model_class, folder, "transformer")
    refuse_other_names(model, folder.path / "transformer", folder.weights("transformer"))
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
