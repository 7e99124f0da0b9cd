"""How much memory a model needs at least, from the headers of its files: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from gpu_runtime.models.pipeline_folder import PipelineFolder
from gpu_runtime.models.pipeline_model import PipelineModel, dtype_on
from storage.errors import ConfigurationError
from storage.model_config import ModelConfig

GIB = 2**30
_FLOAT32 = 4
_TRAINED_COPIES = 3
"""Gradient and AdamW's two moments, beside the weights, where all of them are trained."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of the weights on a device; activations and adapters come on top.

    Attributes:
        transformer_bytes, vae_bytes: of these parts.
        encoders_bytes: of all text encoders; offloaded ones come back for every new prompt.
    """

    transformer_bytes: int
    vae_bytes: int
    encoders_bytes: int

    @classmethod
    def on(
        cls,
        family: type[PipelineModel],
        folder: PipelineFolder,
        settings: ModelConfig,
        device: torch.device,
    ) -> MemoryNeed:
        """Count the numbers in a pipeline's files, in the precision that they have on a device."""
        size = dtype_on(settings, device).itemsize
        return cls(
            folder.parameters("transformer") * size,
            folder.parameters("vae") * _FLOAT32,
            sum(folder.parameters(part) for part in family.ENCODERS) * size,
        )

    def total(self, trains_all: bool) -> int:
        """Bytes on one device.

        Args:
            trains_all: whether all weights of the transformer are trained there.
        """
        copies = 1 + (_TRAINED_COPIES if trains_all else 0)
        return copies * self.transformer_bytes + self.vae_bytes + self.encoders_bytes


def refuse_too_large(
    need: MemoryNeed, device: torch.device, models: int, trains_all: bool, device_index: int = 0
) -> None:
    """Refuse a model whose weights alone do not fit.

    Args:
        need: of one model.
        device: its kind.
        models: how many of them share this machine's memory; on GPUs each has its own.
        trains_all: whether one of them trains all weights.
        device_index: which GPU to look at.

    Raises:
        ConfigurationError: it does not fit.
    """
    if device.type == "cuda":
        # Not mem_get_info, which would take memory of the device for this process.
        found = torch.cuda.get_device_properties(device_index)
        there, where = found.total_memory, found.name
        wanted = need.total(trains_all)
    else:
        there, where = psutil.virtual_memory().available, "this machine (free memory)"
        wanted = need.total(trains_all) + (models - 1) * need.total(False)
    if wanted <= there:
        return
    shared = f" for {models} models" if device.type == "cpu" and models > 1 else ""
    raise ConfigurationError(
        f"the weights need {wanted / GIB:.1f} GiB{shared} (transformer {need.transformer_bytes / GIB:.1f}, "
        f"text encoders {need.encoders_bytes / GIB:.1f}, VAE {need.vae_bytes / GIB:.1f} each) and "
        f"activations more, but {where} has {there / GIB:.1f} GiB; take a larger device or a smaller model"
        + (", or adaptation.mode=lora" if trains_all else "")
        + (", or fewer workers" if shared else "")
    )
