"""The live runs of the benchmark of reward hacking: which there are, each done once, and what it came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd

from benchmarks.exploration.curve_store import CurveStore, curve_name
from benchmarks.unguarded import unguarded
from flows.disturbed_run import start
from flows.progress import reporter
from storage.config.loading import load_config
from storage.errors import RunNotFoundError, RuntimeFailure
from storage.evaluations.quality import JUDGE, PART, quality_verdict
from storage.home import Home
from storage.record.queries.quality import figure_means, paired_figures
from storage.record.run_store import RunStore


@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        preset: its settings.
        scorer: its reward.
        strategy: of exploration; devices beside the trainer are its alone.
        quality: weight of a small file (`jpeg`) beside the reward's own: grain makes files large. Each is
            normalised in its prompt group first (GDPO, arXiv 2601.05242): files of one prompt differ by
            hundredths, and would not count.
        gate: what the reward's own score must reach before a small file counts; 0: it always does.
        recipe: settings of that arm beside the term of quality; the preset's, where that has guards.
        kl_weight: of the arm `kl`, which nothing else holds; of tasks that have it.
        arms: of `GUARDS`; none means all.
    """

    preset: str
    scorer: str
    strategy: str
    quality: float
    gate: float
    recipe: tuple[str, ...]
    kl_weight: float = 0.0
    arms: tuple[str, ...] = ()

    @property
    def settings(self) -> tuple[str, ...]:
        """On top of the preset's, in all arms."""
        if self.strategy == "plain":
            return ("exploration.strategy=plain", "runtime.spot_workers=0")
        explores = (f"exploration.strategy={self.strategy}", "runtime.spot_workers=1")
        return (*unguarded(self.scorer), *explores)

    @property
    def with_quality(self) -> tuple[str, ...]:
        """The reward with a term of quality."""
        small = f"{{weight={self.quality:g}, gate={{{self.scorer}={self.gate:g}}}}}"
        part = small if self.gate else f"{self.quality:g}"
        return (
            "reward.scorer=sum", f"reward.options.parts={{{self.scorer}={1 - self.quality:g}, jpeg={part}}}",
            "reward.options.normalise=group", "reward.signal=graded",
        )  # fmt: skip


TASKS = {
    "glyphs": Task(
        "glyphs", "ocr", "plain", quality=0.15, gate=1.0, kl_weight=0.04,
        recipe=("algorithm.kl_weight=0.002", "algorithm.advantage_std=batch", "sampling.sde=cps"),
    ),
    "shapes": Task(
        "shapes-stale", "shapes", "stale", quality=0.1, gate=0.0, kl_weight=0.1,
        recipe=("algorithm.kl_weight=0.02",),
    ),
    "demo": Task(
        "glyphs-stale", "ocr", "stale", quality=0.1, gate=1.0, recipe=("algorithm.kl_weight=0.003",),
        arms=("unguarded", "recipe"),
    ),
}  # fmt: skip
"""Flow-GRPO, DiffusionNFT, and what `make demo` runs. Without exploration shapes gain so little that no arm
could keep a share of it."""

_ALL = (
    "runtime.cluster=local", "runtime.reserved_workers=1", "runtime.scorer_workers=1",
    "runtime.start_timeout_s=600",
    "evaluation.judge=templates", "evaluation.on_alarm=warn", "evaluation.images_per_prompt=2",
)  # fmt: skip
_LORA = ("adaptation.mode=lora", "adaptation.rank=16")

HACKING: Mapping[str, tuple[str, ...]] = {
    "long": ("optimizer.learning_rate=3e-4",),
    "jpeg": ("reward.scorer=jpeg",),
}
"""Arms of glyphs that hack: OCR without KL, at twice the preset's learning rate and for twice as many
iterations; a small file, as an image without any text has."""

GUARDS: Mapping[str, tuple[str, ...]] = {
    "unguarded": (),
    "kl": (),
    "quality": (),
    "average": ("optimizer.ema_decay=0.97",),
    "lora": (*_LORA, "optimizer.learning_rate=5e-4"),
    "cps": ("sampling.sde=cps",),
    "recipe": ("optimizer.ema_decay=0.9",),
}
"""Arms of tasks; `kl`, those of `WITH_QUALITY` and `recipe` have besides what their task says. The presets
average over fewer updates than `average` (0.9 and 0.7). On glyphs that is the same: the average warms up for
longer than these runs last."""

WITH_QUALITY = ("quality", "recipe")
"""With a term of quality in the reward."""

COMPARED = ("quality", "average", "lora", "cps")
"""Arms of one guard that are only compared with the recipe."""

FEWER_SEEDS: Mapping[str, int] = {**dict.fromkeys(COMPARED, 1), **dict.fromkeys(HACKING, 2)}
"""Run seeds of arms that no interval is asked of."""

SOUND = ("kl", "recipe")
"""Arms in which no alarm is to be raised: with three seeds of the three tasks, 15 runs."""


@dataclass(frozen=True)
class Length:
    """How long runs are.

    Attributes:
        iterations: of a run; of the arm `long`, twice as many.
        every: iterations between evaluations; a hacking run has them twice as often.
        prompts: that are held out.
    """

    iterations: int = 32
    every: int = 4
    prompts: int = 96


FULL, QUICK = Length(), Length(4, 2, 16)


