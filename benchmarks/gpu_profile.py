"""Qwen-Image's transformer at its real size on one GPU: a denoising step, a rollout, a training step.

Random weights (20.4 billion, bf16), LoRA of rank 64, at 512 and 1280 pixels, several batch sizes and
attention backends, with and without torch.compile; beside diffusers' own pipeline loop, and against the
chip's limit. Each measurement stands on its own: what runs out of memory or fails is noted, the others go
on. `--out` is written after each, so that a cut loses little.

    python -m benchmarks.gpu_profile --keep --out profile.json      on a GPU
    python -m benchmarks.gpu_profile --tiny                         on the CPU: does it run?
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measured_parts import Figures, MeasuredParts, seconds
from benchmarks.profile_plan import PLANS, Plan
from benchmarks.profiled_model import ProfiledModel
from benchmarks.report import add_keep_option, finish, write_result
from benchmarks.sized_qwen import REAL
from benchmarks.transformer_flops import counted_forward, pass_flops

BACKENDS = ("_native_cudnn", "_native_flash", "_native_efficient")
"""Besides `native`, which lets torch choose."""
Part = tuple[str, Callable[[], Figures]]
"""A measurement's name, and the measurement."""

_MEASURED_LIMIT_TFLOPS = 790.0
"""Of bf16 matrix products on an H200."""


def measure(plan: Plan, device: torch.device, limit_tflops: float | None, parts: MeasuredParts) -> Figures:
    """Take all measurements, the wanted figures first; returns their summary."""
    product = parts.take("matrix_product", lambda: matrix_product(device, plan.dtype))
    limit = limit_tflops or product.get("tflops")
    parts.take("flops", lambda: flops_checked(plan))
    model = ProfiledModel(plan, device, limit)
    parts.take("build", model.build)
    if model.is_built:
        for name, work in _wanted(plan, model) + _variants(plan, model, on_gpu=device.type == "cuda"):
            parts.take(name, work)
    return summary(plan, parts.found, limit)


def _wanted(plan: Plan, model: ProfiledModel) -> list[Part]:
    """What the summary is made of."""
    found: list[Part] = []
    for size in plan.sizes:
        batch = plan.batches[size][0]
        found += [
            (f"step_{size}_b{batch}", partial(model.step, size, batch)),
            (f"rollout_{size}", partial(model.rollout, size)),
            (f"diffusers_{size}", partial(model.diffusers_loop, size)),
            (f"train_{size}", partial(model.train, size)),
        ]
    small = plan.sizes[0]
    found.append((f"iteration_{small}", partial(model.iteration, small)))
    for size in plan.sizes:
        found += [
            (f"step_{size}_b{batch}", partial(model.step, size, batch)) for batch in plan.batches[size][1:]
        ]
    return found


def _variants(plan: Plan, model: ProfiledModel, on_gpu: bool) -> list[Part]:
    """What else a denoising step and a training step may be like."""
    found: list[Part] = []
    for size in plan.sizes:
        batch = plan.batches[size][0]
        step = partial(model.step, size, batch)
        found += [(f"step_{size}{backend}", partial(step, backend=backend)) for backend in BACKENDS if on_gpu]
        found += [
            (f"step_{size}_compiled", partial(model.compiled_step, size, batch)),
            (f"rollout_{size}_compiled", partial(model.compiled_rollout, size)),
            (f"step_{size}_masked", partial(step, masked=True)),
            (f"step_{size}_without_adapters", partial(step, adapters=False)),
            (f"decode_{size}", partial(model.decode, size)),
        ]
    small = plan.sizes[0]
    return [
        *found,
        (f"train_{small}_compiled", partial(model.compiled_train, small)),
        (f"train_{small}_without_checkpointing", partial(model.train, small, checkpointing=False)),
    ]


