"""The least memory that a run needs, computed without loading anything.

Weights are counted from the headers of the model's files; the memory of training and generating, from the
layers of a transformer that may be on the meta device. Every number is a lower bound: what kernels, the
allocator or another batch add is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from storage.config.run_config import AdaptationConfig, RunConfig
from storage.errors import ConfigurationError

GIB = 2**30
_FLOAT32 = 4
_MOMENTS = 2
"""Moments that AdamW keeps for every trained weight."""

_STACKS = ("transformer_blocks", "single_transformer_blocks", "layers", "blocks")
"""Attributes in which families keep the blocks that every image token passes through."""

_ATTENTION = ("attn", "attention", "attn1")
"""Attributes in which blocks keep the image tokens' attention."""

_KEPT = 4
"""Tensors kept per block until its backward pass: queries, keys, values, and its norm's input."""

Terms = dict[str, float]
"""Bytes in use at one moment, by their use."""


@dataclass(frozen=True)
class WorkNeed:
    """Bytes that training and generating need on one device, before anything is divided over several.

    Attributes:
        trained_bytes: trained weights.
        trains_all: True if these are the transformer's own, or those of one of its two experts.
        keeps_reference: True if a copy of the trained weights as loaded is kept as the reference policy (in
            full training, or with an adapter as the reference).
        trains_again: True if there is a second training step: AdamW's moments exist after the first.
        training_bytes: activations of one batch in training, kept for its backward pass.
        generating_bytes: activations of one block, for the samples that pass through it together.
        gradient_shards: `algorithm.gradient_shards`; above 1, nothing is divided over the training devices.
    """

    trained_bytes: int = 0
    trains_all: bool = False
    keeps_reference: bool = False
    trains_again: bool = True
    training_bytes: int = 0
    generating_bytes: int = 0
    gradient_shards: int = 1

    @classmethod
    def of(
        cls,
        transformer: torch.nn.Module,
        image_tokens: int,
        config: RunConfig,
        keeps_reference: bool,
        evaluated: int = 0,
        one_by_one: bool = False,
    ) -> WorkNeed:
        """Count the bytes of a run.

        Args:
            transformer: transformer in its compute precision.
            image_tokens: image tokens of one sample; its text tokens are not counted.
            keeps_reference: True if training needs the reference policy.
            evaluated: image tokens of a held-out sample, which may have more.
            one_by_one: True if a batch's samples pass through the transformer one by one.
        """
        adaptation, trains_all = config.adaptation, config.adaptation.mode == "full"
        blocks = [block for stack in _STACKS for block in getattr(transformer, stack, ())]
        # A gradient certainly passes through all blocks after the first one with an adapter. Nothing is kept
        # of those before it, and in that block the gradient passes only through layers after its adapter.
        adapted = (place for place, block in enumerate(blocks) if adapter_numbers(block, adaptation))
        trained = blocks if trains_all else blocks[next(adapted, len(blocks)) + 1 :]
        itemsize = next(transformer.parameters()).dtype.itemsize
        batch = config.sampling.batch_size
        at_once = 1 if one_by_one else batch
        largest = max((_width(block) for block in blocks), default=0)
        if adaptation.gradient_checkpointing:
            # The input of each block, and one block recomputed.
            recomputed = at_once * (_KEPT - 1) * max(map(_width, trained), default=0)
            kept = batch * sum(map(_width, trained)) + recomputed
        else:
            kept = batch * _KEPT * sum(map(_width, trained))
        if trains_all:  # a frozen expert's weights are not among these
            trained_bytes = sum(weight.nbytes for weight in transformer.parameters())
        else:
            trained_bytes = adapter_numbers(transformer, adaptation) * _FLOAT32
        return cls(
            trained_bytes=trained_bytes,
            trains_all=trains_all,
            keeps_reference=keeps_reference and (trains_all or config.model.reference == "adapter"),
            trains_again=config.iterations * config.algorithm.updates_per_iteration > 1,
            training_bytes=itemsize * image_tokens * kept,
            generating_bytes=itemsize * max(image_tokens, evaluated) * at_once * _KEPT * largest,
            gradient_shards=config.algorithm.gradient_shards,
        )

    def divided_over(self, trainers: int) -> int:
        """Return the number of training devices that weights are divided over."""
        return trainers if self.gradient_shards == 1 else 1

    def gradients_kept(self, trainers: int) -> int:
        """Return how many shards' gradients a training device holds when a step begins."""
        return math.ceil(self.gradient_shards / trainers) if self.gradient_shards > 1 else 1


