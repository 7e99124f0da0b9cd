"""A GPU's profile: counted from a model's published sizes, or measured by `benchmarks.gpu_day`.

A counted time is operations over an achieved share of the GPU's peak, plus bytes over its bandwidth. The
share is a range, so every counted figure is one. `tests/unit/tasks/test_counted_profile.py` compares the
ranges, and the distances from the middle in docs/explanation/what-if.md, with published timings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from gpu_runtime.learning.registry import passes_beside, rows_of_sample
from gpu_runtime.models.published import PublishedModel, counted_families, published_model
from gpu_runtime.simulator.profile import Profile, Quantity, StepTime
from storage.config.model import ModelConfig
from storage.config.run_config import AdaptationConfig, RunConfig
from storage.errors import ConfigurationError, quoted
from storage.text import read_json_model, read_text_file

_TERA = 1e12


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, from its maker's data sheet, and the share of its peak that these models achieve.

    Attributes:
        memory_gib: memory that a process sees, in GiB.
        peak: operations a second in bfloat16 with float32 sums, dense.
        float32: operations a second in float32 without tensor cores.
        bandwidth: bytes a second of its memory.
        share: lowest and highest share of `peak` that published runs of these models achieve in matrix
            products, eager to compiled with the fastest attention.
        linked: True if a machine's devices share samples over NVLink.
    """

    name: str
    memory_gib: float
    peak: float
    float32: float
    bandwidth: float
    share: tuple[float, float]
    linked: bool = True


GPUS = (
    Gpu("RTX4090", 23.5, 165.2 * _TERA, 82.6 * _TERA, 1.008 * _TERA, (0.40, 0.80), linked=False),
    Gpu("A100", 79.1, 312 * _TERA, 19.5 * _TERA, 2.039 * _TERA, (0.36, 0.66)),
    Gpu("H100", 79.1, 989 * _TERA, 67 * _TERA, 3.35 * _TERA, (0.19, 0.66)),
    Gpu("H200", 139.8, 989 * _TERA, 67 * _TERA, 4.8 * _TERA, (0.19, 0.66)),
)
"""GPUs that can be counted; A100 and H100 are the 80 GB SXM versions. The low share of an H100 is that of
Qwen-Image's training without compiling (`benchmarks.gpu_day`); an H200's is assumed to be the same. No
bfloat16 timing of an RTX 4090 was found: its share is assumed to exceed the others', because smaller GPUs
are easier to fill."""

DEFAULT_GPU = "H100"
"""The GPU whose profile is the default; the default prices are also its prices."""

_FLOAT32, _BFLOAT16 = 4, 2
_FLOAT32_SHARE = 0.5
"""Least share of the float32 peak that decoding achieves; assumed."""

_HOST_BYTES_PER_S = (12e9, 50e9)
"""Lowest and highest rate between the host's memory and a GPU (PCIe 4 and 5), for offloaded encoders."""

_SHARED = {2: (1.71, 0.06), 4: (3.04, 0.14), 8: (5.39, 0.23)}
"""Speed-up of devices that share samples, and the deviation of its logarithm: the geometric mean of
operations with the bytes of two exchanges a layer at 300 GB/s, and of FLUX.1-dev's published speed-up
on 2 and 4 H100 (xDiT, docs/performance/flux.md, compiled: 1.60 and 2.64)."""

_SHARING = ("qwen-image", "flux")
"""Families whose speed-up was counted or published."""

_HOSTS = 0.18
"""Assumed deviation of a measured time's logarithm between machines with the same GPU: without compiling,
the host launches each kernel, and two hosts with an H100 took 0.44 and 0.57 s for a step of Qwen-Image."""

_FAMILY = "qwen-image"
_STAGES = ("qwen_image", "variants")


class _Stage(BaseModel):
    figures: dict[str, Any] = {}


class GpuDayResult(BaseModel):
    """The parts of a result that a profile uses; the file is written by `--keep` or `--out`."""

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
            raise ValueError("it is from a rehearsal on the CPU; measure on a GPU, without --tiny")
        return tiny

    @property
    def figures(self) -> dict[str, Any]:
        """The figures of the stages on Qwen-Image, such as the rank of its adapters."""
        return {k: v for name in _STAGES for k, v in self.by_stage.get(name, _Stage()).figures.items()}

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        """Each measurement on Qwen-Image; one without a result gives the reason."""
        stages = (self.by_stage.get(name, _Stage()) for name in _STAGES)
        return {name: part for stage in stages for name, part in stage.figures.get("parts", {}).items()}

    def has_steps(self, model: ModelConfig) -> bool:
        """Return True if a pass of this model was timed at its size, compiled where it is."""
        height, width = model.size
        return model.family == _FAMILY and height == width and bool(self.steps(width, model.compile))

    def seconds(self, part: str, name: str) -> float | None:
        """Return a time of a part; None if it was not measured."""
        found = self.parts.get(part, {}).get(name)
        return float(found) if isinstance(found, (int, float)) and found > 0 else None

    def steps(self, size: int, compiled: bool = False) -> dict[int, float]:
        """Return the seconds of a pass by batch size, for images with `size` pixels a side."""
        if compiled:
            name = f"step_{size}_compiled"
            step_s, batch = self.seconds(name, "step_s"), self.seconds(name, "batch")
            return {int(batch): step_s} if step_s and batch else {}
        found: dict[int, float] = {}
        for name in self.parts:
            step, step_s = re.fullmatch(rf"step_{size}_b(\d+)", name), self.seconds(name, "step_s")
            if step is not None and step_s is not None:
                found[int(step[1])] = step_s
        return found


