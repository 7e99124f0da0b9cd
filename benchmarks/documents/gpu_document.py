"""The documents' text on the kept result of `benchmarks.gpu_day`, and the times from it that ship.

Everything is generated from the figures; without a result, the documents say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from tasks.gpu_profile import GpuDayResult, gpu_of_device

Result = Mapping[str, Any]

NOT_YET = "Nothing has been measured on a GPU yet."

_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("bits_equal", "bit-identical: noise, samples cut anywhere, killed workers", "", "yes"),
    ("ratio_deviation_float32", "first update: largest deviation of the ratio from 1, float32", ".0e", "0"),
    ("ratio_deviation_bfloat16", "the same in bfloat16", ".0e", ""),
    ("limit_tflops", "matrix product of 8,192², bfloat16, TFLOP/s: the limit", ".0f", ""),
    ("rollout_512_mfu", "rollout at 512², share of the limit", ".0%", "50 %"),
    ("rollout_512_compiled_mfu", "rollout with compiled blocks (`model.compile`)", ".0%", "50 %"),
    ("train_512_mfu", "training at 512², share of the limit", ".0%", "40 %"),
    ("train_512_hardware_utilisation", "training, counting what checkpointing recomputes", ".0%", ""),
    ("train_512_compiled_mfu", "training with compiled blocks", ".0%", "40 %"),
    ("step_1280_mfu", "denoising step of one image at 1280², share of the limit", ".0%", ""),
    ("images_per_s", "images a second in a rollout at 512²", ".2f", ""),
    ("images_per_s_compiled", "the same, compiled", ".2f", ""),
    ("train_samples_per_s", "samples a second in training at 512²", ".2f", ""),
    ("rollout_peak_gib", "peak memory of a rollout, without the text encoder, GiB", ".1f", ""),
    ("train_peak_gib", "the same in training", ".1f", ""),
    ("spot_idle", "`glyphs-stale`, three processes on one GPU: idle share of the spot workers", ".0%", ""),
    ("spot_idle_plain", "the same without exploration", ".0%", ""),
    ("score_gain", "`glyphs-stale`: gain in held-out score", "+.3f", "0.1"),
    ("trained_s", "seconds of training for this, with evaluations", ".0f", ""),
    ("time_to_gain_s", "seconds until an evaluation shows a gain of 0.1", ".1f", ""),
    ("time_to_gain_on_cpu_s", "the same on two CPU cores", ".1f", ""),
)
"""A figure's name, description, format, and target, if it has one."""

_STEPS = {"step": "denoising step of eight images", "train": "training step of eight samples"}
_SIZES = (512, 1280)

_SHIPPED = re.compile(r"(step_\d+_(b\d+|compiled)|train_\d+(_compiled)?|decode_\d+)$")
_TIMES = ("step_s", "batch", "train_s", "rows", "decode_s_an_image")
"""The parts of the result, and their figures, from which profiles are scaled."""


def section(result: Result | None) -> str:
    """Return the section of docs/gpus.md on what was measured."""
    if not _has_gpu_figures(result):
        return (
            f"{NOT_YET} All stages were rehearsed on the CPU, at a small size "
            "(`python -m benchmarks.gpu_day --tiny`).\n"
        )
    stages, figures = result["figures"]["by_stage"], _figures(result)
    on_gpu = [
        found for found in stages.values() if found["status"] != "skipped" and found.get("device") != "cpu"
    ]
    commits = sorted({found.get("commit", result["commit"]) for found in on_gpu})
    lines = [
        f"Measured on one {result['figures']['device']}, {result['figures']['date']}, commit "
        f"{' and '.join(f'`{commit}`' for commit in commits)}. Qwen-Image has random weights, rank 64, eight "
        "samples a batch, 128 text tokens, ten steps, no guidance; the presets' guidance doubles the passes.",
        "", "| on one GPU | measured | target |", "| --- | --- | --- |",
        *[f"| {what} | {_text(figures.get(name), spec)} | {target} |" for name, what, spec, target in _ROWS
          if target or figures.get(name) is not None],
        "", *_limits(result["figures"]),
    ]  # fmt: skip
    troubles = [
        f"- Stage `{name}` {found['status']}: {_last_line(found.get('error', ''))}"
        for name, found in stages.items()
        if found["status"] != "done"
    ]
    return "\n".join([*lines, *troubles, *([""] if troubles else [])]) + "\n"


