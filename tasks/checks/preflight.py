"""Checks that refuse bad input before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from gpu_runtime.cluster.slots import refuse_shared_gpus, refuse_standbys_with_gpus
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.registry import keeps_reference
from gpu_runtime.models.files.finite_numbers import refuse_files_not_finite
from gpu_runtime.models.loading import (
    device_of,
    outline_model,
    refuse_gpus_of_local_processes,
    refuse_missing_cuda,
)
from gpu_runtime.models.protocol import DiffusionModel, ModelOutline
from gpu_runtime.models.registry import family_of
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.rewards.registry import build_scorer, chosen_judge
from storage.config.model import ModelConfig
from storage.config.run_config import RunConfig
from storage.config.sequence_parallel import AUTO
from storage.errors import ConfigurationError
from storage.pictures import chosen_frames
from storage.prompts.files import PromptRecord
from tasks.checks.quick_checks import check_inputs, first_judged, naming

_ENCODED_AT_ONCE = 256
"""Prompts encoded at a time; encoding a list needs memory for all of it."""


def check(config: RunConfig) -> list[str]:
    """Check every prompt and the model, load the scorer once, and judge one blank image.

    No weights go to a GPU: this process needs none and must not hold GPU memory. Checks that need no library
    come first; a command calls `quick_checks` before importing this module.

    Returns:
        Warnings for the user that do not stop the run.

    Raises:
        ConfigurationError, PromptFileError: a value that the run cannot work with.
        ModelError: files of the model or its adapter are missing or do not fit, or no layer would be
            trained.
    """
    inputs = check_inputs(config)
    if not config.runtime.ray_address:  # the devices of a cluster cannot be seen from here
        _refuse_missing_gpus(config)
    outline = outline_model(config.model)
    if not config.runtime.ray_address:
        refuse_gpus_of_local_processes(config.runtime, config.model)
        if device_of(config.model).type == "cuda":
            refuse_shared_gpus(config, config.runtime.least_workers, torch.cuda.device_count())
        outline.check_machine(config, keeps_reference(config.algorithm, config.evaluation))
    scorer = build_scorer(config.reward)
    warnings = [*inputs.warnings, *_check_degrees(config, outline)]
    for setting, prompts in inputs.by_setting:
        judged = [prompt for prompt in prompts if prompts is inputs.evaluate or not prompt.pair]
        _check_prompts(setting, prompts, judged, outline, scorer)
    blank = chosen_frames(outline.blank_image(), config.reward.frames)
    _judge_blank("reward.scorer", blank, scorer, first_judged(inputs.train, inputs.evaluate))
    if config.evaluated_model != config.model:
        try:
            outline_of_held_out = outline_model(config.evaluated_model)
        except ConfigurationError as error:
            raise ConfigurationError(f"evaluation.size is {config.evaluation.size}: {error}") from error
        blank = chosen_frames(outline_of_held_out.blank_image(), config.reward.frames)
        _judge_blank("reward.scorer", blank, scorer, inputs.evaluate[0])
    second = chosen_judge(config.reward, config.evaluation)
    if second is not None:
        judge = second.build()
        setting, prompts = inputs.by_setting[1]
        for prompt in prompts:
            with naming(setting, prompt, f"; evaluation.judge is {config.evaluation.judge!r}"):
                judge.check(prompt)
        _judge_blank("evaluation.judge", blank, judge, inputs.evaluate[0])
    # Last, as it adds its adapters to the transformer, the only part it inspects.
    layers = cast("DiffusionModel", outline)
    Policy(layers, config.adaptation, config.seed, keeps_reference=False, adapter=config.model.adapter)
    trained = {prompt.identity for prompt in inputs.train}
    shared = [prompt.text for prompt in inputs.evaluate if prompt.identity in trained]
    if shared:
        warnings.append(
            f"{len(shared)} of {len(inputs.evaluate)} held-out prompts are also training prompts, such as "
            f"{min(shared)!r}; their images still differ by seed"
        )
    return warnings


def _refuse_missing_gpus(config: RunConfig) -> None:
    refuse_missing_cuda(config.model)
    if device_of(config.model).type == "cuda":
        refuse_standbys_with_gpus(config.runtime)
    elif config.runtime.scorer_gpu:
        raise ConfigurationError(
            f"runtime.scorer_gpu = {config.runtime.scorer_gpu:g}, but no CUDA device is visible here; "
            "set it to 0 to judge on the CPU, or run on a cluster with a GPU (runtime.cluster)"
        )


def read_weights(model: ModelConfig) -> int:
    """Read every tensor of the configured model, and return their number of values.

    Raises:
        ModelError: one is not finite, or a file is missing or damaged.
    """
    return refuse_files_not_finite(
        file for file in family_of(model).files(model) if file.suffix == ".safetensors"
    )


def _check_degrees(config: RunConfig, outline: ModelOutline) -> list[str]:
    """Refuse degrees that do not divide the model's sequences; warn if `auto` has no choice."""
    settings = config.sequence_parallel
    if settings.largest == 1:
        return []
    # Imported here: all families of diffusers, which a run that shares no sequence does not need.
    from gpu_runtime.sequence_parallel.ulysses import shape_of

    shape = shape_of(outline.transformer, *outline.sequence_lengths())
    for kind, degree in settings.by_kind.items():
        if degree == AUTO:
            continue
        try:
            shape.check(degree)
        except ConfigurationError as error:
            longer = outline.text_length_for(degree) if shape.only_text_length_prevents(degree) else None
            advice = "" if longer is None else f", or set model.text_length={longer}"
            raise ConfigurationError(f"sequence_parallel.{kind} = {degree}: {error}{advice}") from error
    workers = config.runtime.least_workers
    if settings.is_measured and not config.runtime.counts_devices and shape.degrees(workers) == (1,):
        return [
            "sequence_parallel is auto, but every device will work alone: no degree from 2 to the number of "
            f"workers, {workers}, divides the model's sequences"
        ]
    return []


def _check_prompts(
    setting: str,
    prompts: Sequence[PromptRecord],
    judged: Sequence[PromptRecord],
    model: ModelOutline,
    scorer: Scorer,
) -> None:
    """Refuse the first judged prompt that the scorer cannot judge, or any that the model cannot encode."""
    for prompt in judged:
        with naming(setting, prompt, f"; choose prompts that fit scorer {scorer.name!r}"):
            scorer.check(prompt)
    for start in range(0, len(prompts), _ENCODED_AT_ONCE):
        batch = prompts[start : start + _ENCODED_AT_ONCE]
        try:
            model.check_prompts([prompt.text for prompt in batch])
        except ConfigurationError:
            for prompt in batch:  # one by one, to find which
                with naming(setting, prompt):
                    model.check_prompts([prompt.text])
            raise


def _judge_blank(setting: str, blank: np.ndarray, scorer: Scorer, prompt: PromptRecord) -> None:
    (score,) = score_each(scorer, [blank], [prompt])
    if score.error is not None:
        raise ConfigurationError(
            f"{setting} = {scorer.name!r} fails on a blank image with prompt {prompt.text!r}: "
            f"{score.error}; fix the scorer, or install what it needs"
        )
