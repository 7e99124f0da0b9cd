"""What pages, the report and the alarm ask about the looks of held-out images and the parts of their score.

Like storage/record/queries/runs.py: each function takes an open connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.record.every_time import EVERY_TIME
from storage.record.reading import RecordConnection

if TYPE_CHECKING:
    import pandas as pd


def figure_means(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """The mean of each figure over the images of each evaluation; one row an evaluation, in order.

    Only images of prompts that every evaluation has.
    Columns: iteration, then the figures' names (NaN where an evaluation lacks one), parts as `part_NAME`.
    """
    rows = connection.execute(
        "SELECT iteration, name, avg(value) AS mean FROM evaluation_image_figures "
        f"WHERE run_id = $run AND prompt_id IN ({EVERY_TIME}) "
        "GROUP BY iteration, name ORDER BY iteration, name",
        {"run": run_id},
    ).df()
    wide = rows.pivot(index="iteration", columns="name", values="mean").reset_index()
    return wide.rename_axis(columns=None)


def paired_figures(connection: RecordConnection, run_id: str, iteration: int | None = None) -> pd.DataFrame:
    """The figures of held-out images before training and now, same prompts and seeds; the score is one.

    Columns: prompt_id, prompt (its text), seed_index, name, before, after.

    Args:
        connection: open connection to the record.
        run_id: the run.
        iteration: of the evaluation that is now; None for the latest.
    """
    return connection.execute(
        """
        WITH ends AS (
            SELECT min(iteration) AS first, coalesce($iteration::INTEGER, max(iteration)) AS latest
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
        {"run": run_id, "iteration": iteration},
    ).df()
