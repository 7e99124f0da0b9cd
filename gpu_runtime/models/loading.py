"""From configuration to a loaded model on a device."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from gpu_runtime.models.embedded import EmbeddedModel
from gpu_runtime.models.embedded_outline import EmbeddedOutline
from gpu_runtime.models.protocol import DiffusionModel
from storage.config.run_config import ModelConfig, RunConfig
from storage.errors import ConfigurationError


class ModelOutline(Protocol):
    """What the checks before a run need of a model."""

    transformer: torch.nn.Module
    """Its layers, perhaps without memory for their weights."""

    def check_prompts(self, prompts: list[str]) -> None:
        """Refuse a prompt that the model cannot encode."""
        ...

    def check_machine(self, config: RunConfig | None = None) -> None:
        """Refuse a run, or one worker, that this machine has no attention kernel or no memory for."""
        ...

    def text_length_for(self, degree: int) -> int | None:
        """The next `model.text_length` whose text tokens divide by a degree; None where none would help."""
        ...

    def sequence_lengths(self) -> tuple[int, int]:
        """Image and text tokens of a sample, as the transformer's attention sees them."""
        ...

    def blank_image(self) -> np.ndarray:
        """An image of the size that the model makes, uint8, shape (H, W, 3)."""
        ...


def load_model(config: ModelConfig) -> DiffusionModel:
    """Load the configured family from its path.

    Raises:
        ConfigurationError: if CUDA is asked for where there is none, or a GPU is too small.
        ModelError: if files are missing or do not fit.
    """
    refuse_missing_cuda(config)
    device = device_of(config)
    if config.family == "embedded":
        return EmbeddedModel.load(config.path, device=device)
    # Imported here: it takes seconds, and the embedded models have no use for it.
    from gpu_runtime.models.pipeline_outline import PipelineOutline

    outline = PipelineOutline(config, device)
    if device.type == "cuda":  # perhaps not the machine that the run was checked on
        outline.check_machine()
    return outline.family.load(config, device)


def outline_model(config: ModelConfig) -> ModelOutline:
    """What can be known of the configured model before a run; only an embedded one is loaded, on the CPU.

    Raises:
        ConfigurationError: a setting that the model cannot work with.
        ModelError: if files are missing or do not fit.
    """
    if config.family == "embedded":
        return EmbeddedOutline(load_model(config.model_copy(update={"device": "cpu"})))
    from gpu_runtime.models.pipeline_outline import PipelineOutline

    return PipelineOutline(config, device_of(config))


def device_of(config: ModelConfig) -> torch.device:
    """Where the model works on this machine."""
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def refuse_missing_cuda(config: ModelConfig) -> None:
    """Refuse a device that this machine has not.

    Raises:
        ConfigurationError: if CUDA is asked for where there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("model.device = cuda, but no CUDA device is visible here; use auto or cpu")


def refuse_gpus_of_local_processes(config: RunConfig) -> None:
    """Refuse a cluster of local processes whose devices would be GPUs: it divides none between them.

    Raises:
        ConfigurationError: it is one.
    """
    if config.runtime.cluster == "local" and device_of(config.model).type == "cuda":
        raise ConfigurationError(
            f"runtime.cluster=local starts workers on the CPU alone, and model.device={config.model.device} "
            "is a GPU here; set runtime.cluster=ray, or model.device=cpu"
        )


def refuse_shared_gpus(config: RunConfig) -> None:
    """Refuse devices that train together where workers of this machine share GPUs.

    Raises:
        ConfigurationError: there are fewer GPUs than workers; NCCL takes one process a GPU.
    """
    training = config.runtime.trainer_workers
    workers = config.runtime.reserved_workers + config.runtime.spot_workers
    if training == 1 or device_of(config.model).type != "cuda":
        return
    gpus = torch.cuda.device_count()
    if workers > gpus:
        raise ConfigurationError(
            f"runtime.trainer_workers is {training}, and {workers} workers would share {gpus} GPUs; each "
            "device that trains with others needs a GPU of its own: lower runtime.spot_workers, or set "
            "runtime.trainer_workers=1"
        )
