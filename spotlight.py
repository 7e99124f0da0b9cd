"""Spotlight from Python: train, resume, evaluate and export runs, and read what was recorded of them.

    import spotlight

    result = spotlight.train(preset="glyphs", settings={"iterations": 4, "sampling.noise_level": 0.5})
    print(result.score_before, result.score_after)
    result.load().curves.plot(x="iteration", y="reward_mean")

These are the functions of the command line. Runs are kept in the folder that `SPOTLIGHT_HOME` names, and
`SPOTLIGHT_*` variables set settings, as they do there: defaults < preset < variables < `settings`. Progress
is printed. Bad input is refused by a `SpotlightError`. Importing this module is quick: a function imports
what it needs when it is called.
"""

from __future__ import annotations

import html
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage.errors import ConfigurationError, SpotlightError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from storage.home import Home
    from storage.record.run_store import RunRow

__all__ = [
    "Evaluation", "Result", "Run", "SpotlightError",
    "evaluate", "export", "load_run", "resume", "runs", "settings", "train",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return what completion offers."""
    return __all__


Settings = Mapping[str, Any]
"""Settings by their dotted names (`{"sampling.noise_level": 0.5}`), or nested by section."""

Cluster = Literal["ray", "local"]
"""The cluster that starts the processes of a run: Ray, or forks on this machine."""


@dataclass(frozen=True)
class Result:
    """The outcome of a finished run.

    Attributes:
        run_id: its identifier.
        score_before, score_after: mean held-out score of its first and its last evaluation, in [0, 1].
        summary: these and all other results, as `spotlight train` prints them (`cost_usd`, `wall_s`, ...).
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
        evaluation_id: its identifier.
        run_id: the run whose newest checkpoint was scored; None for an untouched model.
        iteration: after which the checkpoint was made; 0 for an untouched model.
        score: mean over the images, in [0, 1].
        exact: share of the images that do all that their prompt asks; None if the reward gives no verdict.
        figures: these and all others, as `spotlight evaluate` prints them (intervals, by tag, `difference`).
    """

    evaluation_id: str
    run_id: str | None
    iteration: int
    score: float
    exact: float | None
    figures: Mapping[str, Any] = field(repr=False)


class Run:
    """A recorded run. Each property reads the record again, so a run in progress can be followed.

    Every property may raise StorageError, if a file of the record is damaged.
    """

    def __init__(self, run_id: str, home: Home) -> None:
        self.run_id = run_id
        self._home = home

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"

    @property
    def status(self) -> str:
        """`running`, `finished`, `failed`, `cancelled` or `interrupted`."""
        return self._row.status

    @property
    def summary(self) -> dict[str, Any]:
        """The run's results; empty until it is finished."""
        return self._row.summary

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the run was started with, by dotted name."""
        return dict(_flat(self._row.config.model_dump(mode="json")))

    @property
    def curves(self) -> pd.DataFrame:
        """One row per iteration: `iteration`, `policy_version`, `ended_at`, `elapsed_s`, and every metric.

        `ended_at` is a moment in UTC; metrics are, for example, `reward_mean`, `loss`, `kl`.
        """
        return self._frame("runs.metric_curves")

    @property
    def scores(self) -> pd.DataFrame:
        """One row per held-out evaluation: `iteration`, `score`, `exact`, `ended_at`, `elapsed_s`, ..."""
        return self._frame("runs.score_curve")

    @property
    def samples(self) -> pd.DataFrame:
        """One row per rolled-out sample: its prompt and seed, `score`, `advantage`, the `worker`, ..."""
        return self._frame("runs.rolled_out_samples")

    @property
    def seeds(self) -> pd.DataFrame:
        """One row per draft of exploration: its prompt and seed, `score`, whether it was `kept`, ...

        Empty for a run that did not explore.
        """
        return self._frame("seeds.drafted_seeds")

    @property
    def ledger(self) -> pd.DataFrame:
        """The paid time: `phase`, `market`, `state`, `device_s` (seconds), `usd`; rows sum to the bill."""
        from storage.ledger.ledger import read_ledger
        from storage.record.run_store import RunStore
        from ui.data.devices import bill_entries

        with RunStore(self._home).reading(self.run_id) as connection:
            return bill_entries(read_ledger(connection, self.run_id))

    @property
    def images(self) -> pd.DataFrame:
        """One row per held-out image that was kept: its prompt, scores and PNGs before and after training."""
        return self._frame("images.images_before_after")

    def plot(self) -> go.Figure:
        """Return the chart of the dashboard: held-out scores and the mean reward over the iterations."""
        with _quiet_imports():
            from storage.record.run_store import RunStore
            from ui.data.run import read_run
            from ui.pages.convergence.charts import score_chart

            return score_chart(read_run(RunStore(self._home), self.run_id), "score", "iteration")

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the run: its state, its scores, images before and after."""
        with _quiet_imports():
            from ui.elements.image_grid import gallery_html
        scores, images = self.scores, self.images
        shown = scores["score"].iloc[[0, -1]] if len(scores) > 1 else scores["score"]
        course = " → ".join(f"{score:.3f}" for score in shown) or "–"
        facts = f"<b>{html.escape(self.run_id)}</b> {self.status}, held-out score {course}"
        return f"<p>{facts}</p>{gallery_html(images) if len(images) else ''}"

    @property
    def _row(self) -> RunRow:
        from storage.record.run_store import RunStore

        return RunStore(self._home).run(self.run_id)

    def _frame(self, query: str) -> pd.DataFrame:
        """Return what a query of `storage.record.queries`, named by module and function, finds of the run."""
        from storage.record.run_store import RunStore

        module, _, name = query.partition(".")
        found = getattr(importlib.import_module(f"storage.record.queries.{module}"), name)
        with RunStore(self._home).reading(self.run_id) as connection:
            return _dated(found(connection, self.run_id))


@contextmanager
def _given_as_settings() -> Iterator[None]:
    """Let refusals name the argument `settings`, where those of the command line say `--set`."""
    from storage.config.errors import GIVEN_BY

    token = GIVEN_BY.set("settings")
    try:
        yield
    finally:
        GIVEN_BY.reset(token)


@_given_as_settings()
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
        preset: a preset's name (`spotlight presets` lists them), or a TOML file; None takes the defaults.
        settings: changes to the preset.
        iterations: number of iterations; the same as the setting `iterations`.
        name: beginning of the new run's identifier.
        run_id: the whole identifier; generated if None.
        cluster: the kind of cluster that starts the processes; None keeps that of the settings.
        ray_address: a running Ray cluster; None keeps that of the settings.
        on_iteration: called after each committed iteration with its number and its metrics, in another
            thread; what it raises ends the run, which `resume` continues.

    Raises:
        SpotlightError: the run was refused before its start, or failed; then call `resume`.
    """
    from flows import start
    from flows.progress import calling

    given = {"name": name, "iterations": iterations}
    changes = dict(settings or {}) | {key: value for key, value in given.items() if value is not None}
    with calling(on_iteration):
        summary = start.train(
            preset and os.fspath(preset),
            _given(changes),
            run_id=run_id,
            cluster=cluster,
            ray_address=ray_address,
        )
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
        run_id: the run: its identifier, the beginning of it, or `last`.
        iterations: total of the run: a finished run continues up to it; None keeps it.
        budget_usd: new budget in dollars, with which a run that ended at it continues; None keeps it.
        budget_hours: the same in hours.
        cluster: as for `train`; None keeps the recorded one.
        ray_address: the same.
        take_over: resume also a run that is marked as running on a machine that is gone.
        trainers: another `runtime.trainer_workers`, for a run with gradient shards; None keeps it.

    Raises:
        SpotlightError: the run was refused before its start, or failed.
    """
    from flows import start

    summary = start.resume(
        _identifier(run_id), iterations=iterations, budget_usd=budget_usd, budget_hours=budget_hours,
        cluster=cluster, ray_address=ray_address, take_over=take_over, trainers=trainers,
    )  # fmt: skip
    return Result(summary["run_id"], summary["score_before"], summary["score_after"], summary)


@_given_as_settings()
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
        preset: a preset's name, or a TOML file; not with a run, which has its own settings.
        settings: changes to the preset, or to the run's settings.
        images: a new folder for the images; None keeps none.
        compare: an earlier evaluation, or a run that was evaluated: `figures["difference"]` tells how much
            better this one is.
        cluster: as for `train`.
        ray_address: the same.

    Raises:
        SpotlightError: the evaluation was refused before its start, or failed.
    """
    from flows import start

    figures = start.evaluate(
        run_id and _identifier(run_id), preset and os.fspath(preset), _given(settings or {}),
        cluster=cluster, ray_address=ray_address, images=images, compare=compare,
    )  # fmt: skip
    names = ("evaluation_id", "run_id", "iteration", "score")
    return Evaluation(*(figures[name] for name in names), exact=figures.get("exact"), figures=figures)


def export(run_id: str, out: str | Path) -> Path:
    """Write a run's weights as diffusers loads them, with a model card; returns the folder's absolute path.

    Args:
        run_id: the run, finished or not, named as for `load_run`.
        out: a new or empty folder.

    Raises:
        SpotlightError: the run or its checkpoint does not exist, or the folder is not empty.
    """
    from tasks.export import export_run

    return Path(export_run(_home(), _identifier(run_id), Path(out))["out"])


def runs() -> pd.DataFrame:
    """Return all runs, newest first, one row each.

    Columns: `run_id`, `name`, `status`, `created_at`, `ended_at` (moments in UTC), `iterations`,
    `score_before`, `score_now`, `exact_before`, `exact_now`, `usd`.
    """
    from storage.record.queries.runs import run_overview
    from storage.record.run_store import RunStore

    store, unlisted = RunStore(_home()), ["score_best", "wall_s", "config", "environment", "host", "pid"]
    unlisted += ["process_started_at", "archived"]
    store.reconcile()
    with store.reading() as connection:
        found = run_overview(connection)
    return _dated(found.drop(columns=unlisted))


def load_run(run_id: str) -> Run:
    """Return the record of a run, finished or not.

    Args:
        run_id: the run: its identifier, the beginning of it, or `last`.

    Raises:
        RunNotFoundError: the run does not exist; the message suggests similar names.
        ConfigurationError: several runs begin with the text.
    """
    run = Run(_identifier(run_id), _home())
    run.status  # noqa: B018 - refuses one that is not there
    return run


@_given_as_settings()
def settings(preset: str | Path | None = None, settings: Settings | None = None) -> dict[str, Any]:
    """Return a new run's settings by dotted name: defaults, preset, `SPOTLIGHT_*`, `settings`.

    Args:
        preset: a preset's name, or a TOML file; None takes the defaults.
        settings: changes to the preset.

    Raises:
        ConfigurationError: any problem, one line each.
    """
    from flows.start import new_configuration

    config = new_configuration(preset and os.fspath(preset), _given(settings or {}))
    return dict(_flat(config.model_dump(mode="json")))


@contextmanager
def _quiet_imports() -> Iterator[None]:
    """Leave out what Streamlit says of being imported without its server."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _dated(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with its Unix seconds as moments in UTC."""
    import pandas as pd

    moments = frame.columns.intersection(["created_at", "ended_at"])
    return frame.assign(**{name: pd.to_datetime(frame[name], unit="s", utc=True) for name in moments})


def _identifier(run_id: str) -> str:
    """Return a run's identifier from all of it, its beginning, or `last`, as commands take them."""
    from flows.run_identity import find_run

    return find_run(_home(), run_id)


def _home() -> Home:
    from storage.home import Home

    return Home.from_environment()


def _flat(sections: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in sections.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _given(settings: Settings, section: str = "") -> list[tuple[str, Any]]:
    """Return each setting by its dotted name, with its value in Python's own types."""
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        name = f"{section}{key}"
        if isinstance(value, Mapping) and value:
            found += _given(value, f"{name}.")
        elif value is None:
            raise ConfigurationError(f"{name} = None: leave the setting out to keep its default")
        else:
            found.append((name, _plain(name, value)))
    return found


def _plain(name: str, value: Any) -> Any:
    """Convert a path to text, and a number or an array of numpy (or alike) to Python's own types."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(name, one) for one in value]
    if callable(getattr(value, "tolist", None)):
        plain = value.tolist()
        # A float32 of 0.3 is meant as 0.3, which is what it prints, and not as 0.30000001192092896.
        return float(str(value)) if isinstance(plain, float) else plain
    if isinstance(value, (str, int, float, Mapping)):
        return value
    raise ConfigurationError(
        f"{name} = {value!r}: give text, a number, True or False, a path, or a list of these"
    )
