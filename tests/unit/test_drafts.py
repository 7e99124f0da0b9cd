"""Drafts on one device: in chunks, in full or as previews, dropped at any time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedImage, GeneratedSample
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import RuntimeFailure
from tests.tiny_model import TinyModel
from tests.tiny_run import request, tiny_config

MODEL = TinyModel()
REQUESTS = [request(prompt, seed, RequestKind.EXPLORE) for prompt in range(3) for seed in range(2)]


def previews(step: int) -> list[SampleRequest]:
    return [replace(one, preview_step=step) for one in REQUESTS]


@pytest.fixture
def sampler():
    return Sampler(MODEL, tiny_config().sampling)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9])
def test_a_full_draft_in_chunks_is_the_rollout_of_the_same_seed(sampler, steps):
    drafts = SamplesInFlight(sampler)
    drafts.begin(7, REQUESTS)
    images, chunks = drafts.advance(7, steps).samples, 1
    while not images:
        images, chunks = drafts.advance(7, steps).samples, chunks + 1
    assert chunks == -(-4 // steps)
    rolled = sampler.generate([request(r.prompt_id, r.seed_index) for r in REQUESTS])
    assert [image.request for image in images] == REQUESTS
    for image, sample in zip(images, rolled, strict=True):
        assert np.array_equal(image.image_HWC, sample.image_HWC)
        assert isinstance(image, GeneratedImage) and not isinstance(image, GeneratedSample)


@pytest.mark.parametrize("until", [1, 2, 3])
def test_a_preview_decodes_what_the_model_predicts(sampler, until):
    wanted = previews(until)[:4]
    drafts = SamplesInFlight(sampler)
    drafts.begin(1, wanted)
    images: tuple[GeneratedImage, ...] = ()
    for _ in range(until):
        assert images == ()
        images = drafts.advance(1, 1).samples
    states = sampler.advance(sampler.begin(REQUESTS[:4]), until)
    latents = torch.from_numpy(np.stack([state.latents_SC for state in states]))
    sigma = 1 - until / 4
    with torch.no_grad():
        conditioning = MODEL.encode_prompts([r.prompt for r in REQUESTS[:4]])
        velocity = MODEL.velocity(latents, torch.full((4,), sigma), conditioning)
        expected = MODEL.decode(latents - sigma * velocity).numpy()
    assert np.array_equal(np.stack([image.image_HWC for image in images]), expected)


def test_a_preview_does_not_depend_on_its_neighbours(sampler):
    together = sampler.generate(previews(2))
    for place, wanted in enumerate(previews(2)):
        (alone,) = sampler.generate([wanted])
        assert np.array_equal(alone.image_HWC, together[place].image_HWC)


def test_previews_and_full_drafts_advance_side_by_side_and_are_decoded_apart(sampler):
    states = sampler.advance(sampler.begin([*REQUESTS[:3], *previews(2)[:3]]))
    assert [state.step for state in states] == [4, 4, 4, 2, 2, 2]
    with pytest.raises(ValueError, match="decoded apart"):
        sampler.finish(states)
    apart = sampler.finish(states[:3]) + sampler.finish(states[3:])
    expected = sampler.generate(REQUESTS[:3]) + sampler.generate(previews(2)[:3])
    assert all(np.array_equal(a.image_HWC, b.image_HWC) for a, b in zip(apart, expected, strict=True))


ODE = tiny_config(sampling={"sde": "none"}).sampling


def by_euler(steps: int) -> np.ndarray:
    """Images of the ODE in so many steps from the seeds' initial noise, computed here."""
    latents = torch.from_numpy(np.stack([s.latents_SC for s in Sampler(MODEL, ODE).begin(REQUESTS[:4])]))
    sigmas = MODEL.sigmas(steps)
    with torch.no_grad():
        conditioning = MODEL.encode_prompts([one.prompt for one in REQUESTS[:4]])
        for sigma, after in pairwise(sigmas):
            velocity = MODEL.velocity(latents, torch.full((4,), float(sigma)), conditioning)
            latents = latents + (after - sigma) * velocity
        return MODEL.decode(latents).numpy()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_draft_in_fewer_denoising_steps_starts_from_the_same_noise(steps):
    wanted = [replace(one, schedule_steps=steps) for one in REQUESTS[:4]]
    drafts = SamplesInFlight(Sampler(MODEL, ODE))
    drafts.begin(1, wanted)
    images: tuple[GeneratedImage, ...] = ()
    for _ in range(steps):
        assert images == ()
        images = drafts.advance(1, 1).samples
    assert [image.request for image in images] == wanted
    found = np.stack([image.image_HWC for image in images]).astype(int)
    assert abs(found - by_euler(steps).astype(int)).max() <= 1, "the sum is written in another order"


