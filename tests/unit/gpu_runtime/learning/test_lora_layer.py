"""The LoRA layer against PEFT's own, in the model's precision and in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners import lora
from torch import nn
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_runtime.learning.lora_layer import LoraLinear
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.sharded_training import ShardedPolicy
from storage.config.run_config import AdaptationConfig
from tests.tiny_model import TinyModel

INPUTS, HIDDEN = 48, 80


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, INPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.gelu(self.first(x)))


def with_adapters(layer: type[nn.Module] | None, dtype: torch.dtype) -> nn.Module:
    """Two layers with float32 adapters that are not zero."""
    torch.manual_seed(0)
    model = TwoLayers().to(dtype).requires_grad_(False)
    config = LoraConfig(r=8, lora_alpha=12, init_lora_weights=False, target_modules=["first", "second"])
    if layer is not None:
        config._register_custom_module({nn.Linear: layer})
    inject_adapter_in_model(config, model)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return model


def adapters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def outcome(model: nn.Module, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Output for three sequences, and the gradients of the adapters and the input."""
    model.zero_grad()
    x = torch.randn(3, 5, INPUTS, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).to(dtype)
    x.requires_grad_()
    y = model(x)
    y.float().square().mean().backward()
    gradients = {name: weight.grad for name, weight in adapters_of(model).items()}
    return y.detach(), {name: grad for name, grad in {**gradients, "x": x.grad}.items() if grad is not None}


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.fixture
def models() -> dict[str, nn.Module]:
    """Ours and PEFT's in bfloat16 and, with the same values, PEFT's in float64."""
    found = {
        "ours": with_adapters(LoraLinear, torch.bfloat16),
        "peft": with_adapters(None, torch.bfloat16),
        "exact": with_adapters(None, torch.float64).double(),
    }
    for name in ("peft", "exact"):
        found[name].load_state_dict(found["ours"].state_dict())
    return found


def test_it_is_as_near_to_float64_as_the_layer_of_peft(models: dict[str, nn.Module]):
    exact, exact_gradients = outcome(models["exact"], torch.float64)
    away = {}
    for name in ("ours", "peft"):
        output, gradients = outcome(models[name], torch.bfloat16)
        assert output.dtype == torch.bfloat16 and gradients.keys() == exact_gradients.keys()
        assert {gradients[key].dtype for key in adapters_of(models[name])} == {torch.float32}
        away[name] = [distance(output, exact)] + [
            distance(gradient, exact_gradients[key]) for key, gradient in gradients.items()
        ]
    assert max(away["ours"]) < 0.01, "the rounding of bfloat16"
    assert max(away["ours"]) < 2 * max(away["peft"])


def test_a_float32_model_has_the_bits_of_peft():
    ours, theirs = with_adapters(LoraLinear, torch.float32), with_adapters(None, torch.float32)
    assert any(type(part) is LoraLinear for part in ours.modules())
    output, gradients = outcome(ours, torch.float32)
    expected, expected_gradients = outcome(theirs, torch.float32)
    assert torch.equal(output, expected)
    assert all(torch.equal(gradients[name], expected_gradients[name]) for name in expected_gradients)


def test_adapters_can_be_switched_off_and_merged(models: dict[str, nn.Module]):
    x = torch.randn(4, INPUTS, dtype=torch.bfloat16)
    ours, base = models["ours"], TwoLayers().to(torch.bfloat16)
    layers = [part for part in ours.modules() if isinstance(part, lora.Linear)]
    base.load_state_dict(
        {
            f"{name}.{part}": getattr(layer.base_layer, part)
            for name, layer in zip(("first", "second"), layers, strict=True)
            for part in ("weight", "bias")
        }
    )
    with torch.no_grad():
        adapted = ours(x)
        for layer in layers:
            layer.enable_adapters(False)
        assert torch.equal(ours(x), base(x)) and not torch.equal(adapted, base(x))
        for layer in layers:
            layer.enable_adapters(True)
        merged = copy.deepcopy(ours)
        for layer in (part for part in merged.modules() if isinstance(part, lora.Linear)):
            layer.merge()
        assert distance(merged(x), adapted) < 0.01


def test_the_input_is_not_changed_and_rows_may_lie_apart():
    model = with_adapters(LoraLinear, torch.bfloat16)
    wide = torch.randn(6, 2 * INPUTS, dtype=torch.bfloat16)
    x = wide[::2, :INPUTS].unflatten(0, (1, 3))
    before = x.clone()
    with torch.no_grad():
        assert torch.equal(model(x), model(before.contiguous())) and torch.equal(x, before)


class Roundings(TorchDispatchMode):
    """Counts the tensors that are converted to another precision."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def roundings(model: nn.Module, x: torch.Tensor) -> int:
    with Roundings() as mode:
        model(x)
    return mode.count


def test_adapters_are_rounded_once_for_all_steps_of_generating():
    model, x = with_adapters(LoraLinear, torch.bfloat16), torch.randn(4, INPUTS, dtype=torch.bfloat16)
    layers: list[Any] = [part for part in model.modules() if isinstance(part, LoraLinear)]
    for layer in layers:
        layer.keeps_rounded = True
    expected = model(x)
    with torch.no_grad():
        assert [roundings(model, x) for _ in range(3)] == [4, 0, 0]
        assert torch.equal(model(x), expected)
        layers[0].lora_A["default"].weight.mul_(2)
        layers[1].lora_B["default"].weight.data = layers[1].lora_B["default"].weight * 3
        changed = model(x)
        with torch.enable_grad():
            assert torch.equal(model(x), changed) and not torch.equal(changed, expected)
            assert roundings(model, x) == 4, "a gradient passes the rounding"
        assert all(layer._kept is None for layer in layers), "training has the memory"


def test_processes_that_divide_the_weights_round_them_for_every_step():
    """FSDP puts other numbers into the same tensor, and does not count it as a change."""
    lora_on_one = AdaptationConfig.model_validate({"mode": "lora", "rank": 2, "targets": ["to_q"]})
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        assert dist.group.WORLD is not None
        model = TinyModel(dtype=torch.bfloat16)
        divided = ShardedPolicy(model, lora_on_one, 0, dist.group.WORLD)
    finally:
        dist.destroy_process_group()
    for policy, keeps in ((divided, False), (Policy(TinyModel(), lora_on_one, 0), True)):
        parts = policy.model.transformer.modules()
        assert {part.keeps_rounded for part in parts if isinstance(part, LoraLinear)} == {keeps}
