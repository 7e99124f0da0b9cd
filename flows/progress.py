"""Progress reports of a run: a bar on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from flows import output
from storage.environment import MODELLED
from storage.record.records import EvaluationRecord, IterationRecord
from storage.record.results import too_short

_SPEED_PERIOD_S = 7 * 86_400.0
"""Seconds of iterations from which the time left is estimated: rich's default of 30 s may hold none."""


OnIteration = Callable[[int, Mapping[str, float]], object]


class _NotebookBar(Progress):
    """A bar in a notebook's cell: one output of plain text, which IPython replaces; without ipywidgets."""

    _shown: Any = None

    def start(self) -> None:
        """Show it."""
        from IPython.display import display

        self._shown = display(self._text(), raw=True, display_id=True)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task, and show it."""
        super().update(task_id, **changes)
        self._shown.update(self._text(), raw=True)

    def stop(self) -> None:
        """Leave the last state shown."""

    def _text(self) -> dict[str, str]:
        screen = output.console(width=self.console.width, plain=True)
        with screen.capture() as captured:
            screen.print(self.get_renderable())
        return {"text/plain": captured.get().rstrip()}


class Reporter:
    """A reporter of a run's events to a console."""

    def __init__(self, console: Console | None = None) -> None:
        self.on_iteration: OnIteration | None = None
        """Called with each committed iteration's number and metrics; its exceptions end the run."""
        self._console = console or output.console()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._total = 0
        self._started = time.monotonic()
        self._gives_verdict = True

    def note(self, message: str) -> None:
        """Print one line for the user."""
        self._console.print(message, highlight=False, markup=False, emoji=False, soft_wrap=True)

    @contextmanager
    def stage(self, doing: str) -> Iterator[None]:
        """Show a part of the start on a terminal while it runs, then print a line with the time it took."""
        began = time.monotonic()
        with self._console.status(Text(f"{doing} ...")) if self._console.is_terminal else nullcontext():
            yield
        self.note(f"{time.monotonic() - began:6.1f} s  {doing}")

    def begin(self, run_id: str, total: int, done: int, gives_verdict: bool = True) -> None:
        """Report that a run starts, or resumes after `done` of `total` iterations.

        Args:
            gives_verdict: True if its scorer calls some images exact; otherwise no line mentions them.
        """
        self._total, self._gives_verdict = total, gives_verdict
        self._started = time.monotonic()
        self.note(f"run {run_id}: iteration {done} of {total}")
        if not (self._console.is_terminal or self._console.is_jupyter):
            return
        kind = _NotebookBar if self._console.is_jupyter else Progress
        self._bar = kind(
            TextColumn("{task.fields[phase]:8}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("left"),
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=self._console,
            expand=True,  # the description alone is cut on a narrow terminal
            speed_estimate_period=_SPEED_PERIOD_S,
        )
        self._task = self._bar.add_task("training", total=total, completed=done, phase="")
        self._bar.advance(self._task, 0)  # from here on the first iteration's time counts
        self._bar.start()

    def phase(self, name: str) -> None:
        """Report the start of a phase; plain lines leave it out."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, phase=name)

    def iteration(self, record: IterationRecord) -> None:
        """Report a finished iteration."""
        metrics = record.metrics
        failed = metrics.get("groups_failed", 0.0)
        unscored = f", {failed:.0f} not scored" if failed else ""
        text = (
            f"reward {metrics['reward_mean']:.3f}{self._exact(', exact {:.0%}', metrics['exact_share'])}, "
            f"{metrics['groups_dropped']:.0f} groups without signal{unscored}, "
            f"{metrics['iteration_s']:.1f} s"
        )
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=record.iteration, description=text)
        else:
            elapsed = time.monotonic() - self._started
            self.note(f"[{elapsed:5.0f} s] iteration {record.iteration}/{self._total}: {text}")
        if self.on_iteration is not None:
            self.on_iteration(record.iteration, dict(metrics))

    def _exact(self, form: str, *shares: float) -> str:
        return form.format(*shares) if self._gives_verdict else ""

    def evaluation(self, record: EvaluationRecord, compared: int) -> None:
        """Report a held-out evaluation, whose score is over the `compared` prompts of all of them."""
        failed = sum(image.error is not None for image in record.images)
        unscored = f", the scorer failed on {failed} of them" if failed else ""
        self.note(
            f"held-out after iteration {record.iteration}: score {record.score:.3f}"
            f"{self._exact(', exact match {:.1%}', record.exact)} over the {compared} prompts of each "
            f"evaluation ({len(record.images)} images{unscored})"
        )

    def result(self, result: Mapping[str, Any]) -> None:
        """Print a finished run's result: the figures of `storage.record.results` as text."""
        if result["score_before"] is not None:
            exact = [result[name] for name in ("exact_before", "exact_after") if name in result]
            self.note(
                f"held-out score {result['score_before']:.3f} -> {result['score_after']:.3f}"
                f"{', exact matches {:.1%} -> {:.1%}'.format(*exact) if exact else ''} over "
                f"{result['held_out_prompts']} prompts in {result['iterations']} iterations, "
                f"{result['wall_s'] / 60:.1f} min"
            )
            if short := too_short(result["iterations"]):
                self.note(f"{short}; the difference in scores is not meaningful yet")
        if result["drafts"]:
            gain = result["variance_gain"]
            by = ", by their drafts" if result["variance_gain_by"] == "drafts" else ""
            more = f"; kept groups have {gain:.1f}x the variance of random ones{by}" if gain else ""
            self.note(f"exploration judged {result['drafts']:,} drafts{more}")
        if result["spot_idle"] is not None:
            self.note(f"spot devices idled {result['spot_idle']:.1%} of their paid time")
        mark = f" {MODELLED}" if result.get("prices") == "modelled" else ""
        self.note(f"cost at the prices of the settings: ${result['cost_usd']:.2f}{mark}")
        if result["judge_usd"]:
            self.note(f"the judge's answers, at usd_per_image: ${result['judge_usd']:.2f}")
        if result["groups_dropped"] and not result["training_steps"]:
            failed = result["groups_failed"]
            unscored = f", and {failed} were not scored" if failed else ""
            equal = f"{result['groups_dropped']} prompt groups had equal scores"
            self.note(f"no weight changed: {equal}{unscored}; check the reward")

    def end(self) -> None:
        """Report the end of the run."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


_reporter: Reporter | None = None


def reporter() -> Reporter:
    """Return the process's reporter; a flow that Prefect started has plain lines."""
    global _reporter
    if _reporter is None:
        _reporter = Reporter()
    return _reporter


@contextmanager
def calling(on_iteration: OnIteration | None) -> Iterator[None]:
    """Call a function after each committed iteration of the runs that the context trains."""
    current = reporter()
    current.on_iteration = on_iteration
    try:
        yield
    finally:
        current.on_iteration = None


def use(other: Reporter) -> None:
    """Report to another reporter from now on."""
    global _reporter
    _reporter = other
