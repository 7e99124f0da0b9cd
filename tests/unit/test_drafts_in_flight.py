"""Drafts on one device: in chunks, in full or as previews, dropped at any time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.drafts_in_flight import DraftsInFlight
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.worker import DeviceWorker
from storage.config_loading import load_config
from storage.errors import RuntimeFailure
from tests.tiny_model import TinyModel
from tests.tiny_run import request, tiny_config

MODEL = TinyModel()
REQUESTS = [request(prompt, seed, RequestKind.EXPLORE) for prompt in range(3) for seed in range(2)]


@pytest.fixture
def sampler():
    return Sampler(MODEL, tiny_config().sampling)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9])
def test_a_full_draft_in_chunks_is_the_rollout_of_the_same_seed(sampler, steps):
    drafts = DraftsInFlight(sampler)
    drafts.begin(REQUESTS, None)
    images, chunks = drafts.advance(steps), 1
    while images is None:
        images, chunks = drafts.advance(steps), chunks + 1
    assert chunks == -(-4 // steps)
    rolled = sampler.generate([request(r.prompt_id, r.seed_index) for r in REQUESTS])
    assert [image.request for image in images] == REQUESTS
    for image, sample in zip(images, rolled, strict=True):
        assert np.array_equal(image.image_HWC, sample.image_HWC)


@pytest.mark.parametrize("until", [1, 2, 3])
def test_a_preview_decodes_what_the_model_predicts(sampler, until):
    drafts = DraftsInFlight(sampler)
    drafts.begin(REQUESTS[:4], until)
    images = None
    for _ in range(until):
        assert images is None
        images = drafts.advance(1)
    assert images is not None
    states = sampler.advance(sampler.begin(REQUESTS[:4]), until)
    latents = torch.from_numpy(np.stack([state.latents_SC for state in states]))
    sigma = 1 - until / 4
    with torch.no_grad():
        conditioning = MODEL.encode_prompts([r.prompt for r in REQUESTS[:4]])
        velocity = MODEL.velocity(latents, torch.full((4,), sigma), conditioning)
        expected = MODEL.decode(latents - sigma * velocity).numpy()
    assert np.array_equal(np.stack([image.image_HWC for image in images]), expected)


def test_a_preview_does_not_depend_on_its_neighbours(sampler):
    together = sampler.preview(sampler.advance(sampler.begin(REQUESTS), 2))
    for place, wanted in enumerate(REQUESTS):
        (alone,) = sampler.preview(sampler.advance(sampler.begin([wanted]), 2))
        assert np.array_equal(alone.image_HWC, together[place].image_HWC)


def test_a_finished_sample_has_nothing_to_predict(sampler):
    with pytest.raises(ValueError, match=r"finish\(\) decodes it"):
        sampler.preview(sampler.advance(sampler.begin(REQUESTS)))


def test_drafts_begun_later_or_dropped_leave_nothing_behind(sampler):
    drafts = DraftsInFlight(sampler)
    drafts.begin(REQUESTS, None)
    drafts.advance(1)
    drafts.begin(REQUESTS[:1], 1)
    assert len(drafts.advance(1) or []) == 1
    with pytest.raises(RuntimeFailure, match="begin_drafts"):
        drafts.advance(1)
    drafts.begin(REQUESTS, None)
    drafts.drop()
    with pytest.raises(RuntimeFailure, match="no draft is in flight"):
        drafts.advance(1)


def test_a_worker_drafts_with_the_weights_it_is_asked_for_only():
    worker = DeviceWorker(load_config("smoke", ["sampling.batch_size=4"], {}), trains=False)
    worker.own_weights("v0")
    with pytest.raises(RuntimeFailure, match="holds weights 'v0', but 'v1' are asked for"):
        worker.begin_drafts("v1", REQUESTS, None, 1)
    chunk = worker.begin_drafts("v0", [request(0, 0, RequestKind.EXPLORE)], None, 1)
    assert chunk.images is None and chunk.notice is None
    # Half of a draft with other weights would be nobody's.
    worker.load_weights("v1", worker.weights())
    with pytest.raises(RuntimeFailure, match="no draft is in flight"):
        worker.advance_drafts(1)
