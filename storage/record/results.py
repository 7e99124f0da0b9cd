"""A run's result, and the figures of runs in progress for monitoring, read from the record."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from storage.environment import GIVES_VERDICT, PURPOSE, gives_verdict, is_modelled
from storage.record.ledger import judge_usd, read_ledger
from storage.record.reading import RecordConnection
from storage.record.run_store import RunStore

SPANS = """
    SELECT run_id, started_at, ended_at FROM iterations
    UNION ALL SELECT run_id, started_at, ended_at FROM evaluations
    UNION ALL SELECT run_id, min(started_at), max(ended_at) FROM worker_states
        WHERE phase <> 'discarded' GROUP BY run_id, phase, iteration
    UNION ALL SELECT run_id, started_at, ended_at FROM worker_states WHERE phase = 'discarded'
"""
"""The query of the times at which runs were at work; they overlap."""

MOMENTS = """
    SELECT 2 * iteration AS moment, ended_at, NULL AS score, NULL AS exact FROM iterations WHERE run_id = $run
    UNION ALL
    SELECT 2 * iteration + 1, ended_at, score, exact FROM evaluations WHERE run_id = $run
"""
"""The query of the iterations and the evaluations of the run `$run`."""

PAID = f"""
    SELECT 2 * iteration + (phase = 'evaluation')::INTEGER AS moment, phase, market, device_s, usd FROM costs
    WHERE run_id = $run AND phase <> 'discarded'
    UNION ALL
    SELECT coalesce(moment, 2 * iteration), phase, market, w.ended_at - started_at,
        (w.ended_at - started_at) * usd_per_hour / 3600
    FROM (FROM worker_states WHERE run_id = $run AND phase = 'discarded') w
        ASOF LEFT JOIN ({MOMENTS}) kept ON started_at < kept.ended_at
"""
"""The query of the run `$run`'s payments, by the moment of payment: twice the iteration, plus one for the
evaluation after it.

