"""Held-out images: their pictures, look, parts of their scores, and their changes over the iterations.

As in runs.py, each function takes an open connection and returns a pandas frame. The pictures are bytes in
the record, not separate files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage.record.reading import RecordConnection
from storage.record.results import EVERY_TIME

if TYPE_CHECKING:
    import pandas as pd


_PICTURES = """
    SELECT run_id, prompt_id, seed_index, prompt, iteration, score, exact, detail, error, png
    FROM evaluation_images JOIN prompts USING (run_id, prompt_id)
    WHERE purpose = 'evaluate' AND png IS NOT NULL
"""


def pictured_images(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the images with pictures, by prompt.

    Scores are from the first and the latest of the `evaluations` that have the picture and could judge it;
    NaN if none could.
    """
    return connection.execute(
        f"""
        SELECT prompt_id, seed_index, any_value(prompt) AS prompt,
            arg_min(score, iteration) FILTER (error IS NULL) AS score_first,
            arg_max(score, iteration) FILTER (error IS NULL) AS score_latest, count(*) AS evaluations
        FROM ({_PICTURES}) WHERE run_id = ? GROUP BY prompt_id, seed_index ORDER BY prompt_id, seed_index
        """,
        [run_id],
    ).df()


def pictured_evaluations(connection: RecordConnection, run_id: str) -> list[int]:
    """Return the iterations whose evaluation has pictures, in order; 0 is the one before training."""
    rows = connection.execute(
        "SELECT DISTINCT iteration FROM evaluation_images WHERE run_id = ? AND png IS NOT NULL "
        "ORDER BY iteration",
        [run_id],
    ).fetchall()
    return [iteration for (iteration,) in rows]


def pictures(
    connection: RecordConnection,
    run_id: str,
    iterations: Sequence[int],
    images: Sequence[tuple[int, int]] | None = None,
) -> pd.DataFrame:
    """Return the pictures of some images (None: all) after some iterations, image by image.

    Columns: prompt_id, seed_index, prompt, iteration, score, exact, detail, error, png (bytes).

    Args:
        images: `prompt_id` and `seed_index` of each image.
    """
    chosen = None if images is None else [{"prompt": prompt, "seed": seed} for prompt, seed in images]
    return connection.execute(
        f"""
        SELECT * EXCLUDE (run_id) FROM ({_PICTURES})
        WHERE run_id = $run AND list_contains($iterations::INTEGER[], iteration) AND ($images IS NULL
            OR list_contains($images::STRUCT(prompt BIGINT, seed BIGINT)[], (prompt_id, seed_index)))
        ORDER BY prompt_id, seed_index, iteration
        """,
        {"run": run_id, "iterations": list(iterations), "images": chosen},
    ).df()


def images_before_after(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the gallery at the first and at the latest evaluation, same prompts and seeds.

    Columns as in `pictures`, each with `_before` and `_after`. With one evaluation both are the same.
    """
    ends = pictured_evaluations(connection, run_id)
    found = pictures(connection, run_id, [*ends[:1], *ends[-1:]])
    before, after = (found[found["iteration"] == (ends[place] if ends else 0)] for place in (0, -1))
    return before.merge(after, on=["prompt_id", "seed_index", "prompt"], suffixes=("_before", "_after"))


def latest_pictures(connection: RecordConnection, run_ids: Sequence[str], most: int) -> pd.DataFrame:
    """Return the latest pictures of the first `most` held-out images that all these runs have.

    They are in the order of images and then of the runs. Columns: run_id, and those of `pictures`.
    """
    return connection.execute(
        f"""
        WITH found AS (
            SELECT * FROM ({_PICTURES}) WHERE list_contains($runs::VARCHAR[], run_id)
            QUALIFY iteration = max(iteration) OVER (PARTITION BY run_id)
        ),
        shared AS (
            SELECT prompt_id, seed_index, prompt FROM found GROUP BY ALL
            HAVING count(*) = len($runs::VARCHAR[]) ORDER BY prompt_id, seed_index LIMIT $most
        )
        FROM found SEMI JOIN shared USING (prompt_id, seed_index, prompt)
        ORDER BY prompt_id, seed_index, list_position($runs::VARCHAR[], run_id)
        """,
        {"runs": list(run_ids), "most": most},
    ).df()


def figure_means(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the mean of each figure over the images of each evaluation; one row per evaluation, in order.

    Only images of prompts that every evaluation has are included.
    Columns: iteration, then the figures' names (NaN if an evaluation lacks one), parts as `part_NAME`.
    """
    rows = connection.execute(
        "SELECT iteration, name, avg(value) AS mean FROM evaluation_image_figures "
        f"WHERE run_id = $run AND prompt_id IN ({EVERY_TIME}) "
        "GROUP BY iteration, name ORDER BY iteration, name",
        {"run": run_id},
    ).df()
    wide = rows.pivot(index="iteration", columns="name", values="mean").reset_index()
    return wide.rename_axis(columns=None)


def paired_figures(
    connection: RecordConnection,
    run_id: str,
    iteration: int | None = None,
    before: int | None = None,
    only: str | None = None,
) -> pd.DataFrame:
    """Return the figures of held-out images of two evaluations, same prompts and seeds, with the score.

    Columns: prompt_id, prompt (its text), seed_index, name, before, after.

    Args:
        iteration, before: iterations of the later and the earlier one; None for the latest and the first.
        only: figure to return, such as `score`; None for all.
    """
    return connection.execute(
        """
        WITH ends AS (
            SELECT coalesce($before::INTEGER, min(iteration)) AS first,
                coalesce($iteration::INTEGER, max(iteration)) AS latest
            FROM evaluations WHERE run_id = $run
        ),
        figures AS (
            SELECT iteration, prompt_id, seed_index, name, value FROM evaluation_image_figures
                WHERE run_id = $run
            UNION ALL SELECT iteration, prompt_id, seed_index, 'score', score FROM evaluation_images
                WHERE run_id = $run AND error IS NULL
        )
        SELECT b.prompt_id, p.prompt, b.seed_index, b.name, b.value AS before, a.value AS after
        FROM ends
        JOIN figures b ON b.iteration = ends.first
        JOIN figures a ON a.iteration = ends.latest
            AND a.prompt_id = b.prompt_id AND a.seed_index = b.seed_index AND a.name = b.name
        JOIN prompts p ON p.run_id = $run AND p.purpose = 'evaluate' AND p.prompt_id = b.prompt_id
        WHERE ends.first < ends.latest AND ($only IS NULL OR b.name = $only)
        ORDER BY b.name, b.prompt_id, b.seed_index
        """,
        {"run": run_id, "iteration": iteration, "before": before, "only": only},
    ).df()
