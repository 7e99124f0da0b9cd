"""The families that come as diffusers pipelines, by name; each is imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable

from gpu_runtime.models.pipeline_model import PipelineModel
from storage.errors import ConfigurationError


def _qwen_image() -> type[PipelineModel]:
    from gpu_runtime.models.qwen_image import QwenImageModel

    return QwenImageModel


def _stable_diffusion_3() -> type[PipelineModel]:
    from gpu_runtime.models.stable_diffusion_3 import StableDiffusion3Model

    return StableDiffusion3Model


def _flux() -> type[PipelineModel]:
    from gpu_runtime.models.flux import FluxModel

    return FluxModel


def _z_image() -> type[PipelineModel]:
    from gpu_runtime.models.z_image import ZImageModel

    return ZImageModel


FAMILIES: dict[str, Callable[[], type[PipelineModel]]] = {
    "qwen-image": _qwen_image,
    "sd3.5": _stable_diffusion_3,
    "flux": _flux,
    "z-image": _z_image,
}


def family_of(name: str) -> type[PipelineModel]:
    """The class of a family.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if name not in FAMILIES:
        raise ConfigurationError(f"model.family {name!r} is unknown; choose one of: {', '.join(FAMILIES)}")
    return FAMILIES[name]()
