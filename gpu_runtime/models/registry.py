"""The model families by name. Each is imported, with torch, only when one of its models is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_runtime.models.embedded import folder as embedded_folder
from gpu_runtime.models.embedded.text_encoder import fitting_tokens
from gpu_runtime.models.family_options import EditPlusOptions, WanOptions, source_count
from gpu_runtime.models.files.hub_folder import find_folder
from gpu_runtime.models.files.pipeline_folder import pipeline_files
from storage.config.model import EMBEDDED_PREFIX, ModelConfig
from storage.config.plugins import NoOptions, Registry
from storage.config.run_config import RunConfig
from storage.config.section import Section
from storage.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from gpu_runtime.models.checks.pipeline_outline import PipelineOutline
    from gpu_runtime.models.families.pipeline_model import PipelineModel
    from gpu_runtime.models.protocol import DiffusionModel, ModelOutline


@dataclass(frozen=True)
class FamilyPlugin:
    """A family that `model.family` can name: how to build a model from settings.

    `pipeline_family` makes one for a family whose parts come from a diffusers pipeline.

    Attributes:
        load: loads a model onto a device.
        outline: outlines a model before a run, for a kind of device.
        files: returns the files that a model is loaded from, in a fixed order.
        find: refuses a path without a model; raises `ModelError`. Quick: without torch.
        pipeline: returns the diffusers pipeline class whose format adapters are exported in.
        adapter_usage: returns Python code that loads exported adapters onto the model at a path.
        check: refuses settings that do not fit the family; raises `ConfigurationError`.
        prompt_check: returns a check that refuses prompts that the model cannot encode, if that is known
            without torch; the outline checks every prompt again. The check raises `ConfigurationError`.
        options: model of its `[model.options]`.
        source_size: returns height and width of the image that every prompt must come with, preceded by the
            number of images if there are several; None if the family takes text alone.
        size: returns height and width of the images that it makes.
        frames: returns the number of frames of its clips; None if it makes images.
    """

    load: Callable[[ModelConfig, torch.device], DiffusionModel]
    outline: Callable[[ModelConfig, torch.device], ModelOutline]
    files: Callable[[ModelConfig], list[Path]]
    find: Callable[[ModelConfig], object]
    pipeline: Callable[[], Any]
    adapter_usage: Callable[[str], str]
    check: Callable[[ModelConfig], None] = lambda settings: None
    prompt_check: Callable[[ModelConfig], Callable[[str], object]] = lambda settings: lambda prompt: None
    options: type[Section] = NoOptions
    source_size: Callable[[ModelConfig], tuple[int, ...] | None] = lambda settings: None
    size: Callable[[ModelConfig], tuple[int, int]] = lambda settings: settings.size
    frames: Callable[[ModelConfig], int | None] = lambda settings: None


def pipeline_family(
    module: str,
    class_name: str,
    edits: bool = False,
    clips: bool = False,
    options: type[Section] = NoOptions,
) -> FamilyPlugin:
    """Return the plug-in of a family whose parts come from a diffusers pipeline.

    Args:
        module: module of its models, which is imported, with torch, when one is needed.
        edits: True if it edits images, which have the size that it makes.
        clips: True if it makes clips.
    """

    def model_class() -> type[PipelineModel]:
        return getattr(import_module(module), class_name)

    def frames(settings: ModelConfig) -> int | None:
        return settings.clip_frames if clips else None

    def source_size(settings: ModelConfig) -> tuple[int, ...] | None:
        count = source_count(settings)
        return (*([count] if count > 1 else []), *settings.size) if edits else None

    def outline(settings: ModelConfig, device: torch.device) -> PipelineOutline:
        from gpu_runtime.models.checks.pipeline_outline import PipelineOutline

        return PipelineOutline(model_class(), settings, device, frames(settings))

    def load(settings: ModelConfig, device: torch.device) -> DiffusionModel:
        known = outline(settings, device)
        if device.type == "cuda":  # perhaps not the machine that the run was checked on
            known.check_machine()
        return model_class().load(settings, device)

    def check(settings: ModelConfig) -> None:
        if settings.path.startswith(EMBEDDED_PREFIX):
            raise ConfigurationError(
                f"model.path is {settings.path!r} with model.family={settings.family}; name a folder or a "
                "model in the hub's cache, as in model.path=Qwen/Qwen-Image"
            )

    def adapter_usage(path: str) -> str:
        pipeline = model_class().PIPELINE
        loading = "transformer.load_lora_adapter" if model_class().ADAPTERS else "load_lora_weights"
        return (
            f"import torch\nfrom diffusers import {pipeline.__name__}\n\n"
            f"pipe = {pipeline.__name__}.from_pretrained({path!r}, torch_dtype=torch.bfloat16)\n"
            f'pipe.{loading}("FOLDER")'
        )

    return FamilyPlugin(
        load,
        outline,
        files=lambda settings: pipeline_files(settings.path),
        find=lambda settings: find_folder("model.path", settings.path),
        pipeline=lambda: model_class().ADAPTERS or model_class().PIPELINE,
        adapter_usage=adapter_usage,
        check=check,
        options=options,
        source_size=source_size,
        frames=frames,
    )


def family_of(settings: ModelConfig) -> FamilyPlugin:
    """Return the family that the settings name.

    Raises:
        ConfigurationError: if there is no family of that name.
    """
    return FAMILIES.find(settings.family)


def _refuse_misfits(config: RunConfig, family: FamilyPlugin, options: Section) -> None:
    family.check(config.model)
    if config.model.frames and family.frames(config.model) is None:
        raise ConfigurationError(
            f"model.frames is {config.model.frames}, but {config.model.family} makes images; leave it out, "
            "or choose a family that makes clips, such as wan2.2"
        )


def _check_embedded(settings: ModelConfig) -> None:
    """Refuse settings that an embedded model has no use for, and guidance for one not trained for it."""
    defaults = ModelConfig.model_fields
    changed = [
        f"model.{name}={getattr(settings, name)!r}"
        for name in sorted(defaults.keys() - {"family", "path", "device", "adapter", "reference", "guidance"})
        if getattr(settings, name) != defaults[name].default
    ]
    if changed:
        raise ConfigurationError(
            f"{', '.join(changed)} is set, but model.family is embedded, whose models have a fixed size and "
            "precision; leave it out, or set model.family"
        )
    if settings.guidance != 1 and not _embedded_settings(settings).guided:
        raise ConfigurationError(
            f"model.guidance is {settings.guidance:g}, but {settings.path} takes none (it was never trained "
            "without a prompt); leave it out, or make a model that does: spotlight pretrain glyphs-guided"
        )


def _load_embedded(settings: ModelConfig, device: torch.device) -> DiffusionModel:
    from gpu_runtime.models.embedded.model import EmbeddedModel

    return EmbeddedModel.load(settings.path, device=device, guidance=settings.guidance)


def _outline_embedded(settings: ModelConfig, device: torch.device) -> ModelOutline:
    from gpu_runtime.models.embedded.model import EmbeddedModel

    # It is small, so it is loaded, on the CPU whatever the run's device is.
    return EmbeddedModel.load(settings.path).resized(*_embedded_size(settings))


def _embedded_files(settings: ModelConfig) -> list[Path]:
    folder = embedded_folder.resolve_folder(settings.path)
    return [folder / name for name in embedded_folder.FILES]


def _embedded_settings(settings: ModelConfig) -> embedded_folder.EmbeddedSettings:
    folder = embedded_folder.resolve_folder(settings.path)
    return embedded_folder.read_settings(folder / embedded_folder.SETTINGS_FILE)


def _embedded_size(settings: ModelConfig) -> tuple[int, int]:
    model = _embedded_settings(settings)
    return settings.height or model.height, settings.width or model.width


def _embedded_adapter_usage(path: str) -> str:
    return (
        "from gpu_runtime.models.embedded.model import EmbeddedModel\n\n"
        f"model = EmbeddedModel.load({path!r})\n"
        'model.transformer.load_lora_adapter("FOLDER", use_safetensors=True)'
    )


_EDITS, _HUNYUAN = "gpu_runtime.models.families.qwen_image_edit", "gpu_runtime.models.families.hunyuan_video"
_FLUX, _SD3 = "gpu_runtime.models.families.flux", "gpu_runtime.models.families.stable_diffusion_3"
_FAMILIES = {
    "qwen-image": pipeline_family("gpu_runtime.models.families.qwen_image", "QwenImageModel"),
    "qwen-image-2.1": pipeline_family("gpu_runtime.models.families.qwen_image_21", "QwenImage21Model"),
    "qwen-image-edit": pipeline_family(_EDITS, "QwenImageEditModel", edits=True),
    "qwen-image-edit-plus": pipeline_family(_EDITS, "QwenImageEditPlusModel", True, options=EditPlusOptions),
    "sd3.5": pipeline_family(_SD3, "StableDiffusion3Model"),
    "flux": pipeline_family(_FLUX, "FluxModel"),
    "flux2-klein": pipeline_family("gpu_runtime.models.families.flux2_klein", "Flux2KleinModel"),
    "flux-kontext": pipeline_family(_FLUX, "FluxKontextModel", edits=True),
    "sana": pipeline_family("gpu_runtime.models.families.sana", "SanaModel"),
    "z-image": pipeline_family("gpu_runtime.models.families.z_image", "ZImageModel"),
    "hunyuan-video-1.5": pipeline_family(_HUNYUAN, "HunyuanVideo15Model", clips=True),
    "wan2.2": pipeline_family("gpu_runtime.models.families.wan", "WanModel", clips=True, options=WanOptions),
}

FAMILIES = Registry(
    "model.family",
    FamilyPlugin,
    "spotlight.families",
    {
        "embedded": FamilyPlugin(
            _load_embedded,
            _outline_embedded,
            _embedded_files,
            find=lambda settings: embedded_folder.resolve_folder(settings.path),
            # It has Qwen-Image's transformer, and so its adapters.
            pipeline=_FAMILIES["qwen-image"].pipeline,
            adapter_usage=_embedded_adapter_usage,
            check=_check_embedded,
            prompt_check=lambda settings: partial(
                fitting_tokens, length=_embedded_settings(settings).text_length
            ),
            source_size=lambda settings: (
                _embedded_size(settings) if _embedded_settings(settings).edits else None
            ),
            size=_embedded_size,
            frames=lambda settings: _embedded_settings(settings).frames or None,
        ),
        **_FAMILIES,
    },
    refuse=_refuse_misfits,
)
