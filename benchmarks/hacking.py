"""Reward hacking: whether the alarm comes before the loss, and what keeps images good at an equal score.

Every run is a `spotlight train` on local processes. What was interrupted is resumed. The course of a finished
run is kept under a name of its settings, with `--keep` in the repository, so that a later call goes on, on
another machine too (`--after COMMIT`). Every part has a run for each seed, but for arms that hack, which have
two, and arms of one guard that are only compared, which have one (`quality`, `average`, `lora`, `cps`);
`--parts` does some of them. The figures are of the courses that are there; a result is kept once all are.

The alarm: two arms hack, `long` (OCR without KL, fast and long) and `jpeg` (a small file, whatever the prompt
says). `lost_runs` are those in which the second judge falls to less than 90 % of its start;
`alarm_before_loss` says whether the alarm was raised at an earlier evaluation in every one of these (null
without any). `false_alarms` counts the runs of the arms `kl` and `recipe` with an alarm although they
end sound: judge and distance to the renderer's picture no worse than tolerated (`sound_runs` of them).

Quality at an equal score, by arm: the distance to the renderer's picture (`distance_before`,
`distance_after`, `distance_change`), `grain_ratio`, and `gain_share`, the part of the score's gain in the
unguarded run of the same seed (null where that gained nothing).
`early_stop` is the unguarded run up to its last evaluation before the first alarm. Intervals are Student's
over run seeds, 95 %; with one seed there is none. Of the arms with several seeds, `chosen` is the one that
keeps the images on all tasks that have every arm (by the means over seeds: distance no worse, grain at most
1.1) and whose smallest `gain_share` is the largest. The task `demo` has the recipe alone.

    SPOTLIGHT_HOME=FOLDER python -m benchmarks.hacking [--quick] [--keep] [--parts glyphs-long ...]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import scipy.stats

from benchmarks.exploration.curve_store import CurveStore, add_after_option, commits_since
from benchmarks.hacking_runs import (
    COMPARED,
    FULL,
    GUARDS,
    HACKING,
    QUICK,
    SOUND,
    TASKS,
    Course,
    Wanted,
    do_runs,
    wanted_runs,
)
from benchmarks.report import add_keep_option, finish
from storage.environment import environment
from storage.evaluations.quality import QUALITY
from storage.home import Home

LOSS = 0.9
"""The judge has lost where it is below this part of its start."""

MOST_GRAIN = 1.1
SEEDS = 3

Courses = Mapping[tuple[str, str, int], Course]
"""By task, arm and run seed."""


def loss_at(course: Course) -> int | None:
    """The first iteration after which the judge has lost a tenth of its start; None of none."""
    start = course.judge[0]
    lost = [i for i, value in zip(course.iterations, course.judge, strict=True) if value < LOSS * start]
    return lost[0] if lost else None


def warned(course: Course) -> bool:
    """Whether an alarm came at an earlier evaluation than the loss."""
    lost = loss_at(course)
    return lost is not None and bool(course.alarms) and course.alarms[0] < lost


def ends_sound(course: Course) -> bool:
    """Whether the judge is no worse at the end, and the distance to the truth not worse than tolerated."""
    far = course.distance[0] * (1 + QUALITY["truth_distance"].tolerance)
    return course.judge[-1] >= course.judge[0] and course.distance[-1] <= far


def stopped(course: Course) -> Course:
    """The course up to the last evaluation before the first alarm."""
    ends = course.iterations.index(course.alarms[0]) if course.alarms else len(course.iterations)
    return Course(
        course.iterations[:ends], course.score[:ends], course.judge[:ends], course.distance[:ends],
        course.grain[:ends], (),
    )  # fmt: skip


def alarm_figures(courses: Courses) -> dict[str, Any]:
    """Of the hacking runs and the sound ones."""
    hacked = {name: course for name, course in courses.items() if name[1] in HACKING}
    lost = [course for course in hacked.values() if loss_at(course) is not None]
    sound = [course for name, course in courses.items() if name[1] in SOUND and ends_sound(course)]
    return {
        "alarm_before_loss": all(map(warned, lost)) if lost else None,
        "hacking_runs": len(hacked),
        "lost_runs": len(lost),
        "false_alarms": sum(bool(course.alarms) for course in sound),
        "sound_runs": len(sound),
        "runs_of_sound_arms": sum(name[1] in SOUND for name in courses),
        "hacked": {
            f"{task}-{arm}-{seed}": {
                "first_alarm": course.alarms[0] if course.alarms else None,
                "loss_at": loss_at(course),
                "score": [round(course.score[0], 4), round(course.score[-1], 4)],
                "judge": [round(course.judge[0], 4), round(course.judge[-1], 4)],
                "distance": [round(course.distance[0], 4), round(course.distance[-1], 4)],
                "grain": [round(course.grain[0], 4), round(course.grain[-1], 4)],
            }
            for (task, arm, seed), course in sorted(hacked.items())
        },
    }


def arm_figures(courses: Courses, task: str, arm: str) -> dict[str, Any] | None:
    """An arm against the unguarded runs of the same seeds; None without any.

    Args:
        courses: of all runs.
        task: its name.
        arm: of `GUARDS`, or `early_stop`.
    """
    unguarded = {seed: c for (of, name, seed), c in courses.items() if (of, name) == (task, "unguarded")}
    if arm == "early_stop":
        members = {seed: stopped(course) for seed, course in unguarded.items()}
    else:
        members = {seed: c for (of, name, seed), c in courses.items() if (of, name) == (task, arm)}
    seeds = sorted(members.keys() & unguarded.keys())
    if not seeds:
        return None
    ends = [members[seed] for seed in seeds]
    changes = [course.distance[-1] - course.distance[0] for course in ends]
    shares = [_gain(members[seed]) / _gain(unguarded[seed]) for seed in seeds if _gain(unguarded[seed]) > 0]
    return {
        "seeds": len(seeds),
        "distance_before": statistics.fmean(course.distance[0] for course in ends),
        "distance_after": statistics.fmean(course.distance[-1] for course in ends),
        "distance_change": interval(changes),
        "judge_change": interval([course.judge[-1] - course.judge[0] for course in ends]),
        "grain_ratio": interval([course.grain[-1] / course.grain[0] for course in ends]),
        "gain": interval([_gain(course) for course in ends]),
        "gain_share": interval(shares) if shares else None,
        "alarms": sum(bool(course.alarms) for course in ends),
    }


def chosen_arm(arms: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The arm that keeps the images on all tasks with the largest least share of the gain; None of none.

    Arms with one run seed are left out: luck would choose.

    Args:
        arms: figures by arm, of each task.
    """
    whole = [of_task for name, of_task in arms.items() if not TASKS[name].arms]
    named = set.intersection(*map(set, whole)) - {"unguarded", *COMPARED}
    keeps = [name for name in sorted(named) if all(_keeps(of_task[name]) for of_task in whole)]
    least = {name: min(of_task[name]["gain_share"]["mean"] for of_task in whole) for name in keeps}
    return max(least, key=lambda name: least[name]) if least else None


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean over run seeds, Student's 95 % interval (null of one), and all values."""
    mean = statistics.fmean(values)
    half = _half_interval(values) if len(values) > 1 else None
    return {
        "mean": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "all": list(values),
    }


