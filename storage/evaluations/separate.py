"""Evaluations by `spotlight evaluate`, separate from runs: their files, and their images' scores."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.config.loading import stored_config
from storage.config.run_config import RunConfig
from storage.environment import gives_verdict
from storage.errors import RunNotFoundError, StorageError, quoted
from storage.home import Home
from storage.record.files import put_folder, refusals
from storage.record.reading import EVALUATION_FILE, separate_evaluations
from storage.record.records import JudgedImage
from storage.record.run_folder import RunFolder
from storage.record.run_store import RunStore
from storage.record.tables import columns_of, figure_columns, tables_of


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
        table = "separate_evaluation_images"
        tables = {
            table: columns_of(table, images, ("evaluation_id",)),
            "separate_evaluation_image_figures": figure_columns(images),
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
                f"run {name!r} has not been evaluated by itself yet; do it with `spotlight evaluate {name}`"
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
