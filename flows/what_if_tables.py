"""The answer of what-if as text: for a terminal, and as an artifact in the Prefect UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # it imports numpy and the simulator
    from tasks.what_if_answer import PolicyAnswer, Spread, WhatIf


def print_answer(result: WhatIf, screen: Console) -> None:
    """Print a table of policies, their cost up to a score, and the basis of both."""
    from tasks.what_if_answer import basis, conclusions, counted_in_words, headline

    screen.print(headline(result), soft_wrap=True)
    print_tables(result, screen)
    counted = counted_in_words(result)
    for line in [*([counted] if counted else []), *conclusions(result)]:
        screen.print(line, soft_wrap=True)
    screen.print()
    for line in [*(f"{each.policy.name}: {each.policy.summary}" for each in result.answers), *basis(result)]:
        screen.print(line, soft_wrap=True)


def print_tables(result: WhatIf, screen: Console) -> None:
    """Print a table of policies and one of their cost up to a score, if it is known."""
    from tasks.what_if_answer import time_unit

    asked = result.asked
    table = Table(
        box=SIMPLE,
        pad_edge=False,
        title=f"{result.evidence.capitalize()}: {asked.config.iterations} iterations, {asked.offer.reserved} "
        f"reserved and {asked.offer.spot} spot devices",
        caption=f"medians; below them the lowest and highest of {asked.futures} futures\n"
        "* least dollars of what a live run can do; of equals the most drafts\n"
        "† only simulated: no live run does it",
    )
    table.add_column("policy", no_wrap=True)
    for name in ("time", "dollars", "idle", "spot idle", "losses", "drafts"):
        table.add_column(name, justify="right", no_wrap=True)
    for answer in result.answers:
        row = answer.figures
        table.add_row(
            f"{_named(answer)}{' *' if answer.best else ''}",
            _spread(row["wall_s"], *time_unit(row["wall_s"].median)),
            _spread(row["usd"], "${:,.2f}" if row["usd"].median < 20 else "${:,.0f}"),
            _spread(row["idle_share"], "{:.0%}"),
            _spread(row["spot_idle_share"], "{:.0%}"),
            _spread(row["losses"], "{:.0f}"),
            _spread(row["drafts_per_iteration"], "{:.0f}"),
        )
    screen.print(table)
    _show_milestones(screen, result)


def _named(answer: PolicyAnswer) -> str:
    """Return the name of a policy for the tables."""
    return f"{answer.policy.name} †" if answer.policy.only_simulated else answer.policy.name


def _show_milestones(screen: Console, result: WhatIf) -> None:
    """Print the cost of each policy up to a score, if it is known."""
    from tasks.what_if_answer import dollars, duration, other_learner

    curves = result.curves
    found = {_named(answer): result.milestones(answer) for answer in result.answers}
    known = {name: rows for name, rows in found.items() if rows}
    other = other_learner(curves, result.model)
    if curves is None or not known:
        return
    table = Table(
        box=SIMPLE,
        pad_edge=False,
        title=f"To a share of the baseline's progress, by the curves {curves.name}{other and ','}\n{other}",
        caption=(
            "medians; learning: iterations over run seeds; system: an iteration\n"
            "over futures; lowest and highest over the median, to the last score\n"
            "≥: some run seeds did not get there"
        ),
    )
    table.add_column("policy", no_wrap=True)
    for each in next(iter(known.values())):
        table.add_column(f"{each.share:.0%}\n{each.score:.3g}", justify="right", no_wrap=True)
    for name in ("learning", "system"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, rows in known.items():
        cells = []
        for each in rows:
            least = "≥" if each.unreached else ""
            cells.append(f"{least}{duration(each.time_s)}\n{least}{dollars(each.usd)}")
        last = rows[-1]
        table.add_row(name, *cells, _relative(last.iterations), _relative(last.iteration_s))
    screen.print(table)


def _relative(spread: Spread) -> str:
    """Return the ends of an interval relative to its median."""
    middle = spread.median or 1.0
    return f"×{spread.low / middle:.1f}–{spread.high / middle:.1f}"


def _spread(spread: object, form: str, unit: float = 1.0) -> str:
    """Return a figure with its interval below it, or alone if it has none."""
    low, median, high = (form.format(getattr(spread, name) / unit) for name in ("low", "median", "high"))
    bare = str.maketrans("", "", "$% minhds")
    return median if low == high else f"{median}\n{low.translate(bare)}–{high.translate(bare)}"
