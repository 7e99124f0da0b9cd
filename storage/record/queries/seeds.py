"""Queries about seeds: drafts, their re-scores, and pictures of their samples.

As in runs.py, each function takes an open connection and returns a pandas frame, empty for a run that
explored nothing. A seed may be drafted more than once (cheaply first, then in full): the full draft counts,
and of several the one by the newest weights.

A page cannot wait for all drafts of a long run: most functions take the iterations to read, from
`spread_iterations`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from storage.record.reading import RecordConnection


def spread_iterations(
    connection: RecordConnection, run_id: str, most: int, first: int = 0, last: int | None = None
) -> list[int]:
    """Return at most `most` committed iterations, evenly spread, with the latest.

    Args:
        first, last: bounds of the iterations; None for the newest.
    """
    rows = connection.execute(
        """
        WITH own AS (
            SELECT iteration, row_number() OVER (ORDER BY iteration DESC) - 1 AS back, count(*) OVER () AS of
            FROM iterations
            WHERE run_id = $run AND iteration >= $first AND ($last IS NULL OR iteration <= $last)
        )
        SELECT iteration FROM own WHERE back % ceil(of / $most)::BIGINT = 0 ORDER BY iteration
        """,
        {"run": run_id, "first": first, "last": last, "most": most},
    ).fetchall()
    return [iteration for (iteration,) in rows]


def drafted_seeds(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return all drafts in the order of their requests, without the monitor's re-scores.

    Columns: iteration, prompt_id, prompt, seed_index, fidelity, policy_version (of the weights that drew it),
    score, exact, error (None if it was judged), round (of the planner), kept (True if its seed was rolled
    out).
    """
    return connection.execute(
        """
        SELECT iteration, prompt_id, prompt, seed_index, fidelity, policy_version, score, exact, error, round,
            kept
        FROM candidates JOIN prompts USING (run_id, prompt_id)
        WHERE run_id = ? AND purpose = 'train' AND round >= 0
        ORDER BY iteration, round, prompt_id, seed_index
        """,
        [run_id],
    ).df()


def pair_counts(connection: RecordConnection, run_id: str, iterations: Sequence[int]) -> pd.DataFrame:
    """Count the seeds that have both a stale draft (by older weights than the rollout's) and a fresh score.

    The fresh score is that of a draft by the rollout's own weights if there is one (the monitor's re-score,
    or a new draft after stale ones were refused), else the rollout's sample. Unscored images are left out:
    their 0 is not a judgement.

    Columns: kept (True if rolled out), stale, fresh (scores, to four digits), seeds.
    """
    return connection.execute(
        f"""
        WITH rolled AS (SELECT * FROM samples WHERE {_OWN}),
        rollouts AS (SELECT iteration, max(policy_version) AS policy_version FROM rolled GROUP BY iteration),
        candidate AS (SELECT c.*, r.policy_version AS rollouts_version
            FROM (SELECT * FROM candidates WHERE {_OWN}) c JOIN rollouts r USING (iteration)),
        drafts AS (SELECT * FROM candidate WHERE policy_version < rollouts_version AND round >= 0
            QUALIFY row_number() OVER (PARTITION BY iteration, prompt_id, seed_index {_WHICH_COUNTS}) = 1),
        fresh AS (SELECT * FROM candidate
            WHERE policy_version = rollouts_version AND fidelity = 'full' AND error IS NULL),
        pairs AS (SELECT s.seed_index IS NOT NULL AS kept, d.score AS stale,
                coalesce(c.score, s.score) AS fresh
            FROM drafts d
            LEFT JOIN fresh c ON c.iteration = d.iteration AND c.prompt_id = d.prompt_id
                AND c.seed_index = d.seed_index
            LEFT JOIN rolled s ON s.iteration = d.iteration AND s.prompt_id = d.prompt_id
                AND s.seed_index = d.seed_index AND s.policy_version > d.policy_version
            WHERE d.error IS NULL AND (c.score IS NOT NULL OR s.error IS NULL AND s.score IS NOT NULL))
        SELECT kept, round(stale, 4) AS stale, round(fresh, 4) AS fresh, count(*) AS seeds
        FROM pairs GROUP BY ALL ORDER BY ALL
        """,
        {"run": run_id, "iterations": list(iterations)},
    ).df()


