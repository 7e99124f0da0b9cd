"""A profile from a result of `benchmarks.gpu_day`: one GPU's times for Qwen-Image's transformer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from gpu_runtime.simulator.profile import Profile, Quantity, StepTime
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.text import read_json_model, read_text_file

_FAMILY = "qwen-image"
_STAGES = ("qwen_image", "variants")
_STEP = re.compile(r"step_(\d+)_b(\d+)")


class _Stage(BaseModel):
    figures: dict[str, Any] = {}


class GpuDayResult(BaseModel):
    """The parts of a result that a profile uses: the file that `--keep` writes, or that of `--out`."""

    device: str = Field(min_length=1)
    date: str = Field(min_length=1)
    tiny: bool = False
    by_stage: dict[str, _Stage]

    @model_validator(mode="before")
    @classmethod
    def _figures_of_a_kept_result(cls, given: Any) -> Any:
        figures = given.get("figures") if isinstance(given, dict) else None
        return {**given, **figures} if isinstance(figures, dict) else given

    @field_validator("tiny")
    @classmethod
    def _is_no_rehearsal(cls, tiny: bool) -> bool:
        if tiny:
            raise ValueError("it is of a rehearsal on the CPU; measure it on a GPU, without --tiny")
        return tiny

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        """Each measurement on Qwen-Image; one without a result gives the reason."""
        stages = (self.by_stage.get(name, _Stage()) for name in _STAGES)
        return {name: part for stage in stages for name, part in stage.figures.get("parts", {}).items()}

    def seconds(self, part: str, name: str) -> float | None:
        """Return a time of a part; None if it was not measured."""
        found = self.parts.get(part, {}).get(name)
        return float(found) if isinstance(found, (int, float)) and found > 0 else None

    def steps(self, size: int, compiled: bool = False) -> dict[int, float]:
        """Return the seconds of a pass by batch size, for images with `size` pixels a side."""
        found: dict[int, float] = {}
        for name in self.parts:
            step = _STEP.fullmatch(name)
            step_s = self.seconds(name, "step_s")
            if step is not None and step_s and int(step[1]) == size and not compiled:
                found[int(step[2])] = step_s
        name = f"step_{size}_compiled"
        step_s, batch = self.seconds(name, "step_s"), self.seconds(name, "batch")
        return {int(batch): step_s} if compiled and step_s and batch else found


def is_gpu_result(path: Path) -> bool:
    """Return True if a file is such a result and not a profile: it has stages.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        data = json.loads(read_text_file(path, f"profile {path}", ConfigurationError))
    except (ValueError, RecursionError):
        return False  # the reader of profiles then refuses it
    figures = data.get("figures", data) if isinstance(data, dict) else None
    return isinstance(figures, dict) and "by_stage" in figures


def read_gpu_result(path: Path) -> GpuDayResult:
    """Read a result.

    Raises:
        ConfigurationError: the file is not a result, or is that of a rehearsal.
    """
    return read_json_model(path, "GPU result", GpuDayResult, "docs/explanation/what-if.md")


def gpu_profile(path: Path, config: RunConfig, carried: Profile | None) -> Profile:
    """Return the profile of a run on the GPU of a measured result.

    Args:
        path: file of the result.
        config: configuration of the run: model, size, guidance, and whether its blocks are compiled.
        carried: profile of this model and size that ships with the project; None without one.

    Raises:
        ConfigurationError: the file is not a result, or has no step of this model and size.
    """
    result, model = read_gpu_result(path), config.model
    size, height = model.width or 512, model.height or 512
    if model.family != _FAMILY or size != height or carried is None:
        raise ConfigurationError(
            f"GPU result {path} is of {_FAMILY} at square sizes, and the run has {model.family} at "
            f"{size}x{height}; name a profile of that"
        )
    if not result.steps(size, model.compile):
        compiled = " with compiled blocks" if model.compile else ""
        raise ConfigurationError(
            f"GPU result {path} has no step_s at {size}x{size}{compiled}; measure it again"
        )
    profile = measured_profile(result, config, carried)
    return profile.model_copy(update={"name": path.stem[:100]})


def measured_profile(result: GpuDayResult, config: RunConfig, carried: Profile) -> Profile:
    """Return a carried profile with measured values in place of assumed ones.

    A denoising step, a sample's training and decoding are measured if the result has them; with guidance,
    each step is two passes, and so counted twice. A step shared by devices keeps its evidence, and its
    speed-up over an unshared step. All other values come from the carried profile.

    Args:
        result: result with a step at the run's size.
        config: configuration of the run.
        carried: profile of its model and size.
    """
    size, passes = config.model.width or 512, _passes(config)
    found = result.steps(size, config.model.compile)
    alone = tuple(StepTime(batch=batch, seconds=passes * step_s) for batch, step_s in sorted(found.items()))
    about = {
        "summary": f"Qwen-Image's transformer at {size}x{size} on {result.device}, measured {result.date}; "
        "what was not measured is as it was assumed",
        "device": result.device,
        "steps": alone,
    }
    measured = carried.model_copy(update={**about, **_quantities(result, config, size)})
    shared = tuple(_as_much_faster(step, carried, measured) for step in carried.steps if step.degree > 1)
    return measured.model_copy(update={"steps": alone + shared})


def _as_much_faster(step: StepTime, carried: Profile, measured: Profile) -> StepTime:
    """Return a shared step with its speed-up from one profile, over the unshared step of another.

    The time is rounded, so that a profile made from itself stays the same.
    """
    lone_s = carried.step_s(step.batch) / carried.step.value
    seconds = measured.step_s(step.batch) * step.seconds / lone_s
    return step.model_copy(update={"seconds": float(f"{seconds:.6g}")})


def _passes(config: RunConfig) -> int:
    """Return the passes of the network per denoising step: guidance adds one for the negative prompt."""
    return 2 if config.model.guidance > 1 else 1


def _quantities(result: GpuDayResult, config: RunConfig, size: int) -> dict[str, Quantity]:
    """Return the measured values other than step times, by the names of a profile."""
    passes, name = _passes(config), f"_{size}{'_compiled' if config.model.compile else ''}"

    def measured(value: float, part: str) -> Quantity:
        source = f"benchmarks.gpu_day, {part}, on {result.device}, {result.date}"
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
