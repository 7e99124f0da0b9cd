"""Pairs of pictures of a prompt file through the whole runtime: encoded, learned from, resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.exploration.in_process_cluster import InProcessCluster
from gpu_runtime.dispatch.given_pairs import GIVEN
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.runtime import Rollout, Runtime
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import PromptFileError
from storage.prompts.files import load_run_prompts
from tasks.checks.preflight import check
from tasks.checks.quick_checks import check_inputs, first_judged
from tests.given_pairs import pairs_file

SETTINGS = [
    "algorithm.objective=dpo", "algorithm.group_size=2", "algorithm.prompts_per_iteration=6",
    "algorithm.options.beta=10", "exploration.strategy=plain", "optimizer.learning_rate=3e-4",
    "runtime.cluster=local", "runtime.reserved_workers=1", "runtime.spot_workers=0",
]  # fmt: skip


def config_of(file: Path, *settings: str) -> RunConfig:
    return load_config("smoke", [*SETTINGS, f"prompts.train={file}", *settings], {})


def iterate(runtime: Runtime, iteration: int) -> tuple[Rollout, TrainingReport]:
    rolled = runtime.rollout(runtime.explore(iteration))
    return rolled, runtime.train(rolled, runtime.reward(rolled)).report


def test_a_model_learns_to_tell_pairs_apart_and_rolls_nothing_out(tmp_path: Path):
    config, cluster = config_of(pairs_file(tmp_path, 6)), InProcessCluster()
    assert len(check_inputs(config).train) == 6
    with Runtime(config, cluster) as runtime:
        done = [iterate(runtime, iteration) for iteration in range(1, 7)]
        assert runtime.policy_version == 6
    assert cluster.times.samples["rollout"] == cluster.times.samples["score"] == 0
    reports = [report for _, report in done]
    # It begins as the reference, which prefers no picture to itself.
    assert (reports[0].pair_accuracy, reports[0].pair_margin) == (0.5, 0)
    margins, losses = ([getattr(report, name) for report in reports] for name in ("pair_margin", "loss"))
    assert margins == sorted(margins) and losses == sorted(losses, reverse=True)
    assert reports[-1].pair_accuracy > 0.8
    rolled = done[0][0]
    scores = [one.score.result() for one in rolled.delivered if one.score is not None]
    assert [(one.worker, score.value) for one, score in zip(rolled.delivered, scores, strict=True)] == [
        (GIVEN, 1.0), (GIVEN, 0.0),
    ] * 6  # fmt: skip
    model = EmbeddedModel.load("embedded:glyphs")
    for one in rolled.delivered:
        latents_SC = model.encode_images([one.sample.image_HWC])[0].numpy()
        assert np.array_equal(one.sample.latents_SC, latents_SC)


def test_the_scorer_of_held_out_images_need_not_be_able_to_judge_by_the_prompts_of_pairs(tmp_path: Path):
    """`ocr` wants a text in quotes, and it judges no image of a pair."""
    file = pairs_file(tmp_path, 6)
    rows = [json.loads(row) | {"prompt": "a red fox"} for row in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = config_of(file)
    check(config)
    train, evaluate = load_run_prompts(config)
    assert first_judged(train, evaluate) == evaluate[0]
    rows[1] = {"prompt": "a red fox"}
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(PromptFileError, match=r"prompt number 2.* has no text in double quotes"):
        check(config)


def test_pairs_among_held_out_prompts_are_told_of(tmp_path: Path):
    file = pairs_file(tmp_path, 6, without=2)
    config = load_config("smoke", [f"prompts.evaluate={file}", "evaluation.prompts=6"], {})
    [warning] = [said for said in check_inputs(config).warnings if "pairs" in said]
    assert warning == (
        f"prompts.evaluate = {str(file)!r}: 4 of 6 rows are pairs of pictures, which evaluations do not use: "
        "they judge new images of the prompts"
    )
    assert not any("pairs" in said for said in check_inputs(config_of(file)).warnings)


def test_a_run_that_is_resumed_has_the_same_bits(tmp_path: Path):
    config = config_of(pairs_file(tmp_path, 8))
    with Runtime(config, InProcessCluster()) as runtime:
        iterate(runtime, 1)
        saved, state = runtime.blobs(2), runtime.explorer.state()
        iterate(runtime, 2)
        expected = runtime.blobs(3)
    with Runtime(config, InProcessCluster()) as again:
        again.restore(saved, 1, state)
        iterate(again, 2)
        assert again.blobs(3) == expected


def test_prompts_without_a_pair_are_rolled_out_beside_those_with_one(tmp_path: Path):
    cluster = InProcessCluster()
    with Runtime(config_of(pairs_file(tmp_path, 6, without=2)), cluster) as runtime:
        rolled, report = iterate(runtime, 1)
    drawn = {one.sample.request.prompt_id for one in rolled.delivered if one.worker != GIVEN}
    assert drawn == {0, 1}
    assert cluster.times.samples["rollout"] == cluster.times.samples["score"] == 4
    assert report.training_steps == 1 and report.ratio_deviation == 0


@pytest.mark.parametrize(
    "reward",
    [
        ["reward.signal=exact"],
        # A sum normalises each part in its group; a pair has no parts.
        [
            "reward.scorer=sum",
            "reward.options.parts={ocr = 0.5, jpeg = 0.5}",
            "reward.options.normalise=group",
        ],
    ],
    ids=["exact", "sum"],
)
def test_a_pair_counts_whatever_the_reward_is(tmp_path: Path, reward: list[str]):
    file = pairs_file(tmp_path, 6, without=1)
    with Runtime(config_of(file, *reward), InProcessCluster()) as runtime:
        rolled = runtime.rollout(runtime.explore(1))
        trained = runtime.train(rolled, runtime.reward(rolled))
    value_PG = trained.advantages.value_PG
    assert trained.advantages.kept_P[1:].all()
    assert np.allclose(value_PG[1:], [[1, -1]], atol=1e-2)
