"""Queries about one run, the list of all, and several runs side by side; most return pandas frames.

Each function takes an open connection, so that a page opens only one for all its queries:

    with RunStore(home).reading() as connection:
        curve = score_curve(connection, run_id)

Elapsed time counts only while the run was at work (`WorkClock`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from storage.environment import PURPOSE
from storage.record.reading import RecordConnection
from storage.record.results import OVERVIEW, PAID, SPANS, VERDICTS

_SAME_RUN = (("name",), ("seed",), ("runtime", "cluster"))
"""Settings that may differ between runs that otherwise differ only in the seed."""


def run_overview(connection: RecordConnection, run_ids: Sequence[str] | None = None) -> pd.DataFrame:
    """Return some runs, or all, newest first; the columns are those of `OVERVIEW`.

    Scores are the result of a finished run, else over the prompts that every evaluation has; NaN before an
    evaluation. `wall_s` is the time at work, from loading the first weights, without gaps; host,
    pid and process_started_at are of the current or last process.
    """
    return connection.execute(OVERVIEW, {"runs": None if run_ids is None else list(run_ids)}).df()


def dated(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with `created_at` and `ended_at` converted from Unix seconds to UTC timestamps."""
    moments = frame.columns.intersection(["created_at", "ended_at"])
    return frame.assign(**{name: pd.to_datetime(frame[name], unit="s", utc=True) for name in moments})


def listed_runs(connection: RecordConnection) -> pd.DataFrame:
    """Return all runs, newest first, with facts available without opening a file of rows.

    The scores are a finished run's result, and NaN for the others.
    """
    return connection.execute(
        f"""
        SELECT run_id, name, status, created_at, ended_at, (summary->>'score_before')::DOUBLE AS score_before,
            (summary->>'score_after')::DOUBLE AS score_now, host, pid, process_started_at,
            run_id IN (SELECT run_id FROM run_notes WHERE archived) AS archived,
            coalesce(environment->>'{PURPOSE}', '') AS purpose
        FROM runs ORDER BY created_at DESC, run_id DESC
        """
    ).df()


