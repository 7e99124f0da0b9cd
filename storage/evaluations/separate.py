"""Evaluations that `spotlight evaluate` made, beside any run: written, found again, their images' scores."""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from storage.config.run_config import RunConfig
from storage.config.stored import stored_config
from storage.database.database import LOCK_WAIT_S, Database
from storage.errors import RunNotFoundError, StorageError, quoted
from storage.home import Home


@dataclass(frozen=True)
class JudgedImage:
    """One image of an evaluation.

    Attributes:
        prompt_id: place of its prompt in the file.
        tag: the prompt's tag (GenEval's kind of task); empty where it has none.
        figures: what it looks like, and the parts of its score (`storage/evaluations/quality.py`).
    """

    prompt_id: int
    seed_index: int
    prompt: str
    tag: str
    score: float
    exact: bool
    detail: str
    error: str | None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def unit(self) -> tuple[str, str]:
        """Tag and text of its prompt: images with the same ones are not independent, whatever their rows."""
        return self.tag, self.prompt


@dataclass(frozen=True)
class SeparateEvaluation:
    """What was evaluated, with what.

    Attributes:
        evaluation_id: its identifier.
        run_id: the run whose checkpoint it was; None for an untouched model.
        iteration: of the checkpoint; 0 for an untouched model.
        started_at, ended_at: Unix seconds.
        score, exact: means over the judged images.
        images: how many.
        folder: where the images lie; None where they were not kept.
        config_json: the configuration that it was made with.
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
    config_json: str
    environment: Mapping[str, str]

    @property
    def config(self) -> RunConfig:
        """The configuration.

        Raises:
            ConfigurationError: it was stored by a version whose settings this one does not know.
        """
        return stored_config(self.config_json, f"evaluation {self.evaluation_id}", "evaluate anew")


class EvaluationStore:
    """The separate evaluations of a home. Cheap to make; keeps no connection open.

    Args:
        home: where the database lies.
        wait_s: how long to wait for the database's lock, in seconds.

    Every method may raise StorageError: the database stayed locked, or is of another version.
    """

    def __init__(self, home: Home, wait_s: float = LOCK_WAIT_S) -> None:
        self.database = Database(home.database, wait_s)

    def commit(self, evaluation: SeparateEvaluation, images: Sequence[JudgedImage]) -> None:
        """Write an evaluation in one transaction.

        Raises:
            StorageError: there is one of that identifier already.
        """
        key = evaluation.evaluation_id
        with self.database.writing() as connection:
            if connection.execute(
                "SELECT 1 FROM separate_evaluations WHERE evaluation_id = ?", [key]
            ).fetchone():
                raise StorageError(f"evaluation {key} exists already; take another identifier")
            connection.execute(
                f"INSERT INTO separate_evaluations VALUES ({', '.join('?' * 12)})",
                [
                    key, evaluation.run_id, evaluation.iteration, evaluation.policy_version,
                    evaluation.started_at, evaluation.ended_at, evaluation.score, evaluation.exact,
                    evaluation.images, evaluation.folder, evaluation.config_json,
                    json.dumps(dict(evaluation.environment)),
                ],
            )  # fmt: skip
            _insert_images(connection, key, images)

    def all(self) -> list[SeparateEvaluation]:
        """All of them, newest first."""
        with self.database.reading() as connection:
            return _rows(connection, "", [])

    def find(self, name: str) -> SeparateEvaluation:
        """The evaluation of this identifier, or the newest one of the run of this identifier.

        Raises:
            RunNotFoundError: there is neither; the message says what there is.
        """
        with self.database.reading() as connection:
            found = _rows(connection, "WHERE evaluation_id = ? OR run_id = ?", [name, name])
            if found:
                return next((row for row in found if row.evaluation_id == name), found[0])
            is_run = connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [name]).fetchone()
            known = [row.evaluation_id for row in _rows(connection, "", [])]
        if is_run:
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
        """The images of an evaluation, by prompt and seed."""
        with self.database.reading() as connection:
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


def _insert_images(connection: duckdb.DuckDBPyConnection, key: str, images: Sequence[JudgedImage]) -> None:
    columns: list[tuple[str, list[Any]]] = [
        ("BIGINT", [image.prompt_id for image in images]),
        ("BIGINT", [image.seed_index for image in images]),
        ("VARCHAR", [image.prompt for image in images]),
        ("VARCHAR", [image.tag for image in images]),
        ("DOUBLE", [image.score for image in images]),
        ("BOOLEAN", [image.exact for image in images]),
        ("VARCHAR", [image.detail for image in images]),
        ("VARCHAR", [image.error for image in images]),
    ]
    # Whole columns: a row at a time is a hundred times slower.
    cells = ", ".join(f"unnest(?::{kind}[])" for kind, _ in columns)
    connection.execute(
        f"INSERT INTO separate_evaluation_images SELECT ?, {cells}", [key, *(values for _, values in columns)]
    )
    rows = [(i.prompt_id, i.seed_index, name, value) for i in images for name, value in i.figures.items()]
    if rows:
        connection.execute(
            "INSERT INTO separate_evaluation_image_figures SELECT ?, unnest(?::BIGINT[]), "
            "unnest(?::BIGINT[]), unnest(?::VARCHAR[]), unnest(?::DOUBLE[])",
            [key, *(list(column) for column in zip(*rows, strict=True))],
        )


def _rows(connection: duckdb.DuckDBPyConnection, clause: str, values: list[str]) -> list[SeparateEvaluation]:
    rows = connection.execute(
        "SELECT evaluation_id, run_id, iteration, policy_version, started_at, ended_at, score, exact, "
        f"images, folder, config, environment FROM separate_evaluations {clause} "
        "ORDER BY started_at DESC, evaluation_id DESC",
        values,
    ).fetchall()
    return [SeparateEvaluation(*row[:-1], environment=json.loads(row[-1])) for row in rows]
