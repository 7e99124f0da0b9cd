"""Images that the scorer failed on: not trained on, in no mean, counted and told."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from flows.progress import Reporter
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.exploration.plan import SeedPlan, seed_figures
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.fleet.seed_search import SeedReview
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.runtime import Rollout, Trained
from gpu_runtime.scheduling.pull_scheduler import Counters
from gpu_runtime.scheduling.scores import Score
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RewardError
from storage.evaluations.figures import figures_of
from storage.evaluations.separate import SeparateEvaluation, difference_of
from storage.home import Home
from storage.record.records import Collected, JudgedImage
from storage.record.results import run_result
from storage.record.run_store import RunStore
from tasks.iteration.phases import iteration_record
from tests.sample_run import evaluation_record
from tests.sample_run import iteration_record as sample_iteration
from tests.tiny_run import TinyRun, request, tiny_config

FAILED = Score(0.0, False, "", error="OSError: gone")


def score(value: float) -> Score:
    return Score(value, value == 1, "read it")


def samples(prompts: int = 3, group: int = 2) -> list[GeneratedSample]:
    run = TinyRun(tiny_config())
    return run.sampler.generate([request(prompt, seed) for prompt in range(prompts) for seed in range(group)])


SAMPLES = samples()
SCORES = [score(1.0), score(0.0), FAILED, score(1.0), score(0.5), score(1.0)]


@pytest.mark.parametrize("std", ["group", "batch", "none"])
def test_a_group_with_a_failed_image_is_dropped_whole_and_the_others_are_as_without_it(std: Any):
    config = tiny_config(algorithm={"advantage_std": std})
    advantages, kept = training_samples(SAMPLES, SCORES, config.algorithm, "graded")
    without = training_samples(
        [*SAMPLES[:2], *SAMPLES[4:]], [*SCORES[:2], *SCORES[4:]], config.algorithm, "graded"
    )
    assert [(sample.request.prompt_id, sample.request.seed_index) for sample in kept] == [
        (0, 0), (0, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert [sample.advantage for sample in kept] == [sample.advantage for sample in without[1]]
    assert np.array_equal(advantages.value_PG[[0, 2]], without[0].value_PG)
    assert advantages.value_PG[1].tolist() == [0.0, 0.0]
    assert (advantages.kept_P.tolist(), advantages.failed, advantages.dropped) == ([True, False, True], 1, 0)


def test_groups_without_variance_and_failed_ones_are_counted_apart():
    scores = [score(1.0), score(1.0), FAILED, score(1.0), score(0.5), score(1.0)]
    advantages, kept = training_samples(SAMPLES, scores, tiny_config().algorithm, "graded")
    assert (advantages.dropped, advantages.failed, len(kept)) == (1, 1, 2)
    config = tiny_config(algorithm={"zero_variance_groups": "train"})
    advantages, kept = training_samples(SAMPLES, scores, config.algorithm, "graded")
    assert (advantages.dropped, advantages.failed, len(kept)) == (0, 1, 4)
    assert [sample.advantage for sample in kept[:2]] == [0.0, 0.0]


def test_a_failed_image_is_no_zero():
    """The weights after training are those of a run without the group, not those of a reward of 0."""
    weights: list[dict[str, np.ndarray]] = []
    for scores in (SCORES, [*SCORES[:2], score(0.0), *SCORES[3:]]):
        run = TinyRun(tiny_config())
        run.trainer.train(training_samples(SAMPLES, scores, run.config.algorithm, "graded")[1])
        weights.append(run.policy.state())
    assert any(not np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_where_every_group_has_a_failed_image_the_run_ends():
    scores = [FAILED, score(1.0)] * 3
    with pytest.raises(
        RewardError, match=r"failed on 3 of 6 images, at least one in each of the 3 prompt .*gone"
    ):
        training_samples(SAMPLES, scores, tiny_config().algorithm, "graded")


def record_of(scores: list[Score], pair_accuracy: float = 0.0) -> Any:
    """The record of an iteration with these scores."""
    config = tiny_config()
    advantages, _ = training_samples(SAMPLES, scores, config.algorithm, "graded")
    plan = SeedPlan(1, {0: (0, 1), 1: (0, 1), 2: (0, 1)})
    rolled = Rollout(plan, 0, [Delivered(sample, "spot-0") for sample in SAMPLES])
    explorer = SimpleNamespace(state=dict)
    runtime = SimpleNamespace(counters=Counters(), train_prompts=[], explorer=explorer)
    session: Any = SimpleNamespace(run_id="r", config=config, runtime=runtime, take_seconds=dict)
    trained = Trained(TrainingReport(1, 0.0, 0.0, 0.0, 0.1, 0.0, pair_accuracy=pair_accuracy), advantages, 1)
    return iteration_record(session, rolled, scores, trained, SeedReview(), 10.0, 11.0, Collected())


def test_an_iterations_record_counts_them_and_has_them_in_no_mean():
    record = record_of(SCORES)
    assert record.metrics["reward_mean"] == pytest.approx((1 + 0 + 1 + 0.5 + 1) / 5)
    assert record.metrics["exact_share"] == pytest.approx(3 / 5)
    assert (record.metrics["scorer_errors"], record.metrics["groups_failed"]) == (1, 1)
    assert record.metrics["iteration_s"] == 1.0 and "pair_margin" not in record.metrics
    assert (
        record_of(SCORES, pair_accuracy=0.5).metrics.items()
        >= {"pair_accuracy": 0.5, "pair_margin": 0.0}.items()
    )
    assert [row.advantage is None for row in record.samples] == [False, False, True, True, False, False]
    failed, other = record.samples[2:4]
    assert (failed.error, failed.seed_rank, other.seed_rank) == ("OSError: gone", 1, 0)
    assert [row.seed_rank for row in record.samples] == [0, 1, 1, 0, 1, 0]
    assert {(image.prompt_id, image.seed_index) for image in record.sample_images} >= {(0, 0), (0, 1), (1, 1)}
    assert (1, 0) not in {(image.prompt_id, image.seed_index) for image in record.sample_images}


def test_means_and_spreads_are_of_what_was_judged():
    plan = SeedPlan(1, {0: (0, 1), 1: (0, 1)})
    signal = {(0, 0): 1.0, (0, 1): 0.0, (1, 1): 1.0}
    assert seed_figures(plan, signal, signal)["spread_rollout"] == pytest.approx(0.25)
    assert "spread_rollout" not in seed_figures(plan, {(0, 0): 1.0}, {(0, 0): 1.0})
    evaluation = Evaluation(SAMPLES[:3], [score(1.0), FAILED, score(0.5)], 0, [{}] * 3)
    assert (evaluation.score, evaluation.exact) == (pytest.approx(0.75), pytest.approx(0.5))


def image(prompt: int, seed: int, value: float, error: str | None = None) -> JudgedImage:
    return JudgedImage(prompt, seed, f"prompt {prompt}", "", value, value == 1, "", error)


def test_figures_and_differences_leave_failed_images_out():
    images = [image(0, 0, 1.0), image(0, 1, 0.0, "gone"), image(1, 0, 0.5), image(2, 0, 0.0, "gone")]
    found = figures_of(images)
    assert (found["prompts"], found["score"], found["scorer_errors"]) == (2, pytest.approx(0.75), 2)
    config = RunConfig().model_dump(mode="json")
    row = SeparateEvaluation("e", None, 0, 0, 0.0, 1.0, 0.5, 0.5, 4, None, config, {})
    later = [image(0, 0, 0.5), image(0, 1, 1.0), image(1, 0, 0.5, "gone"), image(2, 0, 1.0)]
    difference = difference_of((row, images), (row, later))
    assert (difference["pairs"], difference["score"]) == (1, pytest.approx(-0.5))


def test_scores_by_other_frames_do_not_compare():
    def row(frames: str) -> SeparateEvaluation:
        config = load_config("glyphs", [f"reward.frames={frames}"], {}).model_dump(mode="json")
        return SeparateEvaluation("e", None, 0, 0, 0.0, 1.0, 0.5, 0.5, 4, None, config, {})

    images = [image(0, 0, 1.0)]
    assert difference_of((row("4"), images), (row("4"), images))["pairs"] == 1
    with pytest.raises(ConfigurationError, match=r"reward\.frames\); their scores are not comparable"):
        difference_of((row("4"), images), (row("all"), images))


@pytest.mark.parametrize("steps", [0.0, 2.0])
def test_a_run_that_trained_nothing_says_so(tmp_path: Path, steps: float):
    store, screen = RunStore(Home(tmp_path)), io.StringIO()
    store.create_run("r", RunConfig(), {}, 1)
    for iteration, trained in ((1, 0.0), (2, steps)):
        record = sample_iteration("r", iteration, float(iteration))
        record.metrics.update(groups=4.0, groups_dropped=4.0 - trained, training_steps=trained)
        store.commit_iteration(record)
    result = run_result(store, "r")
    assert (result["groups_dropped"], result["training_steps"]) == (8 - steps, steps)
    Reporter(Console(file=screen, width=200)).result(result)
    nothing = "no weight changed: 8 prompt groups had equal scores; check the reward"
    assert (nothing in screen.getvalue()) == (not steps)


def test_the_result_and_the_terminal_tell(tmp_path: Path):
    store, screen = RunStore(Home(tmp_path)), io.StringIO()
    reporter = Reporter(Console(file=screen, width=200))
    store.create_run("r", RunConfig(), {}, 1)
    for iteration, failed in ((1, 0.0), (2, 3.0)):
        record = sample_iteration("r", iteration, float(iteration))
        record.metrics.update(scorer_errors=failed + 1, groups_failed=failed)
        store.commit_iteration(record)
        reporter.iteration(record)
    evaluation = evaluation_record("r", 2, 3.0, images=8, gallery=0)
    evaluation.images[5] = type(evaluation.images[5])(**{**vars(evaluation.images[5]), "error": "gone"})
    store.commit_evaluation(evaluation)
    reporter.evaluation(evaluation, 2)
    result = run_result(store, "r")
    assert (result["scorer_errors"], result["groups_failed"]) == (1 + 4 + 1, 3)
    first, second, held_out = screen.getvalue().splitlines()
    assert "not scored" not in first
    assert ", 3 not scored" in second
    assert "over the 2 prompts of each evaluation (8 images, the scorer failed on 1 of them)" in held_out
