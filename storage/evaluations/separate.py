"""Evaluations by `spotlight evaluate`, separate from runs: their files, and two of them image by image."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.config.loading import differing, stored_config
from storage.config.run_config import RunConfig
from storage.environment import JUDGE_DIGEST, REWARD_DIGEST, gives_verdict
from storage.errors import ConfigurationError, RunNotFoundError, StorageError, quoted
from storage.home import Home
from storage.prompts.files import draw_subset, load_run_prompts
from storage.record.files import put_folder, refusals
from storage.record.reading import EVALUATION_FILE, separate_evaluations
from storage.record.records import JudgedImage
from storage.record.run_folder import RunFolder
from storage.record.run_store import RunStore
from storage.record.tables import figure_rows, tables_of


@dataclass(frozen=True)
class SeparateEvaluation:
    """An evaluation by `spotlight evaluate`.

    Attributes:
        run_id, iteration: run and iteration of the checkpoint; None and 0 for an untouched model.
        started_at, ended_at: Unix seconds.
        score, exact: means over the judged images.
        images: number of images.
        folder: folder of the images; None if they were not kept.
        settings: its configuration as stored, JSON values.
        environment: versions, commit, machine, digests of the files.
    """

    evaluation_id: str
    run_id: str | None
    iteration: int
    policy_version: int
    started_at: float
    ended_at: float
    score: float
    exact: float
    images: int
    folder: str | None
    settings: Mapping[str, Any]
    environment: Mapping[str, str]

    @property
    def gives_verdict(self) -> bool:
        """True if its reward may call an image exact."""
        return gives_verdict(self.environment)

    @property
    def config(self) -> RunConfig:
        """The configuration; a ConfigurationError if the settings are of another version."""
        return stored_config(self.settings, f"evaluation {self.evaluation_id}", "evaluate again")


class EvaluationStore:
    """The separate evaluations of a home. Cheap to make; keeps no connection open.

    Every method may raise StorageError: a file is damaged, or the disk refuses.
    """

    def __init__(self, home: Home) -> None:
        self.home = home

    def commit(self, evaluation: SeparateEvaluation, images: Sequence[JudgedImage]) -> None:
        """Write an evaluation by one rename; a StorageError if one already has that identifier."""
        key = evaluation.evaluation_id
        if (self.home.evaluations / key).exists():
            raise StorageError(f"evaluation {key} exists already; take another identifier")
        tables = {
            "separate_evaluation_images": map(vars, images),
            "separate_evaluation_image_figures": figure_rows(images),
        }
        facts = asdict(evaluation)
        facts["config"] = facts.pop("settings")
        with refusals(f"evaluation {key} into {self.home.evaluations}"):
            rows = tables_of(tables, evaluation_id=key)
            put_folder(self.home.evaluations, key, rows, {EVALUATION_FILE: facts})

    def all(self) -> list[SeparateEvaluation]:
        """Return all evaluations, newest first."""
        self.home.refuse_earlier_layout()
        found = [
            SeparateEvaluation(settings=facts.pop("config"), **facts)
            for facts in separate_evaluations(self.home)
        ]
        return sorted(found, key=lambda row: (row.started_at, row.evaluation_id), reverse=True)

    def find(self, name: str) -> SeparateEvaluation:
        """Return the evaluation with this identifier, or the newest one of the run with this identifier.

        Raises:
            RunNotFoundError: there is neither; the message lists what exists.
        """
        rows = self.all()
        found = [row for row in rows if name in (row.evaluation_id, row.run_id)]
        if found:
            return next((row for row in found if row.evaluation_id == name), found[0])
        known = [row.evaluation_id for row in rows]
        if RunFolder(self.home.run(name)).exists:
            raise RunNotFoundError(
                f"run {name!r} has no separate evaluation yet; make one with `spotlight evaluate {name}`"
            )
        if not known:
            raise RunNotFoundError(
                f"no evaluation {quoted(name)}: there are none yet; make one with `spotlight evaluate`"
            )
        near = difflib.get_close_matches(name, known, n=3) or known[:5]
        raise RunNotFoundError(
            f"no evaluation {quoted(name)}; there are {', '.join(near)} (`spotlight evaluations`)"
        )

    def images(self, evaluation_id: str) -> list[JudgedImage]:
        """Return the images of an evaluation, by prompt and seed."""
        with RunStore(self.home).reading() as connection:
            rows = connection.execute(
                "SELECT prompt_id, seed_index, prompt, tag, score, exact, detail, error "
                "FROM separate_evaluation_images WHERE evaluation_id = ? ORDER BY prompt_id, seed_index",
                [evaluation_id],
            ).fetchall()
            figures: defaultdict[tuple[int, int], dict[str, float]] = defaultdict(dict)
            for prompt_id, seed_index, name, value in connection.execute(
                "SELECT prompt_id, seed_index, name, value FROM separate_evaluation_image_figures "
                "WHERE evaluation_id = ? ORDER BY ALL",
                [evaluation_id],
            ).fetchall():
                figures[prompt_id, seed_index][name] = value
        return [JudgedImage(*row, figures=figures.get((row[0], row[1]), {})) for row in rows]


_OF_NO_CONCERN = (
    "name",
    "iterations",
    "budget.",
    "runtime.",
    "price.",
    "checkpoint.",
    "tracking.",
    "exploration.",
    "evaluation.every",
)
"""Settings that do not affect any image of an evaluation."""


def comparable(home: Home, config: RunConfig, facts: Mapping[str, str], name: str) -> str:
    """Return the identifier of the evaluation of that name, or run; refuse one that does not compare.

    Args:
        facts: at least the digest of the reward's file, if it has one.

    Raises:
        RunNotFoundError: there is no such evaluation.
        ConfigurationError: another scorer, or the same by other frames, judged it, or it shares no prompt.
    """
    store = EvaluationStore(home)
    earlier = store.find(name)
    refuse_other_judge(earlier, config, facts)
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

    Either is named by its identifier or by a run, which means its newest evaluation.
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
            [-1, 1]); and `before`, `after` (identifiers), `images_before`, `images_after` (their numbers of
            images), `pairs`, `same_noise` (whether a pair began from the same noise), `settings_that_differ`
            (names of those that may move a score), `quality` (for each figure of the images' look that both
            have: `before`, `after`, `interval` of the difference).

    Raises:
        ConfigurationError: other scorers judged them, or no judged images have the same prompt and seed.
    """
    from storage.evaluations.figures import graded, tagged_figures  # imports scipy
    from storage.evaluations.quality import JUDGE, image_changes

    old, new = before[0].config, after[0].config
    refuse_other_judge(before[0], new, after[0].environment)
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
    versions = {side.environment.get(JUDGE_DIGEST) for side, _ in (before, after)} - {None}
    same_judge = judges[0] == judges[1] and len(versions) < 2
    return {
        "before": before[0].evaluation_id,
        "after": after[0].evaluation_id,
        "images_before": before[0].images,
        "images_after": after[0].images,
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
            if change.name != JUDGE or same_judge  # figures of two judges do not compare
        },
    } | (figures if after[0].gives_verdict else graded(figures))


