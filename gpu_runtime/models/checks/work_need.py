"""What training and generating need of a device's memory beside a model's weights, at least.

Counted from the layers of a transformer that may be without memory for its weights. Every number is a
lower bound: what a kernel, an allocator or another batch adds is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from storage.config.run_config import AdaptationConfig, RunConfig

_FLOAT32 = 4
_STACKS = ("transformer_blocks", "single_transformer_blocks", "layers")
"""Where the families keep the blocks that every image token passes."""

_KEPT = 4
"""Of each block until its backward pass: queries, keys, values, and what its norm was given."""


@dataclass(frozen=True)
class WorkNeed:
    """Bytes on one device, whatever is divided over several.

    Attributes:
        adapters_bytes: weights of the adapters; 0 where all weights are trained.
        trains_all: whether the transformer's own weights are trained.
        keeps_reference: whether a copy of them is kept as loaded (full training with a KL).
        trains_again: whether there is a second training step: AdamW's moments are there from the first on.
        training_bytes: activations of one batch in training, kept for its backward pass.
        generating_bytes: activations of one batch in the block that computes.
    """

    adapters_bytes: int = 0
    trains_all: bool = False
    keeps_reference: bool = False
    trains_again: bool = True
    training_bytes: int = 0
    generating_bytes: int = 0

    @classmethod
    def of(cls, transformer: torch.nn.Module, image_tokens: int, config: RunConfig) -> WorkNeed:
        """Count a run's.

        Args:
            transformer: its layers, in the precision that it computes in.
            image_tokens: of one sample; its text tokens come on top and are not counted.
            config: the run's configuration.
        """
        adaptation, trains_all = config.adaptation, config.adaptation.mode == "full"
        blocks = list(_blocks(transformer))
        trained = blocks if trains_all else _from_first_adapter(blocks, adaptation)
        itemsize = next(transformer.parameters()).dtype.itemsize
        rows = config.sampling.batch_size * image_tokens * itemsize
        largest = max((_width(block) for block in blocks), default=0)
        if adaptation.gradient_checkpointing:
            # What each block was given, and one of them computed again.
            kept = sum(map(_width, trained)) + (_KEPT - 1) * max(map(_width, trained), default=0)
        else:
            kept = _KEPT * sum(map(_width, trained))
        return cls(
            adapters_bytes=0 if trains_all else adapter_numbers(transformer, adaptation) * _FLOAT32,
            trains_all=trains_all,
            keeps_reference=trains_all and config.algorithm.kl_weight > 0,
            trains_again=config.iterations * config.algorithm.updates_per_iteration > 1,
            training_bytes=rows * kept,
            generating_bytes=rows * _KEPT * largest,
        )


def adapter_numbers(transformer: torch.nn.Module, adaptation: AdaptationConfig) -> int:
    """How many numbers the LoRA adapters of a transformer are."""
    return sum(
        adaptation.rank * (layer.in_features + layer.out_features)
        for name, layer in transformer.named_modules()
        if isinstance(layer, torch.nn.Linear) and _is_target(name, adaptation)
    )


def _is_target(name: str, adaptation: AdaptationConfig) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in adaptation.targets)


def _blocks(transformer: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The blocks that every image token passes, in their order."""
    for stack in _STACKS:
        yield from getattr(transformer, stack, ())


def _from_first_adapter(
    blocks: Sequence[torch.nn.Module], adaptation: AdaptationConfig
) -> Sequence[torch.nn.Module]:
    """The blocks that a gradient passes for certain: nothing is kept of those before the first adapter."""
    for place, block in enumerate(blocks):
        if adapter_numbers(block, adaptation):
            # Of the first one itself, only what comes after its adapter.
            return blocks[place + 1 :]
    return ()


def _width(block: torch.nn.Module) -> int:
    """Numbers of one token between the layers of a block; 0 where it is not known."""
    attention: Any = getattr(block, "attn", None) or getattr(block, "attention", None)
    layer: Any = getattr(attention, "to_q", None)
    return layer.out_features if isinstance(layer, torch.nn.Linear) else 0