def headline(result: Result | None) -> str:
    """Return the README's sentence on a GPU."""
    if not _has_gpu_figures(result):
        return f"{NOT_YET}\n"
    found = _figures(result)
    sentences = {
        "bits_equal": "a killed run of the embedded model ends with the same bits",
        "score_gain": "its held-out score rises by {score_gain:.2f} in {trained_s:.0f} s",
        "images_per_s": "Qwen-Image (random weights, no guidance, ten steps) generates "
        "{images_per_s:.1f} images a second",
        "images_per_s_compiled": "{images_per_s_compiled:.1f} compiled",
        "train_samples_per_s": "and trains on {train_samples_per_s:.1f}",
    }  # fmt: skip
    parts = [text.format(**found) for name, text in sentences.items() if found.get(name)]
    return f"On one {found['device']}: {', '.join(parts)}.\n"


def _figures(result: Result) -> dict[str, Any]:
    """Return the result's figures, and some from single measurements."""
    figures = dict(result["figures"])
    parts = figures["by_stage"].get("qwen_image", {}).get("figures", {}).get("parts", {})
    curve = figures["by_stage"].get("learning", {}).get("figures", {}).get("curve")
    return {
        **figures,
        "rollout_peak_gib": parts.get("rollout_512", {}).get("peak_gib"),
        "train_peak_gib": parts.get("train_512", {}).get("peak_gib"),
        "images_per_s_compiled": parts.get("rollout_512_compiled", {}).get("images_per_s"),
        "trained_s": curve[-1][1] if curve else None,
    }


def profiles(result: Result | None, folder: Path) -> dict[Path, str]:
    """Return the times that ship with the project: the result's parts from which profiles are scaled.

    Args:
        result: the kept result; without a timed step, nothing ships.
        folder: folder of the shipped profiles.
    """
    if not _has_gpu_figures(result):
        return {}
    read = GpuDayResult.model_validate(result)
    gpu, parts = gpu_of_device(read.device), {}
    for name, part in read.parts.items():
        times = {figure: part[figure] for figure in _TIMES if figure in part}
        if times and _SHIPPED.match(name):
            parts[name] = times
    if gpu is None or not any(read.steps(size) for size in _SIZES):
        return {}
    about = {name: read.figures[name] for name in ("text_length", "rank") if name in read.figures}
    stages = {"qwen_image": {"figures": {**about, "parts": parts}}}
    shipped = {"device": read.device, "date": read.date, "by_stage": stages}
    return {folder / f"qwen-image-{gpu.name.lower()}.json": json.dumps(shipped, indent=2) + "\n"}


def _limits(figures: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of Qwen-Image step whose kernels were timed."""
    lines = []
    for stage in figures["by_stage"].values():
        parts = stage.get("figures", {}).get("parts", {})
        timed = {"step": parts.get("step_512_b8", {}).get("step_s"),
                 "train": parts.get("train_512", {}).get("train_s")}  # fmt: skip
        for step, what in _STEPS.items():
            kernels = parts.get(f"kernels_{step}_512", {})
            whole_s = kernels.get("step_s", timed[step])
            if "gpu_ms" not in kernels or whole_s is None:
                continue
            gpu_s, products_s, attention_s = (
                kernels[name] / 1e3 for name in ("gpu_ms", "matrix_products_ms", "attention_ms")
            )
            lines.append(
                f"- A {what} takes {whole_s:.2f} s. The GPU computes {gpu_s:.2f} s of it in "
                f"{kernels['kernels']:,} kernels: {products_s:.2f} s matrix products, {attention_s:.2f} s "
                f"attention, {gpu_s - products_s - attention_s:.2f} s other; the host launches them singly."
            )
    return [*lines, ""] if lines else []


def _text(value: Any, spec: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, spec)


def _has_gpu_figures(result: Result | None) -> TypeGuard[Result]:
    """Return True if the result has more than the CPU's time to the same score."""
    return result is not None and result["figures"]["device"] != "cpu"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason was left"])[-1][:300]
