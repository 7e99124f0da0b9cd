"""Checks of bad input that take at most a second: without torch, ray, or a loaded model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_runtime.cluster.address import refuse_silent_address, refuse_unusable_folder
from gpu_runtime.exploration.registry import STRATEGIES, build_explorer, strategy_of
from gpu_runtime.fleet.capacity.registry import CAPACITY, check_capacity
from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.models.files.lora_file import check_lora
from gpu_runtime.models.registry import FAMILIES, family_of
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.registry import chosen_judge, chosen_scorer, read_scorer_options
from storage.config.errors import as_given, naming_sources
from storage.config.run_config import ALL_FRAMES, PromptsConfig, RewardConfig, RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import ConfigurationError, PromptFileError, quoted
from storage.pictures import chosen_frames
from storage.prompts.files import PromptRecord, load_run_prompts
from storage.prompts.sources import check_pair, check_source
from storage.readers.registry import check_readers

_MOST_PROCESSES_A_CORE = 8
"""The largest number of workers, or of scorers, per core of this machine; with more, leases expire."""

_MANY_PROCESSES_A_CORE = 4


@dataclass(frozen=True)
class CheckedInputs:
    """A run's checked inputs: training prompts, and the held-out prompts that it evaluates.

    Attributes:
        by_setting: both lists, each with the setting that names it, for messages.
        warnings: warnings for the user that do not stop the run.
    """

    train: Sequence[PromptRecord]
    evaluate: Sequence[PromptRecord]
    by_setting: Sequence[tuple[str, Sequence[PromptRecord]]]
    warnings: Sequence[str]


def with_read_options(
    config: RunConfig, sources: Mapping[str, str] | None = None, needs_task: bool = True
) -> RunConfig:
    """Return the settings with every name resolved and every option read.

    Args:
        sources: origin of its values (`load_with_sources`), for messages.
        needs_task: False for a run that is only sized, which may lack reward and prompts.

    Raises:
        ConfigurationError: a needed reward or prompts are missing, a name is unknown, or an option is wrong.
    """
    if needs_task:
        _refuse_no_task(config.reward, config.prompts)
    with naming_sources(sources or {}):
        config = FAMILIES.stored(config)
        if config.reward.scorer:
            config = read_scorer_options(config)
        for registry in (OBJECTIVES, STRATEGIES, CAPACITY):
            config = registry.stored(config)
    return config


def _refuse_no_task(reward: RewardConfig, prompts: PromptsConfig) -> None:
    """Refuse a preset without a task, such as sd3.5-512, until its reward and its prompts are given."""
    wanted = {
        "reward.scorer": (reward.scorer, "my_rewards.py:blue"),
        "prompts.train": (prompts.train, "my-prompts.txt"),
        "prompts.evaluate": (prompts.evaluate, "my-held-out.txt"),
    }
    missing = {setting: example for setting, (value, example) in wanted.items() if not value}
    if missing:
        raise ConfigurationError(
            f"{', '.join(missing)}: not set, and the preset has no task; add, for example, "
            f"{as_given(missing)}"
        )


def check_inputs(config: RunConfig) -> CheckedInputs:
    """Check the settings against this machine, and read and check every prompt.

    Raises:
        ConfigurationError, PromptFileError: a value that the run cannot work with, or a server that does not
            answer.
        ModelError: a folder of weights is missing, or the adapter to start from does not fit.
    """
    local = not config.runtime.ray_address  # the devices of a cluster cannot be seen from here
    warnings = _check_processes(config.runtime) if local else []
    _check_notices(config.runtime)
    check_capacity(config.runtime)
    family = family_of(config.model)
    family.find(config.model)
    if config.reward.frames != ALL_FRAMES and family.frames(config.model) is None:
        raise ConfigurationError(
            f"reward.frames is {config.reward.frames}, but {config.model.family} makes images; omit it, "
            "or choose a family that makes clips"
        )
    if config.model.adapter:
        check_lora(config.model.adapter, config.adaptation)
    fits_model = family.prompt_check(config.model)
    scorer, judge = chosen_scorer(config.reward), chosen_judge(config.reward, config.evaluation)
    chosen = [scorer, *([] if judge is None else [judge])]
    if config.runtime.scorer_gpu and not any(one.uses_gpu for one in chosen):
        raise ConfigurationError(
            f"runtime.scorer_gpu is {config.runtime.scorer_gpu:g}, but "
            f"{', '.join(one.name for one in scorer.judges)} judges on the CPU; omit it"
        )
    for one in chosen:
        one.check_files()
    train, evaluate = load_run_prompts(config)
    build_explorer(config, train)
    _check_pairs(config, train)
    by_setting = (
        (f"prompts.train = {config.prompts.train!r}", train),
        (f"prompts.evaluate = {config.prompts.evaluate!r}", evaluate),
    )
    for setting, prompts in by_setting:
        source_size = family.source_size(config.evaluated_model if prompts is evaluate else config.model)
        for prompt in prompts:
            if prompts is evaluate or not prompt.pair:
                with naming(setting, prompt, f"; choose prompts that fit scorer {config.reward.scorer!r}"):
                    scorer.check_prompt(prompt)
            with naming(setting, prompt):
                fits_model(prompt.text)
                check_source(prompt.source, source_size)
    if judge is not None:
        setting, prompts = by_setting[1]
        for prompt in prompts:
            with naming(setting, prompt, f"; evaluation.judge is {config.evaluation.judge!r}"):
                judge.check_prompt(prompt)
    refuse_silent_address(config.runtime.ray_address)
    if config.runtime.cluster == "ray":
        refuse_unusable_folder()
    check_readers(config.tracking)
    for one in chosen:
        one.check_servers()
    if paired := sum(bool(prompt.pair) for prompt in evaluate):
        warnings.append(
            f"{by_setting[1][0]}: {paired} of {len(evaluate)} rows are pairs of pictures, which evaluations "
            "do not use: they judge new images of the prompts"
        )
    return CheckedInputs(train, evaluate, by_setting, warnings)


def first_judged(train: Sequence[PromptRecord], evaluate: Sequence[PromptRecord]) -> PromptRecord:
    """Return the first prompt whose images the scorer judges: it judges no pairs of the prompt file."""
    return next((prompt for prompt in train if not prompt.pair), evaluate[0])


@contextmanager
def naming(setting: str, prompt: PromptRecord, advice: str = "") -> Iterator[None]:
    """Name the prompt and its file in any refusal raised in the context.

    Args:
        setting: setting that named the file, with its value.
        advice: appended to the message.
    """
    try:
        yield
    except (PromptFileError, ConfigurationError) as error:
        number = prompt.prompt_id + 1
        place = f" (line {prompt.line})" if prompt.line not in (0, number) else ""
        raise type(error)(f"{setting}, prompt number {number}{place}: {error}{advice}") from error


def _check_pairs(config: RunConfig, train: Sequence[PromptRecord]) -> None:
    """Read all pairs of pictures, and refuse them if the run's settings or model do not allow them."""
    paired = [prompt for prompt in train if prompt.pair]
    if not paired:
        return
    objective = config.algorithm.objective
    family, setting = family_of(config.model), f"prompts.train = {config.prompts.train!r}"
    says = f"{setting} has pairs of pictures"
    if not OBJECTIVES.find(objective).takes_pairs:
        able = [name for name in OBJECTIVES.names() if OBJECTIVES.find(name).takes_pairs]
        raise ConfigurationError(
            f"{says}, but algorithm.objective={objective} learns from scores; set algorithm.objective to "
            f"{' or '.join(able)}, or drop `preferred` and `rejected`"
        )
    if config.algorithm.group_size != 2:
        raise ConfigurationError(
            f"{says}, but algorithm.group_size is {config.algorithm.group_size}: a pair is a prompt group of "
            "two; set it to 2"
        )
    if strategy_of(config.exploration).drafts:
        raise ConfigurationError(
            f"{says}, but exploration.strategy={config.exploration.strategy} drafts samples for each prompt; "
            "set it to plain"
        )
    if family.frames(config.model) is not None:
        raise ConfigurationError(f"{says}, but {config.model.family} makes clips; choose another family")
    size = family.size(config.model)
    for prompt in paired:
        with naming(setting, prompt):
            check_pair(prompt.pair, size)


