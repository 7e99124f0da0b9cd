"""Held-out images: their pictures, look, parts of their scores, and their changes over the iterations.

Like runs.py: each function takes an open connection and returns a pandas frame. The pictures are bytes in the
record; no file is ever opened for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage.record.reading import RecordConnection
from storage.record.results import EVERY_TIME

if TYPE_CHECKING:
    import pandas as pd


def pictured_images(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the images that have pictures, by prompt.

    Columns: prompt_id, seed_index, prompt, score_first, score_latest (at the first and the latest
    evaluation that has its picture), evaluations (number that have it).
    """
    return connection.execute(
        """
        SELECT e.prompt_id, e.seed_index, any_value(p.prompt) AS prompt,
            arg_min(e.score, e.iteration) AS score_first, arg_max(e.score, e.iteration) AS score_latest,
            count(*) AS evaluations
        FROM evaluation_images e
        JOIN prompts p ON p.run_id = e.run_id AND p.purpose = 'evaluate' AND p.prompt_id = e.prompt_id
        WHERE e.run_id = ? AND e.png IS NOT NULL
        GROUP BY e.prompt_id, e.seed_index ORDER BY e.prompt_id, e.seed_index
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
    images: Sequence[tuple[int, int]],
    iterations: Sequence[int],
) -> pd.DataFrame:
    """Return the pictures of some images (prompt_id, seed_index) at some evaluations, image by image.

    Columns: prompt_id, seed_index, prompt, iteration, score, exact, detail, error, png (bytes).

    Args:
        images: `prompt_id` and `seed_index` of each image.
        iterations: iterations after which they were evaluated.
    """
    return connection.execute(
        """
        WITH wanted AS (
            SELECT unnest($prompts::BIGINT[]) AS prompt_id, unnest($seeds::BIGINT[]) AS seed_index
        )
        SELECT e.prompt_id, e.seed_index, p.prompt, e.iteration, e.score, e.exact, e.detail, e.error, e.png
        FROM evaluation_images e JOIN wanted USING (prompt_id, seed_index)
        JOIN prompts p ON p.run_id = $run AND p.purpose = 'evaluate' AND p.prompt_id = e.prompt_id
        WHERE e.run_id = $run AND e.png IS NOT NULL
            AND e.iteration IN (SELECT unnest($iterations::INTEGER[]))
        ORDER BY e.prompt_id, e.seed_index, e.iteration
        """,
        {
            "run": run_id,
            "prompts": [prompt_id for prompt_id, _ in images],
            "seeds": [seed_index for _, seed_index in images],
            "iterations": list(iterations),
        },
    ).df()


def latest_pictures(connection: RecordConnection, run_ids: Sequence[str], most: int) -> pd.DataFrame:
    """Return the latest pictures of the held-out images that all of some runs have, image by image.

    Columns: run_id, and those of `pictures`.

    Args:
        run_ids: the runs; an image's pictures are in this order.
        most: largest number of images, the first ones by prompt.
    """
    return connection.execute(
        """
        WITH named AS (
            SELECT unnest($runs::VARCHAR[]) AS run_id, unnest(range(len($runs::VARCHAR[]))) AS place
        ),
        found AS (
            SELECT place, e.run_id, e.prompt_id, e.seed_index, p.prompt, e.iteration, e.score, e.exact,
                e.detail, e.error, e.png
            FROM evaluation_images e JOIN named USING (run_id)
            JOIN prompts p ON p.run_id = e.run_id AND p.purpose = 'evaluate' AND p.prompt_id = e.prompt_id
            WHERE e.png IS NOT NULL
            QUALIFY e.iteration = max(e.iteration) OVER (PARTITION BY e.run_id)
        ),
        shared AS (
            SELECT prompt_id, seed_index, prompt FROM found GROUP BY ALL
            HAVING count(*) = len($runs::VARCHAR[]) ORDER BY prompt_id, seed_index LIMIT $most
        )
        SELECT found.* EXCLUDE (place) FROM found SEMI JOIN shared USING (prompt_id, seed_index, prompt)
        ORDER BY prompt_id, seed_index, place
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
    connection: RecordConnection, run_id: str, iteration: int | None = None, before: int | None = None
) -> pd.DataFrame:
    """Return the figures of held-out images of two evaluations, same prompts and seeds, with the score.

    Columns: prompt_id, prompt (its text), seed_index, name, before, after.

    Args:
        iteration: iteration of the later evaluation; None for the latest.
        before: iteration of the earlier one; None for the first.
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
        WHERE ends.first < ends.latest
        ORDER BY b.name, b.prompt_id, b.seed_index
        """,
        {"run": run_id, "iteration": iteration, "before": before},
    ).df()
