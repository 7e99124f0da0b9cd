"""A LoRA layer that computes in the model's precision, with float32 weights."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners import lora
from torch.nn import functional


class LoraLinear(lora.Linear):
    """PEFT's layer, except on a bfloat16 model, where it computes in bfloat16.

    PEFT computes float32 adapters in float32, with seven passes over the activations in memory. Here the
    weights are rounded to bfloat16 for each product, as under autocast, and the second product accumulates
    into the base layer's output. A batch's gradients are rounded too, but their sum over batches, the
    moments and the weights stay in float32. On a float32 model the bits equal those of PEFT's layer.

    Attributes:
        keeps_rounded: True to keep the rounded weights until they change, while no gradient is computed;
            otherwise one in seven kernels of Qwen-Image's denoising step rounds them again. Every change must
            raise the version of the weight's tensor, as all in-place changes do except FSDP's and those of a
            fused optimizer. Compiled blocks keep none.
    """

    keeps_rounded = False
    _kept: tuple[Any, tuple[torch.Tensor, ...]] | None = None

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the layer's output with its one active adapter.

        Args:
            x: input, shape (..., inputs).
            args: further arguments of the base layer; if any, PEFT's implementation is used.
        """
        name = next(iter(self.active_adapters), "")
        # One adapter is active, without any of PEFT's extras.
        is_plain = (
            len(self.active_adapters) == 1
            and name in self.lora_A
            and name not in self.lora_variant
            and not (self.merged or self.disable_adapters or self.lora_bias[name])
            and isinstance(self.lora_dropout[name], torch.nn.Identity)
        )
        if x.dtype != torch.bfloat16 or args or kwargs or not is_plain:
            return super().forward(x, *args, **kwargs)
        rows = x.reshape(-1, x.shape[-1])
        down, up = self._rounded(name, x.dtype)
        # Added in place, on a matrix: no sum is allocated, and the backward pass copies no gradient.
        output = self.base_layer(rows).addmm_(functional.linear(rows, down), up.t(), alpha=self.scaling[name])
        return output.view(*x.shape[:-1], output.shape[-1])

    def _rounded(self, name: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Return an adapter's weights in a precision."""
        layers: Any = self.lora_A[name], self.lora_B[name]
        weights = tuple(layer.weight for layer in layers)
        if torch.compiler.is_compiling() or not self.keeps_rounded:
            return tuple(weight.to(dtype) for weight in weights)
        if torch.is_grad_enabled():
            self._kept = None  # training needs the memory
            return tuple(weight.to(dtype) for weight in weights)
        now = [(weight.data_ptr(), weight._version) for weight in weights]
        if self._kept is None or self._kept[0] != now:
            self._kept = now, tuple(weight.to(dtype) for weight in weights)
        return self._kept[1]
