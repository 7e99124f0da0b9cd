"""Loading the configured model onto a device."""

from __future__ import annotations

import os

import torch
from torch.utils import deterministic

from gpu_runtime.models.protocol import DiffusionModel, ModelOutline
from gpu_runtime.models.registry import family_of
from storage.config.model import ModelConfig
from storage.config.runtime import RuntimeConfig
from storage.environment import CPU
from storage.errors import ConfigurationError

_SETTINGS = {
    # Each cuBLAS handle gets its own workspace; torch refuses deterministic products without it.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Generating and training alternate between block sizes; without it the gaps between blocks are lost.
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
"""Environment variables, read by CUDA's libraries when they first compute; an existing value stays."""


def load_model(config: ModelConfig) -> DiffusionModel:
    """Load the configured family from its path.

    Raises:
        ConfigurationError: if CUDA is requested but missing, or a GPU is too small.
        ModelError: if files are missing or do not fit.
    """
    refuse_missing_cuda(config)
    device = device_of(config)
    if device.type != "cpu":
        prepare_gpu()
    return family_of(config).load(config, device)


def evaluated(model: DiffusionModel, own: ModelConfig, wanted: ModelConfig) -> DiffusionModel:
    """Return a run's model at the size of held-out images: the model itself, unless they differ in size.

    Args:
        model: model of the settings `own`.
        wanted: the same settings with the size of held-out images.

    Raises:
        ConfigurationError: if it cannot make this size.
    """
    size, wanted_size = (family_of(own).size(one) for one in (own, wanted))
    return model if size == wanted_size else model.resized(*wanted_size)


def outline_model(config: ModelConfig) -> ModelOutline:
    """Return the configured model's outline before a run; only an embedded one is loaded, on the CPU.

    Raises:
        ConfigurationError: if the model cannot work with a setting.
        ModelError: if files are missing or do not fit.
    """
    return family_of(config).outline(config, device_of(config))


def device_of(config: ModelConfig) -> torch.device:
    """Return the model's device on this machine."""
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(config: ModelConfig) -> str:
    """Return the display name of the model's device: `cpu`, or the GPU's name."""
    device = device_of(config)
    return CPU if device.type == "cpu" else torch.cuda.get_device_name(device)


def refuse_missing_cuda(config: ModelConfig) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ConfigurationError: if CUDA is requested but missing.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("model.device = cuda, but no CUDA device is visible here; use auto or cpu")


def refuse_gpus_of_local_processes(runtime: RuntimeConfig, model: ModelConfig) -> None:
    """Refuse a cluster of local processes on GPUs, which it cannot divide among them.

    Raises:
        ConfigurationError: if it is one.
    """
    if runtime.cluster == "local" and device_of(model).type == "cuda":
        raise ConfigurationError(
            f"runtime.cluster=local starts workers only on the CPU, but model.device={model.device} is a "
            "GPU here; set runtime.cluster=ray, or model.device=cpu"
        )


def prepare_gpu() -> None:
    """Choose deterministic kernels for the whole process; call it before anything computes on the GPU.

    Some backward passes, above all attention's, sum in the order in which threads arrive, so gradients would
    differ from run to run. The choice also applies to generating: it determines torch's attention kernel, and
    the first update's ratio is 1 only if rollout and training use the same one.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    # All memory is written before it is read; filling it first would cost time.
    deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
