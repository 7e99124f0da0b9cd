"""All data of one run for its pages, read through one connection and cached; the look of its held-out images.

Functions that read a run raise RunNotFoundError if there is none of that name, and StorageError if a file is
damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pandas as pd
import streamlit as st

from storage import environment
from storage.config.loading import differences
from storage.environment import is_modelled
from storage.errors import ConfigurationError, PromptFileError
from storage.evaluations.figures import tagged_estimates
from storage.evaluations.quality import JUDGE, PART, QUALITY, QualityVerdict, quality_verdict
from storage.home import Home
from storage.prompts.files import load_prompts
from storage.prompts.sources import thumbnail
from storage.record.queries import runs as queries
from storage.record.queries.images import figure_means, paired_figures
from storage.record.reading import RecordConnection
from storage.record.run_status import LIVE, Activity, activity_of, read_activity, shown_status, shown_statuses
from storage.record.run_store import RunNotes, RunRow, RunStore

T = TypeVar("T")

CACHE_S = 2  # age in seconds at which cached figures are read again; several open tabs share one reading
_SIDE = 256  # largest side of a source image on a page, in pixels


@dataclass(frozen=True)
class Change:
    """The mean difference of the held-out scores between first and latest evaluation.

    Attributes:
        mean: after minus before, over the same prompts and seeds.
        margin: distance from it to the further bound of its 95 % interval (`storage/evaluations/figures.py`),
            which is the bound on the side of zero.
        images: pairs compared.
        before, after: means over the prompts, of which some may have fewer pairs than others.
    """

    mean: float
    margin: float
    images: int
    before: float
    after: float

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes zero."""
        return abs(self.mean) > self.margin


class Newest(NamedTuple):
    """The times of the latest rows of a run, in Unix seconds; 0 if there is none."""

    iteration_at: float
    evaluation_at: float
    event_at: float


