"""The prompts of a run: enough of them, or a clear error."""

from __future__ import annotations

from collections.abc import Sequence

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord, load_prompts


def load_run_prompts(config: RunConfig) -> tuple[list[PromptRecord], list[PromptRecord]]:
    """The run's training prompts and the held-out ones that it evaluates.

    Raises:
        PromptFileError: if a file is missing or malformed.
        ConfigurationError: if a file has fewer prompts than the run needs.
    """
    train = load_prompts(config.prompts.train)
    evaluate = load_prompts(config.prompts.evaluate)
    per_iteration = config.algorithm.prompts_per_iteration
    _refuse_too_few("prompts.train", train, "algorithm.prompts_per_iteration", per_iteration)
    _refuse_too_few("prompts.evaluate", evaluate, "evaluation.prompts", config.evaluation.prompts)
    return train, evaluate[: config.evaluation.prompts]


def _refuse_too_few(field: str, prompts: Sequence[PromptRecord], limit: str, count: int) -> None:
    if len(prompts) < count:
        raise ConfigurationError(
            f"{field} names a file of {len(prompts)} prompts, fewer than {limit} = {count}; lower {limit} or "
            "give a longer file"
        )
