"""`spotlight what-if`: time and cost of a run on a fleet, by policy, before anything is rented."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from flows.cli.options import Preset, Sets, takes_question
from flows.configuration import given_configuration
from flows.output import console
from flows.run_identity import new_run_id
from storage.config.what_if import WhatIfQuestion
from storage.errors import ConfigurationError, quoted
from storage.home import Home
from storage.new_folder import writable_file
from storage.record.run_store import RunStore

if TYPE_CHECKING:  # it imports numpy and the simulator
    from tasks.what_if_answer import Goal, PolicyAnswer, Profile, Spread, WhatIf


_PRESETS = "the preset's"
_TIMES = "NAME|FILE|RUN"


@takes_question(
    reserved={"show_default": _PRESETS}, spot={"show_default": _PRESETS},
    trainers={"show_default": f"{_PRESETS}, else all"}, iterations={"show_default": _PRESETS},
    gpu={"metavar": "KIND[,SPOT]"}, degree={"metavar": "N|auto"}, trace={"metavar": "FILE"},
    price={"metavar": "RESERVED,SPOT"}, prices={"metavar": "FILE"}, serving={"metavar": "BUSY,SWING,SLACK"},
    profile={"metavar": _TIMES}, spot_profile={"metavar": _TIMES}, policies={"metavar": "NAME,NAME"},
    curve={"metavar": f"{_TIMES},RUN"},
)  # fmt: skip
def what_if(
    *,
    preset: Preset = None,
    set_: Sets = None,
    question: WhatIfQuestion,
    hours: Annotated[
        float | None,
        typer.Option(min=0.01, help="Find the fewest spot devices with which a run ends in so many hours."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write one simulated run as a Chrome trace, for ui.perfetto.dev."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Policy whose run --timeline writes (else the best one's) or --record enters (else all).",
        ),
    ] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Enter simulated runs into the home, marked, for dashboard and report.",
        ),
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress", hidden=True, help="A line on standard error for each run.")
    ] = False,
) -> None:
    """Model what a run would take and cost: reserved, on demand, spot, exploring or not."""
    if hours is not None:
        given = {"--spot": question.given("spot"), "--policies": question.given("policies")}
        given |= {"--timeline": timeline, "--record": record or None}
        if named := [option for option, value in given.items() if value is not None]:
            raise ConfigurationError(
                f"--hours finds the number of spot devices of one policy; leave {', '.join(named)} out"
            )
        # A price book has a price of spot devices only for a run that has some.
        question = question.model_copy(update={"spot": question.per_instance or 1})
    config = given_configuration(preset, [*(set_ or []), *question.as_settings()], needs_task=record)
    from tasks.what_if import runs_of, simulation

    home = Home.from_environment()
    asked = simulation(home, config, question)
    if hours is not None:
        _show_goal(asked.spot_for(hours), asked.asked.profile, as_json)
        return
    compared = asked.policies()
    if timeline is None and policy is not None and not record:
        raise ConfigurationError(
            f"--policy {quoted(policy)} says whose time line is written; give its file by --timeline"
        )
    drawn = None if timeline is None else writable_file(timeline, "--timeline")
    if drawn is not None or (record and policy is not None):
        asked.refuse_time_line(policy, compared)
    if record:
        asked.refuse_long()
    with _progress(runs_of(question.windows, compared), progress) as on_run:
        result = asked.answer(compared, on_run)
    if drawn is not None:
        name = policy or next(one.policy.name for one in result.answers if one.best)  # there is one
        drawn.write_text(json.dumps(asked.time_line(name)))
    entered: dict[str, str] = {}
    for one in [one for one in compared if record and policy in (None, one.name)]:
        entered[one.name] = run_id = new_run_id(f"simulated-{one.name}")
        asked.record(RunStore(home.ensure()), run_id, one)
    if as_json:
        typer.echo(json.dumps({**result.to_json(), **({"recorded": entered} if record else {})}))
    else:
        show(result)
    for run_id in entered.values():
        typer.echo(f"entered as run {run_id}", err=True)


def _show_goal(goal: Goal, profile: Profile, as_json: bool) -> None:
    """Print the fewest spot devices with which a run ends in time, and what was tried."""
    from tasks.what_if_answer import goal_in_words, profile_in_words, run_in_words

    evidence = "counted" if profile.is_counted else "modelled"
    said = goal_in_words(goal, evidence)
    basis = [f"prices: {goal.prices}", *profile_in_words(profile)]
    if as_json:
        answer = {"modelled": True, "evidence": evidence, "answer": said, "basis": basis}
        typer.echo(json.dumps({**answer, "goal": goal.to_json()}))
        return
    screen = console()
    for spot, answer in goal.tried:
        screen.print(f"{spot:>4} spot devices: {run_in_words(answer)}", soft_wrap=True)
    for line in (said, *basis):
        screen.print(line, soft_wrap=True)


@contextmanager
def _progress(runs: int, in_lines: bool) -> Iterator[Callable[[], None]]:
    """Yield a callback for each simulated run: it moves a bar on a terminal, or writes a line."""
    if in_lines:
        done = itertools.count(1)
        yield lambda: typer.echo(f"simulated {next(done)} of {runs}", err=True)
        return
    screen = console(stderr=True)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=runs)
        yield lambda: bar.advance(task)


def show(result: WhatIf) -> None:
    """Print a table of policies, their cost up to a score, and the basis of both."""
    from tasks.what_if_answer import basis, conclusions, counted_in_words, headline, time_unit

    screen, asked = console(), result.asked
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
    screen.print(headline(result), soft_wrap=True)
    screen.print(table)
    if counted := counted_in_words(result):
        screen.print(counted, soft_wrap=True)
    _show_milestones(screen, result)
    for line in conclusions(result):
        screen.print(line, soft_wrap=True)
    screen.print()
    for line in [*(f"{each.policy.name}: {each.policy.summary}" for each in result.answers), *basis(result)]:
        screen.print(line, soft_wrap=True)


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