def score_curve(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return held-out evaluations in order, `ended_at` in Unix seconds, and `elapsed_s` at work.

    `exact` is NaN if the reward gives no verdict.
    """
    frame = connection.execute(
        f"SELECT iteration, policy_version, score, CASE WHEN {VERDICTS} THEN exact END AS exact, "
        "e.ended_at FROM evaluations e JOIN runs USING (run_id) WHERE run_id = ? ORDER BY iteration",
        [run_id],
    ).df()
    frame["elapsed_s"] = _elapsed_s(connection, run_id, frame["ended_at"].to_numpy(dtype=float))
    return frame


def metric_curves(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the iterations' figures in order, one column each (NaN if an iteration lacks it).

    Before them: iteration, policy_version, ended_at (Unix seconds), elapsed_s at work.
    """
    frame = connection.execute(
        "SELECT iteration, policy_version, ended_at FROM iterations WHERE run_id = ? ORDER BY iteration",
        [run_id],
    ).df()
    frame["elapsed_s"] = _elapsed_s(connection, run_id, frame["ended_at"].to_numpy(dtype=float))
    rows = connection.execute(
        "SELECT iteration, name, value FROM iteration_metrics WHERE run_id = ? ORDER BY name", [run_id]
    ).df()
    wide = rows.pivot(index="iteration", columns="name", values="value")
    # A metric may have the name of a column; the column wins.
    wide = wide.drop(columns=[name for name in wide.columns if name in frame.columns])
    return frame.merge(wide, how="left", left_on="iteration", right_index=True)


def rolled_out_samples(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the samples of all kept rollouts, in the order of iteration, prompt and seed.

    Columns: iteration, prompt_id, prompt, seed_index, policy_version, score, exact, detail, error (None if it
    was judged), explored_score (of its draft), advantage (None if it was not trained on), worker.
    """
    return connection.execute(
        """
        SELECT iteration, prompt_id, prompt, seed_index, policy_version, score, exact, detail, error,
            explored_score, advantage, worker
        FROM samples JOIN prompts USING (run_id, prompt_id) WHERE run_id = ? AND purpose = 'train'
        ORDER BY iteration, prompt_id, seed_index
        """,
        [run_id],
    ).df()


def cost_by_iteration(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return money and time paid up to each iteration, evaluations and discarded work included.

    Columns: iteration, reserved_usd, spot_usd, reserved_device_s, spot_device_s (all cumulative).
    """
    return connection.execute(
        f"""
        SELECT moment // 2 AS iteration,
            sum(sum(usd) FILTER (market = 'reserved')) OVER up_to AS reserved_usd,
            sum(sum(usd) FILTER (market = 'spot')) OVER up_to AS spot_usd,
            sum(sum(device_s) FILTER (market = 'reserved')) OVER up_to AS reserved_device_s,
            sum(sum(device_s) FILTER (market = 'spot')) OVER up_to AS spot_device_s
        FROM ({PAID}) GROUP BY moment // 2
        WINDOW up_to AS (ORDER BY moment // 2 ROWS UNBOUNDED PRECEDING)
        ORDER BY iteration
        """,
        {"run": run_id},
    ).df().fillna(0.0)  # fmt: skip


def events(
    connection: RecordConnection, run_id: str, limit: int = 50, kinds: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the latest events, newest first, of all kinds or of the given ones; times in Unix seconds."""
    return connection.execute(
        "SELECT happened_at, kind, message FROM events WHERE run_id = $run "
        "AND ($kinds::VARCHAR[] IS NULL OR list_contains($kinds, kind)) ORDER BY event_id DESC LIMIT $limit",
        {"run": run_id, "kinds": None if kinds is None else list(kinds), "limit": limit},
    ).df()


class WorkClock:
    """A time axis without breaks: a run killed at night and resumed in the morning skips the night.

    It counts seconds from the start of the first span, and leaves out breaks between spans.

    Args:
        spans: frame with columns `started_at` and `ended_at` (Unix seconds); spans may overlap.
        kept_break_s: seconds up to which a break stays on the axis.
    """

    def __init__(self, spans: pd.DataFrame, kept_break_s: float = 0.0) -> None:
        in_order = spans.sort_values("started_at", kind="stable")
        starts = in_order["started_at"].to_numpy(dtype=float)
        reach = np.maximum.accumulate(in_order["ended_at"].to_numpy(dtype=float))
        is_new = starts[1:] - reach[:-1] > kept_break_s  # a span starts after all earlier ones have ended
        self._begins, self._ends = (
            starts[np.append(True, is_new)[: len(starts)]],
            reach[np.append(is_new, True)[: len(starts)]],
        )

    def elapsed_s(self, moments: np.ndarray) -> np.ndarray:
        """Return each moment (Unix seconds) on this axis; a moment in a break is at the break."""
        worked = np.minimum(np.asarray(moments, dtype=float)[:, None], self._ends) - self._begins
        return np.clip(worked, 0.0, None).sum(axis=1)

    @property
    def total_s(self) -> float:
        """The length of the axis in seconds."""
        return float((self._ends - self._begins).sum())

    @property
    def breaks_s(self) -> np.ndarray:
        """The places on the axis where time was left out."""
        return np.cumsum(self._ends - self._begins)[:-1]


def _elapsed_s(connection: RecordConnection, run_id: str, until: np.ndarray) -> np.ndarray:
    """Return the seconds that the run was at work before each time of `until` (Unix seconds)."""
    return WorkClock(connection.execute(f"FROM ({SPANS}) WHERE run_id = ?", [run_id]).df()).elapsed_s(until)


def paid_usd(cost: pd.DataFrame, iterations: np.ndarray) -> np.ndarray:
    """Return the dollars paid up to the end of each of these iterations, evaluations included.

    Args:
        cost: frame from `cost_by_iteration`.
    """
    paid = (cost["reserved_usd"] + cost["spot_usd"]).to_numpy(dtype=float)
    return np.append(0.0, paid)[np.searchsorted(cost["iteration"].to_numpy(), iterations, side="right")]


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
    """Return held-out scores of several runs, in the order of these runs and then of iterations.

    Columns: run_id, then those of `score_curve`, and usd: dollars paid up to then.
    """
    columns = ["run_id", "iteration", "policy_version", "score", "exact", "ended_at", "elapsed_s", "usd"]
    return _courses(connection, run_ids, score_curve).reindex(columns=columns)


def metric_courses(connection: RecordConnection, run_ids: Sequence[str]) -> pd.DataFrame:
    """Return the iterations' figures of several runs, in the same order.

    Columns: run_id, then those of `metric_curves`, and usd: dollars paid up to then.
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