@dataclass(frozen=True)
class MemoryNeed:
    """The least bytes that a run needs on a device.

    Attributes:
        transformer_bytes, vae_bytes: weights of these parts.
        encoders_bytes: weights of all text encoders.
        offloads_encoders: True if they are on the device for new prompts only.
        work: further bytes for training and generating.
    """

    transformer_bytes: int
    vae_bytes: int
    encoders_bytes: int
    offloads_encoders: bool = False
    work: WorkNeed = field(default_factory=WorkNeed)

    def of_weights(self) -> Terms:
        """Return the weights that a generating device always holds."""
        terms: Terms = {"transformer": self.transformer_bytes, "VAE": self.vae_bytes}
        if not self.offloads_encoders:
            terms["text encoders"] = self.encoders_bytes
        return terms | {"adapters": 0 if self.work.trains_all else self.work.trained_bytes}

    def generating(self) -> Terms:
        """Return a generating device's peak need."""
        activations = self.of_weights() | {"activations": self.work.generating_bytes}
        return max(activations, self._encoding(), key=_sum)

    def training(self, trainers: int) -> Terms:
        """Return a training device's peak need.

        Args:
            trainers: number of training devices. The transformer and everything that training adds are
                divided over them, unless there are gradient shards. While generating, each holds all weights
                beside its part.
        """
        work, held = self.work, self.of_weights()
        kept_gradients, trainers = work.gradients_kept(trainers), work.divided_over(trainers)
        kept = {
            "AdamW's moments": _MOMENTS * work.trained_bytes / trainers,
            "reference": (work.trained_bytes if work.keeps_reference else 0) / trainers,
        }
        parts = {"transformer": held["transformer"] / trainers, "adapters": held["adapters"] / trainers}
        computes: Terms = held | parts | {"activations": work.training_bytes}
        if work.trains_again:
            computes |= kept
        gradients = {"gradients": kept_gradients * work.trained_bytes / trainers}
        if kept_gradients > 1:  # the other shards' gradients are held while the last one's batch computes
            computes |= gradients
        steps = held | parts | kept | gradients
        beside: Terms = kept if work.trains_again else {}  # kept while it generates
        if trainers > 1:
            beside = beside | {"its part of the weights": parts["transformer"] + parts["adapters"]}
        generates = held | {"activations": work.generating_bytes} | beside
        return max(computes, steps, generates, self._encoding() | beside, key=_sum)

    def _encoding(self) -> Terms:
        return self.of_weights() | {"text encoders": self.encoders_bytes}


def refuse_too_large(need: MemoryNeed, device: torch.device, models: int, trainers: int) -> None:
    """Refuse a run that certainly does not fit.

    Args:
        models: number of models that share this machine's memory; on GPUs each has its own.
        trainers: number of them that train together; 0 if none does.

    Raises:
        ConfigurationError: if it does not fit.
    """
    terms = need.training(trainers) if trainers else need.generating()
    if device.type == "cuda":
        # Not mem_get_info, which would allocate device memory for this process.
        properties = torch.cuda.get_device_properties(0)
        available, where = properties.total_memory, properties.name
    else:
        available, where = psutil.virtual_memory().available, "this machine (free memory)"
        at_work = max(trainers, 1)
        terms = {name: at_work * size for name, size in terms.items()}
        terms["weights of the other models"] = (models - at_work) * _sum(need.of_weights())
    wanted = _sum(terms)
    if wanted <= available:
        return
    shared = f" for {models} models" if device.type == "cpu" and models > 1 else ""
    named = ", ".join(f"{name} {size / GIB:.1f}" for name, size in terms.items() if size)
    raise ConfigurationError(
        f"the run needs at least {wanted / GIB:.1f} GiB{shared} ({named}), but {where} has "
        f"{available / GIB:.1f} GiB; {_advice(need, terms, trainers, bool(shared))}"
    )


def _advice(need: MemoryNeed, terms: Terms, trainers: int, shared: bool) -> str:
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


def adapter_numbers(transformer: torch.nn.Module, adaptation: AdaptationConfig) -> int:
    """Return the number of weights in a transformer's LoRA adapters."""
    return sum(
        adaptation.rank * (layer.in_features + layer.out_features)
        for name, layer in transformer.named_modules()
        if isinstance(layer, torch.nn.Linear)
        and any(name == target or name.endswith(f".{target}") for target in adaptation.targets)
    )


def _width(block: torch.nn.Module) -> int:
    """Return a token's width between the layers of a block; 0 if unknown."""
    attention: Any = next((getattr(block, name) for name in _ATTENTION if hasattr(block, name)), None)
    layer: Any = getattr(attention, "to_q", None)
    return layer.out_features if isinstance(layer, torch.nn.Linear) else 0