@dataclass(frozen=True)
class Wanted:
    """A run.

    Attributes:
        task: of `TASKS`.
        arm: of `HACKING` or `GUARDS`.
        seed: of the run.
        length: of it.
    """

    task: str
    arm: str
    seed: int
    length: Length

    @property
    def key(self) -> tuple[str, str, int]:
        """Task, arm and run seed."""
        return self.task, self.arm, self.seed

    @property
    def part(self) -> str:
        """What `--parts` calls it, with all its seeds."""
        return f"{self.task}-{self.arm}"

    @property
    def preset(self) -> str:
        """The task's."""
        return TASKS[self.task].preset

    @property
    def settings(self) -> list[str]:
        """On top of the task's preset."""
        often = 2 if self.arm in HACKING else 1
        length = 2 * self.length.iterations if self.arm == "long" else self.length.iterations
        task = TASKS[self.task]
        settings = [
            f"seed={self.seed}", f"iterations={length}", f"evaluation.every={self.length.every // often}",
            f"evaluation.prompts={self.length.prompts}", *_ALL, *task.settings,
            *{**HACKING, **GUARDS}[self.arm],
        ]  # fmt: skip
        if self.arm == "kl":
            settings.append(f"algorithm.kl_weight={task.kl_weight:g}")
        if self.arm == "recipe":
            settings += task.recipe
        if self.arm in WITH_QUALITY:
            settings += task.with_quality
        return settings

    @property
    def name(self) -> str:
        """What its course is kept as: the same for the same settings alone."""
        return curve_name(self.part, load_config(self.preset, self.settings, {}))

    def run_id(self, commit: str) -> str:
        """What the run of a commit's code is called in the home."""
        return f"hacking-{self.name}-{commit}"


@dataclass(frozen=True)
class Course:
    """What a run's evaluations show, in order; the first is of the untouched model.

    Attributes:
        iterations: that they follow.
        score: of the reward's own scorer, without a term of quality.
        judge, distance, grain: means of the figures `judge`, `truth_distance` and `grain`.
        alarms: the iterations whose evaluation raises the alarm.
    """

    iterations: tuple[int, ...]
    score: tuple[float, ...]
    judge: tuple[float, ...]
    distance: tuple[float, ...]
    grain: tuple[float, ...]
    alarms: tuple[int, ...]


def wanted_runs(seeds: int, length: Length, parts: Iterable[str] = ()) -> list[Wanted]:
    """All runs, seed by seed, so that what is interrupted has every arm.

    Args:
        seeds: how many run seeds; an arm of `FEWER_SEEDS` has the first of them.
        length: of the runs.
        parts: only these, as `Wanted.part` has them; none means all.
    """
    guarded = [(name, arm) for name, task in TASKS.items() for arm in task.arms or GUARDS]
    arms = [("glyphs", arm) for arm in HACKING] + guarded
    every = [
        Wanted(task, arm, seed, length)
        for seed in range(seeds)
        for task, arm in arms
        if seed < FEWER_SEEDS.get(arm, seeds)
    ]
    chosen = set(parts)
    return [want for want in every if not chosen or want.part in chosen]


def do_runs(
    home: Home, store: CurveStore[Course], wanted: Sequence[Wanted], processes: int
) -> dict[tuple[str, str, int], Course]:
    """Do each run whose course is not kept; one that was interrupted is resumed.

    Args:
        home: of the runs.
        store: of their courses.
        wanted: which.
        processes: runs at a time; 0 does none.

    Returns:
        The courses by task, arm and run seed.

    Raises:
        RuntimeFailure: one of them failed.
    """
    if not processes:
        return {}
    with ThreadPoolExecutor(processes) as pool:
        calls = {want.key: pool.submit(_do, home, store, want) for want in wanted}
        try:
            return {name: call.result() for name, call in calls.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what waits does not begin
            raise


def _do(home: Home, store: CurveStore[Course], want: Wanted) -> Course:
    if (kept := store.load(want.name)) is not None:
        return kept
    run_id = want.run_id(store.commit)
    status = status_of(home, run_id)
    if status is None:
        chosen = [part for setting in want.settings for part in ("--set", setting)]
        arguments = ["train", "--preset", want.preset, "--run-id", run_id, *chosen]
    else:
        arguments = ["resume", run_id]
    if status != "finished":
        reporter().note(f"{arguments[0]} {run_id}")
        if start(home, *arguments).wait() != 0 or status_of(home, run_id) != "finished":
            raise RuntimeFailure(
                f"run {run_id} did not finish; look at it with `spotlight runs`, then start again"
            )
    course = course_of(home, run_id, TASKS[want.task].scorer)
    store.save(want.name, course)
    return course


def status_of(home: Home, run_id: str) -> str | None:
    """How a run stands; None where it never began."""
    try:
        return RunStore(home).run(run_id).status
    except RunNotFoundError:
        return None


def course_of(home: Home, run_id: str, scorer: str) -> Course:
    """What a run shows so far, finished or not.

    Args:
        home: of the run.
        run_id: its name.
        scorer: the score is this one's, where the reward has other parts.
    """
    with RunStore(home).records.reading(run_id) as connection:
        means = figure_means(connection, run_id)
        scores = connection.execute(
            "SELECT iteration, score FROM evaluations WHERE run_id = ? ORDER BY iteration", [run_id]
        ).df()
        verdicts = {
            iteration: quality_verdict(paired_figures(connection, run_id, iteration))
            for iteration in scores["iteration"].tolist()[1:]
        }
    alarms = [number for number, verdict in verdicts.items() if verdict is not None and verdict.is_hacking]
    own = f"{PART}{scorer}"
    return Course(
        iterations=tuple(scores["iteration"].tolist()),
        score=_values(means, own) if own in means else _values(scores, "score"),
        judge=_values(means, JUDGE),
        distance=_values(means, "truth_distance"),
        grain=_values(means, "grain"),
        alarms=tuple(alarms),
    )


def _values(frame: pd.DataFrame, name: str) -> tuple[float, ...]:
    return tuple(float(value) for value in frame[name].tolist())
