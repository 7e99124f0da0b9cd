"""The figures that MLflow gets of an iteration and of a held-out evaluation, as they come or as recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from storage.ledger.judge_costs import JUDGE_USD
from storage.record.every_time import EVERY_TIME
from storage.record.reading import RecordConnection
from storage.tracking.names import EVALUATION_USD, QUALITY_FIGURE, TOTAL_USD

ITERATION_FIGURE = "reward_mean"
"""A figure that every iteration has, and no evaluation."""

EVALUATION_FIGURE = "evaluation_score"
"""A figure that every evaluation has, and no iteration."""

_PART = "part_"
"""What the names of a score's parts begin with, among the figures of an image."""

_MOMENTS = """
    WITH costs_at AS (  -- an evaluation follows the iteration of its number
        SELECT 2 * iteration + (phase = 'evaluation')::INTEGER AS moment, usd FROM costs WHERE run_id = $run
    ),
    paid AS (
        SELECT moment AS paid_at, sum(usd) AS usd, sum(sum(usd)) OVER (ORDER BY moment) AS total_usd
        FROM costs_at GROUP BY moment
    ),
    moments AS (
        SELECT 2 * iteration AS moment, ended_at, NULL AS score, NULL AS exact FROM iterations
            WHERE run_id = $run
        UNION ALL SELECT 2 * iteration + 1, ended_at, score, exact FROM evaluations WHERE run_id = $run
    )
    SELECT moment // 2, moment % 2 = 1, ended_at, score, exact,
        CASE WHEN paid_at = moment THEN usd ELSE 0 END, coalesce(total_usd, 0)
    FROM moments ASOF LEFT JOIN paid ON moment >= paid_at
    WHERE ended_at <= $until ORDER BY moment
"""


@dataclass(frozen=True)
class RecordedFigures:
    """What MLflow gets of an iteration or an evaluation that the record has.

    Attributes:
        iteration: MLflow's step.
        at: when it ended, in Unix seconds.
    """

    iteration: int
    at: float
    figures: Mapping[str, float]

    @property
    def figure(self) -> str:
        """The figure that tells whether MLflow has it."""
        return EVALUATION_FIGURE if EVALUATION_FIGURE in self.figures else ITERATION_FIGURE


def iteration_figures(metrics: Mapping[str, float], total_usd: float) -> dict[str, float]:
    """The figures of an iteration; `total_usd` is what the run has cost since its beginning."""
    return {**metrics, TOTAL_USD: total_usd}


def evaluation_figures(
    score: float,
    exact: float,
    parts: Mapping[str, float],
    looks: Mapping[str, float],
    usd: float,
    total_usd: float,
) -> dict[str, float]:
    """The figures of a held-out evaluation.

    Args:
        score: mean over its images.
        exact: share of the images.
        parts: means of the parts of the score, by name.
        looks: means of what its images look like, by name.
        usd: what it cost.
        total_usd: what the run has cost since its beginning.
    """
    return {
        EVALUATION_FIGURE: score,
        "evaluation_exact": exact,
        **{f"evaluation_{_PART}{name}": value for name, value in parts.items()},
        **{f"{QUALITY_FIGURE}{name}": value for name, value in looks.items()},
        EVALUATION_USD: usd,
        TOTAL_USD: total_usd,
    }


def recorded_figures(connection: RecordConnection, run_id: str, until: float) -> list[RecordedFigures]:
    """The figures of a run's iterations and evaluations, in order.

    Args:
        connection: open connection to the record.
        run_id: the run.
        until: only of those that had ended then, in Unix seconds.
    """
    metrics = _by_iteration(
        connection, "SELECT iteration, name, value FROM iteration_metrics WHERE run_id = $run", run_id
    )
    means = _by_iteration(
        connection,
        "SELECT iteration, name, avg(value) FROM evaluation_image_figures "
        f"WHERE run_id = $run AND prompt_id IN ({EVERY_TIME}) "
        "GROUP BY iteration, name ORDER BY name",
        run_id,
    )
    found = []
    for iteration, is_evaluation, at, score, exact, usd, total_usd in connection.execute(
        _MOMENTS, {"run": run_id, "until": until}
    ).fetchall():
        if is_evaluation:
            parts, looks = _parts_and_looks(means[iteration])
            figures = evaluation_figures(score, exact, parts, looks, usd, total_usd)
        else:
            figures = iteration_figures(metrics[iteration], total_usd)
        found.append(RecordedFigures(iteration, at, figures))
    return found


def _parts_and_looks(means: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    parts = {name.removeprefix(_PART): mean for name, mean in means.items() if name.startswith(_PART)}
    others = means.keys() - {JUDGE_USD, *(f"{_PART}{name}" for name in parts)}
    return parts, {name: means[name] for name in sorted(others)}


def _by_iteration(connection: RecordConnection, query: str, run_id: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for iteration, name, value in connection.execute(query, {"run": run_id}).fetchall():
        found[iteration][name] = value
    return found
