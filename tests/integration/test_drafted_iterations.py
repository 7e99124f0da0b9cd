"""An iteration of edits, of clips and of a guided model on local processes, alone and shared by two devices.

It is drafted, rolled out, trained on and judged; its samples are those that one worker makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.embedded_tasks.edits import edit_of
from gpu_runtime.exploration.plan import rollout_requests
from gpu_runtime.pretraining.flow_matching import RECIPES, pretrain
from gpu_runtime.rewards.edit_rules import edited_region
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.prompts.files import load_run_prompts
from storage.prompts.sources import read_source
from tests.shared_samples import NEAR

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("degree", [1, 2], ids=["alone", "shared"])]

SETTINGS = [
    "sampling.batch_size=4", "sampling.rollout_steps=4", "sampling.evaluate_steps=4",
    "sampling.window_size=2", "sampling.window_stop=3", "algorithm.prompts_per_iteration=4",
    "algorithm.group_size=4",
    "runtime.spot_workers=1", "runtime.scorer_workers=1", "runtime.cluster=local",
    "runtime.commit_steps=1", "exploration.strategy=fresh",
]  # fmt: skip


@contextmanager
def trained(preset: str, degree: int, *settings: str) -> Iterator[tuple[Runtime, Rollout]]:
    """Draft, roll out and train on the first iteration; each sample is shared by `degree` devices.

    Samples have the bits of one worker's if no devices share them. A batch of another width gives the same.
    """
    config = load_config(preset, [*SETTINGS, *settings, f"sequence_parallel.rollout={degree}"], {})
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        plan = runtime.explore(1)
        assert plan.candidates and all(candidate.error is None for candidate in plan.candidates)
        rolled = runtime.rollout(plan)
        worker = DeviceWorker(config, trains=False)
        worker.use_training_weights(WeightsVersion(0))
        prompts = {prompt.prompt_id: prompt for prompt in load_run_prompts(config)[0]}
        requests = rollout_requests(plan, prompts, config.seed, 0)
        found = {one.sample.request: one.sample.latents_SC for one in rolled.delivered}
        assert list(found) == requests
        for asked in (requests, requests[:2]):
            for request, sample in zip(asked, worker.generate(asked), strict=True):
                assert sample.request == request
                distance = np.abs(found[request] - sample.latents_SC).max()
                assert distance <= (NEAR if degree > 1 else 0.0)
        report = runtime.train(rolled, runtime.reward(rolled)).report
        assert report.ratio_deviation <= config.algorithm.ratio_tolerance
        yield runtime, rolled


def test_edits(degree: int):
    with trained("edits", degree) as (runtime, rolled):
        train, held_out = ({row.prompt_id: row for row in rows} for rows in load_run_prompts(runtime.config))
        for request in (one.sample.request for one in rolled.delivered):
            assert request.source == train[request.prompt_id].source
        evaluation = runtime.evaluate(runtime.evaluate_prompts[:8])
    assert len(evaluation.samples) == 8
    for sample, score, figures in zip(evaluation.samples, evaluation.scores, evaluation.figures, strict=True):
        assert score.error is None and score.judge is not None and score.judge.error is None
        assert {"truth_distance", "truth_drawn"} <= figures.keys()
        prompt = held_out[sample.request.prompt_id]
        changed_HW = (sample.image_HWC != read_source(prompt.source)).any(axis=-1)
        outside = changed_HW & ~edited_region(edit_of(prompt), changed_HW.shape)
        assert score.detail.endswith(f"; {outside.sum()} other pixels changed")
        assert not (score.exact and outside.any())


def test_clips(degree: int):
    drafts = ["exploration.drafts=0", "exploration.prompts=0", "exploration.candidates=6"]
    with trained("moving-shapes", degree, *drafts) as (runtime, rolled):
        assert {one.sample.image_HWC.shape for one in rolled.delivered} == {(8, 24, 24, 3)}
        evaluation = runtime.evaluate(runtime.evaluate_prompts[:8])
    assert len(evaluation.samples) == 16, "two clips of each prompt"
    for sample, score, figures in zip(evaluation.samples, evaluation.scores, evaluation.figures, strict=True):
        assert score.error is None and score.judge is not None and score.judge.error is None
        assert {"truth_distance", "truth_drawn"} <= figures.keys()
        assert sample.image_HWC.shape == (8, 24, 24, 3)


def test_a_guided_model(degree: int, tmp_path: Path):
    recipe = replace(RECIPES["glyphs-guided"], training_steps=3, layers=1, codec_images=64, batch_size=8)
    folder = pretrain("glyphs-guided", tmp_path, recipe=recipe).main_folder
    with trained("glyphs", degree, f"model.path={folder}", "model.guidance=3"):
        pass
