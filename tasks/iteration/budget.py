"""A run's budget: an iteration that would exceed it does not start.

An iteration is expected to cost as much as the last one. The held-out evaluation that ends a run also counts,
so a run that ends early can still afford it. A run killed during that evaluation can be resumed for it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.record.checkpoints import CheckpointStore
from storage.record.records import JUDGE_USD, IterationRecord
from storage.record.results import REACH, held_out_curve

if TYPE_CHECKING:  # `resume` does not wait for Prefect to refuse a run
    from storage.record.run_store import RunRow, RunStore
    from tasks.iteration.session import Session

_STATE = ("started_at", "ended_at", "usd_per_hour")

_PARTS = f"""
    WITH begun AS (
        SELECT 'iteration' AS phase, iteration, started_at AS begun_at, ended_at AS done_at FROM iterations
            WHERE run_id = $run
        UNION ALL SELECT 'evaluation', iteration, started_at, ended_at FROM evaluations WHERE run_id = $run
        UNION ALL SELECT 'iteration', $number, $begun_at, $done_at WHERE $number IS NOT NULL
    ), spans AS (
        SELECT run_id, phase, iteration, started_at, ended_at, usd_per_hour FROM worker_states
            WHERE run_id = $run
        UNION ALL SELECT $run, 'iteration', $number, unnest($started_at::DOUBLE[]),
            unnest($ended_at::DOUBLE[]), unnest($usd_per_hour::DOUBLE[])
        UNION ALL SELECT $run, phase, iteration, begun_at, done_at, 0 FROM begun
    ), used AS (
        SELECT phase, iteration, (ended_at - started_at) / 3600 * usd_per_hour AS usd,
            greatest(0, ended_at - greatest(started_at, reach)) / 3600 AS hours,
            greatest(0, ended_at - greatest(started_at, begun_at)) / 3600 * usd_per_hour AS own_usd,
            greatest(0, ended_at - greatest(started_at, begun_at, reach)) / 3600 AS own_hours
        FROM (SELECT *, {REACH} AS reach FROM spans) LEFT JOIN begun USING (phase, iteration)
        UNION ALL SELECT phase, iteration, usd, 0, usd, 0 FROM judge_costs WHERE run_id = $run
        UNION ALL SELECT 'iteration', $number, $judge_usd, 0, $judge_usd, 0 WHERE $number IS NOT NULL
    )
    SELECT phase, iteration, sum(usd), sum(hours), sum(own_usd), sum(own_hours) FROM used
    GROUP BY phase, iteration ORDER BY iteration
"""
"""Dollars and hours of each iteration and evaluation, and of the uncommitted iteration `$number`.

`own` excludes the start of devices before it.
"""


@dataclass(frozen=True)
class Spending:
    """A run's dollars and hours at work: so far, and expected for an iteration and its evaluations.

    They include the discarded work of devices and judges.
    """

    usd: float
    hours: float
    next_usd: float
    next_hours: float


def spending(
    store: RunStore, run_id: str, record: IterationRecord | None = None, is_due: bool = False
) -> Spending:
    """Return what a run has used according to its record.

    Args:
        record: its last iteration, if not committed yet.
        is_due: True if an evaluation follows that iteration in any case.
    """
    values = {
        "run": run_id, "number": record and record.iteration,
        "begun_at": record and record.started_at, "done_at": record and record.ended_at,
        "judge_usd": record and record.metrics.get(JUDGE_USD, 0.0),
        **{name: [getattr(one, name) for one in record.intervals] if record else [] for name in _STATE},
    }  # fmt: skip
    with store.reading(run_id) as connection:
        parts = connection.execute(_PARTS, values).fetchall()
    iterations = [used for phase, _, _, _, *used in parts if phase == "iteration"] or [[0.0, 0.0]]
    evaluations = [used for phase, _, _, _, *used in parts if phase == "evaluation"] or [[0.0, 0.0]]
    # The final evaluation has all held-out prompts, like the first one; those between may have fewer.
    at_end = [max(each) for each in zip(*evaluations, strict=True)]
    ahead = [iterations[-1], at_end, *[evaluations[-1]] * is_due]
    return Spending(
        sum(usd for _, _, usd, *_ in parts),
        sum(hours for _, _, _, hours, *_ in parts),
        *map(sum, zip(*ahead, strict=True)),
    )


def _digits(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.2g}"


def end_at_spent_budget(session: Session, done: int, record: IterationRecord | None = None) -> None:
    """Make the last finished iteration the run's last if another would exceed the budget.

    Args:
        record: that iteration, if not committed yet.
    """
    if not 0 < done < session.last_iteration:
        return
    if reached := _spent(session.store, session.run_id, session.config, done, record):
        session.last_iteration, session.ended_early = done, reached
        session.store.add_event(session.run_id, "budget", reached)


def _spent(
    store: RunStore, run_id: str, config: RunConfig, done: int, record: IterationRecord | None = None
) -> str:
    """Return why a run with this many finished iterations must not begin another; empty if it may.

    The first one may begin as long as no limit is used up: nothing tells what it will take.
    """
    if not (config.budget.usd or config.budget.hours):
        return ""
    used = spending(store, run_id, record, record is not None and config.evaluates_after(done))
    for name, limit, now, ahead, form in (
        ("usd", config.budget.usd, used.usd, used.next_usd, "${}"),
        ("hours", config.budget.hours, used.hours, used.next_hours, "{} h"),
    ):
        if not done:
            ahead = 0.0
        if limit and now + ahead > limit:
            what_then = (
                "and another iteration with the evaluation after it would take about "
                f"{form.format(_digits(ahead))}"
                if done
                else "and interrupted iterations are part of that"
            )
            return (
                f"budget.{name} is {limit:g}: after iteration {done} of {config.iterations} the run has used "
                f"{form.format(_digits(now))}, {what_then}; continue with `spotlight resume {run_id} "
                f"--budget-{name} N`, N above {_digits(now + ahead)}"
            )
    return ""


def refuse_spent_budget(store: RunStore, row: RunRow, config: RunConfig) -> None:
    """Refuse to resume a run without budget for another iteration, unless its last evaluation is missing.

    Args:
        config: settings with which it would continue.

    Raises:
        ConfigurationError: another iteration would exceed the budget; the message tells how to raise it.
    """
    done = row.last_iteration or 0
    reached = _spent(store, row.run_id, config, done) if done < config.iterations else ""
    if not reached:
        return
    saved = CheckpointStore(store.home.run(row.run_id)).iterations()
    if saved[-1:] != [done] or done in dict(held_out_curve(store, row.run_id)):
        raise ConfigurationError(reached)
