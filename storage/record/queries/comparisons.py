"""Queries about several runs: a table of all, and their courses side by side.

Like storage/record/queries/runs.py: each function takes an open connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from storage.environment import PURPOSE
from storage.record.queries.runs import cost_by_iteration, metric_curves, paid_usd, score_curve
from storage.record.reading import RecordConnection

_SAME_RUN = (("name",), ("seed",), ("runtime", "cluster"))
"""Settings that may differ between two runs that count as the same but for the seed."""


def latest_runs(
    connection: RecordConnection, limit: int, archived: bool = True, checks: bool = True
) -> tuple[list[str], int]:
    """Return the latest runs, newest first, and how many there are without the limit.

    Args:
        archived: True to include archived runs, and to count them.
        checks: the same for runs that are part of a check, and simulated ones.
    """
    rows = connection.execute(
        f"""
        SELECT run_id FROM runs
        WHERE ($archived OR run_id NOT IN (SELECT run_id FROM run_notes WHERE archived))
            AND ($checks OR (status <> 'simulated' AND coalesce(environment->>'{PURPOSE}', '') = ''))
        ORDER BY created_at DESC, run_id DESC
        """,
        {"archived": archived, "checks": checks},
    ).fetchall()
    return [run_id for (run_id,) in rows[:limit]], len(rows)


def score_courses(connection: RecordConnection, run_ids: Sequence[str]) -> pd.DataFrame:
    """Return held-out scores of several runs, run by run in this order and then in order of iterations.

    Columns: run_id, then those of `runs.score_curve`, and usd: dollars paid up to then.
    """
    columns = ["run_id", "iteration", "policy_version", "score", "exact", "ended_at", "elapsed_s", "usd"]
    return _courses(connection, run_ids, score_curve).reindex(columns=columns)


def metric_courses(connection: RecordConnection, run_ids: Sequence[str]) -> pd.DataFrame:
    """Return the iterations' figures of several runs, in the same order.

    Columns: run_id, then those of `runs.metric_curves`, and usd: dollars paid up to then.
    """
    return _courses(connection, run_ids, metric_curves)


def _courses(
    connection: RecordConnection,
    run_ids: Sequence[str],
    of_run: Callable[[RecordConnection, str], pd.DataFrame],
) -> pd.DataFrame:
    frames = []
    for run_id in run_ids:
        course, cost = of_run(connection, run_id), cost_by_iteration(connection, run_id)
        course["usd"] = paid_usd(cost, course["iteration"].to_numpy())
        course.insert(0, "run_id", run_id)
        frames.append(course)
    filled = [frame for frame in frames if not frame.empty]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame({"run_id": []})


def alike_but_seed(connection: RecordConnection, run_id: str) -> dict[str, int]:
    """Return a run and those that differ from it only in the seed: seeds by run, oldest first.

    Their name and cluster may differ too. Simulated runs are not matched with any others. Empty if there is
    no such run. No file of rows is read, so this is quick in a home of many runs.
    """
    rows = connection.execute(
        """
        SELECT run_id, config FROM runs WHERE run_id = $run OR (
            status <> 'simulated' AND NOT EXISTS (FROM runs WHERE run_id = $run AND status = 'simulated')
        ) ORDER BY created_at, run_id
        """,
        {"run": run_id},
    ).fetchall()
    own = next((config for other, config in rows if other == run_id), None)
    wanted, own_seed = ({}, None) if own is None else without_seed(own)
    if own_seed is None:
        return {}
    found: dict[str, int] = {}
    for other, config in rows:
        settings, seed = without_seed(config)
        if seed is not None and settings == wanted:
            found[other] = seed
    return found


def runs_of_other_seeds(connection: RecordConnection, run_id: str) -> dict[int, str]:
    """Return a run and those of `alike_but_seed` that have been evaluated, by seed.

    Of several runs with one seed the newest counts, except that the given run counts for its own seed.
    """
    alike = alike_but_seed(connection, run_id)
    if not alike:
        return {}
    rows = connection.execute("SELECT DISTINCT run_id FROM evaluations").fetchall()
    evaluated = {other for (other,) in rows}
    found = {seed: other for other, seed in alike.items() if other in evaluated}
    found[alike[run_id]] = run_id
    return dict(sorted(found.items()))


def without_seed(config: str) -> tuple[dict[str, Any], int | None]:
    """Return the settings that must be equal, and the seed; None if a configuration has none."""
    settings = json.loads(config)
    if not isinstance(settings, dict):
        return {}, None
    seed = settings.get("seed")
    for *sections, last in _SAME_RUN:
        part: Any = settings
        for section in sections:
            part = part.get(section) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop(last, None)
    return settings, seed if isinstance(seed, int) else None