Discarded work belongs to the first record made after it: a run that went back over several
iterations had paid for all of them when it repeated the first one.
"""

REACH = """max(ended_at) OVER (PARTITION BY run_id ORDER BY started_at, ended_at
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"""
"""The latest end of the spans before one: only a span's time after that counts, so that no time counts twice.
No worker need be there throughout: any may be lost and replaced, even a trainer.
"""

_WORKED = f"""
    SELECT run_id, sum(greatest(ended_at - greatest(started_at, coalesce(reach, started_at)), 0)) AS wall_s
    FROM (SELECT *, {REACH} AS reach FROM ({SPANS})) GROUP BY run_id
"""
"""The query of each run's time at work."""

VERDICTS = f"environment->>'{GIVES_VERDICT}' IS DISTINCT FROM 'no'"
"""SQL condition on a row of `runs`: its reward may call an image exact. If not, 0.0 is stored."""

OVERVIEW = f"""
    WITH worked AS ({_WORKED}),
    scored AS (
        SELECT run_id, arg_min(score, iteration) AS score_before, arg_max(score, iteration) AS score_now,
            max(score) AS score_best, arg_min(exact, iteration) AS exact_before,
            arg_max(exact, iteration) AS exact_now
        FROM evaluations GROUP BY run_id
    ),
    done AS (SELECT run_id, max(iteration) AS iterations FROM iterations GROUP BY run_id),
    paid AS (SELECT run_id, sum(usd) AS usd FROM costs GROUP BY run_id)
    SELECT run_id, name, status, created_at, ended_at, coalesce(iterations, 0) AS iterations,
        coalesce((summary->>'score_before')::DOUBLE, score_before) AS score_before,
        coalesce((summary->>'score_after')::DOUBLE, score_now) AS score_now,
        greatest(score_best, (summary->>'score_after')::DOUBLE) AS score_best,
        CASE WHEN {VERDICTS} THEN coalesce((summary->>'exact_before')::DOUBLE, exact_before) END
            AS exact_before,
        CASE WHEN {VERDICTS} THEN coalesce((summary->>'exact_after')::DOUBLE, exact_now) END AS exact_now,
        coalesce(wall_s, 0) AS wall_s, coalesce(usd, (summary->>'cost_usd')::DOUBLE, 0.0) AS usd,
        config, environment, host, pid, process_started_at,
        run_id IN (SELECT run_id FROM run_notes WHERE archived) AS archived,
        coalesce(environment->>'{PURPOSE}', '') AS purpose
    FROM runs LEFT JOIN worked USING (run_id) LEFT JOIN scored USING (run_id)
        LEFT JOIN done USING (run_id) LEFT JOIN paid USING (run_id)
    WHERE $runs IS NULL OR list_contains($runs::VARCHAR[], run_id)
    ORDER BY created_at DESC, run_id DESC
"""
"""The query of the runs `$runs` (NULL: all), newest first; `queries.runs.run_overview` lists the columns."""

EVERY_TIME = """
    SELECT prompt_id FROM evaluation_images WHERE run_id = $run GROUP BY prompt_id
    HAVING count(DISTINCT iteration) =
        (SELECT count(DISTINCT iteration) FROM evaluation_images WHERE run_id = $run)
"""
"""Held-out prompts that every evaluation of the run `$run` has, and over which evaluations are compared.

The first and the last evaluation may have the whole file, those between them a part of it.
"""

_LEAST_ITERATIONS = 5


def too_short(iterations: int) -> str:
    """Return why this many iterations are too few to call a run better or worse; empty if enough."""
    if iterations >= _LEAST_ITERATIONS:
        return ""
    done = f"{iterations} iteration{'s' * (iterations != 1)}"
    return f"too short to judge: {done}; at least {_LEAST_ITERATIONS} are needed"


class VarianceGain(NamedTuple):
    """The gain in score variance of chosen groups over random groups of the same drafts.

    Attributes:
        ratio: ratio of the variances.
        rolled_out: True if measured on the groups as rolled out; otherwise on the draft scores that selected
            them, which is biased upwards.
    """

    ratio: float
    rolled_out: bool


def variance_gain(spreads: Iterable[Sequence[float | None]]) -> VarianceGain | None:
    """Return the gain over a run's iterations; None if it was not measured.

    Args:
        spreads: `spread_random`, `spread_rollout` and `spread_kept` of each iteration; None or NaN for
            missing ones.
    """
    known = [tuple(math.nan if value is None else value for value in each) for each in spreads]
    for place in (1, 2):
        both = [(each[0], each[place]) for each in known if math.isfinite(each[0] + each[place])]
        random = sum(pair[0] for pair in both)
        if random > 0:
            return VarianceGain(sum(pair[1] for pair in both) / random, place == 1)
    return None


def held_out_curve(store: RunStore, run_id: str) -> list[tuple[int, float]]:
    """Return iteration and mean score of each of the run's held-out evaluations, in order."""
    with store.reading(run_id) as connection:
        return connection.execute(
            "SELECT iteration, score FROM evaluations WHERE run_id = ? ORDER BY iteration", [run_id]
        ).fetchall()


def held_out_scores(store: RunStore, run_id: str) -> dict[int, dict[int, float]]:
    """Return the mean score of each held-out prompt's judged images, by iteration and prompt_id.

    Only prompts that every evaluation has are included; rows with the same text count as the first of them.
    """
    with store.reading(run_id) as connection:
        rows = connection.execute(
            "SELECT iteration, first, avg(score) FROM evaluation_images JOIN (SELECT prompt_id, "
            "min(prompt_id) OVER (PARTITION BY prompt) AS first FROM prompts "
            "WHERE run_id = $run AND purpose = 'evaluate') USING (prompt_id) "
            f"WHERE run_id = $run AND error IS NULL AND prompt_id IN ({EVERY_TIME}) "
            "GROUP BY iteration, first ORDER BY iteration, first",
            {"run": run_id},
        ).fetchall()
    scores: dict[int, dict[int, float]] = {}
    for iteration, prompt_id, score in rows:
        scores.setdefault(iteration, {})[prompt_id] = score
    return scores


def last_recorded_at(store: RunStore, run_id: str) -> float | None:
    """Return the end of the newest record of a run (Unix seconds), discarded work included; None before."""
    with store.reading(run_id) as connection:
        row = connection.execute(f"SELECT max(ended_at) FROM ({SPANS}) WHERE run_id = ?", [run_id]).fetchone()
    return None if row is None else row[0]


def results_so_far(store: RunStore) -> dict[str, dict[str, Any]]:
    """Return the results of all runs, unfinished ones included, by run and column of `OVERVIEW`."""
    with store.reading() as connection:
        found = connection.execute(OVERVIEW, {"runs": None})
        names = [column[0] for column in found.description or ()]
        return {row[0]: dict(zip(names, row, strict=True)) for row in found.fetchall()}


def run_result(store: RunStore, run_id: str) -> dict[str, Any]:
    """Return the held-out scores of the first and the last evaluation, time and money.

    Returns:
        `run_id`, `score_before`, `score_after`, `exact_before`, `exact_after` (means over the
            `held_out_prompts` that both evaluations have; None if not yet evaluated; the last two are left
            out if the reward gives no verdict), `iterations` committed, `wall_s` that the run was at work
            (without breaks between a kill and a resume), `max_ratio_deviation`, `cost_usd` of all paid device
            time, `prices` (`modelled` if no device was rented, else `as set`), `judge_usd` for answers of
            judges with a price, `drafts` judged, `variance_gain` (the ratio of `VarianceGain`) and
            `variance_gain_by` (`rollout` or `drafts`), `spot_idle` (`Ledger.spot_idle_share`),
            `failed_starts` (workers that ended while they loaded), `unjoined_devices` (devices of the
            settings that never joined), `scorer_errors` (images that the scorer failed on: no mean includes
            them), `groups_failed` (prompt groups not trained on for that reason), `groups_dropped` (those
            not trained on because their scores were equal) and `training_steps`.
    """
    with store.reading(run_id) as connection:
        prompts, before, after = _ends(connection, run_id)
        [(config, environment, iterations, unjudged, wall_s, *sums)] = connection.execute(
            f"""
            SELECT config, environment, (SELECT count(*) FROM iterations WHERE run_id = $run),
                (SELECT count(*) FROM evaluation_images WHERE run_id = $run AND error IS NOT NULL),
                (SELECT wall_s FROM ({_WORKED}) WHERE run_id = $run), figures.*
            FROM runs, (
                SELECT max(value) FILTER (name = 'ratio_deviation'),
                    sum(value) FILTER (name = 'scorer_errors'), sum(value) FILTER (name = 'groups_failed'),
                    sum(value) FILTER (name = 'groups_dropped'), sum(value) FILTER (name = 'training_steps'),
                    sum(CASE name WHEN 'drafts' THEN value WHEN 'draft_errors' THEN -value END)
                FROM iteration_metrics WHERE run_id = $run
            ) figures WHERE run_id = $run
            """,
            {"run": run_id},
        ).fetchall()
        deviation, errors, failed, dropped, steps, drafts = (value or 0.0 for value in sums)
        spreads = connection.execute(
            """
            SELECT max(value) FILTER (name = 'spread_random'), max(value) FILTER (name = 'spread_rollout'),
                max(value) FILTER (name = 'spread_kept')
            FROM iteration_metrics WHERE run_id = ? GROUP BY iteration ORDER BY iteration
            """,
            [run_id],
        ).fetchall()
        gain = variance_gain(spreads)
        ledger = read_ledger(connection, run_id)
    facts, exact = json.loads(environment), {"exact_before": before[1], "exact_after": after[1]}
    return {
        "run_id": run_id,
        "score_before": before[0],
        "score_after": after[0],
        **(exact if gives_verdict(facts) else {}),
        "held_out_prompts": prompts,
        "iterations": iterations,
        "wall_s": wall_s or 0.0,
        "max_ratio_deviation": deviation,
        "cost_usd": ledger.spent().usd,
        "prices": "modelled" if is_modelled(json.loads(config), facts) else "as set",
        "judge_usd": ledger.judge_usd,
        "drafts": int(drafts),
        "variance_gain": gain and gain.ratio,
        "variance_gain_by": gain and ("rollout" if gain.rolled_out else "drafts"),
        "spot_idle": ledger.spot_idle_share,
        "failed_starts": ledger.failed_starts,
        "unjoined_devices": [asdict(device) for device in ledger.unjoined],
        "scorer_errors": int(errors) + unjudged,
        "groups_failed": int(failed),
        "groups_dropped": int(dropped),
        "training_steps": int(steps),
    }


_Means = tuple[float | None, float | None]
"""Means of the scores and of the exact images; None if nothing was evaluated."""


def _ends(connection: RecordConnection, run_id: str) -> tuple[int, _Means, _Means]:
    """Return the number of prompts that the first and the latest evaluation share, and means over them."""
    rows = connection.execute(
        "SELECT iteration, score, exact FROM evaluations WHERE run_id = ? ORDER BY iteration", [run_id]
    ).fetchall()
    if not rows:
        return 0, (None, None), (None, None)
    images = connection.execute(
        "SELECT iteration, prompt_id, score, exact FROM evaluation_images "
        "WHERE run_id = ? AND iteration IN (?, ?) AND error IS NULL ORDER BY prompt_id, seed_index",
        [run_id, rows[0][0], rows[-1][0]],
    ).fetchall()
    prompts = [
        {prompt for at, prompt, *_ in images if at == iteration} for iteration, *_ in (rows[0], rows[-1])
    ]
    both = prompts[0] & prompts[1]

    def means(iteration: int, score: float, exact: float) -> _Means:
        judged = [(value, hit) for at, prompt, value, hit in images if at == iteration and prompt in both]
        if not judged:  # of a simulated run, which has no images
            return score, exact
        return sum(value for value, _ in judged) / len(judged), sum(hit for _, hit in judged) / len(judged)

    return len(both), means(*rows[0]), means(*rows[-1])


@dataclass(frozen=True)
class LiveRun:
    """A run according to the current record.

    Attributes:
        planned: number of iterations of its settings.
        iteration: newest committed iteration; 0 before the first.
        newest_at: end of its newest record, or its creation (Unix seconds of its driver's machine).
        score, exact: means of the newest held-out evaluation; None before the first, the latter also if the
            reward gives no verdict.
        metrics: figures of the newest iteration, by name; phases end in `_s`.
        devices: mean number of devices by market and state, over the newest iteration.
        spent, device_events: device-seconds and dollars by market and state, lost work included, and number
            of each kind by market, since the start.
    """

    run_id: str
    name: str
    status: str
    planned: int
    iteration: int
    newest_at: float
    score: float | None
    exact: float | None
    metrics: dict[str, float]
    devices: dict[tuple[str, str], float]
    spent: dict[tuple[str, str], tuple[float, float]]
    judge_usd: float
    device_events: dict[tuple[str, str], int]


def live_runs(connection: RecordConnection) -> list[LiveRun]:
    """Return the runs marked as running; if there are none, the newest run, so that its end is seen."""
    rows = connection.execute(
        f"""
        WITH latest AS (
            SELECT run_id FROM runs WHERE status <> 'simulated' ORDER BY created_at DESC, run_id DESC LIMIT 1
        ),
        done AS (
            SELECT run_id, max(iteration) AS iteration, max(ended_at) AS ended_at FROM iterations
            GROUP BY run_id
        ),
        scored AS (
            SELECT run_id, max(ended_at) AS evaluated_at, arg_max(score, iteration) AS score,
                arg_max(exact, iteration) AS exact
            FROM evaluations GROUP BY run_id
        )
        SELECT run_id, name, status, coalesce((config->>'iterations')::INTEGER, 0), coalesce(iteration, 0),
            greatest(r.created_at, done.ended_at, evaluated_at), score, CASE WHEN {VERDICTS} THEN exact END
        FROM runs r LEFT JOIN done USING (run_id) LEFT JOIN scored USING (run_id)
        WHERE status = 'running'
            OR (run_id IN (FROM latest) AND NOT EXISTS (FROM runs WHERE status = 'running'))
        ORDER BY created_at, run_id
        """
    ).fetchall()
    return [LiveRun(*row, **_live_figures(connection, row[0], row[4])) for row in rows]


def _live_figures(connection: RecordConnection, run_id: str, iteration: int) -> dict[str, Any]:
    run: dict[str, Any] = {"run": run_id, "iteration": iteration}
    metrics = connection.execute(
        "SELECT name, value FROM iteration_metrics WHERE run_id = $run AND iteration = $iteration", run
    ).fetchall()
    devices = connection.execute(
        """
        WITH own AS (
            SELECT * FROM worker_states
            WHERE run_id = $run AND iteration = $iteration AND phase = 'iteration'
        ), whole AS (SELECT max(ended_at) - min(started_at) AS seconds FROM own)
        SELECT market, state, sum(ended_at - started_at) / (SELECT seconds FROM whole)
        FROM own WHERE (SELECT seconds FROM whole) > 0 GROUP BY market, state
        """,
        run,
    ).fetchall()
    spent = connection.execute(
        "SELECT market, state, sum(device_s), sum(usd) FROM costs WHERE run_id = ? GROUP BY ALL", [run_id]
    ).fetchall()
    events = connection.execute(
        "SELECT market, kind, count(*) FROM device_events WHERE run_id = ? GROUP BY ALL", [run_id]
    ).fetchall()
    return {
        "metrics": dict(metrics),
        "devices": {(market, state): mean for market, state, mean in devices},
        "spent": {(market, state): (device_s, usd) for market, state, device_s, usd in spent},
        "judge_usd": judge_usd(connection, run_id),
        "device_events": {(market, kind): count for market, kind, count in events},
    }
