"""Trained adapters as the file that diffusers' pipelines load, `pytorch_lora_weights.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.config.run_config import AdaptationConfig
from storage.errors import ModelError

LORA_FILE = "pytorch_lora_weights.safetensors"
_ADAPTER = ".default."


def write_lora(
    pipeline: Any, folder: Path, state: Mapping[str, np.ndarray], adaptation: AdaptationConfig
) -> Path:
    """Write adapters that `pipe.load_lora_weights(folder)` can load.

    The weights are multiplied by the scale alpha / rank, so that a loader without alpha gets the same
    model.

    Args:
        pipeline: pipeline class of diffusers, which knows the format.
        folder: folder to write to.
        state: adapters by their names in the policy (`...lora_A.default.weight`), float32.
        adaptation: settings with which they were trained.

    Returns:
        The file.

    Raises:
        ModelError: if the state holds weights other than adapters.
    """
    from peft import LoraConfig

    scale = adaptation.alpha / adaptation.rank
    layers: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if ".lora_A." not in name and ".lora_B." not in name:
            raise ModelError(f"{name} is no weight of an adapter; export a run with adaptation.mode=lora")
        factor = scale if ".lora_B." in name else 1.0
        layers[name.replace(_ADAPTER, ".")] = torch.from_numpy(value * np.float32(factor)).contiguous()
    layout = LoraConfig(
        r=adaptation.rank, lora_alpha=adaptation.rank, target_modules=list(adaptation.targets)
    )
    pipeline.save_lora_weights(
        str(folder),
        transformer_lora_layers=layers,
        transformer_lora_adapter_metadata=layout.to_dict(),
    )
    return folder / LORA_FILE
