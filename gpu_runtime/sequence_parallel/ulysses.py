"""Ulysses (arXiv 2309.14509): sharing a transformer's sequences over a process group, and undoing it.

It uses diffusers' context parallelism without `enable_parallelism`, which requires an accelerator, makes
three process groups where one is enough, and cannot be undone, as every regroup requires.

Shape suffixes: B samples, L text tokens, E text width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from diffusers.hooks.context_parallel import apply_context_parallel, remove_context_parallel
from diffusers.models._modeling_parallel import ContextParallelConfig
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from gpu_runtime.sequence_parallel.families import Family, experts_of, shared_family_of
from gpu_runtime.sequence_parallel.process_group import InstanceGroup
from gpu_runtime.sequence_parallel.sequence_shape import SequenceShape
from gpu_runtime.sequence_parallel.shared_attention import SharedAttention, allow_sharing
from storage.errors import ConfigurationError

_ATTENTION = "_parallel_config"  # attribute of a processor that diffusers reads to share its attention


class SharedSequence:
    """A transformer that shares its sequences with the other members of a group, until `close`.

    Every member must call the transformer with the same arguments, and gets the whole output. Sharing is for
    generating samples; no run trains on shared sequences. `close` undoes everything, even after a failure in
    the middle of a forward pass.

    Args:
        transformer: one of a family in `gpu_runtime/sequence_parallel/families.py`, or two experts.
        shape: shape of the sequence, to refuse one that does not divide.

    Raises:
        ConfigurationError: if the sequence does not divide, the family is unknown, or the attention
            backend cannot share; then the transformer is unchanged.
    """

    def __init__(self, transformer: torch.nn.Module, group: InstanceGroup, shape: SequenceShape) -> None:
        degree = group.size
        shape.check(degree)
        self._transformer: Any = transformer
        self._family: Family | None = None
        if degree == 1:
            return
        family = shared_family_of(transformer)
        for backend in _backends(transformer, family):
            allow_sharing(backend)
        # The only dimension of a device mesh, as far as diffusers uses one.
        mesh: Any = SimpleNamespace(size=lambda: group.size, get_group=lambda: group.group)
        context = ContextParallelConfig(ulysses_degree=degree)
        context._flattened_mesh = context._ulysses_mesh = mesh
        context._ulysses_local_rank = group.rank
        self._family = family
        self._attention = SharedAttention(group, family.order, shape.image_tokens)
        self._own_processors: list[tuple[Any, Any]] = []
        for module in _attention_modules(transformer, family):
            if family.attention is not None:
                self._own_processors.append((module, module.processor))
                module.processor = family.attention()
            module.processor._parallel_config = self._attention
        padding = partial(_pad_text, family.text_mask, degree, self._attention)
        self._hooks: list[Any] = []
        for expert in experts_of(transformer):
            apply_context_parallel(expert, context, family.splits)
            reads_text, output = map(expert.get_submodule, (family.text_at, family.output))
            self._hooks += [
                reads_text.register_forward_pre_hook(padding, with_kwargs=True),
                # diffusers' own hook would wait where the member cannot be freed.
                output.register_forward_hook(lambda *call: group.gather(call[2], dim=1)),
            ]

    def close(self) -> None:
        """Let the transformer compute alone again; a second call does nothing."""
        family, self._family = self._family, None
        if family is None:
            return
        for hook in self._hooks:
            hook.remove()
        for expert in experts_of(self._transformer):
            remove_context_parallel(expert, family.splits)
        for module, processor in self._own_processors:
            module.processor = processor
        for module in _attention_modules(self._transformer, family):
            if hasattr(module.processor, _ATTENTION):
                module.processor._parallel_config = None


def _pad_text(
    mask_name: str | None,
    degree: int,
    attention: SharedAttention,
    module: torch.nn.Module,
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Forward pre-hook: pad text to a multiple of the degree, with a mask, and tell attention its length."""
    given = dict(zip([*signature(type(module).forward).parameters][1:], args, strict=False)) | kwargs
    text_BLE = given.get("encoder_hidden_states")
    if text_BLE is None:
        return None
    length = text_BLE.shape[1]
    missing = -length % degree
    mask_BL = None if mask_name is None else given.get(mask_name)
    attention.begin(length, length + missing, mask_BL)
    if mask_name is None or not missing:
        return None
    if mask_BL is None:
        mask_BL = torch.ones(text_BLE.shape[:2], dtype=torch.bool, device=text_BLE.device)
    padded = {
        "encoder_hidden_states": torch.nn.functional.pad(text_BLE, (0, 0, 0, missing)),
        mask_name: torch.nn.functional.pad(mask_BL.bool(), (0, missing)),
    }
    return (), given | padded


def shape_of(transformer: torch.nn.Module, image_tokens: int, text_tokens: int) -> SequenceShape:
    """Return the shape of a transformer's sequence at a resolution.

    Args:
        transformer: transformer of a family that can be shared.
        image_tokens: image tokens of a sample.
        text_tokens: text tokens of a sample.

    Raises:
        ConfigurationError: if the family is unknown.
    """
    family = shared_family_of(transformer)
    config: Any = transformer.config
    any_text = family.text_mask is not None or not family.splits_text
    return SequenceShape(int(config[family.heads]), image_tokens, text_tokens, any_text)


def _attention_modules(transformer: torch.nn.Module, family: Family) -> Iterator[Any]:
    for expert in experts_of(transformer):
        for module in expert.get_submodule(family.shared_part).modules():
            if getattr(module, "processor", None) is not None:
                yield module


def _backends(transformer: torch.nn.Module, family: Family) -> set[AttentionBackendName]:
    """Return the attention kernels in use; refuse those that cannot share."""
    found: set[AttentionBackendName] = set()
    for module in _attention_modules(transformer, family):
        processor = module.processor
        if family.attention is None and not hasattr(processor, _ATTENTION):
            raise ConfigurationError(
                f"attention by {type(processor).__name__} cannot be shared between devices: each would see "
                "its own tokens only; set the family's default processor"
            )
        chosen = getattr(processor, "_attention_backend", None)
        found.add(AttentionBackendName(chosen or _AttentionBackendRegistry.get_active_backend()[0]))
    for backend in found:
        if not _AttentionBackendRegistry._is_context_parallel_available(backend):
            raise ConfigurationError(
                f"attention backend {backend.value} cannot be shared between devices; set native"
            )
    return found