def is_gpu_result(path: Path) -> bool:
    """Return True if a file is such a result and not a profile: it has stages."""
    try:
        data = json.loads(read_text_file(path, f"profile {path}", ConfigurationError))
    except (ValueError, RecursionError):
        return False  # the reader of profiles then refuses it
    figures = data.get("figures", data) if isinstance(data, dict) else None
    return isinstance(figures, dict) and "by_stage" in figures


def find_gpu(name: str) -> Gpu | None:
    """Return the GPU that a user names, as in `H100` or `rtx 4090`; None if there is none."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("rtx")
    return next((gpu for gpu in GPUS if plain == gpu.name.lower().removeprefix("rtx")), None)


def named_gpu(name: str) -> Gpu:
    """Return the GPU that a user names, or refuse one that is not counted."""
    if (gpu := find_gpu(name)) is None:
        names = ", ".join(gpu.name for gpu in GPUS)
        raise ConfigurationError(f"--gpu {quoted(name)} is not counted; name one of {names}")
    return gpu


def gpu_of_device(device: str) -> Gpu | None:
    """Return the GPU that a driver's name means, as in `NVIDIA H100 80GB HBM3`; None if not counted."""
    # At the start of a word: a GH200 is not an H200.
    return next((gpu for gpu in GPUS if re.search(rf"\b(RTX)?{gpu.name.removeprefix('RTX')}", device)), None)


def counted_model(chosen: ModelConfig, adaptation: AdaptationConfig) -> PublishedModel:
    """Return the published model of a run.

    Raises:
        ConfigurationError: its family has none, or the run does not train adapters in bfloat16.
    """
    if (model := published_model(chosen)) is None:
        raise ConfigurationError(
            f"the times of {chosen.key} are not counted, only those of "
            f"{', '.join(counted_families())}; name a recorded run of it with --profile"
        )
    if chosen.dtype == "float32" or adaptation.mode == "full":
        raise ConfigurationError(
            "only adapters on a model in bfloat16 are counted, not adaptation.mode=full or "
            "model.dtype=float32; omit these, or name a recorded run with --profile"
        )
    return model


def counted_profile(config: RunConfig, gpu: Gpu) -> Profile:
    """Return the profile of a run on unmeasured devices, from operations and bytes.

    Raises:
        ConfigurationError: the family's models are not counted.
    """
    model, sampling = counted_model(config.model, config.adaptation), config.sampling
    tokens, passes = model.tokens(config.model), model.passes(config.model)
    adapters = config.adaptation.rank, config.adaptation.adapts_feed_forward
    one = model.architecture.operations(*tokens, *adapters)

    def seconds(operations: float, bytes_moved: float) -> tuple[float, float]:
        high, low = (operations / (gpu.peak * share) + bytes_moved / gpu.bandwidth for share in gpu.share)
        return low, high

    def moved(batch: int) -> float:
        # Without padding, samples pass the transformer one by one.
        turns, together = (batch, 1) if model.cuts_padding else (1, batch)
        return turns * model.architecture.moved_bytes(*tokens, together)

    def step(batch: int) -> tuple[float, float]:
        return seconds(passes * batch * (one.forward + one.adapters), passes * moved(batch))

    counted = {batch: Quantity.counted(*step(batch), "") for batch in (1, sampling.batch_size)}
    alone = tuple(StepTime(batch=batch, seconds=found.value) for batch, found in counted.items())
    forwards = 1 + config.adaptation.gradient_checkpointing + passes_beside(config.algorithm)
    rows = rows_of_sample(config.sampling, config.algorithm)
    trained = rows * passes * (forwards * (one.forward + one.adapters) + one.backward)
    moved_too = rows * passes * (forwards + 2) * moved(sampling.batch_size) / sampling.batch_size
    said = (
        f"{passes * (one.forward + one.adapters):.3g} operations a sample of {tokens[0]} image and "
        f"{tokens[1]} text tokens, {gpu.share[0]:.0%} to {gpu.share[1]:.0%} of {gpu.peak:.3g} a second, and "
        f"bytes at {gpu.bandwidth:.3g} a second"
    )
    return Profile(
        name=f"{config.model.key.replace(' ', '-')}-{gpu.name.lower()}",
        summary=f"{model.name} at {config.model.key.partition(' ')[2]} on {gpu.name}, counted, not measured",
        device=gpu.name,
        models=(config.model.key,),
        steps=alone + _shared_steps(config.model.family, gpu, alone[-1]),
        step=counted[sampling.batch_size].model_copy(update={"value": 1.0, "source": said}),
        decode_s=_decoding(config.model, model, gpu),
        train_sample_s=Quantity.counted(
            *seconds(trained, moved_too),
            f"{rows} rows of {passes} passes, each {forwards:g} times forward and once backward; {said}",
        ),
        driver_s=_encoding(
            config.model.encoders, config.algorithm.prompts_per_iteration, model, gpu, tokens[1]
        ),
        **_assumed(model, model.architecture.adapters(*adapters)),
    )


