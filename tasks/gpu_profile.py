"""A profile from a result of `benchmarks.gpu_profile`: what one GPU takes for Qwen-Image's transformer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator

from gpu_runtime.simulator.profile import Profile, Quantity, StepTime
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.json_file import read_json_model
from storage.text import read_text_file

_FAMILY = "qwen-image"


class _Step(BaseModel):
    step_s: float | None = Field(gt=0)
    """Of one pass of a batch; None where it was not measured."""


class GpuProfileResult(BaseModel):
    """What a profile takes of a result: the file that `--keep` writes, or that of `--out`."""

    device: str = Field(min_length=1)
    date: str = Field(min_length=1)
    steps: dict[int, dict[int, _Step]]
    """By the edge of the images in pixels, and by batch."""

    parts: dict[str, dict[str, Any]]
    """Each measurement; one that found nothing says why."""

    @model_validator(mode="before")
    @classmethod
    def _figures_of_a_kept_result(cls, given: Any) -> Any:
        figures = given.get("figures") if isinstance(given, dict) else None
        return {**given, **figures} if isinstance(figures, dict) else given

    def seconds(self, part: str, name: str) -> float | None:
        """A time of a part; None where it was not measured."""
        found = self.parts.get(part, {}).get(name)
        return float(found) if isinstance(found, (int, float)) and found > 0 else None


def is_gpu_profile(path: Path) -> bool:
    """Whether a file is such a result, and no profile: it has the parts that were measured.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        data = json.loads(read_text_file(path, f"profile {path}", ConfigurationError))
    except (ValueError, RecursionError):
        return False  # which reading it as a profile refuses
    figures = data.get("figures", data) if isinstance(data, dict) else None
    return isinstance(figures, dict) and "parts" in figures


def gpu_profile(path: Path, config: RunConfig, carried: Profile | None) -> Profile:
    """The profile of a run on the GPU that a result was measured on.

    A denoising step, a sample's training and decoding are measured where the result has them; with guidance,
    each step is two passes, and so counted twice. All else is that of the carried profile, with its evidence.

    Args:
        path: of the result.
        config: of the run: its model, size and guidance, and whether its blocks are compiled.
        carried: the profile of this model and size that the project carries; None without one.

    Raises:
        ConfigurationError: it is no such result, or has no step of this model and size.
    """
    result = read_json_model(path, "GPU profile", GpuProfileResult, "docs/what-if.md")
    model = config.model
    size, height = model.width or 512, model.height or 512
    if model.family != _FAMILY or size != height or size not in result.steps or carried is None:
        measured = ", ".join(f"{edge}x{edge}" for edge in result.steps)
        raise ConfigurationError(
            f"GPU profile {path} is of {_FAMILY} at {measured}, and the run has {model.family} at "
            f"{size}x{height}; name a profile of that"
        )
    steps = _steps(result, size, model.compile)
    if not steps:
        compiled = " with compiled blocks" if model.compile else ""
        raise ConfigurationError(
            f"GPU profile {path} has no step_s at {size}x{size}{compiled}; measure it again"
        )
    passes = _passes(config)
    about = {
        "name": path.stem[:100],
        "summary": f"Qwen-Image's transformer at {size}x{size} on {result.device}, measured {result.date}; "
        f"what was not measured is that of {carried.name}",
        "device": result.device,
        "steps": tuple(StepTime(batch=batch, seconds=passes * step_s) for batch, step_s in steps.items()),
    }
    return carried.model_copy(update={**about, **_quantities(result, config, size)})


def _passes(config: RunConfig) -> int:
    """Passes of the network in a denoising step: another one for the negative prompt of guidance."""
    return 2 if config.model.guidance > 1 else 1


def _quantities(result: GpuProfileResult, config: RunConfig, size: int) -> dict[str, Quantity]:
    """What was measured beside the times of steps, by the names of a profile."""
    passes, name = _passes(config), f"_{size}{'_compiled' if config.model.compile else ''}"

    def measured(value: float, part: str) -> Quantity:
        source = f"benchmarks.gpu_profile, {part}, on {result.device}, {result.date}"
        return Quantity(value=value, evidence="measured", source=source)

    def in_passes(value: float, part: str) -> Quantity:
        found = measured(value * passes, part)
        twice = ", counted twice for guidance" if passes > 1 else ""
        return found.model_copy(update={"source": f"{found.source}{twice}"})

    found = {"step": in_passes(1.0, f"step{name}").model_copy(update={"value": 1.0})}
    train_s, rows = (result.seconds(f"train{name}", each) for each in ("train_s", "rows"))
    if train_s and rows:
        row_s = train_s / rows
        found["train_sample_s"] = in_passes(row_s * config.sampling.window_size, f"train{name}")
    if decode_s := result.seconds(f"decode_{size}", "decode_s_an_image"):
        found["decode_s"] = measured(decode_s, f"decode_{size}")
    return found


def _steps(result: GpuProfileResult, size: int, compiled: bool) -> dict[int, float]:
    """Seconds of a pass by batch."""
    if not compiled:
        return {batch: step.step_s for batch, step in result.steps[size].items() if step.step_s is not None}
    part = f"step_{size}_compiled"
    step_s, batch = result.seconds(part, "step_s"), result.seconds(part, "batch")
    return {int(batch): step_s} if step_s and batch else {}
