"""The prompts of a run: enough of them, or a clear error; and which of them each evaluation has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, PromptFileError
from storage.prompts.files import PromptRecord, load_prompts, resolve_prompt_path
from storage.prompts.subset import draw_subset


def load_run_prompts(config: RunConfig) -> tuple[list[PromptRecord], list[PromptRecord]]:
    """The run's training prompts and its held-out ones: all that the two files have.

    Raises:
        PromptFileError: if a file is missing or malformed.
        ConfigurationError: if a file has fewer prompts than the run needs.
    """
    train = load_prompts(config.prompts.train)
    evaluate = load_prompts(config.prompts.evaluate)
    per_iteration = config.algorithm.prompts_per_iteration
    _refuse_too_few("prompts.train", train, "algorithm.prompts_per_iteration", per_iteration)
    _refuse_too_few("prompts.evaluate", evaluate, "evaluation.prompts", config.evaluation.prompts)
    return train, evaluate


def compared_prompts(config: RunConfig, held_out: Sequence[PromptRecord]) -> list[PromptRecord]:
    """The held-out prompts that every evaluation of a run has; over them its scores compare.

    The first and the last evaluation have the whole file, those between them only these.

    Args:
        config: of the run.
        held_out: all prompts of its file.
    """
    return draw_subset(held_out, config.evaluation.prompts if config.evaluates_between else len(held_out))


def held_out_in_words(config: RunConfig) -> str:
    """Which part of the file a run's evaluations have, and how many images that takes.

    Raises:
        PromptFileError, ConfigurationError: as `load_run_prompts`.
    """
    _, held_out = load_run_prompts(config)
    compared = compared_prompts(config, held_out)
    if len(compared) == len(held_out):
        return f"each evaluation has {part_in_words(held_out, held_out)}"
    images = config.evaluation.images_per_prompt
    return (
        f"the first and the last evaluation have {part_in_words(held_out, held_out)} "
        f"({len(held_out) * images:,} images each), the others {part_in_words(compared, held_out)} "
        f"({len(compared) * images:,} images)"
    )


def part_in_words(part: Sequence[PromptRecord], held_out: Sequence[PromptRecord]) -> str:
    """How much of a file some of its prompts are.

    Args:
        part: as `draw_subset` draws them.
        held_out: all prompts of the file.
    """
    if len(part) == len(held_out):
        return f"all {len(held_out)} held-out prompts"
    shares = ", every tag in its share" if any(prompt.tag for prompt in part) else ""
    return f"{len(part)} of {len(held_out)} held-out prompts{shares}"


def held_out_prompts(config: RunConfig, iteration: int) -> int:
    """How many prompts the evaluation after this iteration has (0: of the untouched model).

    The file may be another machine's, as that of a recorded run: `evaluation.prompts` is then all that is
    known of it.
    """
    part = config.evaluation.prompts
    if 0 < iteration < config.iterations:
        return part
    try:
        path = resolve_prompt_path(config.prompts.evaluate)
        return _count(str(path), path.stat().st_mtime_ns)
    except (PromptFileError, OSError):
        return part


@lru_cache(maxsize=32)
def _count(path: str, modified_ns: int) -> int:
    """Prompts of a file as it is at this time."""
    return len(load_prompts(path))


def _refuse_too_few(field: str, prompts: Sequence[PromptRecord], limit: str, count: int) -> None:
    if len(prompts) < count:
        raise ConfigurationError(
            f"{field} names a file of {len(prompts)} prompts, fewer than {limit} = {count}; lower {limit} or "
            "give a longer file"
        )