@dataclass(frozen=True)
class RunView:
    """One run's frames; see storage/record/queries/runs.py for their columns.

    Attributes:
        home: home that it was read from.
        change: None before there are two evaluations.
        damaged: unreadable files, whose rows are missing.
        activity: content of its log; empty for a run that has ended, or of a version without logs.
    """

    home: Home
    row: RunRow
    status: str
    scores: pd.DataFrame
    metrics: pd.DataFrame
    cost: pd.DataFrame
    events: pd.DataFrame
    change: Change | None
    activity: Activity = field(default_factory=Activity)
    notes: RunNotes = field(default_factory=RunNotes)
    damaged: tuple[Path, ...] = ()

    @property
    def is_live(self) -> bool:
        """True if more will be recorded."""
        return self.status in LIVE

    @property
    def planned_iterations(self) -> int | None:
        """The planned number of iterations; None if the settings are of another version."""
        planned = self.setting("", "iterations")
        return planned if isinstance(planned, int) else None

    @property
    def newest(self) -> Newest:
        """The times of its latest iteration, evaluation and event."""
        columns = (self.metrics["ended_at"], self.scores["ended_at"], self.events["happened_at"])
        return Newest(*(max([0.0, *column]) for column in columns))

    @property
    def elapsed_s(self) -> float:
        """Seconds at work, up to the latest record."""
        return max([0.0, *self.scores["elapsed_s"], *self.metrics["elapsed_s"]])

    @property
    def is_modelled(self) -> bool:
        """True if its dollars are modelled: no device was rented."""
        return is_modelled(self.row.settings, self.row.environment)

    @property
    def simulated(self) -> str | None:
        """A simulated run's subject, as text; None for any other run."""
        return self.row.environment.get(environment.SIMULATED)

    @property
    def purpose(self) -> str:
        """The check that the run is part of, such as `chaos`; empty for any other run."""
        return self.row.environment.get(environment.PURPOSE, "")

    @property
    def paid_usd(self) -> float:
        """The bill so far, in dollars."""
        return self.paid("reserved_usd") + self.paid("spot_usd")

    @property
    def gives_verdict(self) -> bool:
        """True if the reward may call an image exact; otherwise no page mentions exact images."""
        return environment.gives_verdict(self.row.environment)

    @property
    def explores(self) -> bool | None:
        """True if the run drafts seeds; None if it was stored without that fact (another version's)."""
        made = self.row.environment.get(environment.DRAFTS_ARE_MADE)
        return None if made is None else made != environment.NO_DRAFTS

    @property
    def drafts_while_training(self) -> bool:
        """True if spot devices draft with stale weights while the reserved devices train.

        A strategy that decides by measured times may have decided against it.
        """
        decisions = environment.read_decisions(self.row.environment)
        if decisions and decisions[max(decisions)] == "plain":
            return False
        return environment.BESIDE_TRAINING in self.row.environment.get(environment.DRAFTS_ARE_MADE, "")

    @property
    def least_spearman(self) -> float | None:
        """The rank correlation below which the run raises its alarm; None if it has no such setting."""
        return self.number("exploration", "min_spearman")

    @property
    def rank_limit(self) -> float:
        """The rank correlation below which stale ranks count as unreliable: the run's, or 0.5 without one."""
        return 0.5 if self.least_spearman is None else self.least_spearman

    def metric(self, name: str) -> np.ndarray:
        """Return a metric's values over the iterations; NaN for iterations, or for a run, without it."""
        if name not in self.metrics:
            return np.full(len(self.metrics), np.nan)
        return self.metrics[name].to_numpy(dtype=float)

    def measured(self, name: str, latest: int = 0) -> np.ndarray:
        """Return the values of a metric that were measured, at most the `latest` ones; 0 for all."""
        values = self.metric(name)
        return values[np.isfinite(values)][-latest:]

    def learning_courses(self) -> dict[str, np.ndarray]:
        """Return six figures over the iterations, early signs of training gone wrong; NaN if not measured.

        Returns:
            zero_variance (share of the prompt groups), ratio_deviation, kl (nats), clip_share (of the
            trained denoising steps), pair_accuracy (share of the pairs), pair_margin (nats).
        """
        kl = self.metric("kl")
        if not np.nan_to_num(kl).any():
            kl = np.full(len(kl), np.nan)  # the trainer writes 0 where it does not measure it
        with np.errstate(divide="ignore", invalid="ignore"):
            share = self.metric("groups_dropped") / self.metric("groups")
        of_pairs = {name: self.metric(name) for name in ("pair_accuracy", "pair_margin")}
        clips = environment.clips_ratio(self.row.environment)  # other objectives have no ratio
        of_ratio = {name: self.metric(name if clips else "") for name in ("ratio_deviation", "clip_share")}
        return {"zero_variance": share, "kl": kl, **of_pairs, **of_ratio}

    def setting(self, section: str, name: str) -> Any:
        """Return a setting as stored with the run, a top-level one if `section` is empty; None without it."""
        part = self.row.settings.get(section) if section else self.row.settings
        return part.get(name) if isinstance(part, dict) else None

    def number(self, section: str, name: str) -> float | None:
        """Return a numeric setting; None if the run lacks it."""
        value = self.setting(section, name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def changed_settings(self) -> tuple[dict[str, Any], str]:
        """Return the settings that differ from the defaults; for another version all settings, and why."""
        try:
            return differences(self.row.config), ""
        except ConfigurationError as error:
            return self.row.settings, str(error)

    def paid(self, column: str) -> float:
        """Return the total of a column of `cost` (its rows are cumulative)."""
        return 0.0 if self.cost.empty else float(self.cost[column].iloc[-1])


@st.cache_data(ttl=CACHE_S, max_entries=4, show_spinner=False)
def load_overview(home: Home) -> pd.DataFrame:
    """Return all runs, newest first, as `queries.runs.listed_runs` does, with the status that pages show."""
    with RunStore(home).reading() as connection:
        runs = queries.listed_runs(connection)
    return runs.assign(status=shown_statuses(home, runs))


@st.cache_data(ttl=CACHE_S, max_entries=16, show_spinner=False)
def load_run(home: Home, run_id: str) -> RunView:
    """Return the data of one run for a page."""
    return read_run(RunStore(home), run_id)


def load(read: Callable[..., T], view: RunView, *arguments: Hashable, until: Hashable = None) -> T:
    """Return what a function of a connection, the run and `arguments` reads, again after each new record.

    `until` is the time of the latest record that matters, such as `newest.evaluation_at`; by default any.
    """
    name = f"{read.__module__}.{read.__qualname__}"
    return _load(read, name, view.home, view.row.run_id, view.newest if until is None else until, arguments)


@st.cache_data(ttl=60, max_entries=100, show_spinner=False)
def _load(
    _read: Callable[..., T],
    name: str,
    home: Home,
    run_id: str,
    until: Hashable,
    arguments: tuple[Hashable, ...],
) -> T:
    """Return the same; all arguments but the first are the cache's key."""
    with RunStore(home).reading(run_id) as connection:
        return _read(connection, run_id, *arguments)


load_activity = st.cache_data(ttl=CACHE_S, max_entries=16, show_spinner=False)(read_activity)


def read_run(store: RunStore, run_id: str) -> RunView:
    """Return the same without a cache, for the report."""
    with store.reading(run_id) as connection:
        row = store.run(run_id)
        activity = activity_of(store.home, row)
        return RunView(
            home=store.home,
            row=row,
            status=shown_status(row, activity),
            scores=queries.score_curve(connection, run_id),
            metrics=queries.metric_curves(connection, run_id),
            cost=queries.cost_by_iteration(connection, run_id),
            events=queries.events(connection, run_id),
            change=_change(paired_figures(connection, run_id, only="score")),
            activity=activity,
            notes=store.notes_of(run_id),
            damaged=tuple(connection.damaged),
        )


def _change(pairs: pd.DataFrame) -> Change | None:
    if pairs.empty:
        return None
    # Rows of the same text are one prompt, as in `spotlight evaluate --compare`.
    means: Any = pairs.groupby("prompt", sort=False)[["before", "after"]].mean()
    differences = (means["after"] - means["before"]).tolist()
    found = tagged_estimates(differences, [""] * len(differences), lowest=-1.0).overall
    margin = max(found.high - found.mean, found.mean - found.low)
    return Change(found.mean, margin, len(pairs), float(means["before"].mean()), float(means["after"].mean()))


IDLE_SPOT_ADVICE = (
    "Rent fewer spot devices, let them train (`runtime.trainer_workers`), or let "
    "`exploration.strategy=auto` decide between training on them and drafting seeds: which saves more "
    "depends on the reward (docs/measurements.md). `spotlight what-if` compares the bills."
)
"""The remedy for spot devices that idle while the others train, according to measurements."""

_NO_METRICS = ("run_id", "iteration", "policy_version", "ended_at", "elapsed_s", "usd")
"""The columns of a metrics frame that are not metrics."""


def with_verdicts(images: pd.DataFrame, given: bool) -> pd.DataFrame:
    """Return judged images, with None for each `exact` unless verdicts are given."""
    if given:
        return images
    return images.assign(**{name: None for name in map(str, images) if name.startswith("exact")})


def metric_names(metrics: pd.DataFrame, verdicts: bool) -> list[str]:
    """Return the metrics among a frame's columns, sorted; the share of exact images only with verdicts."""
    unused = _NO_METRICS if verdicts else (*_NO_METRICS, "exact_share")
    return sorted(name for name in map(str, metrics) if name not in unused)


@dataclass(frozen=True)
class QualityView:
    """The look of a run's held-out images.

    Attributes:
        means: one row per evaluation; see `storage.record.queries.images.figure_means`.
        verdict: the latest evaluation against the untouched model; None before there are two.
    """

    means: pd.DataFrame = field(default_factory=lambda: pd.DataFrame({"iteration": []}))
    verdict: QualityVerdict | None = None

    @property
    def figures(self) -> list[str]:
        """The figures of quality that were measured, in display order."""
        return [name for name in QUALITY if name in self.means]

    @property
    def judges(self) -> pd.DataFrame | None:
        """Iteration and mean of the second judge after it; None if there is no second judge."""
        if JUDGE not in self.means:
            return None
        return cast("pd.DataFrame", self.means[["iteration", JUDGE]].dropna())

    @property
    def parts(self) -> list[str]:
        """The parts of the score, if it is a sum."""
        return [str(name).removeprefix(PART) for name in self.means if str(name).startswith(PART)]


def read_quality(connection: RecordConnection, run_id: str) -> QualityView:
    """Return the quality of a run."""
    pairs = paired_figures(connection, run_id)
    return QualityView(figure_means(connection, run_id), quality_verdict(pairs))


def sources_of(view: RunView, images: pd.DataFrame) -> dict[int, str]:
    """Return the images that the prompts of a run's pictures ask to edit, as data URIs by prompt_id.

    They come from the current prompt file: if the file or an image is gone, they are missing.
    """
    prompt_ids = tuple(sorted(set(images["prompt_id"].tolist())))
    return load_sources(str(view.setting("prompts", "evaluate")), prompt_ids)


@st.cache_data(ttl=600, max_entries=16, show_spinner=False)
def load_sources(prompts: str, prompt_ids: tuple[int, ...]) -> dict[int, str]:
    """Return the same for the run's `prompts.evaluate`; only for prompts with such an image."""
    try:
        return {
            prompt.prompt_id: thumbnail(prompt.source, _SIDE)
            for prompt in load_prompts(prompts)
            if prompt.source and prompt.prompt_id in prompt_ids
        }
    except PromptFileError:
        return {}