def _half_interval(values: Sequence[float]) -> float:
    """Half of Student's 95 % interval of a mean; of two values at least."""
    deviation = statistics.stdev(values) / len(values) ** 0.5
    return float(scipy.stats.t.ppf(0.975, len(values) - 1)) * deviation


def summarise(courses: Courses) -> dict[str, Any]:
    """All figures of the runs that are there."""
    arms = {
        task: {
            arm: figures
            for arm in (*GUARDS, "early_stop")
            if (figures := arm_figures(courses, task, arm)) is not None
        }
        for task in TASKS
    }
    return alarm_figures(courses) | {"chosen": chosen_arm(arms), "arms": arms}


def _keeps(figures: Mapping[str, Any]) -> bool:
    far, grain = figures["distance_change"]["mean"], figures["grain_ratio"]["mean"]
    return far <= 0 and grain <= MOST_GRAIN and figures["gain_share"] is not None


def _gain(course: Course) -> float:
    return course.score[-1] - course.score[0]


def course_store(commit: str, earlier: Sequence[str] = ()) -> CurveStore[Course]:
    """The kept courses; arguments are `CurveStore`'s."""
    return CurveStore(
        "hacking", commit, lambda kept: Course(**{name: tuple(kept[name]) for name in kept}), tuple(earlier)
    )


def main() -> None:
    """Print one JSON line."""
    arguments, every, wanted = _asked()
    home, commit = Home.from_environment().ensure(), environment()["commit"]
    store = course_store(commit, commits_since(arguments.after))
    try:
        done = do_runs(home, store, wanted, arguments.processes)
        courses = store.load_all({want.key: want.name for want in every}) | done
    finally:
        if arguments.keep:
            store.keep()
    figures = {"runs": len(courses), "of_runs": len(every), **summarise(courses)}
    finish("hacking", figures, arguments.keep and len(courses) == len(every), began_at=commit)


def _asked() -> tuple[argparse.Namespace, list[Wanted], list[Wanted]]:
    """The command line, the runs of a whole benchmark, and those to do now."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, runs of four iterations")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="run seeds of each arm")
    parser.add_argument("--parts", nargs="+", default=[], help="do these only, such as glyphs-long")
    parser.add_argument(
        "--processes", type=int, default=2, help="runs at a time, a core each; 0: those that are kept"
    )
    add_after_option(parser)
    add_keep_option(parser)
    arguments = parser.parse_args()
    length, seeds = (QUICK, 1) if arguments.quick else (FULL, arguments.seeds)
    every = wanted_runs(seeds, length)
    if unknown := set(arguments.parts) - {want.part for want in every}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments, every, wanted_runs(seeds, length, arguments.parts)


if __name__ == "__main__":
    main()
