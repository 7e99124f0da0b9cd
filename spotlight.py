"""Spotlight from Python: train, resume, evaluate and export runs, and read their records.

    import spotlight

    result = spotlight.train(preset="glyphs", settings={"iterations": 4, "sampling.noise_level": 0.5})
    result.load().curves.plot(x="iteration", y="reward_mean")

These are the functions of the command line. Runs are kept in the folder that `SPOTLIGHT_HOME` names, and
`SPOTLIGHT_*` variables set settings, as they do there: defaults < preset < variables < `settings`. Progress
is printed. Bad input raises a `SpotlightError`. Functions import what they need when called.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage.errors import SpotlightError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from storage.record.run_store import RunStore

__all__ = [
    "Evaluation", "Result", "Run", "SpotlightError",
    "evaluate", "export", "load_run", "resume", "runs", "settings", "train",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return the names that completion offers."""
    return __all__


Settings = Mapping[str, Any]
"""Settings by their dotted names (`{"sampling.noise_level": 0.5}`), or nested by section."""

Cluster = Literal["ray", "local"]


@dataclass(frozen=True)
class Result:
    """The outcome of a finished run.

    Attributes:
        score_before, score_after: mean held-out score of its first and its last evaluation, in [0, 1].
        summary: all results, as `spotlight train` prints them (`cost_usd`, `wall_s`, ...).
    """

    run_id: str
    score_before: float
    score_after: float
    summary: Mapping[str, Any] = field(repr=False)

    def load(self) -> Run:
        """Return the record of the run."""
        return load_run(self.run_id)


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on held-out prompts.

    Attributes:
        run_id: the run whose newest checkpoint was scored; None for an untouched model.
        iteration: the checkpoint's iteration; 0 for an untouched model.
        score: mean over the images, in [0, 1].
        exact: share of images that satisfy their prompt completely; None if the reward gives no verdict.
        figures: all figures, as `spotlight evaluate` prints them (intervals, by tag, `difference`).
    """

    evaluation_id: str
    run_id: str | None
    iteration: int
    score: float
    exact: float | None
    figures: Mapping[str, Any] = field(repr=False)


class Run:
    """A recorded run. Each property reads it again, even in mid-run; StorageError if a file is damaged."""

    def __init__(self, run_id: str, store: RunStore) -> None:
        self.run_id, self._store = run_id, store

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"

    @property
    def status(self) -> str:
        """`running`, `finished`, `failed`, `cancelled` or `interrupted`."""
        from storage.record.run_status import Activity, shown_status

        return shown_status(self._store.run(self.run_id), Activity())

    @property
    def summary(self) -> dict[str, Any]:
        """The run's results; empty until it is finished."""
        return self._store.run(self.run_id).summary

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the run was started with, by dotted name."""
        from storage.config.loading import by_name

        return by_name(self._store.run(self.run_id).config)

    @property
    def curves(self) -> pd.DataFrame:
        """One row per iteration: `iteration`, `ended_at` (a moment in UTC), `elapsed_s`, and every metric."""
        return self._frame("runs.metric_curves")

    @property
    def scores(self) -> pd.DataFrame:
        """One row per held-out evaluation: `iteration`, `score`, `exact` (or NaN), `ended_at`, ..."""
        return self._frame("runs.score_curve")

    @property
    def samples(self) -> pd.DataFrame:
        """One row per rolled-out sample: its prompt and seed, `score`, `advantage`, the `worker`, ..."""
        return self._frame("runs.rolled_out_samples")

    @property
    def seeds(self) -> pd.DataFrame:
        """One row per draft of exploration, if any: its prompt and seed, `score`, `kept`, ..."""
        return self._frame("seeds.drafted_seeds")

    @property
    def ledger(self) -> pd.DataFrame:
        """The paid time: `phase`, `market`, `state`, `device_s` (seconds), `usd`; rows sum to the bill."""
        from storage.record.ledger import bill_entries, read_ledger

        with self._store.reading(self.run_id) as connection:
            return bill_entries(read_ledger(connection, self.run_id))

    @property
    def images(self) -> pd.DataFrame:
        """One row per held-out image that was kept: its prompt, scores and PNGs before and after training."""
        return self._frame("images.images_before_after")

    def plot(self) -> go.Figure:
        """Return the chart of the dashboard: held-out scores and the mean reward over the iterations."""
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)  # Streamlit warns when imported without its server
        try:
            from ui.data.run import read_run
            from ui.pages.convergence.charts import score_chart

            return score_chart(read_run(self._store, self.run_id), "score", "iteration")
        finally:
            logging.disable(disabled)

    def _repr_html_(self) -> str:
        """Return the notebook's view of the run: its state, its scores, images before and after."""
        from ui.elements.image_grid import run_html

        return run_html(self.run_id, self.status, self.scores, self.images)

    def _frame(self, query: str) -> pd.DataFrame:
        """Return a query's result for the run, named by module and function of `storage.record.queries`."""
        from storage.record.queries.runs import dated

        module, _, name = query.partition(".")
        found = getattr(importlib.import_module(f"storage.record.queries.{module}"), name)
        with self._store.reading(self.run_id) as connection:
            return dated(found(connection, self.run_id))