def test_a_rollout_without_noise_follows_the_ode_and_keeps_one_step_to_check_the_weights_with():
    samples = Sampler(MODEL, ODE).generate([request(r.prompt_id, r.seed_index) for r in REQUESTS[:4]])
    found = np.stack([sample.image_HWC for sample in samples]).astype(int)
    assert abs(found - by_euler(4).astype(int)).max() <= 1
    for sample in samples:
        assert len(sample.trajectory.step_W) == 1
        assert sample.trajectory.log_prob_W.tolist() == [0.0]


def test_drafts_of_several_schedules_advance_side_by_side():
    sampler = Sampler(MODEL, ODE)
    mixed = [*REQUESTS[:2], *(replace(one, schedule_steps=2) for one in REQUESTS[:2]), *previews(2)[:2]]
    together = sampler.advance(sampler.begin(mixed))
    assert [state.step for state in together] == [4, 4, 2, 2, 2, 2]
    for state in together:
        (alone,) = sampler.advance(sampler.begin([state.request]))
        assert np.array_equal(state.latents_SC, alone.latents_SC), state.request


def test_a_preview_is_not_decoded_before_its_step(sampler):
    with pytest.raises(ValueError, match="denoising step 1 of 2"):
        sampler.finish(sampler.advance(sampler.begin(previews(2)), 1))


def test_all_members_compute_a_preview_and_the_leader_alone_sends_it(sampler):
    """The prediction takes the model, and with it all that share the sequence."""

    class SharedGroup:
        leads = False

        def any_true(self, said: bool) -> bool:
            return said

    counted = 0
    velocity = MODEL.velocity

    def count(*args):
        nonlocal counted
        counted += 1
        return velocity(*args)

    drafts = SamplesInFlight(sampler)
    drafts.sp_group = SharedGroup()  # type: ignore[assignment]
    sampler._model.velocity = count
    try:
        drafts.begin(1, previews(2)[:4])
        assert drafts.advance(1, 2).samples == ()
    finally:
        del sampler._model.velocity
    assert counted == 3


def test_drafts_begun_later_or_dropped_leave_nothing_behind(sampler):
    drafts = SamplesInFlight(sampler)
    drafts.begin(1, REQUESTS)
    drafts.advance(1, 1)
    drafts.begin(2, previews(1)[:1])
    assert len(drafts.advance(2, 1).samples) == 1
    drafts.begin(3, REQUESTS)
    drafts.drop()
    for lease in (1, 2, 3):
        with pytest.raises(RuntimeFailure, match=f"no samples of lease {lease} are in flight"):
            drafts.advance(lease, 1)


def test_a_worker_drafts_with_the_weights_it_is_asked_for_only():
    worker = DeviceWorker(load_config("smoke", ["sampling.batch_size=4"], {}), trains=False)
    worker.use_training_weights(WeightsVersion(0))
    with pytest.raises(RuntimeFailure, match="holds weights v0, but v1 are asked for"):
        worker.begin_samples(WeightsVersion(1), 1, REQUESTS, 1)
    chunk = worker.begin_samples(WeightsVersion(0), 1, [request(0, 0, RequestKind.EXPLORE)], 1)
    assert chunk.samples == () and chunk.states and chunk.notice is None
    # Half of a draft with other weights would be of no use.
    worker.load_weights(WeightsVersion(1), worker.weights())
    with pytest.raises(RuntimeFailure, match="no samples of lease 1 are in flight"):
        worker.advance_samples(1, 1)
