"""The policy: a transformer with trained weights, and its reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gpu_runtime.learning.sharding import local_shard
from gpu_runtime.learning.weights import WeightState, digest_of
from gpu_runtime.models.files.lora_file import read_lora
from gpu_runtime.models.protocol import DiffusionModel
from storage.config.run_config import AdaptationConfig
from storage.errors import ModelError


class Policy:
    """A model and its trained weights.

    With `lora` only low-rank adapters are trained, and the reference policy is the same model with adapters
    off, or with those it started from. With `full` all weights are trained, and the reference is a copy of
    them as loaded.

    Args:
        model: loaded model; its transformer gets the adapters.
        seed: seed of the adapters' random half, so every worker builds the same ones.
        keeps_reference: True if `reference()` will be used; a copy of weights needs memory for it.
        adapter: LoRA to start from (`model.adapter`); empty to start at the model itself.
        adapter_is_reference: True if that LoRA belongs to the reference policy.

    Raises:
        ModelError: if no weight can be trained, or the LoRA does not fit.
    """

    is_gathered = True
    """True if this process can generate by itself."""

    def __init__(
        self,
        model: DiffusionModel,
        adaptation: AdaptationConfig,
        seed: int,
        keeps_reference: bool = True,
        adapter: str = "",
        adapter_is_reference: bool = False,
    ) -> None:
        self.model = model
        self._lora = adaptation.mode == "lora"
        transformer = model.transformer
        transformer.requires_grad_(not self._lora)
        if self._lora:
            _add_adapters(transformer, adaptation, seed)
        if adaptation.gradient_checkpointing:
            transformer.enable_gradient_checkpointing()  # pyright: ignore[reportCallIssue]
        self._prepare(transformer)
        self.trained: dict[str, torch.nn.Parameter] = {
            name: weight for name, weight in transformer.named_parameters() if weight.requires_grad
        }
        if not self.trained:
            raise ModelError("no weight of the model is trainable; check adaptation.targets")
        coarse = [name for name, weight in self.trained.items() if weight.dtype != torch.float32]
        if coarse:  # a bfloat16 0.1 loses an update of 3e-4, since its neighbours are 5e-4 away
            raise ModelError(
                f"adaptation.mode=full would train {len(coarse)} weights in {self.trained[coarse[0]].dtype}, "
                "whose rounding swallows the updates; set model.dtype=float32, or adaptation.mode=lora"
            )
        if adapter:
            shapes = {name: tuple(weight.shape) for name, weight in self.trained.items()}
            self.load(read_lora(adapter, adaptation, shapes))
        self._reference: dict[str, torch.Tensor] = {}
        if keeps_reference and (adapter_is_reference or not self._lora):
            self._reference = {name: weight.detach().clone() for name, weight in self.trained.items()}

    def _prepare(self, transformer: torch.nn.Module) -> None:
        """Prepare the transformer before its trained weights are listed."""
        layers: Any = transformer.modules()
        for layer in layers:
            if hasattr(layer, "keeps_rounded"):
                layer.keeps_rounded = True

    def gather(self) -> None:
        """Gather all weights here, to generate with; one process already has them."""

    def state(self) -> WeightState:
        """Return a copy of the trained weights."""
        return {name: self.read(name) for name in self.trained}

    def read(self, name: str) -> np.ndarray:
        """Return a copy of one trained weight."""
        return self.full_state({name: _local_copy(self.trained[name])})[name]

    def digest(self) -> str:
        """Return the checksum of the trained weights; they are copied one by one, as all take gigabytes."""
        return digest_of(self.trained, self.read)

    def local_state(self) -> WeightState:
        """Return a copy of this process's part of the trained weights."""
        return {name: _local_copy(weight) for name, weight in self.trained.items()}

    def full_state(self, local: Mapping[str, np.ndarray]) -> WeightState:
        """Return the whole state from this process's part, which already is the whole."""
        return dict(local)

    def shard(self, full: Mapping[str, np.ndarray]) -> WeightState:
        """Return this process's part of a state: all of it."""
        return dict(full)

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace the trained weights.

        Raises:
            ModelError: if names or shapes differ from this policy's; no weight has then changed.
        """
        if state.keys() != self.trained.keys():
            odd = sorted(state.keys() ^ self.trained.keys())[:3]
            raise ModelError(f"weights do not fit this model: {len(odd)}+ names differ, such as {odd}")
        for name, weight in self.trained.items():
            if tuple(state[name].shape) != tuple(weight.shape):
                raise ModelError(f"weight {name} has shape {state[name].shape}, not {tuple(weight.shape)}")
        with torch.no_grad():
            for name, value in self.shard(state).items():
                local_shard(self.trained[name]).copy_(torch.from_numpy(np.array(value)))

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Make the model the reference policy within this context."""
        transformer = self.model.transformer
        if not self._reference and self._lora:
            transformer.disable_adapters()  # pyright: ignore[reportCallIssue]
            try:
                yield
            finally:
                transformer.enable_adapters()  # pyright: ignore[reportCallIssue]
            return
        with self.holding(self._reference):
            yield

    @contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Exchange the trained weights for others within this context.

        Tensor by tensor, because another copy of all may not fit on the device.

        Args:
            weights: the others, by name; meanwhile these tensors hold the trained values.
        """
        exchanged: list[str] = []
        try:
            for name in self.trained:
                _exchange(self.trained[name], weights[name])
                exchanged.append(name)
            yield
        finally:
            for name in exchanged:
                _exchange(self.trained[name], weights[name])


def _local_copy(weight: torch.Tensor) -> np.ndarray:
    return local_shard(weight.detach()).to("cpu", torch.float32, copy=True).numpy()


@torch.no_grad()
def _exchange(one: torch.Tensor, other: torch.Tensor) -> None:
    before = one.clone()
    one.copy_(other)
    other.copy_(before)


def _add_adapters(transformer: torch.nn.Module, adaptation: AdaptationConfig, seed: int) -> None:
    # Imported here: the import takes seconds in every worker, and full training does not need it.
    from peft import LoraConfig

    from gpu_runtime.learning.lora_layer import LoraLinear

    config = LoraConfig(
        r=adaptation.rank,
        lora_alpha=adaptation.alpha,  # pyright: ignore[reportArgumentType]  (a float is taken)
        init_lora_weights="gaussian",
        target_modules=list(adaptation.targets),
    )
    config._register_custom_module({torch.nn.Linear: LoraLinear})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            transformer.add_adapter(config)  # pyright: ignore[reportCallIssue]
        except ValueError as error:
            raise ModelError(
                f"adaptation.targets={list(adaptation.targets)} names no layer of this model: {error}"
            ) from error
    for weight in transformer.parameters():
        if weight.requires_grad:  # only the adapters; they take the model's precision
            weight.data = weight.data.float()