def _shared_steps(family: str, gpu: Gpu, alone: StepTime) -> tuple[StepTime, ...]:
    """Return the times of a shared step, for devices with the necessary links."""
    if not gpu.linked or family not in _SHARING:
        return ()
    return tuple(
        StepTime(
            batch=alone.batch, degree=degree, seconds=float(f"{alone.seconds / faster:.6g}"),
            evidence="modelled", uncertainty=uncertainty,
            source=f"{faster:g} times as fast as one device, between a count and a published speed-up",
        )
        for degree, (faster, uncertainty) in _SHARED.items()
    )  # fmt: skip


def _decoding(chosen: ModelConfig, model: PublishedModel, gpu: Gpu) -> Quantity:
    """Return the time to decode a sample in float32, between TF32 tensor cores and none."""
    operations = model.decoding * model.pixels(chosen)
    tensor_cores = gpu.peak / 2
    return Quantity.counted(
        operations / (tensor_cores * gpu.share[1]),
        operations / (gpu.float32 * _FLOAT32_SHARE),
        f"{operations:.3g} operations in float32, between {gpu.share[1]:.0%} of TF32's peak and "
        f"{_FLOAT32_SHARE:.0%} of float32's",
    )


def _encoding(encoders: str, prompts: int, model: PublishedModel, gpu: Gpu, text_tokens: int) -> Quantity:
    """Return the time to encode an iteration's prompts.

    Offloaded encoders are copied to the GPU for each batch with a prompt that is new to the device: at least
    once, at most once per prompt. They stay on the host, so nothing is copied back.
    """
    operations = 2 * model.encoders * text_tokens * prompts
    moved = _BFLOAT16 * model.encoders if encoders == "offload" else 0.0
    low, high = (
        operations / (gpu.peak * share) + trips * moved / rate
        for share, trips, rate in zip(
            reversed(gpu.share), (1, prompts), reversed(_HOST_BYTES_PER_S), strict=True
        )
    )
    often = f", 1 to {prompts} times" if moved else ""
    return Quantity.counted(
        low,
        high,
        f"text encoders: {operations:.3g} operations, {moved:.3g} bytes moved{often}; records left out",
    )


def _assumed(model: PublishedModel, adapters: float) -> dict[str, Any]:
    """Return the figures beyond computing and memory, which are assumed and labelled modelled."""

    def assumed(value: float, uncertainty: float, source: str) -> Quantity:
        return Quantity(
            value=value, evidence="modelled", uncertainty=uncertainty, source=f"assumed: {source}"
        )

    loaded = _BFLOAT16 * (model.architecture.numbers + model.encoders) + _FLOAT32 * model.vae
    return {
        "score_s": assumed(0.15, 0.6, "a detector on a share of a GPU"),
        "weights_s": assumed(
            1.5 + _FLOAT32 * adapters / 1.25e9, 0.5, "trained weights over 10 Gb/s, and loading them"
        ),
        "start_s": assumed(180 + loaded / 1e9, 0.5, "a machine's start, and all weights at 1 GB/s"),
        "regroup_s": assumed(0.5, 0.8, "NCCL on one machine; groups of CPU processes take 0.16 s"),
    }


def read_gpu_result(path: Path) -> GpuDayResult:
    """Read a result of `benchmarks.gpu_day`.

    Raises:
        ConfigurationError: the file is not a result, or is from a rehearsal.
    """
    return read_json_model(path, "GPU result", GpuDayResult, "docs/explanation/what-if.md")


