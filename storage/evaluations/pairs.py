"""The comparison of two separate evaluations, image by image."""

from __future__ import annotations

import math
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
from storage.prompts.files import load_run_prompts
from storage.prompts.held_out import draw_subset
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
    """Return the identifier of the evaluation of that name, or run; refuse one that does not compare.

    Raises:
        RunNotFoundError: there is no such evaluation.
        ConfigurationError: another scorer, or the same by other frames, judged it, or it shares no prompt.
    """
    store = EvaluationStore(home)
    earlier = store.find(name)
    refuse_other_judge(earlier, config)
    _, held_out = load_run_prompts(config)
    prompts = draw_subset(held_out, config.evaluation.prompts)
    known = {(image.prompt_id, image.prompt) for image in store.images(earlier.evaluation_id)}
    if not any((prompt.prompt_id, prompt.text) in known for prompt in prompts):
        raise ConfigurationError(
            f"evaluation {earlier.evaluation_id} has none of these {len(prompts)} prompts (it was made on "
            f"prompts.evaluate = {earlier.config.prompts.evaluate!r}); evaluate on the same ones"
        )
    return earlier.evaluation_id


def compare_evaluations(home: Home, before: str, after: str) -> dict[str, Any]:
    """Return by how much the second evaluation is better than the first; `difference_of` says how.

    Either is named by its identifier, or by a run, which stands for its newest evaluation.
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
        The same as `figures_of` (without `exact` if the reward gives no verdict), but for the differences (in
            [-1, 1]); and `before`, `after` (identifiers), `pairs`, `same_noise` (whether a pair began from
            the same noise), `settings_that_differ` (names of those that may move a score), `quality` (for
            each figure of the images' look that both have: `before`, `after`, `interval` of the difference).

    Raises:
        ConfigurationError: other scorers judged them, or no judged images have the same prompt and seed.
    """
    old, new = before[0].config, after[0].config
    refuse_other_judge(before[0], new)
    judged = [
        {(i.prompt_id, i.prompt, i.seed_index): i for i in images if i.error is None}
        for _, images in (before, after)
    ]
    pairs = [(judged[0][key], image) for key, image in judged[1].items() if key in judged[0]]
    if not pairs:
        raise ConfigurationError(
            f"evaluations {before[0].evaluation_id} and {after[0].evaluation_id} have no judged image of "
            f"the same prompt and seed (prompts.evaluate = {old.prompts.evaluate!r} and "
            f"{new.prompts.evaluate!r}); evaluate both on the same prompts"
        )
    by_prompt: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for early, late in pairs:
        by_prompt[late.unit].append((late.score - early.score, float(late.exact) - float(early.exact)))
    figures = tagged_figures(by_prompt, lowest=-1.0)
    judges = [(config.evaluation.judge, config.evaluation.options) for config in (old, new)]
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
            if change.name != JUDGE or judges[0] == judges[1]  # figures of two judges do not compare
        },
    } | (figures if after[0].gives_verdict else graded(figures))


def refuse_other_judge(earlier: SeparateEvaluation, config: RunConfig) -> None:
    """Refuse to compare scores of different scales; the message names the settings that differ."""
    other = earlier.config
    differing = [name for name in _differing(other, config) if name.startswith("reward.")]
    if other.reward.scorer != config.reward.scorer or {"reward.options", "reward.frames"} & {*differing}:
        raise ConfigurationError(
            f"evaluation {earlier.evaluation_id} was judged by another reward "
            f"(reward.scorer = {other.reward.scorer!r}, now {config.reward.scorer!r}; "
            f"{', '.join(differing)}); their scores do not compare: evaluate both with the same one"
        )


def _differing(one: RunConfig, other: RunConfig) -> list[str]:
    names = [dotted(key) for key, _ in differing(one, other)]
    return [name for name in names if not name.startswith(_OF_NO_CONCERN)]
