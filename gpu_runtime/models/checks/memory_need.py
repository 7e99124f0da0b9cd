"""How much memory a run needs at least, from the headers of the model's files: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil
import torch

from gpu_runtime.models.checks.work_need import WorkNeed
from gpu_runtime.models.families.pipeline_model import PipelineModel, dtype_on
from gpu_runtime.models.files.pipeline_folder import PipelineFolder
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError

GIB = 2**30
_FLOAT32 = 4
_MOMENTS = 2
"""Of AdamW, for every trained weight."""

Terms = dict[str, float]
"""What needs memory at one moment, and bytes."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a run needs of a device, at least.

    Attributes:
        transformer_bytes, vae_bytes: weights of these parts.
        encoders_bytes: weights of all text encoders.
        offloads_encoders: whether they are on the device for new prompts only.
        work: what training and generating need beside.
    """

    transformer_bytes: int
    vae_bytes: int
    encoders_bytes: int
    offloads_encoders: bool = False
    work: WorkNeed = field(default_factory=WorkNeed)

    @classmethod
    def on(
        cls,
        family: type[PipelineModel],
        folder: PipelineFolder,
        settings: ModelConfig,
        device: torch.device,
        work: WorkNeed,
    ) -> MemoryNeed:
        """Count the numbers in a pipeline's files, in the precision that they have on a device."""
        size = dtype_on(settings, device).itemsize
        return cls(
            folder.parameters("transformer") * size,
            folder.parameters("vae") * _FLOAT32,
            sum(folder.parameters(part) for part in family.ENCODERS) * size,
            # On the CPU there is no other memory that they could stay in.
            settings.encoders == "offload" and device.type == "cuda",
            work,
        )

    def of_weights(self) -> Terms:
        """Of a device that generates: the weights, whatever it does."""
        terms: Terms = {"transformer": self.transformer_bytes, "VAE": self.vae_bytes}
        if not self.offloads_encoders:
            terms["text encoders"] = self.encoders_bytes
        return terms | {"adapters": self.work.adapters_bytes}

    def generating(self) -> Terms:
        """Of a device that generates, at the moment when it needs the most."""
        activations = self.of_weights() | {"activations": self.work.generating_bytes}
        return max(activations, self._encoding(), key=_sum)

    def training(self, trainers: int) -> Terms:
        """Of one of the devices that train, at the moment when it needs the most.

        Args:
            trainers: over how many the transformer and all that training adds are divided. Each holds
                all of it beside its part while it generates.
        """
        work, held = self.work, self.of_weights()
        trained = self.transformer_bytes if work.trains_all else work.adapters_bytes
        kept = {
            "AdamW's moments": _MOMENTS * trained / trainers,
            "reference": (trained if work.keeps_reference else 0) / trainers,
        }
        parts = {"transformer": held["transformer"] / trainers, "adapters": held["adapters"] / trainers}
        computes: Terms = held | parts | {"activations": work.training_bytes}
        if work.trains_again:
            computes |= kept
        steps = held | parts | kept | {"gradients": trained / trainers}
        generates: Terms = held | {"activations": work.generating_bytes}
        if trainers > 1:
            generates["its part of them"] = parts["transformer"] + parts["adapters"]
        if work.trains_again:
            generates |= kept
        return max(computes, steps, generates, self._encoding(), key=_sum)

    def _encoding(self) -> Terms:
        return self.of_weights() | {"text encoders": self.encoders_bytes}


def refuse_too_large(
    need: MemoryNeed, device: torch.device, models: int, trainers: int, device_index: int = 0
) -> None:
    """Refuse a run that surely does not fit.

    Args:
        need: of one model.
        device: its kind.
        models: how many of them share this machine's memory; on GPUs each has its own.
        trainers: how many of them train together; 0 where none does.
        device_index: which GPU to look at.

    Raises:
        ConfigurationError: it does not fit.
    """
    terms = need.training(trainers) if trainers else need.generating()
    if device.type == "cuda":
        # Not mem_get_info, which would take memory of the device for this process.
        found = torch.cuda.get_device_properties(device_index)
        there, where = found.total_memory, found.name
    else:
        there, where = psutil.virtual_memory().available, "this machine (free memory)"
        at_work = max(trainers, 1)
        terms = {name: at_work * size for name, size in terms.items()}
        terms["weights of the other models"] = (models - at_work) * _sum(need.of_weights())
    wanted = _sum(terms)
    if wanted <= there:
        return
    shared = f" for {models} models" if device.type == "cpu" and models > 1 else ""
    named = ", ".join(f"{name} {size / GIB:.1f}" for name, size in terms.items() if size)
    raise ConfigurationError(
        f"the run needs at least {wanted / GIB:.1f} GiB{shared} ({named}), but {where} has {there / GIB:.1f} "
        f"GiB; {_advice(need, terms, trainers, bool(shared))}"
    )


def _advice(need: MemoryNeed, terms: Terms, trainers: int, shared: bool) -> str:
    """What would make it smaller."""
    advice = ["take a larger device or a smaller model"]
    if trainers and need.work.trains_all:
        advice.append("adaptation.mode=lora")
    if trainers and terms.get("activations", 0) >= 0.1 * _sum(terms):
        advice += ["adaptation.gradient_checkpointing=true", "a smaller sampling.batch_size or image"]
    if not need.offloads_encoders and need.encoders_bytes:
        advice.append("model.encoders=offload")
    if shared:
        advice.append("fewer workers")
    return ", or ".join(advice)


def _sum(terms: Terms) -> float:
    return sum(terms.values())