def _check_processes(runtime: RuntimeConfig) -> list[str]:
    """Refuse more processes than this machine's cores can serve; warn if they would be slow."""
    cores = os.cpu_count() or 1
    workers, most = runtime.least_workers, _MOST_PROCESSES_A_CORE * cores
    for setting, count, largest in (
        ("reserved_workers + runtime.spot_workers", workers, most),
        ("standby_workers", runtime.standby_workers, most),
        ("scorer_workers", runtime.scorer_workers, most),
    ):
        if count > largest:
            raise ConfigurationError(
                f"runtime.{setting} = {count:,}, but this machine has {cores} cores: set at most {largest} "
                "for a run on it alone, or name a cluster that has the devices (runtime.cluster)"
            )
    if workers <= _MANY_PROCESSES_A_CORE * cores:
        return []
    return [
        f"{workers} workers share {cores} cores as separate processes, so all are slow; their times and "
        "costs say little about real devices"
    ]


def _check_notices(runtime: RuntimeConfig) -> None:
    """Check only the setting: each spot worker's machine resolves the address, not this one."""
    name, at, url = runtime.notices.partition("@")
    if name == "none" and not at:
        return
    # Imported here, and with it httpx.
    from gpu_runtime.spot.notices.registry import NOTICES
    from gpu_runtime.spot.notices.watch import checked_url

    if name != "none" and (not at or NOTICES.find(name).asks_url):
        NOTICES.find(name)
    else:
        asked = [known for known in NOTICES.names() if NOTICES.find(known).asks_url]
        raise ConfigurationError(
            f"runtime.notices is {quoted(runtime.notices)}, but {name} takes no address; omit it, or "
            f"name one of {', '.join(asked)}"
        )
    if not at:
        return
    try:
        checked_url(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"runtime.notices: {error}; write it as in gcp@http://HOST:PORT") from error


def judge_image(reward: RewardConfig, image_HWC: np.ndarray, prompt: PromptRecord) -> dict[str, Any]:
    """Return a judgement: `value`, `exact` (None without verdicts), `detail`, `error`, `parts`.

    Args:
        image_HWC: image, uint8 RGB, shape (H, W, 3); for a clip (F, H, W, 3).

    Raises:
        ConfigurationError, ModelError: the scorer cannot be built.
        PromptFileError: the scorer cannot judge this prompt.
    """
    chosen = chosen_scorer(reward)
    chosen.check_prompt(prompt)
    scorer = chosen.build()
    scorer.check(prompt)
    [score] = score_each(scorer, [chosen_frames(image_HWC, reward.frames)], [prompt])
    exact = score.exact if chosen.gives_verdict else None
    return {
        "value": score.value, "exact": exact, "detail": score.detail, "error": score.error,
        "parts": dict(score.parts),
    }  # fmt: skip
