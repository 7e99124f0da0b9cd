"""One learning curve: the runtime of `spotlight train` in one process, without Prefect and a database.

All that decides and computes is the run's own (`gpu_runtime.runtime.Runtime`): scheduling, exploration, the
monitor of staleness, training, evaluation. Its devices take turns in this process
(`in_process_cluster.py`), so drafts are made in turn with the training that they would run beside;
their number is set (`exploration.drafts`) and `exploration.stop_with_training` is off, so that no number
depends on how long anything takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.exploration.in_process_cluster import SCORE, TRAIN, InProcessCluster
from gpu_runtime.exploration.measured_iterations import IterationTimes
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.strategies.strategy import TrainingEvidence
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.requests import RequestKind
from storage.config.run_config import RunConfig
from storage.prompts.files import draw_subset

_ROLLOUT, _DRAFT = RequestKind.ROLLOUT.value, RequestKind.EXPLORE.value
KINDS = (_ROLLOUT, _DRAFT, SCORE, TRAIN)
"""The parts of an iteration whose seconds are noted."""


@dataclass
class Curve:
    """What a run leaves.

    Attributes:
        iterations, score, exact: held-out evaluations and the iterations that they follow.
        distance, grain: means of `truth_distance` and `grain` there; none of them is rewarded.
        rollouts, drafts: generated, drafted (the monitor's included), one entry an iteration.
        seconds, samples: by kind of work, of all iterations: of one core, and how many samples they were for.
        driver_s: the driver's own seconds of one core, planning included, one entry an iteration.
        beside_s: of these, those of drafting beside training, in iterations that have it; curves of before
            it was noted have none.
        spread: mean variance of what is learned from in a prompt group, one entry an iteration.
        dropped: groups without gradient.
        trained: samples trained on, one entry an iteration; curves of before it was noted have none.
        spearman: of stale drafts with fresh scores, where the monitor has looked.
        notes: what the strategy says of itself, such as that it gave up training on its drafts.
    """

    iterations: list[int] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    exact: list[float] = field(default_factory=list)
    distance: list[float] = field(default_factory=list)
    grain: list[float] = field(default_factory=list)
    rollouts: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    samples: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    driver_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    spearman: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def gains(self, measure: str) -> list[float]:
        """Return what each evaluation gains over the untouched model, in `score` or `exact`."""
        values: list[float] = getattr(self, measure)
        return [value - values[0] for value in values]


def measure_of(config: RunConfig) -> str:
    """Return what a run is judged by, which is what it learns from: `score` or `exact`."""
    return "score" if config.reward.signal == "graded" else "exact"


def make_curve(
    config: RunConfig, iterations: int, every: int, at_end: Callable[[Runtime], None] = lambda runtime: None
) -> Curve:
    """Do a run.

    Args:
        config: of the run; how many drafts it makes is set, and they do not stop with training.
        iterations: how many.
        every: iterations between evaluations; the untouched model is evaluated, too.
        at_end: is given the runtime after the last iteration.
    """
    cluster = InProcessCluster()
    with Runtime(config, cluster) as runtime:
        loop, plan = _Loop(runtime, cluster), None
        loop.evaluate(0)
        for iteration in range(1, iterations + 1):
            plan = loop.iterate(iteration, plan, last=iteration == iterations)
            if iteration % every == 0:
                loop.evaluate(iteration)
        at_end(runtime)
    return loop.curve


class _Loop:
    """The order of phases of `flows/post_train.py`, one after another.

    Attributes:
        curve: as far as the run is.
    """

    def __init__(self, runtime: Runtime, cluster: InProcessCluster) -> None:
        self._runtime, self._times = runtime, cluster.times
        self._held_out: dict[int, Mapping[int, float]] = {}
        self.curve = Curve()

    def iterate(self, iteration: int, plan: SeedPlan | None, last: bool) -> SeedPlan | None:
        """An iteration; the plan of the next one, where that is made beside it."""
        runtime, times, curve = self._runtime, self._times, self.curve
        seconds, samples = dict(times.seconds), dict(times.samples)
        began_s, worked_s = time.thread_time(), times.devices_s
        if plan is None:
            plan = runtime.explore(iteration)
        elif plan.refused:
            plan = runtime.explore_anew(plan)
        ahead = None if last else runtime.ahead(iteration + 1)
        before_rollout, rolling_since_s = dict(times.seconds), time.thread_time()
        rolled = runtime.rollout(plan, ahead)
        scores = runtime.reward(rolled)
        following = None
        if ahead is not None:
            exploring_since_s, worked_before_s = time.thread_time(), times.devices_s
            following = runtime.explore(iteration + 1, ahead)
            took_s, devices_s = time.thread_time() - exploring_since_s, times.devices_s - worked_before_s
            curve.beside_s.append(took_s - devices_s)
        trained = runtime.train(rolled, scores)
        took = {kind: times.seconds[kind] - before_rollout.get(kind, 0.0) for kind in KINDS}
        in_turn = IterationTimes(
            rollout_s=took[_ROLLOUT],
            judging_s=took[SCORE],
            train_s=took[TRAIN],
            draft_wait_s=took[_DRAFT],  # as devices take turns, drafts are not beside the training
            whole_s=time.thread_time() - rolling_since_s,
            trained=trained.samples,
            rollers=1,
        )
        evidence = TrainingEvidence(trained.report.off_policy, lambda: self._held_out, in_turn)
        review = runtime.review(rolled, scores, following, evidence)
        curve.trained.append(trained.samples)
        passed_s, devices_s = time.thread_time() - began_s, times.devices_s - worked_s
        curve.driver_s.append(passed_s - devices_s)
        made = {kind: times.samples[kind] - samples.get(kind, 0) for kind in KINDS}
        for kind in KINDS:
            curve.seconds[kind] += times.seconds[kind] - seconds.get(kind, 0.0)
            curve.samples[kind] += made[kind]
        curve.rollouts.append(made[_ROLLOUT])
        curve.drafts.append(made[_DRAFT])
        curve.spread.append(review.figures["spread_rollout"])
        curve.dropped.append(trained.advantages.dropped)
        if "spearman" in review.figures:
            curve.spearman.append(review.figures["spearman"])
        curve.notes += [message for _, message in review.notes]
        return review.next_plan

    def evaluate(self, iteration: int) -> None:
        runtime = self._runtime
        held_out = draw_subset(runtime.evaluate_prompts, runtime.config.evaluation.prompts)
        evaluation = runtime.evaluate(held_out)
        self._held_out[iteration] = mean_by_prompt(evaluation)
        self.curve.iterations.append(iteration)
        self.curve.score.append(evaluation.score)
        self.curve.exact.append(evaluation.exact)
        for name, values in (("truth_distance", self.curve.distance), ("grain", self.curve.grain)):
            values.append(statistics.fmean(figures[name] for figures in evaluation.figures))


def mean_by_prompt(evaluation: Evaluation) -> dict[int, float]:
    """Mean score of each held-out prompt, of the images that were judged."""
    scores: dict[int, list[float]] = {}
    for sample, score in zip(evaluation.samples, evaluation.scores, strict=True):
        if score.error is None:
            scores.setdefault(sample.request.prompt_id, []).append(score.value)
    return {prompt: statistics.fmean(values) for prompt, values in scores.items()}
