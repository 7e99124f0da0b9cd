"""The answer of the page What if as tables and charts, and a Chrome trace as frames of devices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from storage.text import usd
from ui.charts.devices import MOST_BARS, MOST_INTERVALS, DeviceCourse
from ui.charts.layout import laid_out
from ui.elements.formatting import SIMULATED, percent, short_duration, time_unit
from ui.elements.palette import RUN_COLOURS, RUN_SYMBOLS
from ui.pages.what_if.question import Question

_US_PER_S = 1e6
_INTERVALS = ["worker", "market", "state", "phase", "iteration", "started_at", "ended_at", "usd", "of"]
_EVENTS = ["worker", "market", "kind", "happened_at", "detail"]

FIGURES = {
    "wall_s": ("time", short_duration),
    "usd": ("dollars", usd),
    "idle_share": ("idle", percent),
    "spot_idle_share": ("spot idle", percent),
    "losses": ("losses", "{:.0f}".format),
    "drafts_per_iteration": ("drafts an iteration", "{:.0f}".format),
}
"""Heading and format of the table's figures, by their name in the answer."""


@dataclass(frozen=True)
class TimeLine:
    """A policy's simulated run, from a Chrome trace; frames of all iterations, as in `DeviceCourse`.

    Attributes:
        ends: ends of iterations; columns iteration, ended_at. All times are seconds of the run.
    """

    policy: str
    text: str
    intervals: pd.DataFrame
    events: pd.DataFrame
    ends: pd.DataFrame

    def course(self, first: int, last: int) -> DeviceCourse:
        """Return the devices' work in iterations `first` to `last`, with the evaluations after them."""
        chosen = self.intervals.loc[self.intervals["iteration"].between(first, last)]
        chosen = chosen.assign(of=len(chosen)).tail(MOST_INTERVALS)
        begin, end = chosen["started_at"].min(), chosen["ended_at"].max()
        events = self.events.loc[self.events["happened_at"].between(begin, end)]
        return DeviceCourse(chosen, events, pd.DataFrame(), pd.DataFrame())

    def by_state(self) -> pd.DataFrame:
        """Return paid device time and dollars; columns market, state, device_s, usd."""
        spent: Any = self.intervals.assign(device_s=self.intervals["ended_at"] - self.intervals["started_at"])
        return spent.groupby(["market", "state"], as_index=False)[["device_s", "usd"]].sum()

    def utilisation(self) -> pd.DataFrame:
        """Return the shares of each market's paid time by state, as the query of recorded runs does.

        Evaluations are omitted; neighbouring iterations are merged if there are many.
        """
        done = self.intervals.loc[self.intervals["phase"] == "iteration"]
        together = max(1, -(-len(self.ends) // MOST_BARS))
        first = (done["iteration"] - 1) // together * together + 1
        spent = done.assign(first=first, device_s=done["ended_at"] - done["started_at"])
        sums = spent.groupby(["market", "first", "state"], as_index=False)["device_s"].sum()
        whole = sums.groupby(["market", "first"])["device_s"].transform("sum")
        last = (sums["first"] + together - 1).clip(upper=len(self.ends))
        return sums.assign(last=last, share=sums["device_s"] / whole)


@dataclass
class Asked:
    """A question and the JSON answer of `spotlight what-if --json`, kept in the visitor's session.

    Attributes:
        line: time line viewed last; None for a goal in hours.
    """

    question: Question
    answer: dict[str, Any]
    line: TimeLine | None = field(repr=False)

    @property
    def policies(self) -> list[dict[str, Any]]:
        """The answer's rows, one per policy."""
        return self.answer["policies"]

    @property
    def best(self) -> dict[str, Any]:
        """The recommended policy; a live run can follow it."""
        return next(row for row in self.policies if row["best"])


def read_time_line(policy: str, text: str) -> TimeLine:
    """Return a Chrome trace that `spotlight what-if --timeline` wrote, as frames."""
    events = json.loads(text)["traceEvents"]
    tracks = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    markets = {one["pid"]: one["args"]["name"].split()[1] for one in events if one["name"] == "process_name"}
    intervals = [
        (
            tracks[one["pid"], one["tid"]], markets[one["pid"]], one["name"], one["args"]["phase"],
            one["args"]["iteration"], one["ts"] / _US_PER_S, (one["ts"] + one["dur"]) / _US_PER_S,
            one["args"]["usd"], 0,
        )
        for one in events if one.get("cat") == "device"
    ]  # fmt: skip
    happened = [
        (tracks[one["pid"], one["tid"]], markets[one["pid"]], one["name"], one["ts"] / _US_PER_S, "")
        for one in events if one.get("cat") == "happened"
    ]  # fmt: skip
    ends = [
        (one["args"]["iteration"], (one["ts"] + one["dur"]) / _US_PER_S)
        for one in events if one.get("cat") == "run" and one["name"].startswith("iteration")
    ]  # fmt: skip
    return TimeLine(
        policy,
        text,
        pd.DataFrame(intervals, columns=_INTERVALS).sort_values(["started_at", "worker"], ignore_index=True),
        pd.DataFrame(happened, columns=_EVENTS),
        pd.DataFrame(ends, columns=["iteration", "ended_at"]),
    )


def policy_table(asked: Asked) -> pd.DataFrame:
    """Return the answer for display: a row per policy, each figure with its interval."""
    return pd.DataFrame(
        [
            {
                "policy": _named(row),
                **{heading: in_words(row, name) for name, (heading, _) in FIGURES.items() if name in row},
                "× time": _times(row, asked.best, "wall_s"),
                "× dollars": _times(row, asked.best, "usd"),
                "what it does": row["summary"],
            }
            for row in asked.policies
        ]
    )


def milestone_table(asked: Asked) -> pd.DataFrame:
    """Return the cost of each policy up to shares of the baseline's progress; empty without curves."""
    return pd.DataFrame(
        [
            {
                "policy": _named(row),
                **{
                    f"{each['share']:.0%}, a score of {each['score']:.3g}": _reached(each)
                    for each in row["milestones"]
                },
                "learning": _relative(row["milestones"][-1]["time_s"], "learning"),
                "system": _relative(row["milestones"][-1]["time_s"], "system"),
            }
            for row in asked.policies
            if row["milestones"]
        ]
    )


def milestone_figures(asked: Asked) -> pd.DataFrame:
    """Return the same as numbers, a row per policy and share; time and dollars have each kind of interval."""
    rows = [
        {"policy": row["policy"], "evidence": row["evidence"], "curves": asked.answer["curves_in_words"]}
        | {name: value for name, value in each.items() if name != "other_learner"}
        for row in asked.policies
        for each in row["milestones"]
    ]
    return pd.json_normalize(rows, sep="_")


def policy_figures(asked: Asked) -> pd.DataFrame:
    """Return the answer as numbers: each figure of a policy as median, lowest and highest of the futures."""
    spread, named = {"low", "median", "high"}, ("policy", "evidence", "best", "live")
    rows = [
        {
            name: value
            for name, value in row.items()
            if name in named or (isinstance(value, dict) and value.keys() >= spread)
        }
        for row in asked.policies
    ]
    return pd.json_normalize(rows, sep="_")


def in_words(row: dict[str, Any], name: str) -> str:
    """Return one of `FIGURES` of a policy: its median, with its interval in parentheses if it has one."""
    _, written = FIGURES[name]
    low, median, high = (written(row[name][part]) for part in ("low", "median", "high"))
    return median if low == high else f"{median} ({low} to {high})"


def _reached(milestone: dict[str, Any]) -> str:
    """Return time and dollars, with "at least" if some run seeds did not get there."""
    least = "≥ " if milestone["unreached"] else ""
    return f"{least}{short_duration(milestone['time_s']['median'])}, {usd(milestone['usd']['median'])}"


def _relative(figure: dict[str, Any], kind: str) -> str:
    median = figure["median"] or 1.0
    return f"× {figure[kind]['low'] / median:.1f} to {figure[kind]['high'] / median:.1f}"


def _named(row: dict[str, Any]) -> str:
    if row["best"]:
        return f"{row['policy']} ★"
    return row["policy"] if row["live"] else f"{row['policy']} (no live run)"  # simulation only


def _times(row: dict[str, Any], best: dict[str, Any], name: str) -> str:
    least = best[name]["median"]
    return f"{row[name]['median'] / least:.2f}" if least else ""


def policy_chart(policies: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Return a chart of dollars over time: a point per policy with its interval over the futures."""
    unit_s, unit = time_unit(max(row["wall_s"]["high"] for row in policies))
    figure = go.Figure()
    for number, row in enumerate(policies):
        time, dollars = row["wall_s"], row["usd"]
        figure.add_scatter(
            x=[time["median"] / unit_s], y=[dollars["median"]], name=row["policy"], mode="markers",
            marker={
                "size": 11,
                "color": RUN_COLOURS[number % len(RUN_COLOURS)],
                "symbol": RUN_SYMBOLS[number % len(RUN_SYMBOLS)],
            },
            error_x=_interval(time, unit_s), error_y=_interval(dollars),
            hovertemplate=f"{row['policy']}: %{{x:.3g}} {unit}, $%{{y:,.4r}}<extra></extra>",
        )  # fmt: skip
    return laid_out(
        figure, f"Dollars and time by policy {SIMULATED}", f"Time ({unit})", "US dollars",
        hovermode="closest", xaxis_rangemode="tozero", yaxis_rangemode="tozero", yaxis_tickprefix="$",
    )  # fmt: skip


def marked(figure: go.Figure) -> go.Figure:
    """Return the chart with a title that says that its figures are simulated."""
    title: Any = figure.layout["title"]
    return figure.update_layout(title_text=f"{title.text} {SIMULATED}")


def _interval(spread: Mapping[str, float], unit: float = 1.0) -> dict[str, Any]:
    median = spread["median"]
    return {
        "type": "data", "symmetric": False, "thickness": 1,
        "array": [(spread["high"] - median) / unit], "arrayminus": [(median - spread["low"]) / unit],
    }  # fmt: skip
