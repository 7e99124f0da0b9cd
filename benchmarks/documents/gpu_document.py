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
    ("train_512_mfu", "training at 512², likewise", ".0%", "40 %"),
    ("train_512_hardware_utilisation", "the same with what checkpointing computes again", ".0%", ""),
    ("step_1280_mfu", "denoising step of one image at 1280², likewise", ".0%", ""),
    ("rollout_vs_diffusers", "rollout, times as fast as diffusers' own loop", ".2f", "1"),
    ("images_per_s", "images a second at 512², ten steps, not decoded", ".2f", ""),
    ("train_peak_over_need", "memory of training over the least that `doctor` names", ".2f", ""),
    ("spot_idle", "idle share of the spot devices, exploring", ".0%", ""),
    ("spot_idle_plain", "the same without exploration", ".0%", ""),
    ("added_share", "what exploration adds between iterations, share of one", ".1%", ""),
    ("workers_lost", "spot workers killed in the run whose bits are compared", "", ""),
    ("runtime_peak_gib", "memory of a trainer and two spot workers on the device, GiB at most", ".1f", ""),
    ("score_before", "held-out score of `glyphs-stale` before", ".3f", ""),
    ("score_gain", "gain in the stage's minute", "+.3f", "0.1"),
    ("time_to_gain_s", "seconds to a gain of 0.1", ".1f", ""),
    ("time_to_gain_on_cpu_s", "the same on the CPU", ".1f", ""),
)
"""Name of a figure, what it is, its format, and what is wanted of it."""

_FIRST = ("bits_equal", "rollout_512_mfu", "train_512_mfu", "rollout_vs_diffusers", "score_gain")
_SIZES = (512, 1280)


def section(result: Result | None) -> str:
    """What docs/gpus.md says was measured."""
    if not _is_of_a_gpu(result):
        return (
            f"{NOT_YET} All stages were rehearsed on the CPU, at a small size "
            "(`python -m benchmarks.gpu_day --tiny`).\n"
        )
    figures = result["figures"]
    lines = [f"{_origin(result)}. Weights of Qwen-Image are random.", "", *_table(figures, names=None)]
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
    return "\n".join([*_table(result["figures"], _FIRST), f"{_origin(result)}.", ""])


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
        name = f"qwen-image-{size}-{gpu.name.lower()}"
        values = profile.model_copy(update={"name": name}).model_dump(mode="json", exclude_none=True)
        found[folder / f"{name}.json"] = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    return found


def _table(figures: Mapping[str, Any], names: tuple[str, ...] | None) -> list[str]:
    rows = [row for row in _ROWS if names is None or row[0] in names]
    lines = ["| on one GPU | measured | wanted |", "| --- | --- | --- |"]
    return [
        *lines,
        *(f"| {what} | {_text(figures.get(name), spec)} | {wanted} |" for name, what, spec, wanted in rows),
        "",
    ]


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