def gpu_profile(path: Path, config: RunConfig) -> Profile:
    """Return the profile of a run on the GPU of a measured result.

    Raises:
        ConfigurationError: the file is not a result, is from a rehearsal, or lacks this model and size.
    """
    result, model = read_gpu_result(path), config.model
    height, size = model.size
    if model.family != _FAMILY or size != height:
        raise ConfigurationError(
            f"GPU result {path} is for {_FAMILY} at square sizes, but the run has {model.family} at "
            f"{size}x{height}; name a profile for that"
        )
    if not result.has_steps(model):
        compiled = " with compiled blocks" if model.compile else ""
        raise ConfigurationError(
            f"GPU result {path} has no step_s at {size}x{size}{compiled}; measure it again"
        )
    return measured_profile(result, config).model_copy(update={"name": path.stem[:100]})


def measured_profile(result: GpuDayResult, config: RunConfig) -> Profile:
    """Return the counted profile of a result's GPU, with measured values replacing counted ones.

    A denoising step, a sample's training and decoding are measured if the result has them; with guidance,
    each step is two passes, so it counts twice, and training counts by rows. Where a pass or a row computes
    more or less than the measured one, its time is scaled by the counted operations. A step shared by devices
    keeps its evidence and its speed-up over an unshared step. All other values stay as counted; an unknown
    GPU uses those of an H100.
    """
    counted = counted_profile(config, gpu_of_device(result.device) or named_gpu(DEFAULT_GPU))
    size, passes = config.model.size[1], counted_model(config.model, config.adaptation).passes(config.model)
    of_pass, of_row = _more_operations(result, config)
    found = result.steps(size, config.model.compile)
    # A small batch, which could be padded, takes no longer than a large one; single timings may disagree.
    found = {batch: min(found[other] for other in found if other >= batch) for batch in found}
    alone = tuple(
        StepTime(batch=batch, seconds=passes * of_pass * step_s) for batch, step_s in sorted(found.items())
    )
    about = {
        "summary": f"Qwen-Image's transformer at {size}x{size} on {result.device}, measured {result.date}; "
        "unmeasured values are counted or assumed",
        "device": result.device,
        "steps": alone,
    }
    quantities = _quantities(result, config, passes, of_pass, of_row)
    measured = counted.model_copy(update={**about, **quantities})
    shared = []
    for step in counted.steps:
        if step.degree > 1:
            lone_s = counted.step_s(step.batch) / counted.step.value
            seconds = measured.step_s(step.batch) * step.seconds / lone_s
            shared.append(step.model_copy(update={"seconds": float(f"{seconds:.6g}")}))
    return measured.model_copy(update={"steps": (*alone, *shared)})


def _more_operations(result: GpuDayResult, config: RunConfig) -> tuple[float, float]:
    """Return the operations of a run's pass and trained row, as multiples of the measured ones.

    The benchmark recomputes activations in training, takes no pass of a reference, and adapts the
    feed-forward, too.
    """
    model, adaptation = counted_model(config.model, config.adaptation), config.adaptation
    image, text = model.tokens(config.model)
    measured = result.figures

    def operations(text: int, rank: int, feed_forward: bool, forwards: float) -> tuple[float, float]:
        one = model.architecture.operations(image, text, rank, feed_forward)
        forward = one.forward + one.adapters
        return forward, forwards * forward + one.backward

    forwards = 1 + adaptation.gradient_checkpointing + passes_beside(config.algorithm)
    mine = operations(text, adaptation.rank, adaptation.adapts_feed_forward, forwards)
    timed = operations(measured.get("text_length", text), measured.get("rank", adaptation.rank), True, 2)
    return mine[0] / timed[0], mine[1] / timed[1]


def _quantities(
    result: GpuDayResult, config: RunConfig, passes: int, of_pass: float, of_row: float
) -> dict[str, Quantity]:
    """Return the measured values other than step times, by the names of a profile."""
    size = config.model.size[1]
    name = f"_{size}{'_compiled' if config.model.compile else ''}"

    def measured(value: float, part: str) -> Quantity:
        source = f"benchmarks.gpu_day, {part}, on {result.device}, {result.date}"
        return Quantity(value=value, evidence="measured", source=source)

    def scaled(value: float, part: str, more: float) -> Quantity:
        found = measured(value, part)
        source = f"{found.source}{', counted twice for guidance' if passes > 1 else ''}"
        if more != 1:
            source = f"{source}, times {more:.3g} for the operations of these settings"
        evidence = "measured" if more == 1 else "scaled"
        return found.model_copy(update={"source": source, "uncertainty": _HOSTS, "evidence": evidence})

    found = {"step": scaled(1.0, f"step{name}", of_pass)}
    train_s, rows = (result.seconds(f"train{name}", each) for each in ("train_s", "rows"))
    if train_s and rows:
        trained = passes * of_row * rows_of_sample(config.sampling, config.algorithm)
        found["train_sample_s"] = scaled(train_s / rows * trained, f"train{name}", of_row)
    if decode_s := result.seconds(f"decode_{size}", "decode_s_an_image"):
        found["decode_s"] = measured(decode_s, f"decode_{size}")
    return found
