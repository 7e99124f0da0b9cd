"""Held-out images of another size than those that are trained on: same weights, own noise and schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.exploration.in_process_cluster import InProcessCluster
from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.models.loading import evaluated, load_model, outline_model
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from tests.pipeline_reference import EXACT, difference, family_config, own_pipeline, run_pipeline, run_sampler
from tests.tiny_pipelines import SIDE, Saved

LARGE, TWICE = "evaluation.size=96x64", f"{2 * SIDE}x{2 * SIDE}"
"""Twice the sides of the embedded model's images, and of the families'."""


def config_of(*settings: str) -> RunConfig:
    return load_config("smoke", [LARGE, *settings], {})


def test_rollouts_keep_their_bits_and_held_out_images_are_those_of_the_larger_model():
    config, model = config_of(), EmbeddedModel.load("embedded:glyphs")
    larger = evaluated(model, config.model, config.evaluated_model)
    assert (model.latent_shape, larger.latent_shape) == ((24, 32), (96, 32))
    assert larger.transformer is model.transformer
    rollout = SampleRequest(RequestKind.ROLLOUT, 0, 1, 0, 0, 0, 'a red sign "AB"')
    held_out = replace(rollout, kind=RequestKind.EVALUATE)
    both, sampling = Sampler(model, config.sampling, larger), config.sampling
    for request, alone in ((rollout, Sampler(model, sampling)), (held_out, Sampler(larger, sampling))):
        (found,), (expected,) = both.generate([request]), alone.generate([request])
        assert np.array_equal(found.latents_SC, expected.latents_SC)
        assert np.array_equal(found.image_HWC, expected.image_HWC)
    assert both.generate([held_out])[0].image_HWC.shape == (64, 96, 3)
    same = load_config("smoke", [], {})
    assert evaluated(model, same.model, same.evaluated_model) is model


def test_a_run_trains_on_small_images_and_is_evaluated_by_large_ones():
    settings = ("evaluation.prompts=2", "runtime.reserved_workers=1", "runtime.spot_workers=0")
    with Runtime(config_of(*settings), InProcessCluster()) as runtime:
        rolled = runtime.rollout(runtime.explore(1))
        report = runtime.train(rolled, runtime.reward(rolled)).report
        found = runtime.evaluate(runtime.evaluate_prompts[:2])
    assert {one.sample.image_HWC.shape for one in rolled.delivered} == {(32, 48, 3)}
    assert {sample.image_HWC.shape for sample in found.samples} == {(64, 96, 3)}
    assert report.training_steps == 1 and report.ratio_deviation == 0


@pytest.mark.parametrize("family", ["qwen-image", "flux", "sd3.5"])
def test_a_family_samples_at_the_other_size_as_its_own_pipeline_does(saved: Saved, family: str):
    folder = saved(family)
    config = family_config(family, folder, evaluation={"size": TWICE})
    large = family_config(family, folder, model={"height": 2 * SIDE, "width": 2 * SIDE})
    model = load_model(config.model)
    assert config.evaluated_model == large.model
    larger = evaluated(model, config.model, config.evaluated_model)
    expected = run_pipeline(own_pipeline(family, folder), large, larger.latent_shape)
    assert difference(run_sampler(larger, large), expected) <= EXACT
    # Its positions and its schedule are those of the longer sequence, but not those of the model itself.
    assert larger.sequence_lengths()[0] == 4 * model.sequence_lengths()[0]
    if family != "sd3.5":
        assert not np.array_equal(larger.sigmas(4), model.sigmas(4))


def test_a_larger_size_needs_more_memory_to_generate_and_none_to_train(saved: Saved):
    folder = saved("flux")
    small, both = family_config("flux", folder), family_config("flux", folder, evaluation={"size": TWICE})
    outline: Any = outline_model(small.model)
    alone, found = (outline.work_of(config, keeps_reference=False) for config in (small, both))
    assert found.generating_bytes == 4 * alone.generating_bytes
    assert replace(found, generating_bytes=0) == replace(alone, generating_bytes=0)
    odd = family_config("flux", folder, evaluation={"size": f"{SIDE}x{SIDE + 1}"})
    with pytest.raises(ConfigurationError, match=f"height is {SIDE + 1}; this model's sides"):
        outline_model(odd.evaluated_model)


def test_what_cannot_be_evaluated_is_refused():
    with pytest.raises(ConfigurationError, match="96 x 60 pixels were requested; this model's sides must be"):
        outline_model(config_of("evaluation.size=96x60").evaluated_model)
    with pytest.raises(ConfigurationError, match="which share sequences of one length; leave it"):
        config_of("sequence_parallel.rollout=2", "runtime.spot_workers=3")
