"""Stages on Qwen-Image's transformer at its real size: the main figures, and variants in the time left.

Random weights (20.4 billion, bfloat16) made on the device, LoRA of rank 64, ten denoising steps of which two
are stochastic, without guidance. A share of the limit (`mfu`) counts necessary operations: a forward pass,
and for training the backward pass to the adapters. Recomputation by gradient checkpointing counts only in
`hardware_utilisation`. The limit is the measured rate of a large matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.measured_parts import MeasuredParts, seconds
from benchmarks.gpu.plan import REAL, TINY, Plan
from benchmarks.gpu.profiled_model import ProfiledModel
from benchmarks.gpu.stages import Figures, Reporter, Setting

BACKENDS = ("_native_cudnn", "_native_flash", "_native_efficient")
"""Attention backends besides `native`, which lets torch choose."""

Part = tuple[str, Callable[[], Figures]]
"""A measurement's name and function."""

_LONGEST_PART = 0.15
"""Longest time of a part, as a share of its stage's: none begins if less is left."""


def measure_model(setting: Setting, report: Reporter) -> None:
    """Measure the main figures, in order of worth."""
    plan, _, parts, model = _set_up(setting, report)
    if model is not None:
        wanted: list[Part] = [
            ("step_512_b8", partial(model.step, 512, 8)),
            ("rollout_512", partial(model.rollout, 512)),
            ("train_512", partial(model.train, 512)),
            *_steps(model, 512, plan.batches[512][1:]),
            ("decode_512", partial(model.decode, 512)),
            ("noise_512", partial(model.noise, 512)),
            *_steps(model, 1280, plan.batches[1280]),
            ("beside_diffusers_512", partial(model.beside_diffusers, 512)),
            ("samples_512", partial(model.samples, 512)),
        ]
        compiled: list[Part] = [
            ("first_step_512_compiled", partial(model.first_step, 512, 8)),
            ("step_512_compiled", partial(model.step, 512, 8)),
            ("rollout_512_compiled", partial(model.rollout, 512)),
            ("train_512_compiled", partial(model.train, 512)),
        ]
        for name, work in wanted:
            parts.take(name, work)
        with model.compiled():
            for name, work in compiled:
                parts.take(name, work)
    parts.refuse_failures()


def measure_variants(setting: Setting, report: Reporter) -> None:
    """Measure variants of a step; an unavailable one has the reason as its figure."""
    plan, device, parts, model = _set_up(setting, report)
    if model is None:
        return
    on_gpu = device.type == "cuda"
    step = partial(model.step, 512, 8)
    variants: list[Part] = [
        # A GPU's time by kernel; not for a CPU.
        *[(f"kernels_{name}_512", partial(model.kernels, 512, trains))
          for name, trains in (("step", False), ("train", True)) if on_gpu],
        ("step_512_without_adapters", partial(step, adapters=False)),
        *[(f"step_512{backend}", partial(step, backend=backend)) for backend in BACKENDS if on_gpu],
        ("step_512_any_kernel", partial(step, deterministic=False)),
        ("train_512_any_kernel", partial(model.train, 512, deterministic=False)),
        ("fp8_matrix_product", partial(fp8_matrix_product, device, plan.edge)),
        ("iteration_512", partial(model.iteration, 512)),
        ("step_1280_b4", partial(model.step, 1280, 4)),
        ("train_1280", partial(model.train, 1280)),
        ("decode_1280", partial(model.decode, 1280)),
        ("step_512_b16", partial(model.step, 512, 16)),
        ("train_512_without_checkpointing", partial(model.train, 512, checkpointing=False)),
    ]  # fmt: skip
    for name, work in variants:
        parts.take(name, work)


def matrix_product(device: torch.device, edge: int, dtype: torch.dtype = torch.bfloat16) -> Figures:
    """Return the rate of a large square matrix product."""
    left, right = (torch.randn(edge, edge, device=device, dtype=dtype) for _ in range(2))
    return _rate(device, edge, lambda: torch.mm(left, right))


def fp8_matrix_product(device: torch.device, edge: int) -> Figures:
    """Return the same in eight bits, with one scale per matrix."""
    left, right = (torch.randn(edge, edge, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device=device)
    scales: dict[str, Any] = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16}
    return _rate(device, edge, lambda: torch._scaled_mm(left, right.t(), **scales))


def _rate(device: torch.device, edge: int, product: Callable[[], torch.Tensor]) -> Figures:
    calls = 20

    def work() -> None:
        for _ in range(calls):
            product()

    taken_s = seconds(work, device)
    return {"edge": edge, "tflops": calls * 2 * edge**3 / taken_s / 1e12}


def summary(plan: Plan, found: dict[str, Figures]) -> Figures:
    """Return the main figures (None if missing), and the times of steps by size and batch."""
    equal = [value for name, value in found.get("samples_512", {}).items() if name.endswith("_equal")]

    def figure(part: str, name: str) -> Any:
        return found.get(part, {}).get(name)

    def share(part: str, name: str, of: str) -> float | None:
        over, under = figure(part, name), figure(part, of)
        return over / under if over and under else None

    return {
        "rollout_512_mfu": figure("rollout_512", "mfu"),
        "train_512_mfu": figure("train_512", "mfu"),
        "train_512_hardware_utilisation": figure("train_512", "hardware_utilisation"),
        "rollout_512_compiled_mfu": figure("rollout_512_compiled", "mfu"),
        "train_512_compiled_mfu": figure("train_512_compiled", "mfu"),
        "samples_512_equal": all(equal) if equal else None,
        "step_1280_mfu": figure("step_1280_b1", "mfu"),
        "rollout_vs_diffusers": figure("beside_diffusers_512", "ratio_low"),
        "images_per_s": figure("rollout_512", "images_per_s"),
        "images_per_s_compiled": figure("rollout_512_compiled", "images_per_s"),
        "train_samples_per_s": figure("train_512", "samples_per_s"),
        "decode_s_an_image": figure("decode_512", "decode_s_an_image"),
        "ratio_deviation": figure("train_512", "ratio_deviation"),
        "train_peak_over_need": share("train_512", "peak_gib", "need_gib"),
        "rollout_peak_over_need": share("rollout_512", "peak_gib", "need_gib"),
        "limit_tflops": figure("matrix_product", "tflops"),
        "text_length": plan.text_length,
        "rank": plan.rank,
        "steps": {
            str(size): {
                str(batch): {"step_s": figure(f"step_{size}_b{batch}", "step_s")}
                for batch in sorted(plan.batches[size])
            }
            for size in plan.batches
        },
    }


def _steps(model: ProfiledModel, size: int, batches: Sequence[int]) -> list[Part]:
    return [(f"step_{size}_b{batch}", partial(model.step, size, batch)) for batch in batches]


def _set_up(
    setting: Setting, report: Reporter
) -> tuple[Plan, torch.device, MeasuredParts, ProfiledModel | None]:
    """Return sizes, device, measurements, and the model (None if it could not be built).

    The limit is measured first.
    """
    plan, device = TINY if setting.tiny else REAL, torch.device(setting.device)
    built: list[ProfiledModel] = []

    def flush(found: dict[str, Figures]) -> None:
        report(**summary(plan, found), parts=dict(found))

    def build() -> Figures:
        built.append(ProfiledModel(plan, device, product.get("tflops")))
        return built[0].built

    parts = MeasuredParts(device, (1 - _LONGEST_PART) * setting.limit_s, flush)
    product = parts.take("matrix_product", partial(matrix_product, device, plan.edge, plan.dtype))
    parts.take("build", build)
    return plan, device, parts, next(iter(built), None)
