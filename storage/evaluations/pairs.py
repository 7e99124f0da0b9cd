"""The comparison of two separate evaluations, image by image."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from storage.config.errors import dotted
from storage.config.loading import differing
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.evaluations.figures import graded, tagged_figures
from storage.evaluations.quality import JUDGE, image_changes
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation
from storage.home import Home
from storage.prompts.files import PromptRecord
from storage.prompts.of_a_run import draw_subset, load_run_prompts
from storage.record.records import JudgedImage

_OF_NO_CONCERN = (
    "name",
    "iterations",
    "runtime.",
    "price.",
    "checkpoint.",
    "tracking.",
    "exploration.",
    "evaluation.every",
)
"""Settings that do not affect any image of an evaluation."""


def comparable(home: Home, config: RunConfig, name: str) -> str:
    """Return the identifier of the earlier evaluation that `name` means; refuse one that is not comparable.

    Args:
        name: identifier of an evaluation, or of a run.

    Raises:
        RunNotFoundError: there is no such evaluation.
        ConfigurationError: another scorer, or the same by other frames, judged it, or it shares no prompt.
    """
    store = EvaluationStore(home)
    earlier = store.find(name)
    refuse_other_judge(earlier, config)
    _, held_out = load_run_prompts(config)
    prompts = draw_subset(held_out, config.evaluation.prompts)
    refuse_other_prompts(earlier, store.images(earlier.evaluation_id), prompts)
    return earlier.evaluation_id


def compare_evaluations(home: Home, before: str, after: str) -> dict[str, Any]:
    """Return by how much the second evaluation is better than the first.

    Args:
        before: identifier of an evaluation, or of a run, which stands for its newest evaluation.
        after: the same for the second one.

    Raises:
        RunNotFoundError: there is no such evaluation.
        ConfigurationError: the two cannot be compared.
    """
    store = EvaluationStore(home)
    sides = [store.find(name) for name in (before, after)]
    first, second = ((side, store.images(side.evaluation_id)) for side in sides)
    return difference_of(first, second)


def difference_of(
    before: tuple[SeparateEvaluation, Sequence[JudgedImage]],
    after: tuple[SeparateEvaluation, Sequence[JudgedImage]],
) -> dict[str, Any]:
    """Return by how much the second evaluation is better, prompt by prompt, as JSON values.

    Images are paired by prompt (same text, same place in the file: the noise depends on it) and seed; an
    image that only one of them has, or judged, is left out.

    Returns:
        The same as `figures_of` (without `exact` if the reward gives no verdict), but for the differences
        (in [-1, 1]); and `before`, `after` (identifiers), `pairs`, `same_noise` (whether a pair began from
        the same noise), `settings_that_differ` (names of those that may move a score), `quality` (for each
        figure of the images' look that both have: `before`, `after`, `interval` of the difference).

    Raises:
        ConfigurationError: the two were judged by different scorers, or have no judged image of the same
            prompt and seed.
    """
    old, new = before[0].config, after[0].config
    refuse_other_judge(before[0], new)
    earlier = {_identity(image): image for image in before[1] if image.error is None}
    pairs = [
        (earlier[_identity(image)], image)
        for image in after[1]
        if image.error is None and _identity(image) in earlier
    ]
    if not pairs:
        raise ConfigurationError(
            f"evaluations {before[0].evaluation_id} and {after[0].evaluation_id} have no judged image of "
            f"the same prompt and seed (prompts.evaluate = {old.prompts.evaluate!r} and "
            f"{new.prompts.evaluate!r}); evaluate both on the same prompts"
        )
    by_prompt: defaultdict[tuple[str, str], list[tuple[JudgedImage, JudgedImage]]] = defaultdict(list)
    for pair in pairs:
        by_prompt[pair[1].unit].append(pair)
    values = [
        (
            tag,
            statistics.fmean(late.score - early.score for early, late in of_prompt),
            statistics.fmean(float(late.exact) - float(early.exact) for early, late in of_prompt),
        )
        for (tag, _), of_prompt in by_prompt.items()
    ]
    figures = tagged_figures(values, lowest=-1.0)
    return {
        "before": before[0].evaluation_id,
        "after": after[0].evaluation_id,
        "pairs": len(pairs),
        "same_noise": old.seed == new.seed,
        "settings_that_differ": _differing(old, new),
        "quality": {
            change.name: {
                "before": change.before,
                "after": change.after,
                "interval": None if math.isinf(change.low) else [change.low, change.high],
            }
            for change in image_changes(pairs)
            if change.name != JUDGE or _judge(old) == _judge(new)
        },
    } | (figures if after[0].gives_verdict else graded(figures))


def refuse_other_judge(earlier: SeparateEvaluation, config: RunConfig) -> None:
    """Refuse to compare scores of different scales.

    Raises:
        ConfigurationError: settings of the reward differ; the message names them.
    """
    other = earlier.config
    differing = [name for name in _differing(other, config) if name.startswith("reward.")]
    if other.reward.scorer != config.reward.scorer or {"reward.options", "reward.frames"} & {*differing}:
        raise ConfigurationError(
            f"evaluation {earlier.evaluation_id} was judged by another reward "
            f"(reward.scorer = {other.reward.scorer!r}, now {config.reward.scorer!r}; "
            f"{', '.join(differing)}); their scores do not compare: evaluate both with the same one"
        )


def refuse_other_prompts(
    earlier: SeparateEvaluation, images: Sequence[JudgedImage], prompts: Sequence[PromptRecord]
) -> None:
    """Refuse `prompts` for which an `earlier` evaluation has no `images` to compare with.

    Args:
        earlier: evaluation to compare with.
        images: images of that evaluation.
        prompts: prompts of the new evaluation.

    Raises:
        ConfigurationError: the earlier evaluation shares no prompt with them.
    """
    known = {(image.prompt_id, image.prompt) for image in images}
    if not any((prompt.prompt_id, prompt.text) in known for prompt in prompts):
        raise ConfigurationError(
            f"evaluation {earlier.evaluation_id} has none of these {len(prompts)} prompts (it was made on "
            f"prompts.evaluate = {earlier.config.prompts.evaluate!r}); evaluate on the same ones"
        )


def _identity(image: JudgedImage) -> tuple[int, str, int]:
    return image.prompt_id, image.prompt, image.seed_index


def _judge(config: RunConfig) -> tuple[str, object]:
    """Return the judge of the figure `judge`: figures of different judges are not comparable."""
    return config.evaluation.judge, config.evaluation.options


def _differing(one: RunConfig, other: RunConfig) -> list[str]:
    """Return the dotted names of the settings that differ and affect images."""
    names = [dotted(key) for key, _ in differing(one, other)]
    return [name for name in names if not name.startswith(_OF_NO_CONCERN)]
