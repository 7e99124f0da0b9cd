"""What documents say of the kept result of `benchmarks.gpu_day`, and the profiles that follow from it.

All of it is made from the figures: where there is no result yet, the documents say that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from storage.config.loading import load_config
from tasks.gpu_profile import GpuDayResult, gpu_of_device, measured_profile

Result = Mapping[str, Any]

NOT_YET = "Nothing has been measured on a GPU yet."

_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("bits_equal", "same bits: noise, samples cut anywhere, killed workers, faulty runs", "", "yes"),
    ("ratio_deviation_float32", "ratio of the first update, off 1, float32", ".1e", "0"),
    ("ratio_deviation_bfloat16", "the same in bfloat16", ".1e", ""),
    ("rollout_512_mfu", "rollout at 512², share of the measured matrix product", ".0%", "50 %"),
    ("rollout_512_compiled_mfu", "the same with compiled blocks (`model.compile`)", ".0%", "50 %"),
    ("train_512_mfu", "training at 512², likewise", ".0%", "40 %"),
    ("train_512_compiled_mfu", "the same with compiled blocks", ".0%", "40 %"),
    (
        "train_512_hardware_utilisation",
        "training without them, with what checkpointing computes again",
        ".0%",
        "",
    ),
    ("step_1280_mfu", "denoising step of one image at 1280², likewise", ".0%", ""),
    (
        "rollout_vs_diffusers",
        "rollout, times as fast as diffusers' own loop with PEFT's own layers",
        ".2f",
        "1",
    ),
    ("images_per_s", "images a second at 512², ten steps, not decoded", ".2f", ""),
    ("train_peak_over_need", "memory of training over the least that `doctor` names", ".2f", ""),
    ("score_gain", "gain of the held-out score of `glyphs-stale` in a minute", "+.3f", "0.1"),
    ("time_to_gain_s", "seconds to a gain of 0.1", ".1f", ""),
    ("time_to_gain_on_cpu_s", "the same on the CPU", ".1f", ""),
)
"""Name of a figure, what it is, its format, and what is wanted of it."""

_STEPS = {"step": "denoising step of eight images", "train": "training step of eight samples"}
_SIZES = (512, 1280)


def section(result: Result | None) -> str:
    """What docs/gpus.md says was measured."""
    if not _is_of_a_gpu(result):
        return (
            f"{NOT_YET} All stages were rehearsed on the CPU, at a small size "
            "(`python -m benchmarks.gpu_day --tiny`).\n"
        )
    figures = result["figures"]
    lines = [f"{_origin(result)}. Weights of Qwen-Image are random.", "", *_table(figures)]
    lines += _limits(figures)
    troubles = [
        f"- Stage `{name}` {found['status']}: {_last_line(found.get('error', ''))}"
        for name, found in figures["by_stage"].items()
        if found["status"] != "done"
    ]
    return "\n".join([*lines, *troubles, *([""] if troubles else [])]) + "\n"


def headline(result: Result | None) -> str:
    """What the README says, before its other figures."""
    if not _is_of_a_gpu(result):
        return f"{NOT_YET}\n"
    figures = result["figures"]
    bits = figures.get("bits_equal")
    clauses = [
        ("bits_equal", "the same bits after kills" if bits else "other bits after kills", ""),
        ("score_gain", "`glyphs-stale` gains {} a minute", ".2f"),
        ("rollout_vs_diffusers", "Qwen-Image's rollout at 512² is {} times as fast as diffusers'", ".2f"),
        ("rollout_512_mfu", "at {} of a matrix product's speed", ".0%"),
        ("rollout_512_compiled_mfu", "{} compiled", ".0%"),
        ("train_512_mfu", "training at {}", ".0%"),
    ]
    told = [text.format(_text(figures[name], spec)) for name, text, spec in clauses
            if figures.get(name) is not None]  # fmt: skip
    return f"On one {figures['device']}: {', '.join(told)}.\n"


def profiles(result: Result | None, folder: Path) -> dict[Path, str]:
    """The profiles of the GPU that was measured, one for each size with a step; none without a result.

    Args:
        result: the kept one.
        folder: of the carried profiles.
    """
    found: dict[Path, str] = {}
    if not _is_of_a_gpu(result):
        return found
    read = GpuDayResult.model_validate(result)
    if (gpu := gpu_of_device(read.device)) is None:
        return found
    for size in filter(read.steps, _SIZES):
        config = load_config(f"qwen-image-ocr-{size}", [], {})
        profile = measured_profile(read, config)
        name = f"{config.model.key.replace(' ', '-')}-{gpu.name.lower()}"
        values = profile.model_copy(update={"name": name}).model_dump(mode="json", exclude_none=True)
        found[folder / f"{name}.json"] = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    return found


def _table(figures: Mapping[str, Any]) -> list[str]:
    rows = [f"| {what} | {_text(figures.get(name), spec)} | {wanted} |" for name, what, spec, wanted in _ROWS]
    return ["| on one GPU | measured | wanted |", "| --- | --- | --- |", *rows, ""]


def _limits(figures: Mapping[str, Any]) -> list[str]:
    """What limits Qwen-Image's speed, where kernels were timed: a line a step."""
    parts: dict[str, Any] = {}
    for stage in ("qwen_image", "variants"):
        parts |= figures["by_stage"].get(stage, {}).get("figures", {}).get("parts", {})
    timed = {
        "step": parts.get("step_512_b8", {}).get("step_s"),
        "train": parts.get("train_512", {}).get("train_s"),
    }
    lines = []
    for step, what in _STEPS.items():
        kernels, whole_s = parts.get(f"kernels_{step}_512", {}), timed[step]
        if "gpu_ms" not in kernels or not whole_s:
            continue
        shares = [
            f"{kernels[f'{kind}_ms'] / kernels['gpu_ms']:.0%} {name}"
            for kind, name in (
                ("matrix_products", "matrix products"), ("attention", "attention"),
                ("elementwise", "element-wise kernels"),
            )
        ]  # fmt: skip
        lines.append(
            f"- A {what} at 512² takes {whole_s:.2f} s, of which the GPU computes "
            f"{kernels['gpu_ms'] / 1e3:.2f} s in {kernels['kernels']:,} kernels ({', '.join(shares)}); the "
            "rest is the host, which starts them one by one."
        )
    return [*lines, ""] if lines else []


def _text(value: Any, spec: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, spec)


def _is_of_a_gpu(result: Result | None) -> TypeGuard[Result]:
    """Return whether there is a result with more than the CPU's time to the same score."""
    return result is not None and result["figures"]["device"] != "cpu"


def _origin(result: Result) -> str:
    figures = result["figures"]
    return f"Measured on one {figures['device']}, {figures['date']}, commit `{figures['commit']}`"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason was left"])[-1][:300]