def drafts_by_prompt(connection: RecordConnection, run_id: str, iterations: Sequence[int]) -> pd.DataFrame:
    """Return drafts by prompt: one row for each prompt that was drafted or rolled out in an iteration.

    Columns: drafts (images drawn, of any fidelity), seeds (different ones), success_share (of seeds whose
    draft that counts is exact; NaN without drafts), in_plan (True if it was rolled out).
    """
    return connection.execute(
        f"""
        WITH every_draft AS (SELECT * FROM candidates WHERE {_OWN} AND round >= 0),
        drafts AS (SELECT * FROM every_draft QUALIFY row_number() OVER (
            PARTITION BY iteration, prompt_id, seed_index {_WHICH_COUNTS}) = 1),
        seeds AS (SELECT iteration, prompt_id, count(*) AS seeds,
                avg(exact::INTEGER) FILTER (error IS NULL) AS success_share
            FROM drafts GROUP BY iteration, prompt_id),
        images AS (SELECT iteration, prompt_id, count(*) AS drafts FROM every_draft
            GROUP BY iteration, prompt_id),
        rolled AS (SELECT DISTINCT iteration, prompt_id, true AS in_plan FROM samples WHERE {_OWN})
        SELECT iteration, prompt_id, p.prompt, coalesce(i.drafts, 0) AS drafts, coalesce(d.seeds, 0) AS seeds,
            d.success_share, coalesce(r.in_plan, false) AS in_plan
        FROM rolled r
        FULL JOIN seeds d USING (iteration, prompt_id)
        LEFT JOIN images i USING (iteration, prompt_id)
        JOIN prompts p ON p.run_id = $run AND p.purpose = 'train' AND p.prompt_id = prompt_id
        ORDER BY iteration, prompt_id
        """,
        {"run": run_id, "iterations": list(iterations)},
    ).df()


def pictured_prompts(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return prompts with thumbnails, the latest pictured first. Columns: prompt_id, prompt, iteration."""
    return connection.execute(
        "SELECT prompt_id, any_value(prompt) AS prompt, max(iteration) AS iteration FROM sample_images "
        "JOIN prompts USING (run_id, prompt_id) WHERE run_id = ? AND purpose = 'train' "
        "GROUP BY prompt_id ORDER BY iteration DESC, prompt_id",
        [run_id],
    ).df()


def best_and_worst(connection: RecordConnection, run_id: str, prompt_id: int, latest: int) -> pd.DataFrame:
    """Return a prompt's best and worst pictured sample in each of its `latest` newest pictured iterations.

    The newest iteration comes first, and the best before the worst; a single picture is the best one.
    """
    return connection.execute(
        """
        WITH pictured AS (
            SELECT i.iteration, i.prompt_id, i.seed_index, s.score, s.exact, s.detail, s.error,
                s.explored_score, i.png,
                row_number() OVER (PARTITION BY i.iteration ORDER BY seed_rank) AS from_best,
                count(*) OVER (PARTITION BY i.iteration) AS pictures
            FROM sample_images i JOIN samples s USING (run_id, iteration, prompt_id, seed_index)
            WHERE run_id = $run AND i.prompt_id = $prompt
            QUALIFY dense_rank() OVER (ORDER BY i.iteration DESC) <= $latest
        )
        SELECT b.iteration, b.prompt_id, p.prompt, b.seed_index,
            CASE WHEN b.from_best = 1 THEN 'best' ELSE 'worst' END AS place,
            b.score, b.exact, b.detail, b.error, b.explored_score, b.png
        FROM pictured b
        JOIN prompts p ON p.run_id = $run AND p.purpose = 'train' AND p.prompt_id = b.prompt_id
        WHERE b.from_best = 1 OR b.from_best = b.pictures
        ORDER BY b.iteration DESC, place
        """,
        {"run": run_id, "prompt": prompt_id, "latest": latest},
    ).df()


_OWN = "run_id = $run AND iteration IN (SELECT unnest($iterations::INTEGER[]))"

_WHICH_COUNTS = "ORDER BY fidelity = 'full' DESC, policy_version DESC, round DESC, fidelity"
"""An SQL order in which, of the drafts of one seed, the one that counts comes first."""