def refuse_other_judge(earlier: SeparateEvaluation, config: RunConfig, facts: Mapping[str, str]) -> None:
    """Refuse to compare scores of different scales; the message names the settings that differ.

    Args:
        facts: those of the evaluation to come, with the digest of its reward's file if it has one.

    Raises:
        ConfigurationError: another reward judged the earlier one, or another version of its file.
    """
    other = earlier.config
    differing = [name for name in _differing(other, config) if name.startswith("reward.")]
    if other.reward.scorer != config.reward.scorer or {"reward.options", "reward.frames"} & {*differing}:
        raise ConfigurationError(
            f"evaluation {earlier.evaluation_id} was judged by another reward "
            f"(reward.scorer = {other.reward.scorer!r}, now {config.reward.scorer!r}; "
            f"{', '.join(differing)}); their scores are not comparable: evaluate both with the same one"
        )
    was, now = earlier.environment.get(REWARD_DIGEST), facts.get(REWARD_DIGEST)
    if was and now and was != now:
        raise ConfigurationError(
            f"the file of reward.scorer = {config.reward.scorer!r} has changed since evaluation "
            f"{earlier.evaluation_id} (SHA-256 {now[:12]}, was {was[:12]}); their scores are not comparable: "
            "evaluate both with the same one"
        )


def _differing(one: RunConfig, other: RunConfig) -> list[str]:
    return [name for name in differing(one, other) if not name.startswith(_OF_NO_CONCERN)]
