"""The answer of `spotlight what-if --json` as text: for a terminal, and as an artifact in the Prefect UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table


def print_answer(result: Mapping[str, Any], screen: Console) -> None:
    """Print a table of policies, their cost up to a score, and the basis of both."""
    screen.print(result["answer"], soft_wrap=True)
    print_tables(result, screen)
    for line in filter(None, (result["counted_in_words"], *result["conclusions"])):
        screen.print(line, soft_wrap=True)
    screen.print()
    for line in (*(f"{row['policy']}: {row['summary']}" for row in result["policies"]), *result["basis"]):
        screen.print(line, soft_wrap=True)


def print_tables(result: Mapping[str, Any], screen: Console) -> None:
    """Print a table of policies and one of their cost up to a score, if it is known."""
    from tasks.what_if_answer import time_unit

    table = Table(
        box=SIMPLE,
        pad_edge=False,
        title=f"{result['evidence'].capitalize()}: {result['iterations']} iterations, {result['reserved']} "
        f"reserved and {result['spot']} spot devices",
        caption=f"medians; below them the lowest and highest of {result['futures']} futures\n"
        "* cheapest policy that a live run can follow; on a tie, the one with the most drafts\n"
        "† simulated only: no live run can follow it",
    )
    table.add_column("policy", no_wrap=True)
    for name in ("time", "dollars", "idle", "spot idle", "losses", "drafts"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["policies"]:
        table.add_row(
            f"{_named(row)}{' *' if row['best'] else ''}",
            _spread(row["wall_s"], *time_unit(row["wall_s"]["median"])),
            _spread(row["usd"], "${:,.2f}" if row["usd"]["median"] < 20 else "${:,.0f}"),
            _spread(row["idle_share"], "{:.0%}"),
            _spread(row["spot_idle_share"], "{:.0%}"),
            _spread(row["losses"], "{:.0f}"),
            _spread(row["drafts_per_iteration"], "{:.0f}"),
        )
    screen.print(table)
    if known := [row for row in result["policies"] if row["milestones"]]:
        screen.print(_milestone_table(result, known))


def _named(row: Mapping[str, Any]) -> str:
    return row["policy"] if row["live"] else f"{row['policy']} †"


def _milestone_table(result: Mapping[str, Any], known: list[dict[str, Any]]) -> Table:
    """Return the cost of the policies up to shares of the baseline's progress."""
    from tasks.what_if_answer import dollars, duration

    curves, other = result["curves"]["name"], result["other_learner"]
    table = Table(
        box=SIMPLE,
        pad_edge=False,
        title=f"To a share of the baseline's progress, by the curves {curves}{other and ','}\n{other}",
        caption=(
            "medians; learning: iterations over run seeds; system: an iteration\n"
            "over futures; lowest and highest over the median, to the last score\n"
            "≥: some run seeds did not get there"
        ),
    )
    table.add_column("policy", no_wrap=True)
    for each in known[0]["milestones"]:
        table.add_column(f"{each['share']:.0%}\n{each['score']:.3g}", justify="right", no_wrap=True)
    for name in ("learning", "system"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in known:
        cells = []
        for each in row["milestones"]:
            least = "≥" if each["unreached"] else ""
            time, usd = duration(each["time_s"]["median"]), dollars(each["usd"]["median"])
            cells.append(f"{least}{time}\n{least}{usd}")
        last = row["milestones"][-1]["time_s"]
        middle = last["median"] or 1.0
        for kind in ("learning", "system"):  # relative to the median
            cells.append(f"×{last[kind]['low'] / middle:.1f}–{last[kind]['high'] / middle:.1f}")
        table.add_row(_named(row), *cells)
    return table


def _spread(spread: Mapping[str, float], form: str, unit: float = 1.0) -> str:
    """Return a figure with its interval below it, or alone if it has none."""
    low, median, high = (form.format(spread[end] / unit) for end in ("low", "median", "high"))
    bare = str.maketrans("", "", "$% minhds")
    return median if low == high else f"{median}\n{low.translate(bare)}–{high.translate(bare)}"
