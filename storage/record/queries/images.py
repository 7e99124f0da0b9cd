"""What the dashboard asks about held-out images: which there are, and how one changes over the iterations.

Like runs.py: each function takes an open connection and gives a pandas frame. The pictures are
bytes in the record; no file is ever opened for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from storage.record.reading import RecordConnection


def pictured_images(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """The images that have pictures, by prompt.

    Columns: prompt_id, seed_index, prompt, score_first, score_latest (at the first and the latest
    evaluation that has its picture), evaluations (how many have).
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
    """Iterations whose evaluation has pictures, in order; 0 is the one before training."""
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
    """The pictures of some images (prompt_id, seed_index) at some evaluations, image by image.

    Columns: prompt_id, seed_index, prompt, iteration, score, exact, detail, error, png (bytes).

    Args:
        connection: open connection to the record.
        run_id: the run.
        images: which ones.
        iterations: after which they were made.
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
