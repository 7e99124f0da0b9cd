"""The GPU benchmark's own parts: operations by formula, measurements that fail alone, the summary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_profile import summary
from benchmarks.measured_parts import MeasuredParts
from benchmarks.profile_plan import PLANS
from benchmarks.profiled_model import TARGETS
from benchmarks.sized_qwen import REAL, TINY, SizedQwen, build_transformer
from benchmarks.transformer_flops import counted_forward, pass_flops
from gpu_runtime.learning.policy import Policy
from storage.config.run_config import AdaptationConfig

CPU = torch.device("cpu")


@pytest.mark.takes(20)
@pytest.mark.parametrize(("shape", "side", "text"), [(TINY, 4, 8), (REAL, 32, 64), (REAL, 80, 64)])
def test_the_formula_of_a_denoising_step_is_what_torch_counts(shape: Any, side: int, text: int):
    assert pass_flops(shape, side**2, text).forward == counted_forward(shape, side, text)


def test_the_real_size_has_twenty_billion_weights():
    with torch.device("meta"):
        from diffusers import QwenImageTransformer2DModel

        transformer: Any = QwenImageTransformer2DModel(**REAL.arguments())
    assert 20.4e9 < sum(weight.numel() for weight in transformer.parameters()) < 20.5e9


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_the_formula_of_a_training_pass_is_near_what_torch_counts(mode: str):
    rank, side, text = 4, 8, 8
    model = SizedQwen(build_transformer(TINY, CPU, torch.float32), TINY, 16 * side, text)
    adaptation = AdaptationConfig.model_validate({"mode": mode, "rank": rank, "targets": TARGETS})
    Policy(model, adaptation, seed=0, keeps_reference=False)
    latents = torch.randn(1, *model.latent_shape)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        model.velocity(latents, torch.tensor([0.5]), model.encode_prompts(["a"])).square().mean().backward()
    flops = pass_flops(TINY, side**2, text, rank if mode == "lora" else 0, full=mode == "full")
    expected = flops.forward + flops.adapters + flops.backward
    # The first block's input needs no gradient, which the formula does not know: a part of two layers here.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.12)
    assert counter.get_total_flops() <= expected


def test_random_weights_let_an_image_through():
    model = SizedQwen(build_transformer(TINY, CPU, torch.bfloat16), TINY, 64, 8)
    velocity = model.velocity(
        torch.randn(2, *model.latent_shape), torch.full((2,), 0.5), model.encode_prompts(["a", "b"])
    )
    assert velocity.dtype == torch.float32
    assert velocity.isfinite().all()
    assert model.decode(torch.randn(2, *model.latent_shape)).shape == (2, 4, 4, 3)


def test_one_measurement_that_fails_costs_no_other_one():
    flushed: list[list[str]] = []
    ticks = iter([0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 5.0, 6.0, 6.0, 9.0, 10.0])
    parts = MeasuredParts(CPU, 10.0, lambda found: flushed.append(list(found)), clock=lambda: next(ticks))

    def too_large() -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB\nmore words")

    def broken() -> dict[str, Any]:
        raise KeyError("no such kernel")

    parts.take("large", too_large)
    parts.take("broken", broken)
    assert parts.take("fine", lambda: {"step_s": 0.5})["step_s"] == 0.5
    parts.take("late", broken)
    assert parts.found["large"]["out_of_memory"] == "CUDA out of memory. Tried to allocate 80 GiB"
    assert "KeyError" in parts.found["broken"]["failed"]
    assert parts.found["fine"]["measuring_s"] == 3.0
    assert "budget of 10 s" in parts.found["late"]["skipped"]
    assert flushed == [
        ["large"],
        ["large", "broken"],
        ["large", "broken", "fine"],
        ["large", "broken", "fine", "late"],
    ]


def test_the_summary_has_every_wanted_figure_and_says_what_is_missing():
    found = {
        "rollout_512": {"rollout_s": 8.0, "mfu": 0.6},
        "rollout_512_compiled": {"rollout_s": 5.0, "mfu": 0.7},
        "diffusers_512": {"rollout_s": 10.0},
        "train_512": {"mfu": 0.4, "hardware_utilisation": 0.6, "ratio_deviation": 1e-4},
        "step_512_b16": {"step_s": 0.8, "peak_gib": 60.0},
        "step_1280_b4": {"out_of_memory": "too large"},
    }
    figures = summary(PLANS["real"], found, 790.0)
    assert figures["rollout_512_mfu"] == 0.6
    assert figures["rollout_1280_mfu"] is None
    assert figures["train_512_mfu"] == 0.4
    assert figures["rollout_vs_diffusers"] == 1.25
    assert figures["compiled"]["rollout_512_mfu"] == 0.7
    assert figures["compiled"]["rollout_vs_diffusers"] == 2
    assert figures["compiled"]["train_512_mfu"] is None
    assert figures["images_per_gpu_s"] is None
    assert figures["steps"]["512"]["16"] == {"step_s": 0.8, "peak_gib": 60.0}
    assert figures["steps"]["1280"]["4"]["step_s"] is None
    assert list(figures["steps"]["512"]) == ["1", "4", "8", "16", "32"]