def train(
    preset: str | Path | None = None,
    settings: Settings | None = None,
    *,
    iterations: int | None = None,
    name: str | None = None,
    run_id: str | None = None,
    cluster: Cluster | None = None,
    ray_address: str | None = None,
    on_iteration: Callable[[int, Mapping[str, float]], object] | None = None,
) -> Result:
    """Train a new run to its end.

    Args:
        preset: a preset's name (`spotlight presets` lists them), or a TOML file; None for the defaults.
        settings, iterations: changes to the preset.
        run_id, name: the new run's identifier, or the prefix of a generated one.
        cluster, ray_address: how processes start, or a running Ray cluster; None keeps the settings'.
        on_iteration: called after each committed iteration with its number and its metrics, in another
            thread; an exception ends the run, which `resume` can continue.

    Raises:
        SpotlightError: the run was refused before its start, or failed; then call `resume`.
    """
    from flows import start
    from flows.progress import calling

    given = {"name": name, "iterations": iterations}
    changes = dict(settings or {}) | {key: value for key, value in given.items() if value is not None}
    with calling(on_iteration), _given(preset, changes) as asked:
        summary = start.train(*asked, run_id=run_id, cluster=cluster, ray_address=ray_address)
    return Result(summary["run_id"], summary["score_before"], summary["score_after"], summary)


def resume(
    run_id: str,
    *,
    iterations: int | None = None,
    budget_usd: float | None = None,
    budget_hours: float | None = None,
    cluster: Cluster | None = None,
    ray_address: str | None = None,
    take_over: bool = False,
    trainers: int | None = None,
) -> Result:
    """Resume a run that was killed, cancelled or failed, from its last committed iteration.

    Args:
        run_id: the run, named as for `load_run`.
        iterations: new total, up to which a finished run continues; None keeps it.
        budget_usd, budget_hours: new budget for a run that ended at its budget; None keeps it.
        cluster, ray_address: as for `train`; None keeps the recorded one.
        take_over: True to resume even a run marked as running on a machine that is gone.
        trainers: new `runtime.trainer_workers`, for a run with gradient shards; None keeps it.

    Raises:
        SpotlightError: the run was refused before its start, or failed.
    """
    from flows import start

    summary = start.resume(
        _identifier(run_id), iterations=iterations, budget_usd=budget_usd, budget_hours=budget_hours,
        cluster=cluster, ray_address=ray_address, take_over=take_over, trainers=trainers,
    )  # fmt: skip
    return Result(summary["run_id"], summary["score_before"], summary["score_after"], summary)


def evaluate(
    run_id: str | None = None,
    *,
    preset: str | Path | None = None,
    settings: Settings | None = None,
    images: str | Path | None = None,
    compare: str | None = None,
    cluster: Cluster | None = None,
    ray_address: str | None = None,
) -> Evaluation:
    """Score a run's newest checkpoint, or an untouched model, on the held-out prompts.

    Args:
        run_id: the run, named as for `load_run`; None scores the untouched model of `preset`.
        preset, settings: as for `train`; with a run no preset, and changes to the run's own settings.
        images: a new folder for the images; None keeps none.
        compare: an earlier evaluation, or an evaluated run; then `figures["difference"]` compares them.
        cluster, ray_address: as for `train`.

    Raises:
        SpotlightError: the evaluation was refused before its start, or failed.
    """
    from flows import start

    named = run_id and _identifier(run_id)
    with _given(preset, settings) as asked:
        figures = start.evaluate(
            named, *asked, cluster=cluster, ray_address=ray_address, images=images, compare=compare
        )
    found = (figures[name] for name in ("evaluation_id", "run_id", "iteration", "score"))
    return Evaluation(*found, exact=figures.get("exact"), figures=figures)


def export(run_id: str, out: str | Path) -> Path:
    """Write a run's weights in diffusers format to a new or empty folder; return its absolute path.

    Raises:
        SpotlightError: the run or its checkpoint does not exist, or the folder is not empty.
    """
    from tasks.export import export_run

    return Path(export_run(_store().home, _identifier(run_id), Path(out))["out"])


def runs() -> pd.DataFrame:
    """Return all runs, newest first, one row each.

    Columns: `run_id`, `name`, `status`, `created_at`, `ended_at` (moments in UTC), `iterations`,
    `score_before`, `score_now`, `exact_before`, `exact_now`, `usd`, `purpose`.
    """
    from storage.record.queries.runs import dated, run_overview

    store, unlisted = _store(), ["score_best", "wall_s", "config", "environment", "host", "pid"]
    store.reconcile()
    with store.reading() as connection:
        found = run_overview(connection)
    return dated(found.drop(columns=[*unlisted, "process_started_at", "archived"]))


def load_run(run_id: str) -> Run:
    """Return the record of a run, finished or not, by its identifier, a prefix of it, or `last`.

    Raises:
        SpotlightError: the run does not exist, or several match; the message names some.
    """
    run = Run(_identifier(run_id), _store())
    run.status  # noqa: B018 - refuses a missing run
    return run


def settings(preset: str | Path | None = None, settings: Settings | None = None) -> dict[str, Any]:
    """Return a new run's settings by dotted name; arguments and refusals as for `train`."""
    from flows.start import new_configuration
    from storage.config.loading import by_name

    with _given(preset, settings) as asked:
        return by_name(new_configuration(*asked))


@contextmanager
def _given(
    preset: str | Path | None, settings: Settings | None
) -> Iterator[tuple[str | None, list[tuple[str, Any]]]]:
    """Yield both as commands take them; refusals name the argument `settings`, not `--set`."""
    from storage.config.errors import GIVEN_BY
    from storage.config.loading import python_settings

    token = GIVEN_BY.set("settings")
    try:
        yield preset and os.fspath(preset), python_settings(settings or {})
    finally:
        GIVEN_BY.reset(token)


def _identifier(run_id: str) -> str:
    from flows.run_identity import find_run

    return find_run(_store().home, run_id)


def _store() -> RunStore:
    from storage.home import Home
    from storage.record.run_store import RunStore

    return RunStore(Home.from_environment())
