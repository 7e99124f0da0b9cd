"""What the dashboard asks about seeds: drafts, their re-scores, and pictures of what they became.

Like storage/queries.py: each function takes an open connection and gives a pandas frame, empty for a
run that explored nothing. A seed may have been drafted more than once (cheaply first, then in full):
the draft that counts is the full one, and of several the one of the newest weights.
"""

from __future__ import annotations

import duckdb
import pandas as pd

_DRAFTS = """
    SELECT * FROM candidates WHERE run_id = $run AND round >= 0
    QUALIFY row_number() OVER (
        PARTITION BY iteration, prompt_id, seed_index
        ORDER BY fidelity = 'full' DESC, policy_version DESC, round DESC, fidelity
    ) = 1
"""
"""The draft that counts of each seed."""


def stale_and_fresh(connection: duckdb.DuckDBPyConnection, run_id: str) -> pd.DataFrame:
    """Seeds that have both a stale draft (of older weights than the rollout's) and a fresh score.

    Fresh is a draft by the rollout's own weights where there is one (the monitor's re-score, or one made
    anew where the stale ones were refused), else the rollout's sample. Images that could not be scored
    are left out: their 0 is no opinion of the image.

    Columns: iteration, prompt_id, prompt, seed_index, fidelity (of the draft), stale, fresh (scores),
    kept (whether the seed was rolled out), rescored (whether fresh is a draft).
    """
    return connection.execute(
        """
        WITH rollouts AS (SELECT iteration, max(policy_version) AS policy_version FROM samples
            WHERE run_id = $run GROUP BY iteration),
        drafts AS (SELECT c.* FROM candidates c
            JOIN rollouts r ON r.iteration = c.iteration AND c.policy_version < r.policy_version
            WHERE c.run_id = $run AND c.round >= 0
            QUALIFY row_number() OVER (
                PARTITION BY c.iteration, c.prompt_id, c.seed_index
                ORDER BY c.fidelity = 'full' DESC, c.policy_version DESC, c.round DESC, c.fidelity
            ) = 1),
        fresh AS (SELECT c.* FROM candidates c
            JOIN rollouts r ON r.iteration = c.iteration AND c.policy_version = r.policy_version
            WHERE c.run_id = $run AND c.fidelity = 'full' AND c.error IS NULL)
        SELECT d.iteration, d.prompt_id, p.prompt, d.seed_index, d.fidelity, d.score AS stale,
            coalesce(c.score, s.score) AS fresh, s.seed_index IS NOT NULL AS kept,
            c.score IS NOT NULL AS rescored
        FROM drafts d
        LEFT JOIN fresh c ON c.iteration = d.iteration AND c.prompt_id = d.prompt_id
            AND c.seed_index = d.seed_index
        LEFT JOIN samples s ON s.run_id = $run AND s.iteration = d.iteration AND s.prompt_id = d.prompt_id
            AND s.seed_index = d.seed_index
        JOIN prompts p ON p.run_id = $run AND p.purpose = 'train' AND p.prompt_id = d.prompt_id
        WHERE d.error IS NULL AND (c.score IS NOT NULL OR s.error IS NULL AND s.score IS NOT NULL)
        ORDER BY d.iteration, d.prompt_id, d.seed_index
        """,
        {"run": run_id},
    ).df()


def drafts_by_prompt(connection: duckdb.DuckDBPyConnection, run_id: str) -> pd.DataFrame:
    """Where the drafts went: one row for each prompt that was drafted or rolled out in an iteration.

    Columns: iteration, prompt_id, prompt, drafts (images drawn, of any fidelity), seeds (different
    ones), success_share (of the seeds, by the draft that counts: all that was asked is in it; NaN
    without drafts), in_plan (whether it was rolled out), kept_variance (of the kept seeds' draft
    scores; NaN where none of the kept was drafted).
    """
    return connection.execute(
        f"""
        WITH drafts AS ({_DRAFTS}),
        seeds AS (SELECT iteration, prompt_id, count(*) AS seeds,
                avg(exact::INTEGER) FILTER (error IS NULL) AS success_share,
                var_pop(score) FILTER (kept) AS kept_variance
            FROM drafts GROUP BY iteration, prompt_id),
        images AS (SELECT iteration, prompt_id, count(*) AS drafts FROM candidates
            WHERE run_id = $run AND round >= 0 GROUP BY iteration, prompt_id),
        rolled AS (SELECT DISTINCT iteration, prompt_id, true AS in_plan FROM samples WHERE run_id = $run)
        SELECT iteration, prompt_id, p.prompt, coalesce(i.drafts, 0) AS drafts, coalesce(d.seeds, 0) AS seeds,
            d.success_share, coalesce(r.in_plan, false) AS in_plan, d.kept_variance
        FROM rolled r
        FULL JOIN seeds d USING (iteration, prompt_id)
        LEFT JOIN images i USING (iteration, prompt_id)
        JOIN prompts p ON p.run_id = $run AND p.purpose = 'train' AND p.prompt_id = prompt_id
        ORDER BY iteration, prompt_id
        """,
        {"run": run_id},
    ).df()


def pictured_prompts(connection: duckdb.DuckDBPyConnection, run_id: str) -> pd.DataFrame:
    """Prompts that have thumbnails, the latest pictured first. Columns: prompt_id, prompt, iteration."""
    return connection.execute(
        "SELECT prompt_id, any_value(prompt) AS prompt, max(iteration) AS iteration FROM sample_images "
        "JOIN prompts USING (run_id, prompt_id) WHERE run_id = ? AND purpose = 'train' "
        "GROUP BY prompt_id ORDER BY iteration DESC, prompt_id",
        [run_id],
    ).df()


def best_and_worst(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    prompt_id: int | None = None,
    latest: int | None = None,
) -> pd.DataFrame:
    """The best and the worst pictured sample of each prompt, newest iteration first, the best first.

    Args:
        connection: an open one.
        run_id: the run.
        prompt_id: this prompt only.
        latest: only so many of each prompt's iterations, the newest.

    Columns: iteration, prompt_id, prompt, seed_index, place ("best" or "worst"; one picture alone is
    the best), score, exact, detail, error, explored_score, png (bytes).
    """
    return connection.execute(
        """
        WITH pictured AS (
            SELECT i.iteration, i.prompt_id, i.seed_index, s.score, s.exact, s.detail, s.error, s.seed_rank,
                s.explored_score, i.png,
                row_number() OVER (best_first) AS from_best,
                count(*) OVER (PARTITION BY i.iteration, i.prompt_id) AS pictures
            FROM sample_images i JOIN samples s USING (run_id, iteration, prompt_id, seed_index)
            WHERE run_id = $run AND ($prompt IS NULL OR i.prompt_id = $prompt)
            WINDOW best_first AS (PARTITION BY i.iteration, i.prompt_id ORDER BY seed_rank)
            QUALIFY $latest IS NULL
                OR dense_rank() OVER (PARTITION BY i.prompt_id ORDER BY i.iteration DESC) <= $latest
        )
        SELECT b.iteration, b.prompt_id, p.prompt, b.seed_index,
            CASE WHEN b.from_best = 1 THEN 'best' ELSE 'worst' END AS place,
            b.score, b.exact, b.detail, b.error, b.explored_score, b.png
        FROM pictured b
        JOIN prompts p ON p.run_id = $run AND p.purpose = 'train' AND p.prompt_id = b.prompt_id
        WHERE b.from_best = 1 OR b.from_best = b.pictures
        ORDER BY b.iteration DESC, b.prompt_id, place
        """,
        {"run": run_id, "prompt": prompt_id, "latest": latest},
    ).df()