def summary(plan: Plan, found: dict[str, Figures], limit_tflops: float | None) -> Figures:
    """The wanted figures, None where they were not found, and the step times by size and batch."""
    small, large = plan.sizes

    def figure(part: str, name: str) -> Any:
        return found.get(part, {}).get(name)

    def over_diffusers(part: str) -> float | None:
        ours, theirs = figure(part, "rollout_s"), figure(f"diffusers_{small}", "rollout_s")
        return theirs / ours if ours and theirs else None

    return {
        f"rollout_{small}_mfu": figure(f"rollout_{small}", "mfu"),
        f"rollout_{large}_mfu": figure(f"rollout_{large}", "mfu"),
        f"train_{small}_mfu": figure(f"train_{small}", "mfu"),
        f"train_{small}_hardware_utilisation": figure(f"train_{small}", "hardware_utilisation"),
        "rollout_vs_diffusers": over_diffusers(f"rollout_{small}"),
        "images_per_gpu_s": figure(f"iteration_{small}", "images_per_gpu_s"),
        "ratio_deviation": figure(f"train_{small}", "ratio_deviation"),
        "compiled": {
            f"rollout_{small}_mfu": figure(f"rollout_{small}_compiled", "mfu"),
            f"rollout_{large}_mfu": figure(f"rollout_{large}_compiled", "mfu"),
            f"train_{small}_mfu": figure(f"train_{small}_compiled", "mfu"),
            "rollout_vs_diffusers": over_diffusers(f"rollout_{small}_compiled"),
            "ratio_deviation": figure(f"train_{small}_compiled", "ratio_deviation"),
        },
        "limit_tflops": limit_tflops,
        "text_tokens": plan.text_tokens,
        "rank": plan.rank,
        "steps": {
            str(size): {
                str(batch): {
                    "step_s": figure(f"step_{size}_b{batch}", "step_s"),
                    "peak_gib": figure(f"step_{size}_b{batch}", "peak_gib"),
                }
                for batch in sorted(plan.batches[size])
            }
            for size in plan.sizes
        },
    }


def matrix_product(device: torch.device, dtype: torch.dtype) -> Figures:
    """What a large square matrix product reaches here."""
    edge = 8192 if device.type == "cuda" else 512
    left, right = (torch.randn(edge, edge, device=device, dtype=dtype) for _ in range(2))
    calls = 20

    def work() -> None:
        for _ in range(calls):
            torch.mm(left, right)

    taken_s = seconds(work, device)
    return {"edge": edge, "tflops": calls * 2 * edge**3 / taken_s / 1e12}


def flops_checked(plan: Plan) -> Figures:
    """The formula beside torch's own count, at the real size whatever is measured."""
    found: Figures = {}
    for shape, sizes in ((plan.shape, plan.sizes), (REAL, (512, 1280))):
        for pixels in sizes:
            side = pixels // 16
            formula = pass_flops(shape, side**2, plan.text_tokens).forward
            counted = counted_forward(shape, side, plan.text_tokens)
            found[f"{shape.layers}_layers_{pixels}"] = {
                "formula_tflops": formula / 1e12,
                "counted_tflops": counted / 1e12,
                "ratio": formula / counted,
            }
    return found


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a transformer of 60 thousand weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda where there is one, by default")
    parser.add_argument("--budget-s", type=float, default=540.0, help="no measurement begins after so long")
    parser.add_argument(
        "--limit-tflops", type=float, help=f"of the chip; {_MEASURED_LIMIT_TFLOPS:g} by default on a GPU"
    )
    parser.add_argument("--out", type=Path, help="a JSON file, written after each measurement")
    add_keep_option(parser)
    arguments = parser.parse_args()
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    on_gpu = device.type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("--device cuda, but no GPU is visible here; use --device cpu --tiny")
    if not on_gpu and not arguments.tiny:
        parser.error("20 billion weights are no use on a CPU; add --tiny, or run it where there is a GPU")
    if arguments.keep and (not on_gpu or arguments.tiny):
        parser.error("--keep is for figures of the real size on a GPU; use --out for others")
    plan = PLANS["tiny" if arguments.tiny else "real"]
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    named = {"device": name, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    limit = arguments.limit_tflops or (_MEASURED_LIMIT_TFLOPS if on_gpu else None)

    def flush(found: dict[str, Figures]) -> None:
        figures = {**named, **summary(plan, found, limit), "parts": found}
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        if arguments.keep:
            write_result("gpu_profile", figures, name)

    parts = MeasuredParts(device, arguments.budget_s, flush)
    figures = {**named, **measure(plan, device, limit, parts), "parts": parts.found}
    finish("gpu_profile", figures, arguments.keep, name)


if __name__ == "__main__":
    main()
